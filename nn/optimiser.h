// Optimisers: one update of a range of the flat parameter vector; and schedules of the learning rate.  What is known of one of them is a
// row, and its keys in a job file are part of the row.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "nn/kernels.h"
#include "runtime/core/arena.h"
#include "runtime/core/digest.h"
#include "runtime/core/status.h"
#include "runtime/core/types.h"

namespace gradcast {

struct Layer;   // nn/graph/layers.h

/// Elements that a step treats in another way than the others, by their places in the vector of the whole net; of optimisers that look at
/// the norms of tensors, each tensor.
struct OptimiserRange {
    uint64_t place, count;
    bool decays;   // false: weight_decay is 0 for them
    bool learns;   // false: neither they nor their state change
};

/// The initial value of a member is the default of its key.
struct OptimiserConfig {
    std::string kind = "sgd";   // OptimiserKind::name
    double lr = 0.05, momentum = 0, weight_decay = 0;
    bool nesterov = false;                               // sgd
    double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;   // adam, adamw, lamb
    std::string schedule = "constant";                   // ScheduleKind::name
    uint32_t warm_up = 0;                                // steps in which the rate grows to the schedule's
    uint32_t decay_every = 0;                            // step: steps after which the rate is multiplied by `decay`
    double decay = 0.1, lr_end = 0;                      // cosine: ends at lr_end
    bool decay_exempt = false;                           // tensors of fewer than 2 dimensions do not decay
    // Names of tensors, of layers, or of what holds layers: "layer1" has "layer1.0.conv1.weight".
    std::vector<std::string> decay_exempt_names = {}, freeze = {};
    double clip_norm = 0;                      // the largest norm of a step's gradient (nn/clip.h); 0: any
    double ema = 0;                            // share of the past in the averaged weights; 0: there are none
    uint64_t steps = 0;                        // of the whole job; no key
    std::vector<OptimiserRange> ranges = {};   // ascending; optimiser_ranges() sets them; no key
};

/// One key of [optimiser] in a job file that has a number, a whole number or a flag.
struct OptimiserKey {
    const char* name;
    std::variant<double OptimiserConfig::*, uint32_t OptimiserConfig::*, bool OptimiserConfig::*> member;
    double min = 0, max = 1e30;   // allowed; not of a flag
    bool above = false;           // min itself is not allowed
    bool below = false;           // max itself is not allowed
    const char* help;             // without the kinds that have it

    double value(const OptimiserConfig& config) const;   // of a flag: 0 or 1
    bool changed(const OptimiserConfig& config) const { return value(config) != value({}); }
    bool in_range(double is) const { return (above ? is > min : is >= min) && (below ? is < max : is <= max); }
};
/// For an optimiser whose rule adds weight_decay w to the gradient.
extern const OptimiserKey weight_decay_key;
extern const OptimiserKey warm_up_key;   // of all schedules

/// A key whose value does not go with those of others.
struct OptimiserMistake {
    std::string key, text;   // "nesterov", "goes with a momentum above 0"
};

/// The numbers of one step, which the host computes for every element.  The order is the optimiser's own: SgdStep
/// (nn/optimisers/sgd.h), AdamStep (nn/kernels.h, whose kernel takes it).
struct StepRates {
    float at[8];
};

/// Sums of squares over a tensor.
struct TensorNorms {
    double w = 0, step = 0;
};

/// All that is known of an optimiser beside its kernel on a GPU.
/// To add one: its name in GC_OPTIMISERS and members for its keys above, nn/optimisers/KIND.cc with its row, and nn/cuda/KIND.cu.
struct OptimiserKind {
    const char* name;
    std::span<const OptimiserKey* const> keys;     // beside lr; kinds that share a key list the same object
    uint32_t (*vectors)(const OptimiserConfig&);   // float32 vectors of state [elements], optimiser_vectors_max at most
    std::optional<OptimiserMistake> (*check)(const OptimiserConfig&) = nullptr;   // of several keys together
    bool decay_apart = false;   // w decays beside the step, by lr weight_decay w, so weight_decay is no term of the loss's gradient
    /// Returns the rates of that step, with the same bits on every machine.
    StepRates (*rates)(const OptimiserConfig&, StepId);
    /// Updates `count` elements of w, and of its vectors of state; state[i] is null where there are no more.
    void (*update)(const FloatKernels&, const StepRates&, float* w, float* const* state, const float* gradient, uint64_t count);
    /// Takes the arguments of update() and adds the squares of w and of its step to *norms; w and state do not change.  Null: the optimiser
    /// does not scale the step of each tensor by its norms.
    void (*look)(const StepRates&, const float* w, const float* const* state, const float* gradient, uint64_t count,
                 TensorNorms* norms) = nullptr;
    void (*scale)(StepRates*, const TensorNorms&) = nullptr;   // the rates of that tensor
};
constexpr uint32_t optimiser_vectors_max = 2;
/// float32 vectors of an optimiser's state [elements]: its kind's, and behind them with `ema` the averaged weights, which are 0 at the
/// places of running statistics, because running statistics are averages already.
uint32_t optimiser_vectors(const OptimiserConfig& config);

#define GC_OPTIMISERS(GC_OPTIMISER) \
    GC_OPTIMISER(sgd)               \
    GC_OPTIMISER(adam)              \
    GC_OPTIMISER(adamw)             \
    GC_OPTIMISER(lamb)
#define GC_OPTIMISER(kind) extern const OptimiserKind kind##_optimiser;
GC_OPTIMISERS(GC_OPTIMISER)
#undef GC_OPTIMISER

std::span<const OptimiserKind* const> optimiser_kinds();
std::vector<std::string> optimiser_names();
/// Null: there is none.
const OptimiserKind* optimiser_find(std::string_view name);

/// How the learning rate changes over a job.  To add one: its row in nn/schedules.cc, and members of OptimiserConfig for its keys.
struct ScheduleKind {
    const char* name;
    std::span<const OptimiserKey* const> keys = {};                               // beside warm_up
    bool ends = false;                                                            // it depends on OptimiserConfig::steps
    std::optional<OptimiserMistake> (*check)(const OptimiserConfig&) = nullptr;   // of several keys together
    /// The rate of a step behind the warm-up.  A step of the warm-up has a share of it.
    double (*rate)(const OptimiserConfig&, StepId);
};
std::span<const ScheduleKind> schedule_kinds();
std::vector<std::string> schedule_names();
/// Null: there is none.
const ScheduleKind* schedule_find(std::string_view name);

/// All keys of optimisers, from lr on, and of schedules, from warm_up on, each once, in the order of the rows.
struct OptimiserKeyUse {
    const OptimiserKey* key;
    std::vector<const char*> kinds;   // that have it; empty: all
};
std::vector<OptimiserKeyUse> optimiser_keys();
std::vector<OptimiserKeyUse> schedule_keys();

struct Optimiser {
    virtual ~Optimiser() = default;
    /// Before the buckets of a step.  Rates and corrections depend on its number alone.
    virtual void step(StepId step) = 0;
    /// Before update() of the step's elements, where pieces() are not empty: adds to a piece's norms, from that element on.  Any thread;
    /// several at a time on disjoint pieces.
    struct Piece {
        size_t tensor;
        uint64_t offset, count;
        TensorNorms norms = {};
    };
    virtual std::span<Piece> pieces() { return {}; }
    virtual void look(Piece& piece, uint64_t offset, std::span<const float> w, std::span<const float> gradient) {
        (void)piece, (void)offset, (void)w, (void)gradient;
    }
    /// The norms of all pieces are there.
    virtual void looked() {}
    /// Updates w[i] and its state from gradient[i], i in [offset, offset + count), element by element.  Any thread; several at a time in
    /// disjoint ranges, which are neighbours in the whole net's vector too.  Returns the digest of what it has written: of w by places, and
    /// its part of digest(layout.whole()).
    virtual uint64_t update(uint64_t offset, std::span<float> w, std::span<const float> gradient) = 0;
    /// All state: float32 [optimiser_vectors(), elements].  Trainer thread; a copy where the state is on a device.
    virtual std::span<float> state() = 0;
    virtual uint64_t state_size() { return state().size(); }   // elements
    virtual void refresh() {}                                  // copies what was written to state() to the device
    /// Digest of the state, taken where it is: that of an element of vector v is at first + v * layout.whole() + its place.
    virtual uint64_t digest(uint64_t first) = 0;
};
/// All values, each in its range, that do not go together.  The kind and the schedule must be known.
std::vector<OptimiserMistake> optimiser_mistakes(const OptimiserConfig& config);
/// Sets config->ranges to what decay_exempt and freeze name in that net.  The kind must be known.  A layer's running statistics are no
/// range: they follow the mini-batches of a frozen layer too, as those of a PyTorch module with requires_grad = False do in training.
/// Error: begins with the key, "optimiser.freeze: ...", and lists what can be named; or freeze leaves nothing that learns.
Status optimiser_ranges(const std::vector<Layer>& layers, OptimiserConfig* config);
/// Error: names the key whose value is wrong.
Status optimiser_check(const OptimiserConfig& config);
Status optimiser_plan(const OptimiserConfig& config, const Layout& layout, Arena& arena, std::unique_ptr<Optimiser>* optimiser);
/// The learning rate of one step, with the same bits on every machine (runtime/core/elementary.h).
double learning_rate(const OptimiserConfig& config, StepId step);

}   // namespace gradcast
