// Convolution (cross-correlation) with bias:  y[n,p,q,k] = b[k] + sum over r,s,c of w[k,r,s,c] x[n, p stride + r - pad, q stride + s - pad,
// c], by cuDNN.  Bias and a following ReLU are part of the same kernel where cuDNN offers that, else one pass over y; a following max
// pooling adds the bias to the maxima instead.
#include <string>

#include "nn/cuda/plan.h"

namespace gradcast::cuda {
namespace {

/// Shared by the operations of one layer and block size.
struct Plans {
    ConvPlan forward, weights, data;
};

/// Puts the layer's name before an error.
Status named(const std::string& layer, const Status& status) {
    return status.ok() ? status : fail(status.code, "layer {}: {}", layer, status.what);
}
Operation named(const std::string& layer, auto operation) {
    return [=](const Frame& f) { return named(layer, operation(f)); };
}

Status build(Build& b) {
    const Layer& l = *b.layer;
    const Activation x = b.activation;
    Operations& list = *b.operations;
    const uint32_t K = l.out.C, C = l.in.C, RS = l.window.kernel * l.window.kernel;
    const auto plans = std::make_shared<Plans>();

    const bool rectify = b.before(relu_kind), pooled = b.before(max_pool_kind), biased = l.biases > 0 && !pooled;
    bool fused = false;   // bias and ReLU
    if (biased && rectify) GC_TRY(plans->forward.choose_fused(b, &fused));
    if (!fused) GC_TRY(plans->forward.choose(b, ConvPass::forward));

    // Canonical weights [K,C,R,S] and their gradient are in cuDNN's order only if R = S = 1 or C = 1; cuDNN needs them, and a fused bias,
    // aligned to 16 bytes.
    const bool as_they_are = (RS == 1 || C == 1) && l.offset % 4 == 0;
    const Tensor canonical = b.weight(Place::parameters), bias = b.bias(Place::parameters);
    Tensor w = canonical, aligned_bias = bias;
    if (b.bf16 || !as_they_are || (l.offset + l.weights) % 4) {
        const uint64_t bias_at = (l.weights + 7) / 8 * 8;
        w = b.copy((bias_at + K) * b.value_bytes(), {{canonical, 0, K, C, RS}, {bias, bias_at, 1, 1, l.biases}});
        aligned_bias = {w.place, w.offset + bias_at * b.value_bytes()};
    }

    Activation y = b.flows(true);
    y.rectified = rectify;
    if (pooled && l.biases) y.unbiased = &l;
    const Tensor forward_space = b.scratch(plans->forward.workspace());
    const uint64_t rows = b.rows(l.out);
    list.forward.push_back(named(l.spec.name, [=](const Frame& f) {
        GC_TRY(plans->forward.run(f, f.at<void>(x.value), f.at<void>(w), f.at<void>(y.value), f.at<void>(forward_space),
                                  fused ? f.at<void>(aligned_bias) : nullptr));
        return fused ? Status{} : bias_relu(f.stream, f.values(y.value), biased ? f.at(bias) : nullptr, rows, K, rectify);
    }));
    b.activation = y;
    if (!b.training) return {};

    if (!pooled) b.bias_backward(y, &l, list.before);
    GC_TRY(plans->weights.choose(b, ConvPass::weights));
    const Tensor gradient = b.weight(Place::gradient);
    uint64_t used = 0;
    auto beside = [&](uint64_t bytes) {
        const Tensor made = b.beside(bytes, used);
        used += (bytes + 255) / 256 * 256;
        return made;
    };
    const Tensor dw = as_they_are ? gradient : beside(l.weights * sizeof(float));
    // cuDNN writes a float gradient from float factors only; widening bf16 is exact.
    const uint64_t x_count = b.rows(l.in) * C, y_count = rows * K;
    const bool widen = b.bf16;
    const Tensor x_float = widen ? beside(x_count * sizeof(float)) : x.value, dy = widen ? beside(y_count * sizeof(float)) : y.gradient;
    const Tensor weights_space = beside(plans->weights.workspace());
    list.weights.push_back(named(l.spec.name, [=](const Frame& f) {
        if (widen) GC_TRY(copy(f.stream, {f.at<void>(x_float), false}, f.values(x.value), x_count));
        if (widen) GC_TRY(copy(f.stream, {f.at<void>(dy), false}, f.values(y.gradient), y_count));
        GC_TRY(plans->weights.run(f, f.at<void>(x_float), f.at<void>(dw), f.at<void>(dy), f.at<void>(weights_space)));
        if (as_they_are) return Status{};
        return transpose(f.stream, {f.at<void>(gradient), false}, {f.at<void>(dw), false}, K, RS, C);
    }));
    if (!x.learns) return {};

    GC_TRY(plans->data.choose(b, ConvPass::data));
    const Tensor data_space = b.scratch(plans->data.workspace());
    list.data.push_back(named(l.spec.name, [=](const Frame& f) {
        return plans->data.run(f, f.at<void>(x.gradient), f.at<void>(w), f.at<void>(y.gradient), f.at<void>(data_space));
    }));
    return {};
}

}   // namespace

Status conv(Build& b) { return conv_is_dense(*b.layer) ? dense(b) : named(b.layer->spec.name, build(b)); }

}   // namespace gradcast::cuda
