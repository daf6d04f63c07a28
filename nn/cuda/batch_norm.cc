// Batch norm as in nn/cpu/batch_norm.cc; the kernels are in sums.cu.  A following ReLU is fused, forward and backward.
#include "nn/cuda/build.h"

namespace gradcast::cuda {

Status batch_norm(Build& b) {
    const Layer& l = *b.layer;
    const Activation x = b.activation;
    Operations& list = *b.operations;
    const NormShape shape{b.rows(l.in), l.in.C, b.samples};
    Activation y = b.flows(true);
    y.rectified = b.before(relu_kind);
    const bool rectify = y.rectified;
    const Tensor rows = b.kept(uint64_t{5} * l.in.C * sizeof(float));
    const SumPlaces sums = b.sum(Place::scratch, columns_size(shape.rows, shape.C, 2, b.bf16));
    const Tensor weight = b.weight(Place::parameters), bias = b.bias(Place::parameters);
    const Tensor running = b.canonical(Place::parameters, l.statistics_offset), found = b.canonical(Place::gradient, l.statistics_offset);
    auto values = [rows, C = l.in.C](const Frame& f) {
        float* row = f.at(rows);
        return NormValues{row, row + C, row + 2 * C, row + 3 * C, row + 4 * C};
    };
    list.forward.emplace_back([=](const Frame& f) {
        if (f.training) GC_TRY(norm_statistics(f.stream, f.values(x.value), values(f), f.at(weight), f.at(found), f.at(sums), shape));
        else GC_TRY(norm_running(f.stream, f.at(running), values(f), f.at(weight), shape.C));
        return norm_forward(f.stream, f.values(y.value), f.values(x.value), values(f), f.at(bias), shape, rectify);
    });
    b.activation = y;
    if (!b.training) return {};

    const Tensor dweight = b.weight(Place::gradient), dbias = b.bias(Place::gradient);
    list.before.emplace_back([=](const Frame& f) {
        return norm_sums(f.stream, f.values(y.gradient), f.values(x.value), rectify ? f.values(y.value) : Values{}, values(f),
                         f.at(dweight), f.at(dbias), f.at(sums), shape);
    });
    if (!x.learns) return {};
    list.data.emplace_back([=](const Frame& f) {
        return norm_backward(f.stream, f.values(x.gradient), f.values(y.gradient), f.values(x.value),
                             rectify ? f.values(y.value) : Values{}, values(f), shape);
    });
    return {};
}

}   // namespace gradcast::cuda
