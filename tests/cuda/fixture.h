// For tests of device code.  The same sources make build/tests/cuda, with the CPU stand-in of tests/cuda/host, and
// build/tests/cuda-device, with CUDA.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <vector>

#include "runtime/core/cuda/device.h"

namespace gradcast::cuda {

/// Skips if there is no GPU.
struct OnDevice : testing::Test {
    void SetUp() override {
        int count = 0;
        if (cudaError_t error = cudaGetDeviceCount(&count)) GTEST_SKIP() << "no device: " << cudaGetErrorString(error);
    }
    /// Opens `gpus` GPUs; where there are fewer, the first one several times.
    static std::unique_ptr<CudaDevice> open(uint32_t lanes, uint32_t gpus = 1) {
        int count = 0;
        EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
        DeviceConfig config{.lanes_max = lanes, .lanes_per_gpu = lanes, .numbers = {}};
        for (uint32_t g = 0; g < gpus; ++g) config.numbers.push_back(count > static_cast<int>(g) ? g : 0);
        auto device = std::make_unique<CudaDevice>();
        const Status status = device->open(config);
        EXPECT_TRUE(status.ok()) << status.what;
        return device;
    }
};

/// Memory of the current device.
template <typename T>
class DeviceVector {
public:
    explicit DeviceVector(size_t count) : count_(count) {
        EXPECT_EQ(cudaMalloc(&at_, std::max<size_t>(count, 1) * sizeof(T)), cudaSuccess);
    }
    explicit DeviceVector(const std::vector<T>& values) : DeviceVector(values.size()) {
        EXPECT_EQ(cudaMemcpy(at_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
        EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);   // the copy may still be in flight
    }
    DeviceVector(const DeviceVector&) = delete;
    DeviceVector& operator=(const DeviceVector&) = delete;
    ~DeviceVector() { EXPECT_EQ(cudaFree(at_), cudaSuccess); }   // waits for all work
    T* get() const { return static_cast<T*>(at_); }
    /// Waits for all work.
    std::vector<T> read() const {
        std::vector<T> values(count_);
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        EXPECT_EQ(cudaMemcpy(values.data(), at_, count_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
        return values;
    }

private:
    void* at_ = nullptr;
    size_t count_;
};

/// For EXPECT_TRUE(ok(...)): shows the error.
inline testing::AssertionResult ok(const Status& status) {
    return status.ok() ? testing::AssertionSuccess() : testing::AssertionFailure() << status.what;
}

}   // namespace gradcast::cuda
