// Arrays of activations on the device, for tests of nn/cuda's kernels one by one.
#pragma once
#include <random>

#include "nn/cuda/kernels.h"
#include "tests/cuda/fixture.h"

namespace gradcast::cuda {

inline std::vector<float> normals(uint64_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> all(count);
    for (float& each : all) each = normal(random);
    return all;
}

/// An array of activations on the device.
class Array {
public:
    Array(uint64_t count, bool bf16) : bf16_(bf16), bits_(bf16 ? (count + 1) / 2 : count), count_(count) {}
    Array(const std::vector<float>& values, bool bf16) : Array(values.size(), bf16) {
        const DeviceVector<float> from(values);
        EXPECT_TRUE(ok(copy(nullptr, *this, {from.get(), false}, count_)));
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
    operator Values() const { return {bits_.get(), bf16_}; }
    std::vector<float> read() const {
        const DeviceVector<float> to(count_);
        EXPECT_TRUE(ok(copy(nullptr, {to.get(), false}, *this, count_)));
        return to.read();
    }

private:
    bool bf16_;
    DeviceVector<uint32_t> bits_;
    uint64_t count_;
};

struct Sum {
    DeviceVector<double> scratch;
    DeviceVector<uint32_t> tickets;
    explicit Sum(const SumSize& size) : scratch(size.scratch), tickets(std::vector<uint32_t>(size.tickets)) {}
    operator SumMemory() const { return {scratch.get(), tickets.get()}; }
};

/// More threads than the stand-in's launches have (nn/cuda/element.h).
struct CudaPieces : OnDevice {
#ifdef GC_CUDA_HOST
    void SetUp() override { cuda_host_piece_max = 1 << 12; }
    void TearDown() override { cuda_host_piece_max = uint64_t{1} << 31; }
#endif
};

}   // namespace gradcast::cuda
