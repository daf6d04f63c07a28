// Inner products, and convolutions that are inner products of pixels or of windows:  y[n,k] = b[k] + sum over c of w[k,c] x[n,c].
//
// Bias, ReLU and the sums of a bias's gradient are part of the products where cuBLASLt offers that; else kernels of their own compute them.
// The ReLU's gradient is a kernel of its own: cuBLASLt's mask lets the gradient pass where the ReLU's input is 0.  In bf16 the bias is
// rounded to bf16 before it is added.
//
// An inner product reads its input in the order [C,H,W], so an input with several pixels and channels is transposed first.
#include "nn/cuda/product.h"

namespace gradcast::cuda {
namespace {

/// Shared by the operations of one layer and block size.
struct Products {
    Product forward, weights, data;
};

/// The layer's input as the products read it: rows of C elements, of which the weights have the first `used`; the others are 0.
struct Rows {
    uint64_t N;
    uint32_t C, used;
    Tensor x, dx;
    bool learns;   // dx is wanted
};

bool is_dense(const Layer& layer) {
    if (layer.is(inner_product_kind)) return layer.in.H * layer.in.W == 1;
    return layer.is(conv_kind) && layer.window.kernel == 1 && layer.window.stride == 1 && layer.window.pad == 0;
}

Status products(Build& b, const Rows& rows) {
    const Layer& l = *b.layer;
    Operations& list = *b.operations;
    const uint64_t N = rows.N;
    const uint32_t C = rows.C, K = l.out.C;
    const auto made = std::make_shared<Products>();
    // A max pooling behind the layer adds the bias to the maxima.
    const bool pooled = b.before(max_pool_kind), biased = l.biases > 0 && !pooled, padded = rows.used < C;

    // Canonical weights and bias may lie at any offset; copies are aligned to 16 bytes.
    const Tensor w_canonical = b.weight(Place::parameters), b_canonical = b.bias(Place::parameters);
    Tensor w = w_canonical, bias = b_canonical;
    if (b.bf16 || padded || l.offset % 4 || (biased && (l.offset + l.weights) % 4)) {
        const uint64_t bias_at = (uint64_t{K} * C + 7) / 8 * 8;
        w = b.copy((bias_at + K) * b.value_bytes(),
                   {{w_canonical, 0, K, 1, rows.used, padded ? C : 0}, {b_canonical, bias_at, 1, 1, l.biases}});
        bias = {w.place, w.offset + bias_at * b.value_bytes()};
    }

    Activation y = b.flows(true);
    y.rectified = b.before(relu_kind);
    if (pooled && l.biases) y.unbiased = &l;
    const Epilogue epilogue = !biased ? Epilogue::none : y.rectified ? Epilogue::bias_relu : Epilogue::bias;
    bool offered = false;
    if (epilogue != Epilogue::none) GC_TRY(made->forward.choose(b, {ProductPass::forward, N, K, C, epilogue}, &offered));
    if (!offered) GC_TRY(made->forward.choose(b, {ProductPass::forward, N, K, C}));
    const bool passes = !offered;   // bias and ReLU are a pass of their own
    list.forward.emplace_back([=, rectify = y.rectified](const Frame& f) {
        GC_TRY(made->forward.run(f, {f.at<void>(rows.x), f.at<void>(w), f.at<void>(y.value), biased ? f.at<void>(bias) : nullptr}));
        return passes ? bias_relu(f.stream, f.values(y.value), biased ? f.at(b_canonical) : nullptr, N, K, rectify) : Status{};
    });
    b.activation = y;
    if (!b.training) return {};

    // The bias's gradient and the ReLU's are one pass over dy; without a ReLU the sums come with dw.
    const Tensor gradient = b.weight(Place::gradient), bias_gradient = b.bias(Place::gradient);
    bool sums = false;
    if (biased && !y.rectified && (l.offset + l.weights) % 4 == 0)
        GC_TRY(made->weights.choose(b, {ProductPass::weights, N, K, C, Epilogue::sums}, &sums));
    if (!sums) {
        if (!pooled) b.bias_backward(y, &l, list.before);
        GC_TRY(made->weights.choose(b, {ProductPass::weights, N, K, C}));
    }
    const bool in_place = l.offset % 4 == 0 && !padded;
    const Tensor dw = in_place ? gradient : b.beside(uint64_t{K} * C * sizeof(float));
    list.weights.emplace_back([=](const Frame& f) {
        GC_TRY(
            made->weights.run(f, {f.at<void>(y.gradient), f.at<void>(rows.x), f.at<void>(dw), sums ? f.at<void>(bias_gradient) : nullptr}));
        return in_place ? Status{} : copy_rows(f.stream, f.at(gradient), f.at(dw), K, rows.used, C);
    });
    if (!rows.learns) return {};

    GC_TRY(made->data.choose(b, {ProductPass::data, N, K, C}));
    list.data.emplace_back([=](const Frame& f) { return made->data.run(f, {f.at<void>(y.gradient), f.at<void>(w), f.at<void>(rows.dx)}); });
    return {};
}

}   // namespace

bool conv_is_dense(const Layer& layer) { return is_dense(layer); }

bool conv_is_unfolded(const Build& b) { return !b.activation.learns && b.layer->in.C <= 4; }

Status unfolded(Build& b) {
    const Layer& l = *b.layer;
    const Activation x = b.activation;
    const uint64_t rows = b.rows(l.out);
    const auto used = static_cast<uint32_t>(l.weights / l.out.C);
    const auto pack = static_cast<uint32_t>(16 / b.value_bytes()), width = (used + pack - 1) / pack * pack;
    const Tensor columns = b.kept(uint64_t{rows} * width * b.value_bytes());
    b.operations->forward.emplace_back(
        [=, shape = b.window()](const Frame& f) { return unfold(f.stream, f.values(columns), f.values(x.value), shape, width, false); });
    return products(b, {rows, width, used, columns, {}, false});
}

Status dense(Build& b) {
    const Activation x = b.activation;
    const uint32_t C = b.layer->in.C;
    return products(b, {b.rows(b.layer->in), C, C, x.value, x.gradient, x.learns});
}

// At each position.
Status linear(Build& b) { return dense(b); }

Status inner_product(Build& b) {
    const Layer& l = *b.layer;
    const uint32_t pixels = l.in.H * l.in.W, channels = l.in.C;
    if (pixels == 1) return dense(b);
    const Activation x = b.activation;
    const auto C = static_cast<uint32_t>(l.in.elements());
    if (channels == 1) return products(b, {b.samples, C, C, x.value, x.gradient, x.learns});
    const uint64_t bytes = uint64_t{b.samples} * C * b.value_bytes();
    const Tensor flat = b.kept(bytes), dflat = x.learns && b.training ? b.scratch(bytes) : Tensor{};
    b.operations->forward.emplace_back([=, samples = b.samples](const Frame& f) {
        return transpose(f.stream, f.values(flat), f.values(x.value), samples, pixels, channels);
    });
    GC_TRY(products(b, {b.samples, C, C, flat, dflat, x.learns}));
    if (!b.training || !x.learns) return {};
    b.operations->data.emplace_back([=, samples = b.samples](const Frame& f) {
        return transpose(f.stream, f.values(x.gradient), f.values(dflat), samples, channels, pixels);
    });
    return {};
}

}   // namespace gradcast::cuda
