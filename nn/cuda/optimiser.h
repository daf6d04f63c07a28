// Optimisers whose state is on a GPU.
#pragma once
#include "nn/cuda/kernels.h"
#include "nn/optimiser.h"
#include "runtime/core/cuda/device.h"

namespace gradcast::cuda {

/// digest64 of words on that GPU; room and host are 8 bytes of the device's and of page-locked memory.  Waits for the GPU's stream.
Status digest_fetch(const CudaDevice::Gpu& gpu, const Buffer& words, uint64_t first, const Buffer& room, const Buffer& host, uint64_t* sum);

/// Goes with the net that it was made for, on whose first GPU its state is.
class CudaOptimiser final : public Optimiser {
public:
    /// Plans the state; zero() follows Device::seal().
    CudaOptimiser(const OptimiserConfig& config, uint64_t elements, CudaDevice& device);
    Status zero();
    void step(StepId step) override;
    void update(uint64_t, std::span<float>, std::span<const float>) override { GC_ASSERT(!"parameters are on a GPU: see apply()"); }
    std::span<float> state() override;   // a copy on the host
    uint64_t state_size() override { return host_.bytes / sizeof(float); }
    uint64_t digest(uint64_t first) override;
    /// w [elements] are the parameters; words of elements offset .. offset + count.  Enqueues on the first GPU's stream.
    Status apply(float* w, uint64_t offset, const Words& words, uint64_t count);

private:
    const OptimiserConfig config_;
    const uint64_t elements_;
    CudaDevice& device_;
    CudaDevice::Gpu& gpu_;
    Buffer state_, host_, digest_, digest_host_;
    AdamStep adam_{};
    float lr_ = 0;
};

}   // namespace gradcast::cuda
