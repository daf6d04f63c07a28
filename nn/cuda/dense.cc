// Inner products, and convolutions of 1 x 1 pixels, which are inner products of pixels:  y[n,k] = b[k] + sum over c of w[k,c] x[n,c].
//
// Bias, ReLU, the ReLU's gradient and the sums of a bias's gradient are part of the products where cuBLASLt offers that; else kernels of
// their own compute them.  In bf16 the bias is rounded to bf16 before it is added.
//
// An inner product reads its input in the order [C,H,W], so an input with several pixels and channels is transposed first.
#include "nn/cuda/product.h"

namespace gradcast::cuda {
namespace {

/// Shared by the operations of one layer and block size.
struct Products {
    Product forward, weights, data;
};

/// The layer's input as the products read it.
struct Rows {
    uint32_t N, C;
    Tensor x, dx;
    bool learns;                // dx is wanted
    const Activation* masked;   // its ReLU's mask is to be applied to dx; null: none is
};

bool is_dense(const Layer& layer) {
    if (layer.is(inner_product_kind)) return layer.in.H * layer.in.W == 1;
    return layer.is(conv_kind) && layer.window.kernel == 1 && layer.window.stride == 1 && layer.window.pad == 0;
}

/// The ReLU behind the present layer is read by one layer alone, the next one, by a product.
bool read_densely(const Build& b) {
    const uint32_t relu = b.number + 1, reader = relu + 1;
    return reader < b.layers.size() && b.layers[relu].takers == 1 && b.layers[reader].input == relu && is_dense(b.layers[reader]);
}

Status products(Build& b, const Rows& rows) {
    const Layer& l = *b.layer;
    Operations& list = *b.operations;
    const uint32_t N = rows.N, C = rows.C, K = l.out.C;
    const auto made = std::make_shared<Products>();
    const bool biased = l.biases > 0;

    // Canonical weights and bias may lie at any offset; copies are aligned to 16 bytes.
    const Tensor w_canonical = b.weight(Place::parameters), b_canonical = b.bias(Place::parameters);
    Tensor w = w_canonical, bias = b_canonical;
    if (b.bf16 || l.offset % 4 || (biased && (l.offset + l.weights) % 4)) {
        const uint64_t bias_at = (l.weights + 7) / 8 * 8;
        w = b.copy((bias_at + K) * b.value_bytes(), {{w_canonical, 0, 1, 1, l.weights}, {b_canonical, bias_at, 1, 1, l.biases}});
        bias = {w.place, w.offset + bias_at * b.value_bytes()};
    }

    Activation y = b.flows(true);
    y.rectified = b.before(relu_kind);
    y.masked = y.rectified && b.training && read_densely(b);
    Epilogue epilogue = !biased ? Epilogue::none : !y.rectified ? Epilogue::bias : y.masked ? Epilogue::bias_mask : Epilogue::bias_relu;
    bool offered = false;
    if (epilogue != Epilogue::none) GC_TRY(made->forward.choose(b, {ProductPass::forward, N, K, C, epilogue}, &offered));
    if (!offered && epilogue == Epilogue::bias_mask) {
        epilogue = Epilogue::bias_relu;
        GC_TRY(made->forward.choose(b, {ProductPass::forward, N, K, C, epilogue}, &offered));
    }
    if (!offered) GC_TRY(made->forward.choose(b, {ProductPass::forward, N, K, C}));
    if (offered && epilogue == Epilogue::bias_mask) y.mask = b.kept(mask_bytes(N, K));
    const bool masks = y.mask.has_value(), passes = !offered;   // passes: bias and ReLU are a pass of their own
    list.forward.emplace_back([=, rectify = y.rectified](const Frame& f) {
        GC_TRY(made->forward.run(f, {f.at<void>(rows.x), f.at<void>(w), f.at<void>(y.value), biased ? f.at<void>(bias) : nullptr,
                                     masks ? f.at<void>(*y.mask) : nullptr}));
        return passes ? bias_relu(f.stream, f.values(y.value), biased ? f.at(b_canonical) : nullptr, N, K, rectify) : Status{};
    });
    b.activation = y;
    if (!b.training) return {};

    // The bias's gradient and the mask of a ReLU whose reader does not apply it are one pass over dy; without that mask the sums come with
    // dw.
    const bool own_mask = y.rectified && !y.masked;
    const Tensor gradient = b.weight(Place::gradient), bias_gradient = b.bias(Place::gradient);
    bool sums = false;
    if (biased && !own_mask && (l.offset + l.weights) % 4 == 0)
        GC_TRY(made->weights.choose(b, {ProductPass::weights, N, K, C, Epilogue::sums}, &sums));
    if (!sums) {
        Activation dy = y;
        dy.rectified = own_mask;
        b.bias_backward(dy, &l, list.before);
        GC_TRY(made->weights.choose(b, {ProductPass::weights, N, K, C}));
    }
    const bool aligned = l.offset % 4 == 0;
    const Tensor dw = aligned ? gradient : b.beside(l.weights * sizeof(float));
    list.weights.emplace_back([=, count = l.weights](const Frame& f) {
        GC_TRY(
            made->weights.run(f, {f.at<void>(y.gradient), f.at<void>(rows.x), f.at<void>(dw), sums ? f.at<void>(bias_gradient) : nullptr}));
        return aligned ? Status{} : copy(f.stream, {f.at<void>(gradient), false}, {f.at<void>(dw), false}, count);
    });
    if (!rows.learns) return {};

    bool masked = false;
    const Activation* x = rows.masked;
    if (x && x->mask) GC_TRY(made->data.choose(b, {ProductPass::data, N, K, C, Epilogue::masked}, &masked));
    if (!masked) GC_TRY(made->data.choose(b, {ProductPass::data, N, K, C}));
    const bool passed = x && !masked;
    list.data.emplace_back([=, mask = x && x->mask ? *x->mask : Tensor{}](const Frame& f) {
        GC_TRY(
            made->data.run(f, {f.at<void>(y.gradient), f.at<void>(w), f.at<void>(rows.dx), nullptr, masked ? f.at<void>(mask) : nullptr}));
        if (!passed) return Status{};
        return relu_backward(f.stream, f.values(rows.dx), f.values(rows.dx), f.values(rows.x), uint64_t{N} * C);
    });
    return {};
}

}   // namespace

bool conv_is_dense(const Layer& layer) { return is_dense(layer); }

Status dense(Build& b) {
    const Activation x = b.activation;
    return products(b, {static_cast<uint32_t>(b.rows(b.layer->in)), b.layer->in.C, x.value, x.gradient, x.learns, x.masked ? &x : nullptr});
}

Status inner_product(Build& b) {
    const Layer& l = *b.layer;
    const uint32_t pixels = l.in.H * l.in.W, channels = l.in.C;
    if (pixels == 1) return dense(b);
    const Activation x = b.activation;
    const auto C = static_cast<uint32_t>(l.in.elements());
    if (channels == 1) return products(b, {b.samples, C, x.value, x.gradient, x.learns, nullptr});
    const uint64_t bytes = uint64_t{b.samples} * C * b.value_bytes();
    const Tensor flat = b.kept(bytes), dflat = x.learns && b.training ? b.scratch(bytes) : Tensor{};
    b.operations->forward.emplace_back([=, samples = b.samples](const Frame& f) {
        return transpose(f.stream, f.values(flat), f.values(x.value), samples, pixels, channels);
    });
    GC_TRY(products(b, {b.samples, C, flat, dflat, x.learns, nullptr}));
    if (!b.training || !x.learns) return {};
    b.operations->data.emplace_back([=, samples = b.samples](const Frame& f) {
        return transpose(f.stream, f.values(x.gradient), f.values(dflat), samples, channels, pixels);
    });
    return {};
}

}   // namespace gradcast::cuda
