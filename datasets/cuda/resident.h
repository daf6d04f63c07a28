// A data set's images in the memory of GPUs, where they fit: a block's samples are cut, mirrored and put side by side there.
#pragma once
#include <memory>

#include "datasets/augment.h"
#include "runtime/core/device.h"

namespace gradcast::cuda {

/// Plans memory for a copy on each GPU of the device, which must outlive it.  *resident stays null where it
/// does not fit beside what has been planned before.
Status resident_plan(const DataInfo& info, const Augment& augment, Device& device, std::unique_ptr<ResidentImages>* resident);

}   // namespace gradcast::cuda
