#include "nn/graph/window.h"

namespace gradcast {

void window_of_keys(Layer& layer) {
    auto value = [&layer](const LayerKey& key) { return static_cast<uint32_t>(layer.value(key.name)); };
    layer.window = {.kernel = value(kernel_key), .stride = value(stride_key), .pad = value(pad_key)};
}

Status window_shape(Layer& layer) {
    const Window& window = layer.window;
    const std::string& name = layer.spec.name;
    if (window.kernel == 0 || window.stride == 0) return fail(Code::invalid, "layer {}: kernel and stride must be at least 1", name);
    const uint32_t span = window.span();
    const std::string kernel = fmt::format("{0}x{0}{1}", window.kernel,
                                           window.dilation > 1 ? fmt::format(" ({0}x{0} with dilation {1})", span, window.dilation) : "");
    if (window.pad >= span) return fail(Code::invalid, "layer {}: pad {} must be below its kernel {}", name, window.pad, kernel);
    const uint64_t H = uint64_t{layer.in.H} + 2 * uint64_t{window.pad}, W = uint64_t{layer.in.W} + 2 * uint64_t{window.pad};
    if (span > H || span > W)
        return fail(Code::invalid, "layer {}: kernel {} does not fit its input {}{}", name, kernel, shape_text(layer.in),
                    window.pad ? fmt::format(" with pad {}", window.pad) : "");
    auto windows = [&](uint64_t padded, uint32_t side) {
        const uint64_t count = (padded - span + (window.ceil ? window.stride - 1 : 0)) / window.stride + 1;
        // Rounded up, the last window must still begin inside, else it has padding alone.
        return static_cast<uint32_t>((count - 1) * window.stride >= uint64_t{side} + window.pad ? count - 1 : count);
    };
    layer.out = {layer.in.C, windows(H, layer.in.H), windows(W, layer.in.W)};
    return {};
}

}   // namespace gradcast
