// Layers of one or two kernels: ReLU, functions of each element, residual sum, product, dropout, pooling, losses.
#include <algorithm>
#include <cmath>

#include "nn/cuda/build.h"
#include "nn/graph/curves.h"
#include "runtime/core/rng.h"

namespace gradcast::cuda {

// y = max(x, 0), NaN stays NaN;  dx = dy where y > 0.  Nothing to do if it is fused with the layer before.
Status relu(Build& b) {
    const Activation x = b.activation;
    if (x.rectified) {
        b.activation.rectified = false;
        return {};
    }
    const uint64_t count = b.rows(b.layer->in) * b.layer->in.C;
    const Activation y = b.activation = b.flows(x.learns);
    b.operations->forward.emplace_back([=](const Frame& f) { return relu(f.stream, f.values(y.value), f.values(x.value), count); });
    if (b.training && x.learns)
        b.operations->data.emplace_back(
            [=](const Frame& f) { return relu_backward(f.stream, f.values(x.gradient), f.values(y.gradient), f.values(y.value), count); });
    return {};
}

// y = f(x), dx = dy f'(x).
static Status curve(Build& b) {
    const Curve which = curve_of(*b.layer);
    const uint64_t count = b.rows(b.layer->in) * b.layer->in.C;
    const Activation x = b.activation, y = b.activation = b.flows(x.learns);
    b.operations->forward.emplace_back([=](const Frame& f) { return curve(f.stream, which, f.values(y.value), f.values(x.value), count); });
    if (b.training && x.learns)
        b.operations->data.emplace_back([=](const Frame& f) {
            return curve_backward(f.stream, which, f.values(x.gradient), f.values(y.gradient), f.values(x.value), count);
        });
    return {};
}
Status gelu(Build& b) { return curve(b); }
Status silu(Build& b) { return curve(b); }
Status sigmoid(Build& b) { return curve(b); }
Status tanh(Build& b) { return curve(b); }

// y = x + other.  dx is dy, in place; other's gradient is a copy.
Status add(Build& b) {
    Activation x = b.activation, other = b.other;
    if (!x.learns) std::swap(x, other);   // now x learns, if any of the two does
    const uint64_t count = b.rows(b.layer->in) * b.layer->in.C;
    const Activation y{.value = b.kept(count * b.value_bytes()), .gradient = x.gradient, .learns = x.learns};
    b.operations->forward.emplace_back(
        [=](const Frame& f) { return add(f.stream, f.values(y.value), f.values(x.value), f.values(other.value), count); });
    if (b.training && other.learns)
        b.operations->data.emplace_back(
            [=](const Frame& f) { return copy(f.stream, f.values(other.gradient), f.values(y.gradient), count); });
    b.activation = y;
    return {};
}

// y = x other.
Status multiply(Build& b) {
    const Activation x = b.activation, other = b.other;
    const uint64_t count = b.rows(b.layer->in) * b.layer->in.C;
    const Activation y = b.activation = b.flows(x.learns || other.learns);
    b.operations->forward.emplace_back(
        [=](const Frame& f) { return multiply(f.stream, f.values(y.value), f.values(x.value), f.values(other.value), count); });
    const auto gradient = [&](const Activation& of, const Tensor& by) {
        if (b.training && of.learns)
            b.operations->data.emplace_back(
                [=](const Frame& f) { return multiply(f.stream, f.values(of.gradient), f.values(y.gradient), f.values(by), count); });
    };
    gradient(x, other.value);
    gradient(other, x.value);
    return {};
}

// Drops the same elements as nn/cpu/dropout.cc.  The host writes the seed of a layer and step (Net).
Status dropout(Build& b) {
    const Layer& l = *b.layer;
    const uint32_t drop = dropout_share(l.value("rate")).drop;
    const uint32_t samples = b.samples, pixels = l.in.H * l.in.W, C = l.in.C;
    const uint64_t count = b.rows(l.in) * C;
    const size_t seed = b.seed_number();
    const Activation x = b.activation, y = b.activation = b.flows(x.learns);
    b.operations->forward.emplace_back([=](const Frame& f) {
        if (!f.training) return copy(f.stream, f.values(y.value), f.values(x.value), count);
        return dropout(f.stream, f.values(y.value), f.values(x.value), f.seeds + seed, f.header, samples, pixels, C, drop);
    });
    if (b.training && x.learns)
        b.operations->data.emplace_back([=](const Frame& f) {
            return dropout(f.stream, f.values(x.gradient), f.values(y.gradient), f.seeds + seed, f.header, samples, pixels, C, drop);
        });
    return {};
}

// Fuses the bias of the convolution before it and the ReLU behind it where that gives the same bits.
Status max_pool(Build& b) {
    const Layer& l = *b.layer;
    if (l.window.kernel > pool_kernel_max)
        return fail(Code::unsupported, "layer {}: kernel {}x{}: max_pool takes at most {}x{}", l.spec.name, l.window.kernel,
                    l.window.kernel, pool_kernel_max, pool_kernel_max);
    const WindowShape shape = b.window();
    const Activation x = b.activation;
    Activation y = b.flows(x.learns);
    y.rectified = b.before(relu_kind);
    const bool rectify = y.rectified;
    const Tensor winners = b.kept(b.rows(l.out) * l.out.C);   // 1 byte each
    const Tensor bias = x.unbiased ? b.bias(Place::parameters, x.unbiased) : Tensor{};
    b.operations->forward.emplace_back([=, biased = x.unbiased != nullptr](const Frame& f) {
        return max_pool(f.stream, f.values(y.value), f.at<uint8_t>(winners), f.values(x.value), biased ? f.at(bias) : nullptr, shape,
                        rectify);
    });
    b.activation = y;
    if (!b.training || !x.learns) return {};
    // Both mask the gradient by themselves, so they do not wait for each other.
    auto mask = [=](const Frame& f) { return rectify ? f.values(y.value) : Values{}; };
    if (x.unbiased && x.unbiased->biases) {
        const uint64_t rows = b.rows(l.out);
        const Tensor dbias = b.bias(Place::gradient, x.unbiased);
        const SumPlaces sums = b.sum(Place::beside, columns_size(rows, l.out.C, 1, b.bf16));
        b.operations->weights.emplace_back([=, C = l.out.C](const Frame& f) {
            return bias_backward(f.stream, f.values(y.gradient), mask(f), f.at(dbias), f.at(sums), rows, C, false);
        });
    }
    b.operations->data.emplace_back([=](const Frame& f) {
        return max_pool_backward(f.stream, f.values(x.gradient), f.values(y.gradient), mask(f), f.at<uint8_t>(winners), shape);
    });
    return {};
}

Status average_pool(Build& b) {
    const WindowShape shape = b.window();
    const Activation x = b.activation, y = b.activation = b.flows(x.learns);
    b.operations->forward.emplace_back([=](const Frame& f) { return average_pool(f.stream, f.values(y.value), f.values(x.value), shape); });
    if (b.training && x.learns)
        b.operations->data.emplace_back(
            [=](const Frame& f) { return average_pool_backward(f.stream, f.values(x.gradient), f.values(y.gradient), shape); });
    return {};
}
Status global_average_pool(Build& b) { return average_pool(b); }

/// Where the loss writes its gradient in the forward pass: of several slots each keeps its own until the backward pass.
static Activation loss_input(Build& b) {
    Activation x = b.activation;
    if (!b.training || !x.learns || b.config.slots == 1) return x;
    const uint64_t count = b.rows(b.layer->in) * b.layer->in.C;
    const Tensor to = x.gradient;
    x.gradient = b.kept(count * b.value_bytes());
    b.operations->data.emplace_back([=](const Frame& f) { return copy(f.stream, f.values(to), f.values(x.gradient), count); });
    return x;
}

static Values loss_gradient(const Frame& f, const Activation& x, bool training) {
    return training && x.learns && f.training ? f.values(x.gradient) : Values{nullptr, f.bf16};
}

static auto loss_task(Build& b, const SumSize& size, uint32_t positions = 1, double smoothing = 0) {
    return [=, sum = b.sum(Place::scratch, size), classes = b.layer->in.C, samples = b.samples](const Frame& f) {
        return LossTask{f.labels, f.header, f.spoiled, classes, samples, f.at(sum), f.best, f.result, positions, smoothing};
    };
}

/// Of masks and texts, and with label smoothing.
static Status loss_by_rows(Build& b, double smoothing) {
    const Layer& l = *b.layer;
    const uint32_t positions = l.in.H * l.in.W;
    const uint64_t rows = b.rows(l.in);
    GC_TRY(b.rows_fit(rows));
    const Activation x = loss_input(b);
    b.operations->forward.emplace_back(
        [=, task = loss_task(b, loss_rows_size(rows, l.in.C), positions, smoothing), training = b.training](const Frame& f) {
            return softmax_cross_entropy_rows(f.stream, f.values(x.value), loss_gradient(f, x, training), task(f));
        });
    return {};
}

Status softmax_cross_entropy(Build& b) {
    if (const double smoothing = b.layer->value("label_smoothing"); b.layer->by_position || smoothing > 0)
        return loss_by_rows(b, smoothing);
    const Activation x = loss_input(b);
    b.operations->forward.emplace_back([=, task = loss_task(b, loss_size(b.samples)), training = b.training](const Frame& f) {
        return softmax_cross_entropy(f.stream, f.values(x.value), loss_gradient(f, x, training), task(f));
    });
    return {};
}

Status squared_loss(Build& b) {
    const Activation x = loss_input(b);
    const Layer& l = *b.layer;
    b.operations->forward.emplace_back([=, task = loss_task(b, loss_size(b.samples)), training = b.training, scale = l.target_scale,
                                        zero = l.target_zero, of_targets = l.targets > 0](const Frame& f) {
        const Values dx = loss_gradient(f, x, training);
        if (of_targets) return squared_loss(f.stream, f.values(x.value), dx, task(f), f.targets());
        return squared_loss(f.stream, f.values(x.value), dx, task(f), scale, zero);
    });
    return {};
}

}   // namespace gradcast::cuda
