// The codec of GPUs: blocks are quantised and added up where their gradients are.
#pragma once
#include <memory>

#include "runtime/core/device.h"
#include "transport/code/codec.h"

namespace gradcast::cuda {

/// Every lane adds its blocks up in an accumulator of its own for each of an exchange's targets; finish() adds these on GPU 0, brings the
/// sum to the host (or to Buffer::device of the plan's words) and waits for that: the one time a step waits for its GPUs.  add() puts work
/// into Lane::codec, and neither waits nor allocates.  Words, maxima, clip counts and digests have the bits of codec_cpu().  A gradient
/// with NaN or Inf is told by finish(), in the record or as an error like add()'s on the CPU. Plans its memory on the device, which
/// outlives it, and wants DeviceWords::expect(); codec_ready() comes after Device::seal() and before net_ready(), whose graphs take in what
/// is done with a block's gradient (DeviceWords::begin).
std::unique_ptr<Codec> codec_plan(const Layout& layout, const CodecConfig& config, Device& device);
Status codec_ready(Codec& codec);

}   // namespace gradcast::cuda
