// The input of a net: elements become floats and get a margin of zeros.  Bytes become (x / 255 - mean) / std by channel, others
// (x - mean) / std.
#include <algorithm>
#include <cstring>

#include "nn/cpu/build.h"
#include "nn/kernels.h"

namespace gradcast::cpu {
namespace {

/// What turns a channel's bytes into floats.
struct Channel {
    float scale, shift;
    Channel(const Samples& samples, uint32_t c) : scale(1 / (255 * samples.std[c])), shift(-samples.mean[c] / samples.std[c]) {}
};

/// (x - mean) / std of elements that are no bytes, every `apart`-th of `to`.
template <typename T>
void standardise(float* to, uint64_t apart, const uint8_t* from, uint64_t count, float mean, float std) {
    for (uint64_t i = 0; i < count; ++i) {
        T x;
        std::memcpy(&x, from + i * sizeof x, sizeof x);
        to[i * apart] = (static_cast<float>(x) - mean) / std;
    }
}
void standardise(Element element, float* to, uint64_t apart, const uint8_t* from, uint64_t count, float mean, float std) {
    if (element == Element::f32) standardise<float>(to, apart, from, count, mean, std);
    else if (element == Element::u16) standardise<uint16_t>(to, apart, from, count, mean, std);
    else standardise<uint32_t>(to, apart, from, count, mean, std);
}

}   // namespace

Activation pixels(Build& b, std::vector<Operation>& list) {
    const NetSpec& spec = b.spec;
    const Layer& first = b.layers[0];
    const bool beside = first.is(conv_kind) && conv_few_fits(first);   // the only reader takes 16 samples side by side
    const Shape padded = first.in;
    const FloatKernels& kernels = float_kernels(isa_best());
    const Tensor value = b.kept(beside ? Build::side_by_side(b.samples, padded) : Build::plain({b.samples, padded.C, padded.H, padded.W}));
    const uint32_t C = spec.C, margin = spec.pad;
    const uint64_t lines = margin ? spec.H : 1, row = uint64_t{spec.H} * spec.W / lines, plane = uint64_t{padded.H} * padded.W;
    const Element element = spec.element;
    const uint64_t width = element_bytes(element);
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
                    for (uint64_t h = 0; h < lines; ++h, from += row * width) {
                        float* to = image + (h + margin) * padded.W + margin;
                        if (element == Element::u8) kernels.normalise(to, from, row, channel.scale, channel.shift);
                        else standardise(element, to, 1, from, row, block.samples.mean[c], block.samples.std[c]);
                    }
                }
        }
        if (filled < frame.samples) std::fill_n(image, padded.elements() * (frame.samples - filled), 0.0f);   // of an evaluation
        return Status{};
    };
    auto side_by_side = [=, &kernels](Frame& frame) {
        float* image = frame.at(value);
        auto zeros = [&image](uint64_t floats) { image = std::fill_n(image, floats, 0.0f); };
        const uint64_t stride = uint64_t{C} * lines * row * width, edge = (uint64_t{margin} * padded.W + margin) * 16;
        uint32_t filled = 0;
        for (const auto& [id, samples] : frame.blocks)
            for (uint32_t at = 0; at < samples.count; at += 16, filled += 16)
                for (uint32_t c = 0; c < C; ++c) {
                    const Channel channel(samples, c);
                    zeros(edge);
                    for (uint64_t h = 0; h < lines; ++h, image += row * 16) {
                        if (h) zeros(margin * 32);
                        const uint8_t* from = samples.images + at * stride + (c * lines + h) * row * width;
                        const uint32_t count = std::min(16u, samples.count - at);
                        if (element == Element::u8) {
                            kernels.normalise16(image, from, stride, count, row, channel.scale, channel.shift);
                            continue;
                        }
                        std::fill_n(image, row * 16, 0.0f);
                        for (uint32_t n = 0; n < count; ++n)
                            standardise(element, image + n, 16, from + n * stride, row, samples.mean[c], samples.std[c]);
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
