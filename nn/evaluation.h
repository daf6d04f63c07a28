// Evaluations of nets on CPUs in pieces: how many samples a lane computes at a time.
#pragma once
#include "nn/net.h"

namespace gradcast {

/// Returns how many samples of a batch of `most` a net on a CPU evaluates at a time: a share of the batch that takes half of the
/// activations of a training block of `block` samples, or 4 MiB of activations if that is more.  Above `block` where `most` is, because
/// programs that train may have other kernels.  A function of its arguments alone, so all nodes find the same.  Returns `most` for what is
/// no net (layers_check()).  Cost: that of layers_check().
uint32_t evaluation_piece(const NetSpec& spec, uint32_t block, uint32_t most);

/// Net::evaluate() of a net on a CPU (net_cpu_plan()), of samples that follow others: their losses are added to *loss one by one, so the
/// sum does not depend on how an evaluation is cut.  The net computes NetConfig::samples_max samples, of which these are the first ones.
Status net_cpu_evaluate_further(Net& net, uint32_t lane, const Samples& samples, uint32_t* right, double* loss, int32_t* predicted);

}   // namespace gradcast
