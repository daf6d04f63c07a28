// Batch norm (Ioffe, Szegedy 2015) by channel, with the statistics of the block:
//     y = weight (x - mean) / sqrt(variance + 1e-5) + bias,   mean and variance over samples and pixels of the block.
//
// Evaluation takes running statistics, which are part of the flat vector (nn/graph/layers.h).  A block hands in, as a gradient, the sum
// over its samples of each channel's mean and second moment; apply() moves the running ones a tenth of the way towards the mini-batch's.
#include <cmath>

#include "nn/cpu/build.h"
#include "nn/kernels.h"

namespace gradcast::cpu {

Status batch_norm(Build& b) {
    const Layer& l = *b.layer;
    const FloatKernels& kernels = float_kernels(isa_best());
    const Activation before = b.activation;
    Operations& list = *b.operations;
    uint32_t width = b.input_width(), channels = l.in.C, groups = (channels + width - 1) / width, padded = groups * width;
    ChannelShape shape{.samples = b.samples, .groups = groups, .width = width, .pixels = uint64_t{l.in.H} * l.in.W};
    double count = static_cast<double>(b.samples) * static_cast<double>(shape.pixels);

    Activation x = before;
    GC_TRY(b.consume({before.value}, b.blocked(l.in, width), list.forward, &x.value));
    const Activation y = b.activation = b.flows(b.blocked(l.out, width), true);
    Tensor rows = b.kept(Build::plain({6, padded})), totals = b.kept(Build::plain({2, 2, padded}));   // floats; doubles
    Tensor weight = b.weight(Place::parameters, Build::plain({channels})), bias = b.bias(Place::parameters);
    const dnnl_memory_desc_t moments = Build::plain({2, channels});
    const Tensor running = b.canonical(Place::parameters, moments, l.statistics_offset),
                 ours = b.canonical(Place::gradient, moments, l.statistics_offset);
    struct Values {   // by channel
        float *mean, *inverse, *scale, *shift, *of_value, *constant;
        double *sums, *products;
    };
    auto values = [rows, totals, padded](const Frame& frame) {
        float* row = frame.at(rows);
        auto* total = reinterpret_cast<double*>(frame.at(totals));
        return Values{row, row + padded, row + 2 * padded, row + 3 * padded, row + 4 * padded, row + 5 * padded, total, total + padded};
    };
    list.forward.emplace_back([=, &kernels](Frame& frame) {
        Values v = values(frame);
        std::fill_n(v.mean, 4 * padded, 0.0f);   // channels that only fill up a vector stay 0
        const float* statistics = frame.at(running);
        if (frame.training) {
            float* found = frame.at(ours);
            kernels.channel_sums(v.sums, frame.at(x.value), nullptr, shape);
            for (uint32_t c = 0; c < channels; ++c) v.mean[c] = static_cast<float>(v.sums[c] / count);
            kernels.channel_sums(v.products, frame.at(x.value), v.mean, shape);
            for (uint32_t c = 0; c < channels; ++c) {
                double mean = v.sums[c] / count, variance = v.products[c] / count;
                v.inverse[c] = static_cast<float>(1 / std::sqrt(variance + norm_epsilon));
                found[c] = static_cast<float>(shape.samples * mean);
                found[channels + c] = static_cast<float>(shape.samples * (variance + mean * mean));
            }
        } else {
            for (uint32_t c = 0; c < channels; ++c) {
                double mean = v.mean[c] = statistics[c];
                v.inverse[c] = static_cast<float>(1 / std::sqrt(std::max(statistics[channels + c] - mean * mean, 0.0) + norm_epsilon));
            }
        }
        for (uint32_t c = 0; c < channels; ++c) {
            v.scale[c] = frame.at(weight)[c] * v.inverse[c];
            v.shift[c] = frame.at(bias)[c];
        }
        kernels.channel_affine(frame.at(y.value), frame.at(x.value), v.mean, v.scale, v.shift, shape);
        return Status{};
    });
    if (!b.training) return {};

    Tensor dweight = b.weight(Place::gradient, Build::plain({channels})), dbias = b.bias(Place::gradient);
    list.gradient.emplace_back([=, &kernels](Frame& frame) {
        Values v = values(frame);
        kernels.channel_products(v.sums, v.products, frame.at(y.gradient), frame.at(x.value), v.mean, shape);
        std::fill_n(v.of_value, 2 * padded, 0.0f);
        for (uint32_t c = 0; c < channels; ++c) {
            double inverse = v.inverse[c], scale = v.scale[c];
            v.of_value[c] = static_cast<float>(-scale * inverse * inverse * v.products[c] / count);
            v.constant[c] = static_cast<float>(-scale * v.sums[c] / count);
        }
        return Status{};
    });
    list.weights.emplace_back([=](Frame& frame) {
        const Values v = values(frame);
        for (uint32_t c = 0; c < channels; ++c) {
            frame.at(dbias)[c] = static_cast<float>(v.sums[c]);
            frame.at(dweight)[c] = static_cast<float>(v.products[c] * static_cast<double>(v.inverse[c]));
        }
        return Status{};
    });
    if (!x.learns) return {};
    std::vector<Operation> after;
    GC_TRY(b.produce(before.gradient, b.blocked(l.in, width), after, &x.gradient));
    list.data.emplace_back([=, &kernels](Frame& frame) {
        Values v = values(frame);
        kernels.channel_affine_backward(frame.at(x.gradient), frame.at(y.gradient), frame.at(x.value), v.mean, v.scale, v.of_value,
                                        v.constant, shape);
        return Status{};
    });
    list.data.insert(list.data.end(), after.begin(), after.end());
    return {};
}

}   // namespace gradcast::cpu
