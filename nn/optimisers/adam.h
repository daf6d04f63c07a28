// Keys of the optimisers that have Adam's moments.
#pragma once
#include "nn/optimiser.h"

namespace gradcast {

extern const OptimiserKey beta1_key, beta2_key, epsilon_key;

}   // namespace gradcast
