// A net on GPUs beside one on the CPU, for the tests of nn/cuda.
#pragma once
#include "nn/cuda/cuda.h"
#include "runtime/core/cuda/device.h"
#include "tests/nn/rig.h"

namespace gradcast {

/// True if there is no GPU; *why is the reason to skip.
inline bool no_gpu(std::string* why) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0) return false;
    *why = fmt::format("no GPU: {}", error == cudaSuccess ? "CUDA finds none" : cudaGetErrorString(error));
    return true;
}
#define GC_NEED_GPU() \
    if (std::string why; no_gpu(&why)) GTEST_SKIP() << why

struct CudaRig : AnyRig {
    cuda::CudaDevice device;   // must outlive the net in AnyRig: see the destructor
    explicit CudaRig(const NetSpec& spec, const NetConfig& config, const OptimiserConfig& sgd = {}, std::vector<uint32_t> gpus = {0}) {
        Status status = open(spec, config, sgd, std::move(gpus));
        EXPECT_TRUE(status.ok()) << status.what;
    }
    CudaRig(const CudaRig&) = delete;
    ~CudaRig() { optimiser.reset(), net.reset(); }

private:
    Status open(const NetSpec& spec, const NetConfig& config, const OptimiserConfig& sgd, std::vector<uint32_t> gpus) {
        GC_TRY(device.open({.lanes_max = config.lanes, .lanes_per_gpu = config.lanes, .numbers = std::move(gpus)}));
        GC_TRY(cuda::net_plan(spec, config, device, &net));
        GC_TRY(cuda::optimiser_plan(sgd, *net, &optimiser));
        GC_TRY(device.seal());
        return cuda::net_ready(*net);
    }
};

/// ||a - b|| / ||b||
inline double distance(std::span<const float> a, std::span<const float> b) {
    double off = 0, norm = 0;
    for (size_t i = 0; i < b.size(); ++i) {
        off += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
        norm += static_cast<double>(b[i]) * b[i];
    }
    return norm > 0 ? std::sqrt(off / norm) : std::sqrt(off);
}

}   // namespace gradcast
