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

struct Sums {
    DeviceVector<double> scratch;
    DeviceVector<uint32_t> tickets;
    Sums(uint64_t rows, uint32_t C, uint32_t sums, bool bf16)
        : scratch(sums_scratch(rows, C, sums, bf16)), tickets(std::vector<uint32_t>(sums_tickets(rows, C, bf16))) {}
    operator SumMemory() const { return {scratch.get(), tickets.get()}; }
};

struct CudaKernels : OnDevice {};

// Numbers of channels that are whole packs and not, one tile and several; numbers of rows that are one chunk and several.
TEST_F(CudaKernels, ColumnsAreSummedWhateverTheirNumber) {
    for (const bool bf16 : {false, true})
        for (const uint32_t C : {1u, 2u, 6u, 10u, 16u, 33u, 84u, 136u, 257u})
            for (const uint64_t rows : {1ull, 3ull, 100ull, 1000ull, 30000ull / C + 1025}) {
                const Array dy(normals(rows * C, C), bf16), y(normals(rows * C, C + 1), bf16);
                const Sums memory(rows, C, 1, bf16);
                const DeviceVector<float> dbias(C);
                const std::vector<float> values = dy.read(), outputs = y.read();
                for (const bool masked : {false, true}) {
                    std::vector<double> expected(C), size(C);
                    for (uint64_t i = 0; i < rows * C; ++i) {
                        const double value = masked && !(outputs[i] > 0) ? 0 : static_cast<double>(values[i]);
                        expected[i % C] += value;
                        size[i % C] += std::abs(value);
                    }
                    std::vector<float> first;
                    for (int time = 0; time < 2; ++time) {   // the tickets are 0 again
                        ASSERT_TRUE(ok(bias_backward(nullptr, dy, masked ? Values(y) : Values{}, dbias.get(), memory, rows, C, false)));
                        const std::vector<float> found = dbias.read();
                        for (uint32_t c = 0; c < C; ++c)
                            ASSERT_NEAR(static_cast<double>(found[c]), expected[c], 1e-7 * size[c]) << rows << "x" << C << ", " << c;
                        if (time == 0) first = found;
                        EXPECT_EQ(found, first);
                    }
                }
            }
}

TEST_F(CudaKernels, MaxPoolingMasksItsGradient) {
    for (const bool bf16 : {false, true})
        for (const uint32_t C : {6u, 8u}) {
            const WindowShape shape{.N = 3, .C = C, .H = 7, .W = 6, .P = 4, .Q = 3, .kernel = 3, .stride = 2, .pad = 1};
            const uint64_t in = 3ull * 7 * 6 * C, rows = 3ull * 4 * 3, out = rows * C;
            const Array x(normals(in, 1), bf16), dy(normals(out, 2), bf16), y(out, bf16), dx(in, bf16), masked(out, bf16);
            const DeviceVector<uint8_t> winners(out);
            const Sums sums_memory(rows, C, 1, bf16);
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
                ASSERT_TRUE(ok(bias_backward(nullptr, dy, y, dbias.get(), sums_memory, rows, C, in_place)));
                EXPECT_EQ(dy.read(), in_place ? counted : gradient);
                const std::vector<float> found = dbias.read();
                for (uint32_t c = 0; c < C; ++c) EXPECT_NEAR(static_cast<double>(found[c]), sums[c], 1e-6 * std::abs(sums[c]));
            }
        }
}

}   // namespace
}   // namespace gradcast::cuda
