#include "nn/cuda/build.h"

#include <algorithm>

namespace gradcast::cuda {

void Build::plan_further() {
    uint64_t end = layout.elements;
    for (uint32_t i = 0; i < layers.size(); ++i) {
        const uint32_t owner = layers[i].tied;
        if (owner == Layer::none || !config.stage.has(i)) continue;
        bool before = config.stage.has(owner);
        for (uint32_t j = owner + 1; j < i; ++j) before = before || (layers[j].tied == owner && config.stage.has(j));
        if (!before) continue;
        constexpr uint64_t whole = alignment / sizeof(float);
        const uint64_t at = (lead(layout) + end + whole - 1) / whole * whole - lead(layout);
        further.push_back({i, at, layers[i].weights});
        end = at + layers[i].weights;
    }
}

Tensor Build::weight(Place place) const {
    if (place == Place::gradient)
        for (const FurtherGradient& each : further)
            if (each.layer == number) return {place, each.at * sizeof(float)};
    return canonical(place, layer->offset);
}

void Build::begin(uint32_t size, bool backward, std::vector<Operations>* all, std::vector<EdgeTensors>* edges) {
    samples = size;
    training = backward;
    activation = other = {};
    memory.begin(!training);
    elsewhere.begin(!training);
    all->resize(layers.size());
    all_ = all;
    edges_ = edges;
    inside_ = config.stage.has(0);   // of the net's input
}

bool Build::enter(uint32_t next) {
    inside_ = config.stage.has(next);
    layer = &layers[next];
    number = next;
    operations = &(*all_)[next];
    return true;
}

bool Build::part(uint32_t from, uint32_t by, Activation* given) {
    const Stage& stage = config.stage;
    const uint64_t bytes = rows(layers[from].out) * layers[from].out.C * value_bytes();
    const bool ours = stage.has(by), crosses = ours != stage.has(from), made = given->learns && training;
    const auto before = std::ranges::find_if(*edges_, [&](const EdgeTensors& each) { return each.edge.from == from; });
    inside_ = ours || stage.has(from);
    if (crosses && ours) given->value = before != edges_->end() ? before->value : Tensor{Place::kept, plan().append_own(bytes)};
    if (made) given->gradient = kept(bytes);
    const auto first = static_cast<size_t>(before - edges_->begin());
    if (crosses) edges_->push_back({{from, by, ours, given->learns}, given->value, given->gradient, bytes, first});
    inside_ = ours;
    return made;
}

void Build::add_up(uint32_t which, const Activation& output, std::vector<Tensor> parts) {
    const uint64_t count = rows(layers[which].out) * layers[which].out.C;
    auto sum = [to = output.gradient, from = std::move(parts), count](const Frame& f) {
        if (from.size() == 1) return cuda::copy(f.stream, f.values(to), f.values(from[0]), count);
        GC_TRY(cuda::add(f.stream, f.values(to), f.values(from[0]), f.values(from[1]), count));
        for (size_t part = 2; part < from.size(); ++part)
            GC_TRY(cuda::add(f.stream, f.values(to), f.values(to), f.values(from[part]), count));
        return Status{};
    };
    std::vector<Operation>& list = (*all_)[which].before;
    list.insert(list.begin(), sum);
}

Status Build::rows_fit(uint64_t rows) const {
    if (rows <= INT32_MAX) return {};
    return fail(Code::unsupported, "layer {}: a block of {} samples has {} rows there, and GPUs take at most {}: take smaller blocks",
                layer->spec.name, samples, rows, INT32_MAX);
}

SumPlaces Build::sum(Place place, const SumSize& size) {
    const uint64_t tickets = size.tickets * sizeof(uint32_t);
    return {reserve(place, size.scratch * sizeof(double), 0), {Place::tickets, plan().append(Place::tickets, tickets)}};
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
    const Place place = plan().turn();
    made.gradient = waits || config.passes_apart ? kept(size) : reserve(place, size, 0);
    return made;
}

Tensor Build::bias(Place place, const Layer* of) const {
    if (!of) of = layer;
    return canonical(place, of->offset + of->weights);
}

Tensor Build::canonical(Place place, uint64_t element) const {
    const uint64_t at = layout.offset_of(element);
    return {place, at == Layout::none ? 0 : at * sizeof(float)};   // another stage's: nobody reads it
}

Tensor Build::copy(uint64_t size, std::vector<CopyPart> parts) {
    Copy& made = copies[number];
    if (made.parts.empty()) {
        made.tensor = {Place::copies, plan().append(Place::copies, size)};
        made.parts = std::move(parts);
    }
    return made.tensor;
}

Tensor Build::constant(std::vector<float> values) {
    if (!inside_) return {Place::copies, 0};   // another stage's: nobody reads it
    const auto same = std::ranges::find(constants, values, &Constant::values);
    if (same != constants.end()) return same->tensor;
    const Tensor made{Place::copies, plan().append(Place::copies, values.size() * sizeof(float))};
    constants.push_back({made, std::move(values)});
    return made;
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
