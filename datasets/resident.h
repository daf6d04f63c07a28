// A data set whose images are in a device's memory (runtime/core/device.h): training reads no file.
#pragma once
#include <memory>

#include "datasets/reader.h"
#include "runtime/core/device.h"

namespace gradcast {

/// Reads all images and copies them to the device, after Device::seal().  Errors: of a read or of the device.
Status resident_fill(const DataSet& data, ResidentImages& resident);
/// Like loader_plan()'s loader, but fills Samples::places, not images.  At most `ahead` blocks at a time.  `data` and `resident` must
/// outlive it; needs no loader_start().
/// resident null: a program has the samples (DataSet::of_program()).
std::unique_ptr<Loader> loader_resident(const DataSet& data, const Sampler& sampler, uint32_t ahead, ResidentImages* resident);

}   // namespace gradcast
