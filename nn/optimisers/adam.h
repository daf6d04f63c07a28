// Keys and rates of the optimisers that have Adam's moments.
#pragma once
#include "nn/optimiser.h"

namespace gradcast {

extern const OptimiserKey beta1_key, beta2_key, epsilon_key;

/// The divisors of the moments after a step: 1 - beta^t.
struct MomentShares {
    double first, second;
};
MomentShares moment_shares(const OptimiserConfig& config, StepId step);
/// Fills in the other members from the keys beta1, beta2 and weight_decay.
StepRates adam_rates(const OptimiserConfig& config, double rate, double root, double epsilon);

}   // namespace gradcast
