// The codec of GPUs: blocks are quantised and added on the GPU that computes their gradients.
#pragma once
#include <memory>

#include "runtime/core/device.h"
#include "transport/code/codec.h"

namespace gradcast::cuda {

/// Each lane has an accumulator for each target of an exchange.  finish() adds the accumulators on GPU 0, copies the sum to the host (or to
/// Buffer::device of the plan) and waits for it: the only wait for GPUs in a step.  add() enqueues on Lane::codec and neither waits nor
/// allocates.  Words, maxima, clip counts and digests are bit-identical to codec_cpu().  finish() reports a gradient with NaN or Inf, in
/// the record or as the error of add() on the CPU.  The codec plans memory on `device`, which outlives it, and needs DeviceWords::expect().
/// codec_ready() comes after Device::seal() and before net_ready(), whose graphs include the quantisation (DeviceWords::begin).
std::unique_ptr<Codec> codec_plan(const Layout& layout, const CodecConfig& config, Device& device);
Status codec_ready(Codec& codec);

}   // namespace gradcast::cuda
