// embedding: y[n,p] = w[x[n,p]], of the tokens of a text, which are the net's input.  positions: y[n,p] = x[n,p] + w[p].
#include "nn/cuda/build.h"

namespace gradcast::cuda {

Status embedding(Build& b) {
    const Layer& l = *b.layer;
    const uint64_t rows = b.rows(l.out);
    const uint32_t C = l.out.C, vocabulary = static_cast<uint32_t>(l.weights / C);
    GC_TRY(b.rows_fit(rows));
    if (C > 65535)
        return fail(Code::unsupported, "layer {}: its {} outputs are more than the 65535 that GPUs take: take device cpu", l.spec.name, C);
    const Tensor tokens = b.activation.value, w = b.weight(Place::parameters), dw = b.weight(Place::gradient);
    const Activation y = b.activation = b.flows(true);
    b.operations->forward.emplace_back(
        [=](const Frame& f) { return embedding(f.stream, f.values(y.value), f.at<uint32_t>(tokens), f.at(w), rows, C); });
    if (!b.training) return {};
    const Tensor space = b.beside(embedding_scratch(vocabulary, C) * sizeof(float));
    b.operations->weights.emplace_back([=](const Frame& f) {
        return embedding_backward(f.stream, f.at(dw), f.values(y.gradient), f.at<uint32_t>(tokens), f.at(space), rows, vocabulary, C);
    });
    return {};
}

// The gradient of the weights is that of a bias whose rows are whole samples.
Status positions(Build& b) {
    const Layer& l = *b.layer;
    const uint32_t samples = b.samples;
    const auto elements = static_cast<uint32_t>(l.in.elements());
    const Tensor w = b.weight(Place::parameters), dw = b.weight(Place::gradient);
    const Activation x = b.activation, y = b.activation = b.flows(true);
    b.operations->forward.emplace_back(
        [=](const Frame& f) { return add_rows(f.stream, f.values(y.value), f.values(x.value), f.at(w), samples, elements); });
    if (!b.training) return {};
    const SumPlaces sums = b.sum(Place::beside, columns_size(samples, elements, 1, b.bf16));
    b.operations->weights.emplace_back([=](const Frame& f) {
        return bias_backward(f.stream, f.values(y.gradient), Values{}, f.at(dw), f.at(sums), samples, elements, false);
    });
    if (x.learns)
        b.operations->data.emplace_back(
            [=](const Frame& f) { return copy(f.stream, f.values(x.gradient), f.values(y.gradient), uint64_t{samples} * elements); });
    return {};
}

}   // namespace gradcast::cuda
