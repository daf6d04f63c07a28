// The GPUs of one node, opened together, with one piece of memory each.  Nets, optimisers and codecs plan their memory there; seal()
// allocates it.
#pragma once
#include <string>
#include <vector>

#include "runtime/core/memory_use.h"
#include "runtime/core/status.h"
#include "runtime/core/types.h"

namespace gradcast {

struct DeviceConfig {
    uint32_t lanes_max = 1;               // lane l computes on the GPU of place l % GPUs
    uint32_t lanes_per_gpu = 2;           // blocks of one lane overlap with those of another; each needs memory
    std::vector<uint32_t> numbers = {};   // of the GPUs, as CUDA counts them; empty: all visible ones (CUDA_VISIBLE_DEVICES)
};
struct Device {
    virtual ~Device() = default;
    /// "NVIDIA H100 80GB HBM3, CUDA 13.0, cuDNN 9.13.0, cuBLAS 13.0.2": bits depend on it.
    virtual const std::string& name() const = 0;
    /// The most that lanes_max and lanes_per_gpu allow.
    virtual uint32_t lane_count() const = 0;
    /// Allocates all planned memory.  Error: Code::node_memory with the budget, the free memory and the largest blocks that fit.
    virtual Status seal() = 0;
    /// Page-locks memory of the host that sums come in, so that copies from it run beside other work; where the system forbids that
    /// (RLIMIT_MEMLOCK), copies wait.  It must outlive the device, or be unshared while nothing computes.
    virtual void share(Buffer host) = 0;
    virtual void unshare(Buffer host) = 0;
    /// Of each GPU its own and the page-locked memory of the host.
    virtual std::vector<MemoryUse> memory() const = 0;
};

/// A data set's images in the memory of GPUs.
struct ResidentImages {
    virtual ~ResidentImages() = default;
    /// Samples first .. first + count - 1, images [count, C, H, W], after Device::seal().  Waits until they are there.
    virtual Status put(uint64_t first, const uint8_t* images, uint64_t count) = 0;
    /// Writes the images [count, C, H, W] with their random changes to `to`, memory of the lane's GPU: work in `stream` (a cudaStream_t).
    /// `places` is page-locked and stays as it is until that is done.
    virtual Status take(uint32_t lane, void* stream, const SamplePlace* places, uint32_t count, uint8_t* to) = 0;
};

}   // namespace gradcast
