// Nets and optimisers on GPUs: the factories that libgradcast_cuda.so offers.
#pragma once
#include "nn/net.h"
#include "nn/optimiser.h"
#include "runtime/core/device.h"

namespace gradcast::cuda {

/// Plans memory of the device, whose lanes are as many as config.lanes; after Device::seal(), net_ready() draws the initial weights, runs
/// every program once and captures it.  The device must outlive the net.  Error: names the layer and both shapes, or the kernel that lacks.
Status net_plan(const NetSpec& spec, const NetConfig& config, Device& device, std::unique_ptr<Net>* net);
Status net_ready(Net& net);
/// For that net alone, between net_plan() and Device::seal().
Status optimiser_plan(const OptimiserConfig& config, Net& net, std::unique_ptr<Optimiser>* optimiser);

}   // namespace gradcast::cuda
