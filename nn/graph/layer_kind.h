// All that is known of a kind of layer, whatever computes it: one row.
// To add a kind: its name in GC_LAYER_KINDS, nn/graph/KIND.cc with its row, and builders in nn/cpu/KIND.cc and nn/cuda/KIND.cc or .cu.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nn/graph/net_spec.h"
#include "runtime/core/status.h"

namespace gradcast {

struct Layer;
class OnnxNodes;

/// One key of a layer in a job file or a model file.
struct LayerKey {
    enum class Type : uint8_t { integer, flag, number, word };
    const char* name;
    Type type;
    double value;         // where it is not given
    double min, max;      // allowed
    bool below = false;   // max itself is not allowed
    const char* help;     // without the kinds that have it
    bool of_job_files = true;
    std::vector<std::string> (*words)() = nullptr;   // of a word, whose value is its number among them, 0 .. max

    bool in_range(double is) const { return is >= min && is <= max && !(below && is == max); }
};

/// How ONNX (operator set 17) writes a layer: by one operator, whose inputs are the layer's inputs and its tensors in their order, or by
/// `make`.
struct OnnxOperator {
    /// The form of a value.  planes: [N, C, H, W].  rows: [N, positions, C], a position is a pixel.  flat: [N, C H W].  any: that of the
    /// input.
    enum class Form : uint8_t { any, planes, rows, flat };
    struct Attribute {
        const char* name;
        bool real;   // else an integer
        float value;
        const LayerKey* key = nullptr;   // its value in the layer, in place of `value`
    };
    const char* type = nullptr;   // null: `make`, or there is none and a net with the layer is not exported
    bool passes = false;          // evaluations leave the value as it is, so it needs none
    Form form = Form::any;        // of the inputs and of the output
    bool windowed = false;        // kernel_shape, strides and pads, of convolutions also group and dilations
    std::span<const Attribute> attributes = {};
    /// Returns the name of the layer's output, made of the input x.
    std::string (*make)(OnnxNodes& nodes, const Layer& layer, const std::string& x) = nullptr;
    bool exists() const { return type || make || passes; }
};

struct LayerKind {
    const char* name;         // in job files
    const char* short_name;   // with a number: the name of a layer that has none
    std::span<const LayerKey* const> keys = {};
    /// From Layer::in: sets `out`, the numbers of parameters and statistics, and the window.  Error: names the layer and the shapes.
    Status (*shape)(const NetSpec& spec, Layer& layer);
    const char* second_input = nullptr;   // it takes one, by `from`, of the same shape, and "adds" it; null: it has one input
    bool joins = false;                   // the second input along C, so H and W alone are alike
    bool loss = false;                    // ends a net
    bool regression = false;   // loss: compares with targets, which may be those of a regression; else the outputs are probabilities
    bool kinks = false;        // its slope jumps, so finite differences are a test of the gradient only away from the jumps
    bool multiplies = false;   // weights by inputs: most of a net's work
    bool spreads = false;      // multiplies: each position of the input, not of the output, meets every weight once
    bool computed = true;      // by gradcast; false: of a net that a process computes (nn/graph/process.cc)
    bool tensor = false;       // its parameters are one tensor with the layer's name
    bool ties = false;         // it can take an earlier layer's weights of the same shape (LayerSpec::weights_of)
    bool selects = false;      // each output vector is a row of the weights, so a slice has rows, not outputs
    /// Whether it draws random numbers in each step of training (dropout_mixed()); null: no.
    bool (*draws)(const Layer& layer) = nullptr;
    /// Whether a position of the output depends on no later position of the inputs (by_position, or of attention its key); null: no.
    bool (*causal)(const Layer& layer) = nullptr;
    /// A slice has a multiple of so many outputs, or rows where it selects (nn/graph/slices.h).  0: the kind is not sliced.
    uint32_t slice_unit = 0;
    /// Whether it can be trained in blocks of so many samples; null: in all.
    Status (*block)(const Layer& layer, uint32_t samples) = nullptr;
    /// Every weight begins with it; 0: weights are drawn (weights_initial()).
    float initial_weight = 0;
    /// The key that sets the standard deviation of drawn weights.  Null, or with the value 0: by He's rule.
    const LayerKey* initial_std = nullptr;
    OnnxOperator onnx = {};
};

/// LayerKind::causal of kinds whose outputs at a position depend on the inputs at that position alone.
inline bool by_position(const Layer&) { return true; }

#define GC_LAYER_KINDS(GC_LAYER)    \
    GC_LAYER(conv)                  \
    GC_LAYER(conv_transposed)       \
    GC_LAYER(upsample)              \
    GC_LAYER(inner_product)         \
    GC_LAYER(linear)                \
    GC_LAYER(embedding)             \
    GC_LAYER(positions)             \
    GC_LAYER(attention)             \
    GC_LAYER(max_pool)              \
    GC_LAYER(average_pool)          \
    GC_LAYER(global_average_pool)   \
    GC_LAYER(relu)                  \
    GC_LAYER(gelu)                  \
    GC_LAYER(silu)                  \
    GC_LAYER(sigmoid)               \
    GC_LAYER(tanh)                  \
    GC_LAYER(dropout)               \
    GC_LAYER(batch_norm)            \
    GC_LAYER(layer_norm)            \
    GC_LAYER(group_norm)            \
    GC_LAYER(rms_norm)              \
    GC_LAYER(add)                   \
    GC_LAYER(multiply)              \
    GC_LAYER(concat)                \
    GC_LAYER(softmax_cross_entropy) \
    GC_LAYER(squared_loss)

#define GC_LAYER(kind) extern const LayerKind kind##_kind;
GC_LAYER_KINDS(GC_LAYER)
#undef GC_LAYER

// Kinds of nets that a process computes.  Model files have them, job files do not.
extern const LayerKind tensor_kind, running_kind, process_kind;
constexpr uint32_t tensor_axes_max = 8, tensor_alignment = 16;   // in elements
/// A tensor of that shape.
LayerSpec tensor_layer(const std::string& name, std::span<const uint64_t> shape);

/// Returns the kinds of job files.
std::span<const LayerKind* const> layer_kinds();
std::vector<std::string> layer_kind_names();
/// Returns null if there is none.
const LayerKind* layer_kind_find(std::string_view name);
/// The key of that name of the first kind that has it; null: no kind has.
const LayerKey* layer_key_find(std::string_view name);
/// All keys of job files, each once, with the names of the kinds that have it.
struct LayerKeyUse {
    const LayerKey* key;
    std::vector<std::string> kinds;
};
std::vector<LayerKeyUse> layer_keys();

/// Returns the value of a key of the layer's kind: as given, or the default.  The kind must be known.
double layer_value(const LayerSpec& spec, std::string_view key);
/// "conv", "name=conv1", "outputs=20", ... with spaces between: the values that are not the defaults, in the order of the kind's keys.
std::string layer_text(const LayerSpec& spec);
/// Reads such a text from outside.  False: it is not of that form, or a key is unknown or out of range.
bool layer_parse(std::string_view text, LayerSpec* spec);
/// Sets a value from outside: a number, or one of LayerKey::words.  False: no kind has the key, or the value is not one of its.
bool layer_set(LayerSpec& spec, std::string_view key, double value);
bool layer_set(LayerSpec& spec, std::string_view key, std::string_view word);
/// As files have it: a number, or one of LayerKey::words.
std::string layer_value_text(const LayerKey& key, double value);

}   // namespace gradcast
