// A convolution in groups, by kernels of our own (grouped.cu): cuDNN has few deterministic kernels for groups.  Bias and a following ReLU
// are one pass over y; a following max pooling adds the bias to the maxima instead.
#include "nn/cuda/build.h"

namespace gradcast::cuda {

Status grouped(Build& b) {
    const Layer& l = *b.layer;
    const Activation x = b.activation;
    Operations& list = *b.operations;
    const WindowShape shape = b.window();
    const uint32_t K = l.out.C, groups = l.groups, each = static_cast<uint32_t>(l.weights / K);
    const uint64_t rows = b.rows(l.out);
    GC_TRY(b.rows_fit(rows));
    if (l.weights > INT32_MAX)
        return fail(Code::unsupported, "layer {}: its {} weights in groups are more than the {} that GPUs take: take device cpu",
                    l.spec.name, l.weights, INT32_MAX);
    const bool rectify = b.before(relu_kind), pooled = b.before(max_pool_kind), biased = l.biases > 0 && !pooled;
    const Tensor bias = b.bias(Place::parameters), w = b.copy(l.weights * b.value_bytes(), {{b.weight(Place::parameters), 0, 1, K, each}});
    Activation y = b.flows(true);
    y.rectified = rectify;
    if (pooled && l.biases) y.unbiased = &l;
    list.forward.emplace_back([=](const Frame& f) {
        GC_TRY(grouped_conv(f.stream, f.values(y.value), f.values(x.value), f.values(w), shape, K, groups));
        return bias_relu(f.stream, f.values(y.value), biased ? f.at(bias) : nullptr, rows, K, rectify);
    });
    b.activation = y;
    if (!b.training) return {};
    if (!pooled) b.bias_backward(y, &l, list.before);
    const Tensor dw = b.weight(Place::gradient);
    const Tensor space = b.beside(grouped_conv_scratch(shape, static_cast<uint32_t>(l.weights)) * sizeof(double));
    list.weights.emplace_back([=](const Frame& f) {
        return grouped_conv_weights(f.stream, f.at(dw), f.values(y.gradient), f.values(x.value), f.at<double>(space), shape, K, groups);
    });
    if (x.learns)
        list.data.emplace_back([=](const Frame& f) {
            return grouped_conv_data(f.stream, f.values(x.gradient), f.values(y.gradient), f.values(w), shape, K, groups);
        });
    return {};
}

}   // namespace gradcast::cuda
