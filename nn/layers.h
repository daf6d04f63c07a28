// The device-independent half of a net: names, shapes and parameter counts of its layers, and the layout of the flat vector.
// One more layer: a Kind, a shape rule and a row here (layers.cc), a file and a row in each device's folder.
#pragma once
#include "nn/net.h"
#include "runtime/core/status.h"

namespace gradcast {

/// In the order of the tables in layers.cc and cpu/net.cc.
enum class Kind : uint8_t { conv, inner_product, max_pool, relu, softmax_cross_entropy };
constexpr uint32_t kind_count = 5;

struct Shape {   // of one sample
    uint32_t C = 0, H = 0, W = 0;
    uint64_t elements() const { return uint64_t{C} * H * W; }
    bool operator==(const Shape&) const = default;
};

/// A layer of a checked net.
struct Layer {
    LayerSpec spec;   // name and stride filled in
    Kind kind{};
    Shape in{}, out{};
    uint64_t offset = 0;                // of its weight in the flat vector; the bias follows
    uint64_t weights = 0, biases = 0;   // elements
    uint64_t parameters() const { return weights + biases; }
};

/// Checks the whole list.  Error: names the layer and both shapes.
Status layers_check(const NetSpec& spec, std::vector<Layer>* layers);

/// A group for each layer with parameters; a bucket is closed when it has at least bucket_bytes, from the end of the vector.
Layout layers_layout(const std::vector<Layer>& layers, uint64_t bucket_bytes);

}   // namespace gradcast
