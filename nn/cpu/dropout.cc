// Dropout (Srivastava et al. 2014), scaled in training so that evaluation leaves it out:  y = x / (1 - rate), or 0 with probability `rate`.
//
// The mask is keyed by (seed, layer, step, block, sample in the block, element); elements are numbered as if 16 channels lay together, so
// it depends on no node, lane or kernel set.  The backward pass draws it again.
#include "nn/cpu/build.h"
#include "nn/kernels.h"

namespace gradcast::cpu {

Status dropout(Build& b) {
    b.operations->unit = 1;
    const Layer& l = *b.layer;
    const FloatKernels& kernels = float_kernels(isa_best());
    uint64_t pixels = uint64_t{l.in.H} * l.in.W;
    dnnl_memory_desc_t plain = Build::plain({b.samples, l.in.C, 1, 1});
    bool flat = pixels == 1 && dnnl_memory_desc_equal(&b.activation.value.desc, &plain);   // in that order already
    uint32_t width = b.input_width();
    Activation x;
    std::vector<Operation> after;
    GC_TRY(b.in_place(flat ? plain : b.blocked(l.in, width), after, &x));
    b.activation = x;
    if (!b.training) return {};

    const DropoutShare share = dropout_share(l.value("rate"));
    uint64_t layer_seed = dropout_mixed(b.seed, b.number);
    // Two planes of 8 channels are numbered as the 16 channels that they are.
    uint32_t halves = !flat && width == 8 ? 2 : 1, planes = halves == 1 ? 1 : (l.in.C + 7) / 8;
    uint64_t plane = x.value.bytes() / sizeof(float) / b.samples / planes;
    auto run = [&kernels, layer_seed, share, halves, planes, plane, pixels](Frame& frame, const Tensor& tensor) {
        float* at = frame.at(tensor);
        DropoutKey key{.seed = dropout_mixed(layer_seed, frame.blocks[0].id.step),
                       .sample = 0,
                       .first = 0,
                       .stride = halves,
                       .drop = share.drop,
                       .scale = share.scale};
        for (const Block& block : frame.blocks)
            for (uint32_t n = 0; n < block.samples.count; ++n) {
                key.sample = uint64_t{block.id.block} << 32 | n;
                for (uint32_t p = 0; p < planes; ++p, at += plane) {
                    key.first = static_cast<uint32_t>(p / 2 * pixels * 2 + p % 2);
                    kernels.dropout(at, plane, key);
                }
            }
        return Status{};
    };
    b.operations->forward.emplace_back([run, x](Frame& frame) { return frame.training ? run(frame, x.value) : Status{}; });
    if (!x.learns) return {};
    b.operations->data.emplace_back([run, x](Frame& frame) { return run(frame, x.gradient); });
    b.operations->data.insert(b.operations->data.end(), after.begin(), after.end());
    return {};
}

}   // namespace gradcast::cpu
