// Where a job computes when not on the CPU: the GPUs of one node, opened together, with one piece of memory each.  The nets, optimisers and
// codecs made on it plan their memory there; seal() takes it all.
#pragma once
#include <string>
#include <vector>

#include "runtime/core/status.h"
#include "runtime/core/types.h"

namespace gradcast {

struct DeviceConfig {
    uint32_t lanes_max = 1;               // lane l computes on the GPU of place l % GPUs
    uint32_t lanes_per_gpu = 2;           // one's blocks fill the gaps between another's kernels; each takes memory
    std::vector<uint32_t> numbers = {};   // of the GPUs, as CUDA counts them; empty: all that it shows (CUDA_VISIBLE_DEVICES)
};
struct Device {
    virtual ~Device() = default;
    /// "NVIDIA H100 80GB HBM3, CUDA 13.0, cuDNN 9.13.0, cuBLAS 13.0.2": what bits depend on.
    virtual const std::string& name() const = 0;
    /// As many as lanes_max and lanes_per_gpu allow.
    virtual uint32_t lane_count() const = 0;
    /// Takes all memory that was planned, once.  Error: Code::node_memory says the budget, what there is and the largest blocks that fit.
    virtual Status seal() = 0;
    /// Page-locks memory of the host that sums come in, so that copies from it run beside other things.  Where the system forbids that
    /// (RLIMIT_MEMLOCK) they wait instead.  It must outlive the device.
    virtual void share(Buffer host) = 0;
    /// By purpose, as Arena::budget().
    virtual std::string budget() const = 0;
};

/// A data set's images in the memory of GPUs.
struct ResidentImages {
    virtual ~ResidentImages() = default;
    /// Samples first .. first + count - 1, images [count, C, H, W], after Device::seal().  Waits until they are there.
    virtual Status put(uint64_t first, const uint8_t* images, uint64_t count) = 0;
    /// Puts into `to`, memory of the lane's GPU, the images [count, C, H, W] with their random changes: work in `stream` (a cudaStream_t).
    /// `places` is page-locked and untouched until that is done.
    virtual Status take(uint32_t lane, void* stream, const SamplePlace* places, uint32_t count, uint8_t* to) = 0;
};

}   // namespace gradcast
