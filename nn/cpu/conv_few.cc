// Convolution of few channels, on kernels of our own (nn/cpu/conv16.h): oneDNN computes lenet5's two at a third of their speed.  Max
// pooling and ReLU behind it are computed with it, where they fit: what is before them is never in memory.
#include "nn/cpu/build.h"
#include "nn/cpu/conv16.h"
#include "nn/kernels.h"

namespace gradcast::cpu {

bool conv_few_fits(const Layer& l) { return l.in.C < 16 && l.spec.stride == 1 && l.spec.pad == 0 && l.biases > 0; }

bool conv_few_pools(const Layer& l, const Layer& pool) {
    return conv_few_fits(l) && l.takers == 1 && pool.kind == Kind::max_pool && pool.spec.kernel == 2 && pool.spec.stride == 2 &&
           pool.spec.pad == 0 && l.out.H % 2 == 0 && l.out.W % 2 == 0;
}

Status conv_few(Build& b) {
    const Layer& l = *b.layer;
    const Activation x = b.activation;
    Operations& list = *b.operations;
    const Conv16Kernels& kernels = conv16_kernels(b.isa());
    const Conv16Shape shape{(b.samples + 15) / 16, l.in.C, l.in.H, l.in.W, l.out.C, l.spec.kernel, l.spec.kernel};
    const Tensor w = b.weight(Place::parameters, Build::plain({l.weights})), bias = b.bias(Place::parameters);
    auto packed = [&](WeightOrder order) {
        return b.packed(order != WeightOrder::forward, kernels.packed(shape, order),
                        [&kernels, shape, w, order](float* to, Frame& frame) { kernels.pack(to, frame.at(w), shape, order); });
    };

    Tensor x1;
    GC_TRY(b.consume({x.value}, Build::side_by_side(b.samples, l.in), list.forward, &x1));
    const Tensor w1 = packed(WeightOrder::forward);
    const bool pools = b.pool;
    const Activation y = b.activation = b.flows(Build::side_by_side(b.samples, pools ? b.pool->out : l.out), true);
    const Tensor winners = pools ? b.kept(y.value.desc) : Tensor{};   // int32 for each float
    auto winners_at = [=](const Frame& frame) { return pools ? reinterpret_cast<int32_t*>(frame.at(winners)) : nullptr; };
    list.forward.emplace_back([=, &kernels](Frame& frame) {
        if (pools) kernels.forward_pooled(frame.at(y.value), winners_at(frame), frame.at(x1), frame.at(w1), frame.at(bias), shape);
        else kernels.forward(frame.at(y.value), frame.at(x1), frame.at(w1), frame.at(bias), shape);
        return Status{};
    });
    if (!b.training) return {};

    const Tensor sums = b.scratch(l.weights * 16), dw = b.weight(Place::gradient, w.desc), db = b.bias(Place::gradient);
    const FloatKernels& plain = float_kernels(isa_best());
    list.weights.emplace_back([=, &kernels, &plain](Frame& frame) {
        float* dy = frame.at(y.gradient);
        if (pools) {
            plain.relu_backward(dy, frame.at(y.value), y.value.bytes() / sizeof(float));
            kernels.backward_weights_pooled(frame.at(dw), frame.at(db), dy, winners_at(frame), frame.at(x1), frame.at(sums), shape);
        } else {
            kernels.backward_weights(frame.at(dw), frame.at(db), dy, frame.at(x1), frame.at(sums), shape);
        }
        return Status{};
    });
    if (!x.learns) return {};

    const Tensor w2 = packed(pools ? WeightOrder::data_pooled : WeightOrder::data),
                 rows = b.scratch(uint64_t{shape.K} * shape.P() * (shape.Q() + 2 * (shape.S - 1)) * 16);
    Tensor dx;
    std::vector<Operation> after;
    GC_TRY(b.produce(x.gradient, x1.desc, after, &dx));
    list.data.emplace_back([=, &kernels](Frame& frame) {
        kernels.backward_data(frame.at(dx), frame.at(y.gradient), winners_at(frame), frame.at(w2), frame.at(rows), shape);
        return Status{};
    });
    list.data.insert(list.data.end(), after.begin(), after.end());
    return {};
}

}   // namespace gradcast::cpu
