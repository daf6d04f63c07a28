// A net on GPUs beside one on the CPU, for the tests of nn/cuda.
#pragma once
#include <algorithm>

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

/// Compares loss and gradient of a block with the CPU's, layer by layer, and an evaluation of fewer samples.
inline void expect_as_cpu(const NetSpec& spec, uint32_t samples, Precision precision, double most) {
    NetConfig config = sizes({samples});
    Rig cpu(spec, config);
    config.precision = precision;
    CudaRig gpu(spec, config);
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (float& w : cpu.net->parameters()) w += 0.02f * normal(random);
    cpu.net->refresh();
    std::copy_n(cpu.net->parameters().begin(), cpu.net->layout().elements, gpu.net->parameters().begin());
    gpu.net->refresh();
    Data data(spec, samples);
    const Gather a = gpu.block(data.samples, 0, 2), b = cpu.block(data.samples, 0, 2);
    EXPECT_NEAR(a.total, b.total, most * std::abs(b.total));
    for (const Group& group : cpu.net->layout().groups)
        EXPECT_LT(
            distance(std::span(a.gradient).subspan(group.offset, group.count), std::span(b.gradient).subspan(group.offset, group.count)),
            most)
            << group.layer;
    Samples fewer = data.samples;
    fewer.count = std::max(1u, samples - 1);
    const uint64_t predicted = uint64_t{fewer.count} * spec.positions();
    uint32_t right[2] = {};
    double losses[2] = {};
    std::vector<int32_t> classes[2] = {std::vector<int32_t>(predicted), std::vector<int32_t>(predicted)};
    ASSERT_TRUE(gpu.net->evaluate(0, fewer, &right[0], &losses[0], classes[0].data()).ok());
    ASSERT_TRUE(cpu.net->evaluate(0, fewer, &right[1], &losses[1], classes[1].data()).ok());
    EXPECT_NEAR(losses[0], losses[1], most * std::abs(losses[1]));
    if (precision == Precision::f32) {
        EXPECT_EQ(right[0], right[1]);
        EXPECT_EQ(classes[0], classes[1]);
    }
}

}   // namespace gradcast
