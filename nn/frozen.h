// Layers that do not learn, below all that do: the backward pass of a net on CPUs ends above them.
#pragma once
#include "nn/graph/layers.h"
#include "nn/net.h"
#include "nn/optimiser.h"

namespace gradcast {

/// Returns the number of layers in front of the first one that has a learning tensor.  config.ranges are set (optimiser_ranges()).
uint32_t layers_frozen(const std::vector<Layer>& layers, const OptimiserConfig& config);

/// From now on a block hands in zeros for the parameters of the first `layers` layers.  The other gradients, the loss and running
/// statistics keep their bits.  No gradient is computed that only these layers need, and none crosses a cut below the first layer that
/// learns (Edge::learns); one of several slice groups computes all of them.  The scales of the codec are state, and depend on the
/// gradients, so all nodes of a job freeze the same layers.  The net is one of net_cpu_plan().  Call it between blocks.
void net_cpu_freeze(Net& net, uint32_t layers);

}   // namespace gradcast
