// nn/cuda's kernels one by one, against plain loops, where a whole net would not show a fault.
#include <algorithm>
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

struct Sum {
    DeviceVector<double> scratch;
    DeviceVector<uint32_t> tickets;
    explicit Sum(const SumSize& size) : scratch(size.scratch), tickets(std::vector<uint32_t>(size.tickets)) {}
    operator SumMemory() const { return {scratch.get(), tickets.get()}; }
};

struct CudaKernels : OnDevice {};

// Numbers of channels that are whole packs and not, one tile and several; numbers of rows that are one chunk and several.
TEST_F(CudaKernels, ColumnsAreSummedWhateverTheirNumber) {
    for (const bool bf16 : {false, true})
        for (const uint32_t C : {1u, 2u, 6u, 10u, 16u, 33u, 84u, 136u, 257u})
            for (const uint64_t rows : {1ull, 3ull, 100ull, 1000ull, 30000ull / C + 1025}) {
                const Array dy(normals(rows * C, C), bf16), y(normals(rows * C, C + 1), bf16);
                const Sum memory(columns_size(rows, C, 1, bf16));
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

// One thread block and several; the last samples of the program's size are none of the block's.
TEST_F(CudaKernels, LossesAreSummedWhateverTheirNumber) {
    constexpr uint32_t classes = 10;
    for (const bool bf16 : {false, true})
        for (const auto& [samples, count] : {std::pair{5u, 5u}, {128u, 100u}, {129u, 129u}, {1024u, 300u}, {3000u, 2999u}}) {
            const Array x(normals(uint64_t{samples} * classes, samples), bf16), dx(uint64_t{samples} * classes, bf16);
            std::vector<int32_t> labels(samples);
            for (uint32_t n = 0; n < samples; ++n) labels[n] = static_cast<int32_t>(n * 7 % classes);
            const DeviceVector<int32_t> label(labels), best(samples);
            const DeviceVector<BlockHeader> header(std::vector<BlockHeader>{{count, 0}});
            const DeviceVector<LossResult> result(1);
            const Sum memory(loss_size(samples));
            const std::vector<float> values = x.read();
            double expected = 0;
            uint64_t right = 0;
            std::vector<int32_t> top(count);
            for (uint32_t n = 0; n < count; ++n) {
                const float* row = &values[uint64_t{n} * classes];
                top[n] = static_cast<int32_t>(std::max_element(row, row + classes) - row);
                right += top[n] == labels[n];
                double sum = 0;
                for (uint32_t k = 0; k < classes; ++k) sum += std::exp(static_cast<double>(row[k]));
                expected += std::log(sum) - static_cast<double>(row[labels[n]]);
            }
            for (int time = 0; time < 2; ++time) {   // the ticket is 0 again
                ASSERT_TRUE(ok(
                    softmax_cross_entropy(nullptr, x, dx, label.get(), header.get(), classes, samples, memory, best.get(), result.get())));
                const LossResult found = result.read()[0];
                EXPECT_NEAR(found.loss, expected, 1e-6 * expected);
                EXPECT_EQ(found.right, right);
                std::vector<int32_t> predicted = best.read();
                predicted.resize(count);
                EXPECT_EQ(predicted, top);
            }
            const std::vector<float> slopes = dx.read();
            for (uint64_t i = 0; i < slopes.size(); ++i) {
                const uint64_t n = i / classes;
                ASSERT_EQ(n < count ? slopes[i] < 0 : slopes[i] != 0, n < count && i % classes == static_cast<uint64_t>(labels[n]));
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
            const Sum memory(columns_size(rows, C, 1, bf16));
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
                ASSERT_TRUE(ok(bias_backward(nullptr, dy, y, dbias.get(), memory, rows, C, in_place)));
                EXPECT_EQ(dy.read(), in_place ? counted : gradient);
                const std::vector<float> found = dbias.read();
                for (uint32_t c = 0; c < C; ++c) EXPECT_NEAR(static_cast<double>(found[c]), sums[c], 1e-6 * std::abs(sums[c]));
            }
        }
}

}   // namespace
}   // namespace gradcast::cuda
