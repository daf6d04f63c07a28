// Optimisers: one update of a range of the flat parameter vector.
#pragma once
#include <memory>
#include <string>

#include "nn/kernels.h"
#include "runtime/core/arena.h"
#include "runtime/core/digest.h"
#include "runtime/core/types.h"

namespace gradcast {

struct OptimiserConfig {
    std::string kind = "sgd";   // "sgd", "adam"
    double lr = 0.05, momentum = 0, weight_decay = 0;
    bool nesterov = false;                               // sgd
    double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;   // adam
    std::string schedule = "constant";                   // "constant", "step", "cosine"
    uint32_t warm_up = 0;                                // steps in which the rate grows to the schedule's
    uint32_t decay_every = 0;                            // step: steps after which the rate is multiplied by `decay`
    double decay = 0.1, lr_end = 0;                      // cosine: ends at lr_end
    uint64_t steps = 0;                                  // cosine: of the whole job
};
struct Optimiser {
    virtual ~Optimiser() = default;
    /// Before the buckets of a step.  Rates and corrections depend on its number alone.
    virtual void step(StepId step) = 0;
    /// Updates w[i] and its state from gradient[i], i in [offset, offset + count), element by element.  Any thread; several at a time in
    /// disjoint ranges.  Returns the digest of what it has written: digest64(w, offset), and its part of digest(elements).
    virtual uint64_t update(uint64_t offset, std::span<float> w, std::span<const float> gradient) = 0;
    /// All state, float32: momentum [elements]; m, v [2, elements] of adam; or empty.  Trainer thread; a copy where the state is on a
    /// device.
    virtual std::span<float> state() = 0;
    virtual uint64_t state_size() { return state().size(); }   // elements
    virtual void refresh() {}                                  // state() was written: it goes where the state is
    /// digest64(state(), first), taken where the state is.
    virtual uint64_t digest(uint64_t first) { return digest64(state(), first); }
};
/// SGD: v <- momentum v + (g + weight_decay w);  w <- w - lr v.   (Sutskever et al. 2013 as PyTorch writes it; so is Nesterov's.)
/// Adam: Kingma and Ba 2015, weight_decay added to the gradient.
/// Error: names the key whose value is wrong.
Status optimiser_check(const OptimiserConfig& config);
Status optimiser_plan(const OptimiserConfig& config, uint64_t elements, Arena& arena, std::unique_ptr<Optimiser>* optimiser);
/// The factors of Adam's update in one step.
AdamStep adam_step(const OptimiserConfig& config, StepId step);
/// The learning rate of one step.  Only sums, products and quotients, so every CPU and C library gives the same bits.
double learning_rate(const OptimiserConfig& config, StepId step);
std::span<const char* const> optimiser_kinds();
std::span<const char* const> schedule_kinds();

}   // namespace gradcast
