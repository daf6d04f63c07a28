// A data set whose images a device holds (runtime/core/device.h): nothing is read while a job trains.
#pragma once
#include <memory>

#include "datasets/reader.h"
#include "runtime/core/device.h"

namespace gradcast {

/// Reads all images and puts them on the device, whose memory has been taken.  Error: of a read, or of the device.
Status resident_fill(const DataSet& data, ResidentImages& resident);
/// Hands out blocks as loader_plan()'s does, with Samples::places in place of images.  At most `ahead` at a time.  The data set and
/// `resident` must outlive it; it needs no loader_start().
std::unique_ptr<Loader> loader_resident(const DataSet& data, const Sampler& sampler, uint32_t ahead, ResidentImages& resident);

}   // namespace gradcast
