#include "nn/cuda/build.h"

#include <algorithm>

namespace gradcast::cuda {

void Build::begin(uint32_t size, bool backward) {
    samples = size;
    training = backward;
    kept_ = ticketed_ = 0;
    odd_ = false;
    activation = other = {};
}

Tensor Build::allocate(Place place, uint64_t size, uint64_t offset) {
    uint64_t& most = bytes[static_cast<size_t>(place)];
    most = std::max(most, (offset + size + 255) / 256 * 256);
    return {place, offset};
}

Tensor Build::kept(uint64_t size) {
    const Tensor tensor = allocate(Place::kept, size, kept_);
    kept_ += (size + 255) / 256 * 256;
    return tensor;
}

SumPlaces Build::sum(Place place, const SumSize& size) {
    const uint64_t tickets = size.tickets * sizeof(uint32_t);
    const SumPlaces made = {allocate(place, size.scratch * sizeof(double), 0), allocate(Place::tickets, tickets, ticketed_)};
    ticketed_ += (tickets + 255) / 256 * 256;
    return made;
}

bool Build::before(const LayerKind& kind) const {
    return layer->takers == 1 && number + 1 < layers.size() && layers[number + 1].is(kind) && layers[number + 1].input == number;
}

Activation Build::flows(bool learns) {
    const uint64_t size = rows(layer->out) * layer->out.C * value_bytes();
    Activation made{.value = kept(size), .gradient = {}, .learns = learns};
    if (!training || !learns) return made;
    // A ReLU passes the gradient on in place.  If the reader is not the next layer, the gradient is `kept`: layers between use even and
    // odd.
    uint32_t last = number;
    if (before(relu_kind)) ++last;
    const bool waits = layers[last].takers == 1 && last + 1 < layers.size() && layers[last + 1].input != last;
    odd_ = !odd_;
    made.gradient = waits ? kept(size) : allocate(odd_ ? Place::odd : Place::even, size, 0);
    return made;
}

Tensor Build::bias(Place place, const Layer* of) const {
    if (!of) of = layer;
    return {place, (of->offset + of->weights) * sizeof(float)};
}

Tensor Build::copy(uint64_t size, std::vector<CopyPart> parts) {
    Copy& made = copies[number];
    if (made.parts.empty()) {
        made.tensor = allocate(Place::copies, size, copied_);
        copied_ += (size + 255) / 256 * 256;
        made.parts = std::move(parts);
    }
    return made.tensor;
}

void Build::bias_backward(const Activation& y, const Layer* biased, std::vector<Operation>& list) {
    const uint64_t count = rows(layer->out), C = layer->out.C;
    const bool masked = y.rectified;
    if (biased && biased->biases) {
        const Tensor dbias = bias(Place::gradient, biased);
        const SumPlaces sums = sum(Place::scratch, columns_size(count, layer->out.C, 1, bf16));
        list.emplace_back([=](const Frame& f) {
            return cuda::bias_backward(f.stream, f.values(y.gradient), masked ? f.values(y.value) : Values{}, f.at(dbias), f.at(sums),
                                       count, static_cast<uint32_t>(C), true);
        });
    } else if (masked) {
        list.emplace_back([=](const Frame& f) {
            return relu_backward(f.stream, f.values(y.gradient), f.values(y.gradient), f.values(y.value), count * C);
        });
    }
}

}   // namespace gradcast::cuda
