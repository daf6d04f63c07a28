// Optimisers: one update of a range of the flat parameter vector.
#pragma once
#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nn/kernels.h"
#include "runtime/core/arena.h"
#include "runtime/core/digest.h"
#include "runtime/core/status.h"
#include "runtime/core/types.h"

namespace gradcast {

struct OptimiserConfig {
    std::string kind = "sgd";   // OptimiserKind::name
    double lr = 0.05, momentum = 0, weight_decay = 0;
    bool nesterov = false;                               // sgd
    double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;   // adam
    std::string schedule = "constant";                   // "constant", "step", "cosine"
    uint32_t warm_up = 0;                                // steps in which the rate grows to the schedule's
    uint32_t decay_every = 0;                            // step: steps after which the rate is multiplied by `decay`
    double decay = 0.1, lr_end = 0;                      // cosine: ends at lr_end
    uint64_t steps = 0;                                  // cosine: of the whole job
};

/// What an optimiser computes with in one step, in an order of its own; the host computes it.
struct StepRates {
    float at[8];
};

/// All that is known of an optimiser beside its kernel on a GPU.
/// To add one: its name in GC_OPTIMISERS, nn/optimisers/KIND.cc with its row, and nn/cuda/KIND.cu.
struct OptimiserKind {
    const char* name;
    std::span<const std::string_view> keys;              // of [optimiser] that not all have
    uint32_t (*vectors)(const OptimiserConfig&);         // float32 vectors of state [elements], optimiser_vectors_max at most
    Status (*check)(const OptimiserConfig&) = nullptr;   // of several keys together
    /// Of that step, with the same bits on every machine.
    StepRates (*rates)(const OptimiserConfig&, StepId);
    /// Updates `count` elements of w, and of its vectors of state; state[i] is null where there are no more.
    void (*update)(const FloatKernels&, const StepRates&, float* w, float* const* state, const float* gradient, uint64_t count);

    bool has(std::string_view key) const { return std::ranges::find(keys, key) != keys.end(); }
};
constexpr uint32_t optimiser_vectors_max = 2;

#define GC_OPTIMISERS(GC_OPTIMISER) \
    GC_OPTIMISER(sgd)               \
    GC_OPTIMISER(adam)
#define GC_OPTIMISER(kind) extern const OptimiserKind kind##_optimiser;
GC_OPTIMISERS(GC_OPTIMISER)
#undef GC_OPTIMISER

std::span<const OptimiserKind* const> optimiser_kinds();
std::vector<std::string> optimiser_names();
/// Null: there is none.
const OptimiserKind* optimiser_find(std::string_view name);

struct Optimiser {
    virtual ~Optimiser() = default;
    /// Before the buckets of a step.  Rates and corrections depend on its number alone.
    virtual void step(StepId step) = 0;
    /// Updates w[i] and its state from gradient[i], i in [offset, offset + count), element by element.  Any thread; several at a time in
    /// disjoint ranges, which are neighbours in the whole net's vector too.  Returns the digest of what it has written: of w by places, and
    /// its part of digest(layout.whole()).
    virtual uint64_t update(uint64_t offset, std::span<float> w, std::span<const float> gradient) = 0;
    /// All state: float32 [OptimiserKind::vectors, elements].  Trainer thread; a copy where the state is on a device.
    virtual std::span<float> state() = 0;
    virtual uint64_t state_size() { return state().size(); }   // elements
    virtual void refresh() {}                                  // state() was written: it goes where the state is
    /// Digest of the state, taken where it is: that of an element of vector v is at first + v * layout.whole() + its place.
    virtual uint64_t digest(uint64_t first) = 0;
};
/// Error: names the key whose value is wrong.
Status optimiser_check(const OptimiserConfig& config);
Status optimiser_plan(const OptimiserConfig& config, const Layout& layout, Arena& arena, std::unique_ptr<Optimiser>* optimiser);
/// The learning rate of one step, with the same bits on every machine (runtime/core/elementary.h).
double learning_rate(const OptimiserConfig& config, StepId step);
std::span<const char* const> schedule_kinds();

}   // namespace gradcast
