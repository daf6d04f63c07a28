// layer_norm: y = w z + b by channel, z = (x - mean) / sqrt(variance + epsilon) with both over the channels of a position.
// rms_norm: y = w z by channel, z = x / sqrt(mean of x^2 + epsilon), with the mean over the channels of a position.
// group_norm: y = w z + b, with mean and variance over the channels of a group and all positions.
//     dx = inverse (g - mean of g - z mean of g z),  g = dy w;  of rms_norm without the mean of g
#include "nn/cpu/norm.h"

#include <algorithm>

#include "nn/cpu/build.h"
#include "runtime/core/isa_build.h"

namespace gradcast::cpu {

namespace portable {
extern const NormKernels norm_kernels;
}
namespace avx2 {
extern const NormKernels norm_kernels;
}
namespace avx512 {
extern const NormKernels norm_kernels;
}

const NormKernels& norm_kernels(Isa isa) { return isa_build(isa, portable::norm_kernels, avx2::norm_kernels, avx512::norm_kernels); }

namespace {

/// The tensors of a layer under construction, x and y in one order.
struct Norm {
    Tensor x, dx, scales;   // scales: RowScale [rows]
    Activation y;
    Tensor weight, bias, dweight, dbias;
    bool biased = true;
    std::vector<Operation> after;   // brings dx where it belongs
};

/// rows: of a sample.
Status begin(Build& b, const dnnl_memory_desc_t& order, uint64_t rows, Norm* norm) {
    b.operations->unit = 1;
    const Activation before = b.activation;
    const uint32_t channels = b.layer->in.C;
    GC_TRY(b.consume({before.value}, order, b.operations->forward, &norm->x));
    norm->y = b.activation = b.flows(order, true);
    norm->scales = b.kept(Build::plain({b.samples * rows, sizeof(RowScale) / sizeof(float)}));
    norm->weight = b.weight(Place::parameters, Build::plain({channels}));
    norm->dweight = b.weight(Place::gradient, Build::plain({channels}));
    norm->biased = b.layer->biases > 0;
    if (norm->biased) {
        norm->bias = b.bias(Place::parameters);
        norm->dbias = b.bias(Place::gradient);
    }
    if (b.training && before.learns) GC_TRY(b.produce(before.gradient, order, norm->after, &norm->dx));
    return {};
}

/// Sums of doubles by channel as the gradients of weight and bias.
void hand_in(const Frame& frame, const Norm& norm, const double* dweight, const double* dbias, uint32_t channels) {
    std::transform(dweight, dweight + channels, frame.at(norm.dweight), [](double sum) { return static_cast<float>(sum); });
    if (norm.biased) std::transform(dbias, dbias + channels, frame.at(norm.dbias), [](double sum) { return static_cast<float>(sum); });
}

/// layer_norm, or rms_norm, which does not centre.
Status row_norm(Build& b, bool centred) {
    const Layer& l = *b.layer;
    const NormKernels& kernels = norm_kernels();
    const uint64_t rows = uint64_t{l.in.H} * l.in.W;
    const uint32_t channels = l.in.C;
    const double epsilon = l.value("epsilon");
    const bool learns = b.activation.learns;
    Operations& list = *b.operations;
    Norm norm;
    GC_TRY(begin(b, b.position_rows(l.in), rows, &norm));
    const auto scale = centred ? kernels.scale : kernels.rms_scale;
    list.forward.emplace_back([=, &kernels](Frame& frame) {
        auto* scales = reinterpret_cast<RowScale*>(frame.at(norm.scales));
        for (uint64_t row = 0; row < frame.samples * rows; ++row) {
            const float* x = frame.at(norm.x) + row * channels;
            scales[row] = scale(x, channels, epsilon);
            kernels.forward(frame.at(norm.y.value) + row * channels, x, channels, scales[row], frame.at(norm.weight),
                            norm.biased ? frame.at(norm.bias) : nullptr);
        }
        return Status{};
    });
    if (!b.training) return {};
    const Tensor sums = b.scratch(2 * 2 * uint64_t{channels});   // doubles
    list.weights.emplace_back([=, &kernels](Frame& frame) {
        auto* dweight = reinterpret_cast<double*>(frame.at(sums));
        std::fill_n(dweight, 2 * channels, 0.0);
        const auto* scales = reinterpret_cast<const RowScale*>(frame.at(norm.scales));
        for (uint64_t row = frame.first * rows; row < (frame.first + frame.count) * rows; ++row)
            kernels.weights(dweight, norm.biased ? dweight + channels : nullptr, frame.at(norm.y.gradient) + row * channels,
                            frame.at(norm.x) + row * channels, channels, scales[row]);
        hand_in(frame, norm, dweight, dweight + channels, channels);
        return Status{};
    });
    if (!learns) return {};
    list.data.emplace_back([=, &kernels](Frame& frame) {
        const auto* scales = reinterpret_cast<const RowScale*>(frame.at(norm.scales));
        for (uint64_t row = 0; row < frame.samples * rows; ++row) {
            const float *dy = frame.at(norm.y.gradient) + row * channels, *x = frame.at(norm.x) + row * channels;
            double g, gz;
            kernels.sums(dy, x, channels, scales[row], frame.at(norm.weight), &g, &gz);
            kernels.backward(frame.at(norm.dx) + row * channels, dy, x, channels, scales[row], frame.at(norm.weight),
                             centred ? static_cast<float>(g / channels) : 0.0f, static_cast<float>(gz / channels));
        }
        return Status{};
    });
    list.data.insert(list.data.end(), norm.after.begin(), norm.after.end());
    return {};
}

}   // namespace

Status layer_norm(Build& b) { return row_norm(b, true); }
Status rms_norm(Build& b) { return row_norm(b, false); }

Status group_norm(Build& b) {
    const Layer& l = *b.layer;
    const NormKernels& kernels = norm_kernels();
    const auto groups = static_cast<uint32_t>(l.value("groups"));
    const uint32_t channels = l.in.C, of_group = channels / groups;
    const uint64_t plane = uint64_t{l.in.H} * l.in.W, count = of_group * plane;
    const double epsilon = l.value("epsilon");
    const bool learns = b.activation.learns;
    Operations& list = *b.operations;
    Norm norm;
    GC_TRY(begin(b, Build::plain({b.samples, l.in.C, l.in.H, l.in.W}), groups, &norm));
    list.forward.emplace_back([=, &kernels](Frame& frame) {
        auto* scales = reinterpret_cast<RowScale*>(frame.at(norm.scales));
        for (uint64_t row = 0; row < uint64_t{frame.samples} * groups; ++row) {
            const float* x = frame.at(norm.x) + row * count;
            float* y = frame.at(norm.y.value) + row * count;
            scales[row] = kernels.scale(x, count, epsilon);
            const uint32_t first = static_cast<uint32_t>(row % groups) * of_group;
            for (uint32_t c = 0; c < of_group; ++c)
                kernels.forward_all(y + c * plane, x + c * plane, plane, scales[row], frame.at(norm.weight)[first + c],
                                    frame.at(norm.bias)[first + c]);
        }
        return Status{};
    });
    if (!b.training) return {};
    const Tensor sums = b.kept(Build::plain({b.samples, channels, 2, 2}));   // doubles: by sample and channel those of dy and of dy z
    list.gradient.emplace_back([=, &kernels](Frame& frame) {
        const auto* scales = reinterpret_cast<const RowScale*>(frame.at(norm.scales));
        auto* sum = reinterpret_cast<double*>(frame.at(sums));
        for (uint64_t at = 0; at < uint64_t{frame.samples} * channels; ++at)
            kernels.sums(frame.at(norm.y.gradient) + at * plane, frame.at(norm.x) + at * plane, plane, scales[at / of_group], nullptr,
                         sum + 2 * at, sum + 2 * at + 1);
        return Status{};
    });
    const Tensor total = b.scratch(2 * 2 * uint64_t{channels});   // doubles
    list.weights.emplace_back([=](Frame& frame) {
        auto* dweight = reinterpret_cast<double*>(frame.at(total));
        std::fill_n(dweight, 2 * channels, 0.0);
        const double* sum = reinterpret_cast<const double*>(frame.at(sums)) + uint64_t{frame.first} * channels * 2;
        for (uint64_t at = 0; at < uint64_t{frame.count} * channels; ++at) {
            dweight[channels + at % channels] += sum[2 * at];
            dweight[at % channels] += sum[2 * at + 1];
        }
        hand_in(frame, norm, dweight, dweight + channels, channels);
        return Status{};
    });
    if (!learns) return {};
    list.data.emplace_back([=, &kernels](Frame& frame) {
        const auto* scales = reinterpret_cast<const RowScale*>(frame.at(norm.scales));
        const auto* sum = reinterpret_cast<const double*>(frame.at(sums));
        for (uint64_t row = 0; row < uint64_t{frame.samples} * groups; ++row) {
            const float* weight = frame.at(norm.weight) + row % groups * of_group;
            double g = 0, gz = 0;
            for (uint32_t c = 0; c < of_group; ++c) {
                g += static_cast<double>(weight[c]) * sum[2 * (row * of_group + c)];
                gz += static_cast<double>(weight[c]) * sum[2 * (row * of_group + c) + 1];
            }
            const auto a = static_cast<float>(g / static_cast<double>(count)), z = static_cast<float>(gz / static_cast<double>(count));
            for (uint32_t c = 0; c < of_group; ++c) {
                const uint64_t at = row * count + c * plane;
                kernels.backward_all(frame.at(norm.dx) + at, frame.at(norm.y.gradient) + at, frame.at(norm.x) + at, plane, scales[row],
                                     weight[c], a, z);
            }
        }
        return Status{};
    });
    list.data.insert(list.data.end(), norm.after.begin(), norm.after.end());
    return {};
}

}   // namespace gradcast::cpu
