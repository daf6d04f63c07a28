// What the nets of all devices have in common while they are built: memory by lifetime, the order of the layers, and the gradients of
// outputs that several layers read.
#pragma once
#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "nn/graph/layers.h"

namespace gradcast {

/// Memory by lifetime.  Of a lane: `kept` lives from the forward to the backward pass, and so does `slot` where slots share `kept`; in a
/// program that is forward only, `kept` lives until the last layer that reads it.  `even` and `odd` hold gradients of activations (one is
/// read while the other is written); `scratch` lives within one operation, `beside` on a GPU within one that computes gradients of weights
/// in a second stream, on a CPU from one operation to the next; `tickets` are 0 between operations, each of which has its own; `gradient`
/// is in canonical order.  Of all lanes: `parameters` in canonical order, and `copies` of weights in the orders of kernels.
enum class Place : uint8_t { kept, slot, even, odd, scratch, beside, tickets, gradient, parameters, copies };
constexpr uint32_t place_count = 10;
/// The names of a lane's memory in a job's table of memory; null: all lanes share the place.
constexpr std::array<const char*, place_count> place_purposes = {
    "activations",    "activations",    "activation gradients", "activation gradients",
    "kernel scratch", "kernel scratch", "kernel scratch",       "gradients",
    nullptr,          nullptr};

/// Plans the places of a net.  Its programs (nn/programs.h) run one after the other in the same memory, so a place has the size of the
/// program that needs most.
class MemoryPlan {
public:
    explicit MemoryPlan(uint64_t alignment) : alignment_(alignment) {}   // bytes
    /// The next program begins: its kept memory, its slot's and its tickets begin at 0.
    void begin(bool forward_only) {
        for (const Place place : {Place::kept, Place::slot, Place::tickets}) used_[index(place)] = 0;
        odd_ = false;
        forward_only_ = forward_only;
        live_.clear();
    }
    /// Returns the offset of `bytes` bytes behind all that the program has appended to the place, or all programs to the copies.  Kept
    /// memory of a program that is forward only takes the first gap between what is live.
    uint64_t append(Place place, uint64_t bytes) {
        return place == Place::kept && forward_only_ ? append_live(aligned(bytes)) : append_behind(place, bytes);
    }
    /// Kept memory that nothing else of the program uses, before this call or after it: something outside the program fills it.
    uint64_t append_own(uint64_t bytes) {
        const uint64_t offset = append_behind(Place::kept, bytes);
        if (forward_only_) live_.push_back({offset, aligned(bytes), true});
        return offset;
    }
    /// Of a program that is forward only: all live memory is its own until the program ends.
    void own_all() {
        for (Live& each : live_) each.own = true;
    }
    /// Of a program that is forward only: kept memory that has none of these offsets is free for what is appended from now on.
    void keep_only(std::span<const uint64_t> offsets) {
        std::erase_if(live_, [&](const Live& each) {
            const auto inside = [&](uint64_t at) { return at >= each.offset && at < each.offset + each.bytes; };
            return !each.own && std::ranges::none_of(offsets, inside);
        });
    }
    /// The place has at least `bytes` bytes at `offset`, which other operations may use, too.
    void reserve(Place place, uint64_t bytes, uint64_t offset = 0) {
        bytes_[index(place)] = std::max(bytes_[index(place)], aligned(offset + bytes));
    }
    /// `even` or `odd`, in turn.
    Place turn() {
        odd_ = !odd_;
        return odd_ ? Place::odd : Place::even;
    }
    uint64_t bytes(Place place) const { return bytes_[index(place)]; }

private:
    struct Live {
        uint64_t offset, bytes;
        bool own;   // until the program ends
    };
    static size_t index(Place place) { return static_cast<size_t>(place); }
    uint64_t append_behind(Place place, uint64_t bytes) {
        const uint64_t offset = used_[index(place)];
        reserve(place, bytes, offset);
        used_[index(place)] = offset + aligned(bytes);
        return offset;
    }
    uint64_t append_live(uint64_t bytes) {
        uint64_t offset = 0;
        auto next = live_.begin();
        for (; next != live_.end() && next->offset < offset + bytes; ++next) offset = next->offset + next->bytes;
        live_.insert(next, {offset, bytes, false});
        reserve(Place::kept, bytes, offset);
        used_[index(Place::kept)] = std::max(used_[index(Place::kept)], offset + bytes);
        return offset;
    }
    uint64_t aligned(uint64_t bytes) const { return (bytes + alignment_ - 1) / alignment_ * alignment_; }
    const uint64_t alignment_;
    std::array<uint64_t, place_count> bytes_{}, used_{};
    bool odd_ = false, forward_only_ = false;
    std::vector<Live> live_;   // ascending offsets, of a program that is forward only
};

/// By layer: the last layer that reads its output; itself where none does.
inline std::vector<uint32_t> last_readers(const std::vector<Layer>& layers) {
    std::vector<uint32_t> last(layers.size());
    for (uint32_t i = 0; i < layers.size(); ++i) {
        last[i] = i;
        for (const uint32_t read : {layers[i].input, layers[i].other})
            if (read != Layer::none) last[read] = i;
    }
    return last;
}

/// The builder of the layer's kind, in the namespace of the device's Build.
template <typename Build>
Status layer_build(Build& b) {
#define GC_LAYER(which) \
    if (b.layer->is(which##_kind)) return which(b);
    GC_LAYER_KINDS(GC_LAYER)
#undef GC_LAYER
    GC_ASSERT(false);
    return {};
}

/// Builds the layers of a program in their order, each from the outputs that it reads.
///
/// A device's Build has `activation` (in: the layer's input; out: its output), `other` (the second input), and
///     bool enter(uint32_t layer)                            the next layer; false: it is computed with the one before it
///     bool parts(uint32_t from, uint32_t by)                layer `by` writes a gradient of its own for the output of layer `from`
///     bool part(uint32_t from, uint32_t by, Activation*)    turns that output into what `by` gets; true: with such a gradient
///     void add_up(uint32_t layer, const Activation&, std::vector<Tensor>)    appends their sum to the layer's backward pass
///     bool ours(uint32_t layer)                             the layer's output is planned in `memory`, not in `elsewhere`
///     Tensor value(const Activation&)                       where the output is
/// In a program that is forward only, memory is free again behind the last layer that reads it.  The net's input stays.
template <typename Build, typename Activation>
Status layers_build(Build& b, const std::vector<Layer>& layers, const Activation& input) {
    using Tensor = decltype(Activation::gradient);
    std::vector<Activation> outputs;
    std::vector<std::vector<Tensor>> parts(layers.size());   // by layer: the gradients of its output
    const auto take = [&](uint32_t from, uint32_t by) {
        if (from == Layer::none) return input;
        Activation given = outputs[from];
        if (!b.parts(from, by)) return given;
        if (b.part(from, by, &given)) parts[from].push_back(given.gradient);
        return given;
    };
    const std::vector<uint32_t> last = last_readers(layers);
    const auto keep_live = [&](MemoryPlan& plan, bool ours) {
        std::vector<uint64_t> live;
        for (uint32_t i = 0; i < outputs.size(); ++i)
            if (last[i] >= outputs.size() && b.ours(i) == ours) live.push_back(b.value(outputs[i]).offset);
        plan.keep_only(live);
    };
    if (!b.training) b.memory.own_all();
    for (uint32_t i = 0; i < layers.size(); ++i) {
        if (b.enter(i)) {
            b.activation = take(layers[i].input, i);
            if (layers[i].other != Layer::none) b.other = take(layers[i].other, i);
            GC_TRY(layer_build(b));
        }
        outputs.push_back(b.activation);
        if (b.training) continue;
        keep_live(b.memory, true);
        keep_live(b.elsewhere, false);
    }
    for (uint32_t i = 0; i < layers.size(); ++i)
        if (!parts[i].empty()) b.add_up(i, outputs[i], std::move(parts[i]));
    return {};
}

}   // namespace gradcast
