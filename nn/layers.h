// The device-independent half of a net: names, shapes and parameter counts of its layers, and the layout of the flat vector.
// One more layer: a Kind, a shape rule and a row here (layers.cc), a case in programs.h, a file in each device's folder.
#pragma once
#include "nn/net.h"
#include "runtime/core/status.h"

namespace gradcast {

/// In the order of the table in layers.cc.
enum class Kind : uint8_t {
    conv,
    inner_product,
    max_pool,
    average_pool,
    global_average_pool,
    relu,
    dropout,
    batch_norm,
    add,
    softmax_cross_entropy,
    squared_loss
};
constexpr uint32_t kind_count = 11;

constexpr float statistics_share = 0.1f;   // how far running statistics move towards those of a mini-batch

struct Shape {   // of one sample
    uint32_t C = 0, H = 0, W = 0;
    uint64_t elements() const { return uint64_t{C} * H * W; }
    bool operator==(const Shape&) const = default;
};

/// A layer of a checked net.
struct Layer {
    static constexpr uint32_t none = ~0u;
    LayerSpec spec;   // name, kernel and stride filled in
    Kind kind{};
    Shape in{}, out{};
    float target_scale = 0, target_zero = 0;   // of a regression's loss: the target is (label - target_zero) * target_scale
    uint64_t offset = 0;                       // of its weight in the flat vector; the bias follows
    uint64_t weights = 0, biases = 0;          // elements
    // Running mean [C] and second moment [C] of batch norm, at the end of the flat vector in a bucket of their own.  A block hands in sums
    // over its samples in the place of a gradient, so all nodes move them by the same bits.
    uint64_t statistics = 0, statistics_offset = 0;
    uint32_t input = none, other = none;   // number of the layer whose output it takes (none: the net's input), and that add adds
    uint32_t takers = 0;                   // how many layers take its output
    uint64_t parameters() const { return weights + biases; }
};

/// Checks the whole list.  Error: names the layer and both shapes; *wrong, where given, becomes that layer's number in the list, unless the
/// error is about the whole net.
Status layers_check(const NetSpec& spec, std::vector<Layer>* layers, size_t* wrong = nullptr);

/// For blocks of so many samples.  Error: batch norm of one value a channel, whose output is its bias and whose gradient is 0.
Status blocks_check(const std::vector<Layer>& layers, uint32_t samples);

/// A group for each layer with parameters, then one for each with statistics; a bucket is closed when it has at least bucket_bytes, from
/// the end of the vector.  Where there are statistics, bucket 0 has all of them and nothing else.
Layout layers_layout(const std::vector<Layer>& layers, uint64_t bucket_bytes);

/// Moves a ReLU just before max pooling behind it: the result is the same, of fewer values.
void layers_pool_first(std::vector<Layer>& layers);
/// By layer: the bucket that is complete once its gradient is; none: ~0.
std::vector<uint32_t> buckets_of_layers(const std::vector<Layer>& layers, const Layout& layout);
/// Error: of samples that do not fit the net's input, or a label beyond its classes.
Status samples_check(const NetSpec& spec, const Samples& samples);
/// The key of dropout's draws is mixed from seed, layer (its number in the list) and step, in this order.
uint64_t dropout_mixed(uint64_t seed, uint64_t with);

}   // namespace gradcast
