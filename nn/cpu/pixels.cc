// The input of a net: bytes become floats, (x / 255 - mean) / std by channel, and get a margin of zeros.
#include <algorithm>

#include "nn/cpu/build.h"
#include "nn/kernels.h"

namespace gradcast::cpu {
namespace {

/// What turns a channel's bytes into floats.
struct Channel {
    float scale, shift;
    Channel(const Samples& samples, uint32_t c) : scale(1 / (255 * samples.std[c])), shift(-samples.mean[c] / samples.std[c]) {}
};

}   // namespace

Activation pixels(Build& b, const NetSpec& spec, std::vector<Operation>& list) {
    const Layer& first = b.layers[0];
    const bool beside = first.is(conv_kind) && conv_few_fits(first);   // the only reader takes 16 samples side by side
    const Shape padded = first.in;
    const FloatKernels& kernels = float_kernels(isa_best());
    const Tensor value = b.kept(beside ? Build::side_by_side(b.samples, padded) : Build::plain({b.samples, padded.C, padded.H, padded.W}));
    const uint32_t C = spec.C, margin = spec.pad;
    const uint64_t lines = margin ? spec.H : 1, row = uint64_t{spec.H} * spec.W / lines, plane = uint64_t{padded.H} * padded.W;
    auto plain = [=, &kernels](Frame& frame) {
        float* image = frame.at(value);
        // The margin is written for each block, as lanes' memory has other uses in between.
        if (margin) std::fill_n(image, padded.elements() * frame.samples, 0.0f);
        uint32_t filled = 0;
        for (const Block& block : frame.blocks) {
            const uint8_t* from = block.samples.images;
            filled += block.samples.count;
            for (uint32_t n = 0; n < block.samples.count; ++n)
                for (uint32_t c = 0; c < C; ++c, image += plane) {
                    const Channel channel(block.samples, c);
                    for (uint64_t h = 0; h < lines; ++h, from += row)
                        kernels.normalise(image + (h + margin) * padded.W + margin, from, row, channel.scale, channel.shift);
                }
        }
        if (filled < frame.samples) std::fill_n(image, padded.elements() * (frame.samples - filled), 0.0f);   // of an evaluation
        return Status{};
    };
    auto side_by_side = [=, &kernels](Frame& frame) {
        float* image = frame.at(value);
        auto zeros = [&image](uint64_t floats) { image = std::fill_n(image, floats, 0.0f); };
        const uint64_t stride = uint64_t{C} * lines * row, edge = (uint64_t{margin} * padded.W + margin) * 16;
        uint32_t filled = 0;
        for (const auto& [id, samples] : frame.blocks)
            for (uint32_t at = 0; at < samples.count; at += 16, filled += 16)
                for (uint32_t c = 0; c < C; ++c) {
                    const Channel channel(samples, c);
                    zeros(edge);
                    for (uint64_t h = 0; h < lines; ++h, image += row * 16) {
                        if (h) zeros(margin * 32);
                        kernels.normalise16(image, samples.images + at * stride + (c * lines + h) * row, stride,
                                            std::min(16u, samples.count - at), row, channel.scale, channel.shift);
                    }
                    zeros(edge);
                }
        if (const uint32_t all = (frame.samples + 15) / 16 * 16; filled < all) zeros(padded.elements() * (all - filled));
        return Status{};
    };
    if (beside) list.emplace_back(side_by_side);
    else list.emplace_back(plain);
    return {.value = value, .gradient = {}};
}

}   // namespace gradcast::cpu
