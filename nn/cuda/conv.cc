// Convolution (cross-correlation) with bias:  y[n,p,q,k] = b[k] + sum over r,s,c of w[k,r,s,c] x[n, p stride + r - pad, q stride + s - pad,
// c], by cuDNN.  Bias and a following ReLU are part of the same kernel where cuDNN offers that, else one pass over y; a following max
// pooling adds the bias to the maxima instead.
//
// conv_transposed is the data pass of such a convolution, and its own data pass is the forward pass.
#include <algorithm>
#include <string>

#include "nn/cuda/plan.h"
#include "nn/cuda/product.h"

namespace gradcast::cuda {
namespace {

/// Shared by the operations of one layer and block size.
struct Plans {
    ConvPlan forward, data;
};

/// Puts the layer's name before an error.
Status named(const std::string& layer, const Status& status) {
    return status.ok() ? status : fail(status.code, "layer {}: {}", layer, status.what);
}
Operation named(const std::string& layer, auto operation) {
    return [=](const Frame& f) { return named(layer, operation(f)); };
}

ConvShape shape_of(const Shape& x, const Shape& y, const Window& window) {
    return {x, y, window.kernel, window.stride, window.pad, window.dilation};
}

/// The gradient of the weights, by cuDNN from float factors.
Status weights(Build& b, const ConvShape& shape, const Tensor& x, const Tensor& dy, bool as_they_are) {
    const Layer& l = *b.layer;
    const uint32_t K = shape.y.C, C = shape.x.C, RS = shape.kernel * shape.kernel;
    const auto plan = std::make_shared<ConvPlan>();
    GC_TRY(plan->choose(b, shape, ConvPass::weights));
    const Tensor gradient = b.weight(Place::gradient);
    const uint64_t bytes = as_they_are ? 0 : aligned(l.weights * sizeof(float));
    const Tensor dw = as_they_are ? gradient : b.beside(bytes), workspace = b.beside(plan->workspace(), bytes);
    b.operations->weights.push_back(named(l.spec.name, [=](const Frame& f) {
        GC_TRY(plan->run(f, f.at<void>(x), f.at<void>(dw), f.at<void>(dy), f.at<void>(workspace)));
        if (as_they_are) return Status{};
        return transpose(f.stream, {f.at<void>(gradient), false}, {f.at<void>(dw), false}, K, RS, C);
    }));
    return {};
}

/// The same from bf16 factors, which cuDNN does not multiply to a float gradient: a product of the gradient and the unfolded windows.
Status weights_of_bf16(Build& b, const ConvShape& conv, const Tensor& x, const Tensor& dy) {
    const uint32_t K = conv.y.C, C = conv.x.C, RS = conv.kernel * conv.kernel, used = C * RS, width = (used + 7) / 8 * 8;
    const uint64_t rows = b.rows(conv.y);
    const bool by_pixel = C % 8 == 0;
    const auto product = std::make_shared<Product>();
    GC_TRY(product->choose(b, {ProductPass::weights, rows, K, width}));
    const uint64_t bytes = aligned(uint64_t{K} * width * sizeof(float));
    const Tensor gradient = b.weight(Place::gradient), dw = b.beside(bytes), columns = b.beside(rows * width * b.value_bytes(), bytes);
    b.columns = std::max(b.columns, rows * width * b.value_bytes());
    b.operations->weights.emplace_back([=, shape = conv.windows(b.samples)](const Frame& f) {
        GC_TRY(unfold(f.stream, f.values(columns), f.values(x), shape, width, by_pixel));
        GC_TRY(product->run(f, {f.at<void>(dy), f.at<void>(columns), f.at<void>(dw)}));
        if (!by_pixel) return copy_rows(f.stream, f.at(gradient), f.at(dw), K, used, width);
        return transpose(f.stream, {f.at<void>(gradient), false}, {f.at<void>(dw), false}, K, RS, C);
    });
    return {};
}

Status build(Build& b) {
    const Layer& l = *b.layer;
    const Activation x = b.activation;
    Operations& list = *b.operations;
    const uint32_t K = l.out.C, C = l.in.C, RS = l.window.kernel * l.window.kernel;
    const ConvShape shape = shape_of(l.in, l.out, l.window);
    const auto plans = std::make_shared<Plans>();

    const bool rectify = b.before(relu_kind), pooled = b.before(max_pool_kind), biased = l.biases > 0 && !pooled;
    bool fused = false;   // bias and ReLU
    if (biased && rectify) GC_TRY(plans->forward.choose_fused(b, shape, &fused));
    if (!fused) GC_TRY(plans->forward.choose(b, shape, ConvPass::forward));

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
    if (b.bf16) GC_TRY(weights_of_bf16(b, shape, x.value, y.gradient));
    else GC_TRY(weights(b, shape, x.value, y.gradient, as_they_are));
    if (!x.learns) return {};

    GC_TRY(plans->data.choose(b, shape, ConvPass::data));
    const Tensor data_space = b.scratch(plans->data.workspace());
    list.data.push_back(named(l.spec.name, [=](const Frame& f) {
        return plans->data.run(f, f.at<void>(x.gradient), f.at<void>(w), f.at<void>(y.gradient), f.at<void>(data_space));
    }));
    return {};
}

/// y = the gradient that the convolution from y to x passes back from x, and a bias.
Status build_transposed(Build& b) {
    const Layer& l = *b.layer;
    const Activation x = b.activation;
    Operations& list = *b.operations;
    const ConvShape shape = shape_of(l.out, l.in, l.window);
    const uint32_t K = l.out.C, RS = shape.kernel * shape.kernel;
    const auto plans = std::make_shared<Plans>();   // `data` is this layer's forward pass
    GC_TRY(plans->data.choose(b, shape, ConvPass::data));

    const bool as_they_are = (RS == 1 || K == 1) && l.offset % 4 == 0;
    const Tensor canonical = b.weight(Place::parameters), bias = b.bias(Place::parameters);
    Tensor w = canonical;
    if (b.bf16 || !as_they_are) w = b.copy(l.weights * b.value_bytes(), {{canonical, 0, l.in.C, K, RS}});
    const Activation y = b.activation = b.flows(true);
    const Tensor data_space = b.scratch(plans->data.workspace());
    list.forward.push_back(named(l.spec.name, [=, biased = l.biases > 0, rows = b.rows(l.out)](const Frame& f) {
        GC_TRY(plans->data.run(f, f.at<void>(y.value), f.at<void>(w), f.at<void>(x.value), f.at<void>(data_space)));
        return bias_relu(f.stream, f.values(y.value), biased ? f.at(bias) : nullptr, rows, K, false);
    }));
    if (!b.training) return {};
    b.bias_backward(y, &l, list.before);
    if (b.bf16) GC_TRY(weights_of_bf16(b, shape, y.gradient, x.value));
    else GC_TRY(weights(b, shape, y.gradient, x.value, as_they_are));
    if (!x.learns) return {};
    GC_TRY(plans->forward.choose(b, shape, ConvPass::forward));
    const Tensor forward_space = b.scratch(plans->forward.workspace());
    list.data.push_back(named(l.spec.name, [=](const Frame& f) {
        return plans->forward.run(f, f.at<void>(y.gradient), f.at<void>(w), f.at<void>(x.gradient), f.at<void>(forward_space));
    }));
    return {};
}

}   // namespace

Status conv(Build& b) {
    if (b.layer->groups > 1) return grouped(b);
    if (conv_is_dense(*b.layer)) return dense(b);
    if (conv_is_unfolded(b)) return unfolded(b);
    return named(b.layer->spec.name, build(b));
}

Status conv_transposed(Build& b) { return named(b.layer->spec.name, build_transposed(b)); }

}   // namespace gradcast::cuda
