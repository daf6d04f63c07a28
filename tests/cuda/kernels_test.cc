// nn/cuda's kernels one by one, against plain loops, where a whole net would not show a fault.
#include <bit>
#include <cmath>
#include <random>

#include "nn/cuda/kernels.h"
#include "tests/cuda/fixture.h"

namespace gradcast::cuda {
namespace {

std::vector<float> normals(uint64_t count, uint32_t seed) {
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

struct CudaKernels : OnDevice {};

TEST_F(CudaKernels, MaxPoolingMasksItsGradient) {
    for (const bool bf16 : {false, true})
        for (const uint32_t C : {6u, 8u}) {
            const WindowShape shape{.N = 3, .C = C, .H = 7, .W = 6, .P = 4, .Q = 3, .kernel = 3, .stride = 2, .pad = 1};
            const uint64_t in = 3ull * 7 * 6 * C, rows = 3ull * 4 * 3, out = rows * C;
            const Array x(normals(in, 1), bf16), dy(normals(out, 2), bf16), y(out, bf16), dx(in, bf16), masked(out, bf16);
            const DeviceVector<uint8_t> winners(out);
            const DeviceVector<double> scratch(sums_scratch(rows, C, 1));
            const DeviceVector<float> bias(normals(C, 3)), dbias(C);
            ASSERT_TRUE(ok(max_pool(nullptr, y, winners.get(), x, bias.get(), shape, true)));
            ASSERT_TRUE(ok(relu_backward(nullptr, masked, dy, y, out)));
            ASSERT_TRUE(ok(max_pool_backward(nullptr, dx, masked, {}, winners.get(), shape)));
            const std::vector<float> expected = dx.read(), gradient = dy.read();
            ASSERT_TRUE(ok(max_pool_backward(nullptr, dx, dy, y, winners.get(), shape)));
            EXPECT_EQ(dx.read(), expected);

            std::vector<double> sums(C);
            const std::vector<float> counted = masked.read();
            for (uint64_t i = 0; i < out; ++i) sums[i % C] += static_cast<double>(counted[i]);
            for (const bool in_place : {false, true}) {
                ASSERT_TRUE(ok(bias_backward(nullptr, dy, y, dbias.get(), scratch.get(), rows, C, in_place)));
                EXPECT_EQ(dy.read(), in_place ? counted : gradient);
                const std::vector<float> found = dbias.read();
                for (uint32_t c = 0; c < C; ++c) EXPECT_NEAR(static_cast<double>(found[c]), sums[c], 1e-6 * std::abs(sums[c]));
            }
        }
}

}   // namespace
}   // namespace gradcast::cuda
