// A data set's images in GPU memory, if they fit; the net's input gathers and augments the samples of a block there (nn/cuda/input.cu).
#pragma once
#include <memory>

#include "datasets/augment.h"
#include "runtime/core/device.h"

namespace gradcast::cuda {

/// Plans memory for a copy on each GPU of the device, which must outlive it.  *resident stays null if it does not fit beside what is
/// already planned, or samples are no images of bytes with labels.
Status resident_plan(const DataInfo& info, const Augment& augment, Device& device, std::unique_ptr<ResidentImages>* resident);

}   // namespace gradcast::cuda
