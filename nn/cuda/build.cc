#include "nn/cuda/build.h"

#include <algorithm>

namespace gradcast::cuda {

void Build::begin(uint32_t size, bool backward, std::vector<Operations>* all) {
    samples = size;
    training = backward;
    activation = other = {};
    memory.begin();
    all->resize(layers.size());
    all_ = all;
}

bool Build::enter(uint32_t next) {
    layer = &layers[next];
    number = next;
    operations = &(*all_)[next];
    return true;
}

bool Build::part(uint32_t from, uint32_t, Activation* given) {
    const bool made = given->learns && training;
    if (made) given->gradient = kept(rows(layers[from].out) * layers[from].out.C * value_bytes());
    return made;
}

void Build::add_up(uint32_t which, const Activation& output, std::vector<Tensor> parts) {
    const uint64_t count = rows(layers[which].out) * layers[which].out.C;
    auto sum = [to = output.gradient, from = std::move(parts), count](const Frame& f) {
        GC_TRY(cuda::add(f.stream, f.values(to), f.values(from[0]), f.values(from[1]), count));
        for (size_t part = 2; part < from.size(); ++part)
            GC_TRY(cuda::add(f.stream, f.values(to), f.values(to), f.values(from[part]), count));
        return Status{};
    };
    std::vector<Operation>& list = (*all_)[which].before;
    list.insert(list.begin(), sum);
}

SumPlaces Build::sum(Place place, const SumSize& size) {
    const uint64_t tickets = size.tickets * sizeof(uint32_t);
    return {reserve(place, size.scratch * sizeof(double), 0), {Place::tickets, memory.append(Place::tickets, tickets)}};
}

// A ReLU is computed by the layer before it, and the bias of products by a max pooling behind them.
std::vector<Fusion> Build::fusions() {
    std::vector<Fusion> all;
    for (const LayerKind* products : {&conv_kind, &inner_product_kind}) {
        all.push_back({{products, &max_pool_kind, &relu_kind}, nullptr});
        all.push_back({{products, &max_pool_kind}, nullptr});
        all.push_back({{products, &relu_kind}, nullptr});
    }
    all.push_back({{&batch_norm_kind, &relu_kind}, nullptr});
    all.push_back({{&max_pool_kind, &relu_kind}, nullptr});
    return all;
}

bool Build::before(const LayerKind& kind) const { return number + 1 < layers.size() && fused_[number + 1] && layers[number + 1].is(kind); }

Activation Build::flows(bool learns) {
    const uint64_t size = rows(layer->out) * layer->out.C * value_bytes();
    Activation made{.value = kept(size), .gradient = {}, .learns = learns};
    if (!training || !learns) return made;
    // A ReLU passes the gradient on in place.  If the reader is not the next layer, the gradient is `kept`: layers between use even and
    // odd.
    uint32_t last = number;
    if (layer->takers == 1 && number + 1 < layers.size() && layers[number + 1].is(relu_kind) && layers[number + 1].input == number) ++last;
    const bool waits = layers[last].takers == 1 && last + 1 < layers.size() && layers[last + 1].input != last;
    const Place place = memory.turn();
    made.gradient = waits ? kept(size) : reserve(place, size, 0);
    return made;
}

Tensor Build::bias(Place place, const Layer* of) const {
    if (!of) of = layer;
    return {place, (of->offset + of->weights) * sizeof(float)};
}

Tensor Build::copy(uint64_t size, std::vector<CopyPart> parts) {
    Copy& made = copies[number];
    if (made.parts.empty()) {
        made.tensor = {Place::copies, memory.append(Place::copies, size)};
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
