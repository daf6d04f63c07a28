// concat and upsample; the kernels are in resize.cu.
#include "nn/cuda/build.h"

namespace gradcast::cuda {

// y = x and behind it `other`, along the channels.  The gradient is cut apart.
Status concat(Build& b) {
    const Layer& l = *b.layer;
    const Activation x = b.activation, other = b.other;
    const uint64_t rows = b.rows(l.in);
    const uint32_t A = l.in.C, B = l.other_in.C;
    const Activation y = b.activation = b.flows(x.learns || other.learns);
    b.operations->forward.emplace_back(
        [=](const Frame& f) { return join(f.stream, f.values(y.value), f.values(x.value), f.values(other.value), rows, A, B); });
    if (!b.training) return {};
    if (x.learns)
        b.operations->data.emplace_back(
            [=](const Frame& f) { return take_columns(f.stream, f.values(x.gradient), f.values(y.gradient), rows, A, 0, A + B); });
    if (other.learns)
        b.operations->data.emplace_back(
            [=](const Frame& f) { return take_columns(f.stream, f.values(other.gradient), f.values(y.gradient), rows, B, A, A + B); });
    return {};
}

Status upsample(Build& b) {
    const Layer& l = *b.layer;
    const UpsampleShape shape{b.samples, l.in.C, l.in.H, l.in.W, static_cast<uint32_t>(l.value("scale")), l.value("mode") != 0};
    const Activation x = b.activation, y = b.activation = b.flows(x.learns);
    b.operations->forward.emplace_back([=](const Frame& f) { return upsample(f.stream, f.values(y.value), f.values(x.value), shape); });
    if (b.training && x.learns)
        b.operations->data.emplace_back(
            [=](const Frame& f) { return upsample_backward(f.stream, f.values(x.gradient), f.values(y.gradient), shape); });
    return {};
}

}   // namespace gradcast::cuda
