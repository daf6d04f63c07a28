// Optimisers: one update of a range of the flat parameter vector.
#pragma once
#include <memory>
#include <string>

#include "runtime/core/arena.h"
#include "runtime/core/types.h"

namespace gradcast {

struct OptimiserConfig {
    std::string kind = "sgd";
    double lr = 0.05, momentum = 0, weight_decay = 0;
};
struct Optimiser {
    virtual ~Optimiser() = default;
    /// Before the buckets of a step.
    virtual void step(StepId step) = 0;
    /// w[i] and its state from gradient[i], i in [offset, offset + count).  Element by element, so the grouping changes no bit.
    virtual void update(uint64_t offset, std::span<float> w, std::span<const float> gradient) = 0;
    virtual std::span<float> state() = 0;   // all state, float32: momentum [elements], or empty
};
/// SGD: v <- momentum v + (g + weight_decay w);  w <- w - lr v.   (Sutskever et al. 2013 as PyTorch writes it.)
Status optimiser_plan(const OptimiserConfig& config, uint64_t elements, Arena& arena, std::unique_ptr<Optimiser>* optimiser);

}   // namespace gradcast
