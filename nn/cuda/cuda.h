// Nets and optimisers on GPUs: the factories that libgradcast_cuda.so offers.
#pragma once
#include "nn/net.h"
#include "nn/optimiser.h"
#include "runtime/core/device.h"

namespace gradcast::cuda {

/// Plans the net's memory on the device, which has config.lanes lanes and must outlive the net.  After Device::seal(), net_ready() draws
/// the initial weights, runs every program once and captures it.  Errors name the layer and both shapes, or the missing kernel.
Status net_plan(const NetSpec& spec, const NetConfig& config, Device& device, std::unique_ptr<Net>* net);
Status net_ready(Net& net);
/// The optimiser of this net; call between net_plan() and Device::seal().
Status optimiser_plan(const OptimiserConfig& config, Net& net, std::unique_ptr<Optimiser>* optimiser);

}   // namespace gradcast::cuda
