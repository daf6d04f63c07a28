// Groups and buckets of the flat vector.
#include "nn/graph/layers.h"

namespace gradcast {

Layout layers_layout(const std::vector<Layer>& layers, uint64_t bucket_bytes) {
    Layout layout;
    for (const Layer& layer : layers) {
        if (layer.parameters() == 0) continue;
        layout.groups.push_back({layer.offset, layer.parameters(), layer.spec.name});
        layout.elements += layer.parameters();
    }
    size_t learnt = layout.groups.size();
    for (const Layer& layer : layers) {
        if (layer.statistics == 0) continue;
        layout.groups.push_back({layer.statistics_offset, layer.statistics, layer.spec.name + " statistics", true});
        layout.elements += layer.statistics;
    }
    Bucket bucket{layout.elements, 0, static_cast<uint32_t>(layout.groups.size()), 0};
    while (bucket.group > 0) {
        const Group& group = layout.groups[--bucket.group];
        bucket.offset = group.offset;
        bucket.count += group.count;
        ++bucket.group_count;
        bool enough = bucket.group < learnt && bucket.count * sizeof(float) >= bucket_bytes;
        if (!enough && bucket.group != 0 && bucket.group != learnt) continue;
        layout.buckets.push_back(bucket);
        bucket.count = 0;
        bucket.group_count = 0;
    }
    return layout;
}

std::vector<uint32_t> buckets_of_layers(const std::vector<Layer>& layers, const Layout& layout) {
    std::vector<uint32_t> result(layers.size(), ~0u);
    for (size_t i = 0; i < layers.size(); ++i)
        for (size_t bucket = 0; bucket < layout.buckets.size(); ++bucket)
            if (layers[i].parameters() && layers[i].offset == layout.buckets[bucket].offset) result[i] = static_cast<uint32_t>(bucket);
    return result;
}

}   // namespace gradcast
