// The GPUs of one node, opened together, with one allocation each.  Nets, optimisers and codecs plan their memory; seal() takes it.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "runtime/core/memory_use.h"
#include "runtime/core/status.h"
#include "runtime/core/types.h"

namespace gradcast {

/// The devices that a job may ask for, see Computer::open().
inline constexpr std::array device_names = {"cpu", "cuda", "auto"};

struct DeviceConfig {
    uint32_t lanes_max = 1;               // lane l uses GPU l % (number of GPUs)
    uint32_t lanes_per_gpu = 2;           // blocks of different lanes overlap; each lane needs memory
    std::vector<uint32_t> numbers = {};   // CUDA's device numbers; empty: all visible GPUs (CUDA_VISIBLE_DEVICES)
};
struct Device {
    virtual ~Device() = default;
    /// GPU and libraries, on which bits depend: "NVIDIA H100 80GB HBM3, CUDA 13.0, cuDNN 9.13.0, cuBLAS 13.0.2".
    virtual const std::string& name() const = 0;
    /// min(lanes_max, lanes_per_gpu * GPUs).
    virtual uint32_t lane_count() const = 0;
    /// Takes all planned memory.  Error: Code::node_memory with the budget, the free memory and the largest block size that fits.
    virtual Status seal() = 0;
    /// Page-locks host memory that holds sums, so that copies from it are asynchronous; if the system refuses (RLIMIT_MEMLOCK), copies
    /// wait.  The memory must outlive the device, or be unshared while nothing computes.
    virtual void share(Buffer host) = 0;
    virtual void unshare(Buffer host) = 0;
    /// For each GPU its own memory and the page-locked memory of the host.
    virtual std::vector<MemoryUse> memory() const = 0;
};

/// A data set's images in the memory of GPUs.
struct ResidentImages {
    virtual ~ResidentImages() = default;
    /// Stores samples first .. first + count - 1, images [count, C, H, W].  After Device::seal(); waits for the copy.
    virtual Status put(uint64_t first, const uint8_t* images, uint64_t count) = 0;
};

}   // namespace gradcast
