// The device-independent half of a net: names, shapes and parameter counts of its layers, and the layout of the flat vector.
#pragma once
#include "nn/graph/layer_kind.h"
#include "runtime/core/types.h"

namespace gradcast {

constexpr float statistics_share = 0.1f;   // how far running statistics move towards those of a mini-batch

constexpr double norm_epsilon = 1e-5;   // added to the variance by batch norm
/// The most parameters of a net, and the most elements of one sample between two layers: no product of two overflows.
constexpr uint64_t layer_elements_max = uint64_t{1} << 31;
/// The most layers that take the same weights.
constexpr uint32_t layer_uses_max = 16;

struct Shape {   // of one sample
    uint32_t C = 0, H = 0, W = 0;
    uint64_t elements() const { return uint64_t{C} * H * W; }
    bool operator==(const Shape&) const = default;
};

/// The window that a layer slides over its input.
struct Window {
    uint32_t kernel = 0, stride = 0, pad = 0;
    bool ceil = false;       // a last window that is partly outside counts too
    uint32_t dilation = 1;   // steps from one pixel of the window to the next
    /// Its side in pixels of the input.
    uint32_t span() const { return dilation * (kernel - 1) + 1; }
};

/// A layer of a checked net.
struct Layer {
    static constexpr uint32_t none = ~0u;
    LayerSpec spec;   // with its name, and a stride that is not 0
    const LayerKind* kind = nullptr;
    uint32_t number = 0;   // in the list of the net
    Shape in{}, out{};
    Shape other_in{};   // of the second input
    Window window{};
    uint32_t groups = 1;                       // of a convolution
    float target_scale = 0, target_zero = 0;   // of a regression's loss: the target is (label - target_zero) * target_scale
    uint32_t targets = 0;                      // of a loss: NetSpec::targets of floats
    bool by_position = false;                  // of a loss: NetSpec::by_position()
    uint64_t offset = 0;                       // of its weight in the flat vector; the bias follows, that of a slice behind all weights
    std::vector<uint64_t> weight_shape = {};   // in canonical order, the last index moves fastest; empty: no weights
    uint64_t weights = 0, biases = 0;          // elements
    uint64_t bias_offset = 0;
    std::vector<Layer> slices = {};   // its outputs (of an embedding: rows) in slices, each as a layer; empty: it is not sliced
    // Running mean [C] and second moment [C] of batch norm, at the end of the flat vector in a bucket of their own.  A block hands in sums
    // over its samples in the place of a gradient, so all nodes move them by the same bits.
    uint64_t statistics = 0, statistics_offset = 0;
    uint32_t input = none, other = none;   // number of the layer whose output it takes (none: the net's input), and the second one
    uint32_t takers = 0;                   // how many layers take its output
    // Tied weights: offset, weights and weight_shape of a layer that takes another's are those of the other, whose parameters they are.
    uint32_t tied = none;   // number of that layer; none: it has its own
    uint32_t uses = 1;      // layers that take the weights of this one, itself among them
    /// In the flat vector.
    uint64_t parameters() const { return tied == none ? weights + biases : 0; }
    /// It has a gradient, of its own parameters or of those that it takes.
    bool learns() const { return weights + biases > 0; }
    /// Returns the number of elements in weight_shape, without the padding that `weights` counts.
    uint64_t weight_elements() const {
        uint64_t product = 1;
        for (const uint64_t size : weight_shape) product *= size;
        return product;
    }
    /// A convolution whose outputs read all channels of windows without gaps.
    bool whole_windows() const { return groups == 1 && window.dilation == 1; }
    bool is(const LayerKind& which) const { return kind == &which; }
    /// Returns the value of a key of its kind: as given, or the default.
    double value(std::string_view key) const { return layer_value(spec, key); }
    /// Returns the shape whose positions each meet every weight once, of a kind that multiplies.
    const Shape& multiplied() const { return kind->spreads ? in : out; }
};
std::string shape_text(const Shape& shape);   // "3x32x32"
/// LayerKind::shape of kinds whose output has the shape of the input.
Status same_shape(const NetSpec& spec, Layer& layer);

/// "10x3".
std::string weight_shape_text(const Layer& layer);

/// Checks the whole list.  Error: names the layer and both shapes; *wrong, where given, becomes that layer's number in the list, unless the
/// error is about the whole net.
Status layers_check(const NetSpec& spec, std::vector<Layer>* layers, size_t* wrong = nullptr);

/// Error: a process computes this net.
Status computed_check(const std::vector<Layer>& layers);

/// Whether all layers can be trained in blocks of so many samples.
Status blocks_check(const std::vector<Layer>& layers, uint32_t samples);

/// Returns the layout of that stage.  Each layer with parameters has a group, then each layer with statistics; a sliced layer has a group
/// for each slice's weights, then one for each slice's biases.  A bucket has whole layers and is closed when it has at least bucket_bytes,
/// from the end of the vector.  Where there are statistics, bucket 0 has all of them and nothing else.  With several slice groups a bucket
/// has sliced layers, or others.  Weights that several layers take have a bucket of their own; a block has a gradient of it from each.
/// A stage has the weights that its layers take.  Where several stages have the same weights, the stage of the layer that owns them stands
/// for them, and their group is shared in the other stages.
Layout layers_layout(const std::vector<Layer>& layers, uint64_t bucket_bytes, const Stage& stage = {});
/// Draws He-normal initial weights, std = sqrt(2 / fan-in) (biases 0), from the counter-based generator: element i depends on (seed, layer,
/// i) alone.  Batch norm begins with weight 1, mean 0 and second moment 1.
void weights_initial(const NetSpec& spec, const Layout& layout, uint64_t seed, std::span<float> parameters);
/// By bucket: how many gradients a block has of it in that stage.  Of tied weights one for each layer of the stage that takes them.
std::vector<uint32_t> gradients_of_buckets(const std::vector<Layer>& layers, const Layout& layout, const Stage& stage);

/// Weights that several layers take, in several stages.
struct SharedWeights {
    uint32_t layer;                 // that owns them
    std::vector<uint32_t> stages;   // that have a layer which takes them, ascending
};
/// Finds them in a net whose stages begin at these layers.
std::vector<SharedWeights> weights_shared(const std::vector<Layer>& layers, std::span<const uint32_t> begins);

/// A stage's share of the parameters that a layer has or takes: the place of the first one, and how many.
struct OwnParameters {
    uint64_t first, count;
};
OwnParameters own_parameters(const Layer& layer, const Stage& stage);
/// By layer: the bucket that is complete once its gradient is, or to which it adds one of a tied weight; none: ~0.
std::vector<uint32_t> buckets_of_layers(const std::vector<Layer>& layers, const Layout& layout, const Stage& stage = {});
/// A step's gradient and loss are means over the positions of its mini-batch whose label counts (mean_over = "valid" of the loss).  A
/// block's gradient and loss are those of the same net without the key, where a sample's loss is divided by its P positions.  The step
/// multiplies the sums by (samples P) / (positions that count).
bool mean_over_valid(const NetSpec& spec);
/// The labels of a sample of a net with labels by position, [NetSpec::positions()]: those of its targets, or the tokens behind the first.
class PositionLabels {
public:
    explicit PositionLabels(const NetSpec& spec)
        : text_(spec.vocabulary > 0),
          positions_(spec.positions()),
          element_(text_ ? spec.element : spec.target_element),
          bytes_(text_ ? spec.sample_bytes() : spec.targets_bytes()),
          ignore_(spec.ignore) {}
    uint32_t of(const Samples& samples, uint32_t sample, uint32_t position) const {
        const auto* from = (text_ ? reinterpret_cast<const std::byte*>(samples.images) : samples.targets) + sample * bytes_;
        return element_number(element_, from, position + text_);
    }
    bool counts(uint32_t label) const { return ignore_ < 0 || label != static_cast<uint32_t>(ignore_); }
    uint32_t positions() const { return positions_; }

private:
    bool text_;
    uint32_t positions_;
    Element element_;
    uint64_t bytes_;   // of a sample
    int32_t ignore_;
};

/// Error: of samples that do not fit the net's input; of a label beyond its classes; of either.
Status images_check(const NetSpec& spec, const Samples& samples);
Status labels_check(const NetSpec& spec, const Samples& samples);
Status samples_check(const NetSpec& spec, const Samples& samples);
/// The key of dropout's draws is mixed from seed, layer (its number in the list) and step, in this order.
uint64_t dropout_mixed(uint64_t seed, uint64_t with);
inline bool layer_draws(const Layer& layer) { return layer.kind->draws && layer.kind->draws(layer); }
/// What is dropped of 65536 by a rate below 1, and what the elements that stay are multiplied by.
struct DropoutShare {
    uint32_t drop;
    float scale;
};
DropoutShare dropout_share(double rate);

}   // namespace gradcast
