// Groups and buckets of the flat vector.
#include <algorithm>

#include "nn/graph/layers.h"

namespace gradcast {

namespace {

/// Between layers a and b (a < b) stands one that takes the weights of another.  Its gradient of them goes to their bucket.
bool tied_between(const std::vector<Layer>& layers, uint32_t a, uint32_t b) {
    for (uint32_t i = a + 1; i < b; ++i)
        if (layers[i].tied != Layer::none) return true;
    return false;
}

/// How many layers of the stage take the weights of that layer, itself among them.
uint32_t uses_in(const std::vector<Layer>& layers, uint32_t owner, const Stage& stage) {
    uint32_t uses = stage.has(owner);
    for (uint32_t i = owner + 1; i < layers.size() && layers[owner].uses > 1; ++i) uses += layers[i].tied == owner && stage.has(i);
    return uses;
}

}   // namespace

Layout layers_layout(const std::vector<Layer>& layers, uint64_t bucket_bytes, const Stage& stage) {
    Layout layout;
    std::vector<uint32_t> layer_of;   // by group
    auto take = [&](uint32_t layer, uint64_t count, const std::string& name, bool statistics) {
        if (count == 0) return;
        const uint32_t uses = statistics ? stage.has(layer) : uses_in(layers, layer, stage), all = statistics ? 1 : layers[layer].uses;
        if (uses == 0) return (void)(layout.others += count);
        const bool by_all = stage.slice_groups > 1 && (statistics || layers[layer].slices.empty());
        // The first slice group stands for it, and the stage of the layer that owns it.
        const bool shared = !stage.has(layer) || (by_all && stage.slice_group > 0);
        layout.groups.push_back({layout.elements, count, name, statistics, layout.others, shared, by_all, all});
        layout.elements += count;
        layer_of.push_back(layer);
    };
    const auto count = static_cast<uint32_t>(layers.size());
    for (uint32_t i = 0; i < count; ++i) {
        const std::vector<Layer>& slices = layers[i].slices;
        const auto all = layers[i].tied == Layer::none ? static_cast<uint32_t>(slices.size()) : 0;   // else they are the owner's
        for (const bool biases : {false, true})
            for (uint32_t t = 0; t < all; ++t) {
                const uint64_t elements = biases ? slices[t].biases : slices[t].weights;
                if (stage.has_slice(t, all)) take(i, elements, slices[t].spec.name, false);
                else layout.others += elements;
            }
        if (slices.empty()) take(i, layers[i].parameters(), layers[i].spec.name, false);
    }
    const size_t learnt = layout.groups.size();
    for (uint32_t i = 0; i < count; ++i) take(i, layers[i].statistics, layers[i].spec.name + " statistics", true);
    // A bucket of tied weights has nothing else.  Any other is complete before a layer adds to that one.
    const auto alike = [&](uint32_t group) {
        const Group &first = layout.groups[group - 1], &second = layout.groups[group];
        if (layer_of[group - 1] == layer_of[group]) return true;   // slices
        return first.by_all == second.by_all && first.uses == 1 && second.uses == 1 &&
               !tied_between(layers, layer_of[group - 1], layer_of[group]);
    };
    Bucket bucket{layout.elements, 0, static_cast<uint32_t>(layout.groups.size()), 0};
    while (bucket.group > 0) {
        const Group& group = layout.groups[--bucket.group];
        bucket.offset = group.offset;
        bucket.count += group.count;
        ++bucket.group_count;
        const bool begins = bucket.group == 0 || layer_of[bucket.group - 1] != layer_of[bucket.group];
        const bool enough = bucket.group < learnt && begins && bucket.count * sizeof(float) >= bucket_bytes;
        if (!enough && bucket.group != 0 && bucket.group != learnt && alike(bucket.group)) continue;
        layout.buckets.push_back(bucket);
        bucket.count = 0;
        bucket.group_count = 0;
    }
    return layout;
}

std::vector<uint32_t> gradients_of_buckets(const std::vector<Layer>& layers, const Layout& layout, const Stage& stage) {
    std::vector<uint32_t> gradients;
    for (const Bucket& bucket : layout.buckets) {
        const Group& group = layout.groups[bucket.group];
        const auto owner = std::ranges::find_if(
            layers, [&](const Layer& layer) { return group.place() >= layer.offset && group.place() - layer.offset < layer.parameters(); });
        gradients.push_back(group.uses > 1 ? uses_in(layers, static_cast<uint32_t>(owner - layers.begin()), stage) : 1);
    }
    return gradients;
}

std::vector<SharedWeights> weights_shared(const std::vector<Layer>& layers, std::span<const uint32_t> begins) {
    std::vector<SharedWeights> all;
    for (uint32_t owner = 0; owner < layers.size(); ++owner) {
        if (layers[owner].uses == 1) continue;
        SharedWeights shared{owner, {}};
        for (uint32_t stage = 0; stage < begins.size(); ++stage) {
            const uint32_t end = stage + 1 < begins.size() ? begins[stage + 1] : ~0u;
            if (uses_in(layers, owner, {begins[stage], end}) > 0) shared.stages.push_back(stage);
        }
        if (shared.stages.size() > 1) all.push_back(std::move(shared));
    }
    return all;
}

OwnParameters own_parameters(const Layer& layer, const Stage& stage) {
    if (layer.slices.empty()) return {layer.offset, layer.weights + layer.biases};
    const auto slices = static_cast<uint32_t>(layer.slices.size());
    const uint32_t begin = stage.slices_begin(slices), end = begin + stage.slices_count(slices);
    uint64_t count = 0;
    for (uint32_t t = begin; t < end; ++t) count += layer.slices[t].weights + layer.slices[t].biases;
    return {layer.slices[begin].offset, count};
}

std::vector<uint32_t> buckets_of_layers(const std::vector<Layer>& layers, const Layout& layout, const Stage& stage) {
    std::vector<uint32_t> result(layers.size(), ~0u);
    for (size_t i = 0; i < layers.size(); ++i) {
        if (!layers[i].learns()) continue;
        const uint64_t offset = layout.offset_of(own_parameters(layers[i], stage).first);
        const uint32_t bucket = layout.bucket_of(offset);
        if (bucket != ~0u && offset == layout.buckets[bucket].offset) result[i] = bucket;
    }
    return result;
}

}   // namespace gradcast
