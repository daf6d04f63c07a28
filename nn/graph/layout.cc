// Groups and buckets of the flat vector.
#include "nn/graph/layers.h"

namespace gradcast {

Layout layers_layout(const std::vector<Layer>& layers, uint64_t bucket_bytes, const Stage& stage) {
    Layout layout;
    std::vector<uint32_t> layer_of;   // by group
    auto take = [&](uint32_t layer, uint64_t count, const std::string& name, bool statistics) {
        if (count == 0) return;
        if (!stage.has(layer)) return (void)(layout.others += count);
        layout.groups.push_back({layout.elements, count, name, statistics, layout.others});
        layout.elements += count;
        layer_of.push_back(layer);
    };
    const auto count = static_cast<uint32_t>(layers.size());
    for (uint32_t i = 0; i < count; ++i) {
        for (const Layer& slice : layers[i].slices) take(i, slice.weights, slice.spec.name, false);
        for (const Layer& slice : layers[i].slices) take(i, slice.biases, slice.spec.name, false);
        if (layers[i].slices.empty()) take(i, layers[i].parameters(), layers[i].spec.name, false);
    }
    const size_t learnt = layout.groups.size();
    for (uint32_t i = 0; i < count; ++i) take(i, layers[i].statistics, layers[i].spec.name + " statistics", true);
    Bucket bucket{layout.elements, 0, static_cast<uint32_t>(layout.groups.size()), 0};
    while (bucket.group > 0) {
        const Group& group = layout.groups[--bucket.group];
        bucket.offset = group.offset;
        bucket.count += group.count;
        ++bucket.group_count;
        const bool begins = bucket.group == 0 || layer_of[bucket.group - 1] != layer_of[bucket.group];
        const bool enough = bucket.group < learnt && begins && bucket.count * sizeof(float) >= bucket_bytes;
        if (!enough && bucket.group != 0 && bucket.group != learnt) continue;
        layout.buckets.push_back(bucket);
        bucket.count = 0;
        bucket.group_count = 0;
    }
    return layout;
}

std::vector<uint32_t> buckets_of_layers(const std::vector<Layer>& layers, const Layout& layout) {
    std::vector<uint32_t> result(layers.size(), ~0u);
    for (size_t i = 0; i < layers.size(); ++i) {
        if (layers[i].parameters() == 0) continue;
        const uint64_t offset = layout.offset_of(layers[i].offset);
        const uint32_t bucket = layout.bucket_of(offset);
        if (bucket != ~0u && offset == layout.buckets[bucket].offset) result[i] = bucket;
    }
    return result;
}

}   // namespace gradcast
