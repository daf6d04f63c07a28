// The averaged weights of an optimiser with `ema`.
#pragma once
#include <span>

#include "runtime/core/types.h"

namespace gradcast {

/// Exchanges the weights and the averaged weights, which are the last vector of the optimiser's state.  Running statistics stay.
/// weights: [layout.elements].
void averaged_swap(const Layout& layout, std::span<float> weights, std::span<float> state);

}   // namespace gradcast
