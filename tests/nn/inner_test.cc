// Own inner products, in each build that this CPU runs, against sums in double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "nn/cpu/inner.h"
#include "tests/nn/rig.h"

namespace gradcast {
namespace emulated {
InnerKernels inner_kernels();
}
namespace {

/// Like a ReLU's output: every other element 0 (some -0), and every eighth column all 0.
std::vector<float> rectified(uint32_t N, uint32_t K, uint32_t key) {
    std::vector<float> result = numbers(uint64_t{N} * K, key), other = numbers(uint64_t{N} * K, key + 1000);
    for (uint64_t i = 0; i < result.size(); ++i)
        if (other[i] < 0 || i % K % 8 == 5) result[i] = i % 3 ? 0.0f : -0.0f;
    return result;
}

TEST(Inner, AgreesWithDoublePrecisionInEveryBuild) {
    std::vector<InnerShape> shapes = {{100, 784, 10},   {133, 300, 51}, {7, 9, 1030},   {2, 40000, 9},  {12, 65, 33},
                                      {16, 400, 120},   {3, 1, 1},      {270, 33, 150}, {140, 512, 30}, {270, 1030, 150},
                                      {140, 150, 1030}, {3, 1001, 261}, {50, 700, 200}};
    for (uint32_t count = 1; count <= 20; ++count) shapes.push_back({count, 3 * count + 15, 23 - count});   // every remainder of N, C and K
    for (const auto& [name, kernels] : builds(inner_kernels, emulated::inner_kernels)) {
        for (const auto& [N, C, K] : shapes) {
            SCOPED_TRACE(std::string(name) + " N " + std::to_string(N) + " C " + std::to_string(C) + " K " + std::to_string(K));
            const std::vector<float> x = N % 4 < 2 ? numbers(uint64_t{N} * C, 1) : rectified(N, C, 1), w = numbers(uint64_t{K} * C, 2),
                                     bias = numbers(K, 3), dy = N % 2 ? numbers(uint64_t{N} * K, 4) : rectified(N, K, 4);
            const float nan = std::nanf("");   // shows elements not written, and writes past the end
            std::vector<float> y(dy.size() + 1, nan), bare = y, dx(x.size() + 1, nan), dw(w.size() + 1, nan), db(K + 1, nan);
            const InnerShape shape{N, C, K};
            std::vector<float> memory(kernels.memory, nan), packed(kernels.packed(shape), nan), y2 = y;
            kernels.forward(y.data(), x.data(), w.data(), bias.data(), shape);
            kernels.forward_packed(y2.data(), x.data(), w.data(), bias.data(), memory.data(), shape);
            if (N % 3) kernels.forward(bare.data(), x.data(), w.data(), nullptr, shape);
            else kernels.forward_packed(bare.data(), x.data(), w.data(), nullptr, memory.data(), shape);
            kernels.backward_data(dx.data(), dy.data(), w.data(), memory.data(), shape);
            kernels.pack(packed.data(), x.data(), shape);
            kernels.backward_weights(dw.data(), C, dy.data(), packed.data(), shape, 0, K);
            kernels.backward_bias(db.data(), dy.data(), shape);
            if (K > 2) {   // a part of the rows has the same bits
                std::vector<float> some((K - 2) * C + 1, nan);
                kernels.backward_weights(some.data(), C, dy.data(), packed.data(), shape, 1, K - 1);
                EXPECT_EQ(0, std::memcmp(some.data(), dw.data() + C, (K - 2) * C * sizeof(float)));
                EXPECT_TRUE(std::isnan(some.back()));
            }
            for (const std::vector<float>* each : {&y, &y2, &bare, &dx, &dw, &db}) EXPECT_TRUE(std::isnan(each->back()));
            auto expect = [](float got, double wanted, double size, const char* what) {
                ASSERT_LE(std::fabs(static_cast<double>(got) - wanted), 2e-6 * size + 1e-30) << what << " " << got << " for " << wanted;
            };
            for (uint32_t n = 0; n < N; ++n) {
                for (uint32_t k = 0; k < K; ++k) {
                    double sum = 0, size = 1;
                    for (uint32_t c = 0; c < C; ++c) {
                        const double product = static_cast<double>(w[k * C + c]) * static_cast<double>(x[n * C + c]);
                        sum += product;
                        size += std::fabs(product);
                    }
                    expect(bare[n * K + k], sum, size, "y without bias");
                    expect(y[n * K + k], sum + static_cast<double>(bias[k]), size, "y");
                    expect(y2[n * K + k], sum + static_cast<double>(bias[k]), size, "y of packed weights");
                }
                for (uint32_t c = 0; c < C; ++c) {
                    double sum = 0, size = 0;
                    for (uint32_t k = 0; k < K; ++k) {
                        const double product = static_cast<double>(w[k * C + c]) * static_cast<double>(dy[n * K + k]);
                        sum += product;
                        size += std::fabs(product);
                    }
                    expect(dx[n * C + c], sum, size, "dx");
                }
            }
            for (uint32_t k = 0; k < K; ++k) {
                double bias_sum = 0, bias_size = 0;
                for (uint32_t n = 0; n < N; ++n) {
                    bias_sum += static_cast<double>(dy[n * K + k]);
                    bias_size += std::fabs(dy[n * K + k]);
                }
                expect(db[k], bias_sum, bias_size, "db");
                for (uint32_t c = 0; c < C; ++c) {
                    double sum = 0, size = 0;
                    for (uint32_t n = 0; n < N; ++n) {
                        const double product = static_cast<double>(dy[n * K + k]) * static_cast<double>(x[n * C + c]);
                        sum += product;
                        size += std::fabs(product);
                    }
                    expect(dw[k * C + c], sum, size, "dw");
                }
            }
        }
    }
}

// The emulated instructions have the bits of AMX.
TEST(Inner, InstructionsDoWhatTheirEmulationDoes) {
    if (isa_best() < Isa::amx) GTEST_SKIP() << "this CPU has no AMX";
    const InnerKernels kernels[] = {inner_kernels(Isa::amx), emulated::inner_kernels()};
    const InnerShape shape{139, 611, 203};
    const auto& [N, C, K] = shape;
    const std::vector<float> x = rectified(N, C, 1), w = numbers(C * K, 2), dy = rectified(N, K, 3);
    std::vector<float> y[2], dx[2], dw[2];
    for (int i : {0, 1}) {
        const InnerKernels& k = kernels[i];
        std::vector<float> memory(k.memory), packed(k.packed(shape));
        y[i].resize(N * K);
        dx[i].resize(N * C);
        dw[i].resize(K * C);
        k.forward_packed(y[i].data(), x.data(), w.data(), nullptr, memory.data(), shape);
        k.backward_data(dx[i].data(), dy.data(), w.data(), memory.data(), shape);
        k.pack(packed.data(), x.data(), shape);
        k.backward_weights(dw[i].data(), C, dy.data(), packed.data(), shape, 0, K);
    }
    EXPECT_EQ(y[0], y[1]);
    EXPECT_EQ(dx[0], dx[1]);
    EXPECT_EQ(dw[0], dw[1]);
}

// A sample's bits do not depend on the samples of its block.
TEST(Inner, ASampleIsTheSameInAnyCompany) {
    for (const auto& [name, kernels] : builds(inner_kernels, emulated::inner_kernels)) {
        for (const auto& [C, K] : {std::pair{137u, 551u}, {549u, 551u}}) {   // the first one is read without packing
            constexpr uint32_t N = 141;                                      // more than one tile in each build
            const std::vector<float> x = rectified(N, C, 1), w = numbers(K * C, 2), dy = rectified(N, K, 3);
            std::vector<float> y(N * K), y2 = y, dx(N * C), one_y(K), one_y2(K), one_dx(C), memory(kernels.memory);
            kernels.forward(y.data(), x.data(), w.data(), nullptr, {N, C, K});
            kernels.forward_packed(y2.data(), x.data(), w.data(), nullptr, memory.data(), {N, C, K});
            kernels.backward_data(dx.data(), dy.data(), w.data(), memory.data(), {N, C, K});
            for (uint32_t n = 0; n < N; ++n) {
                kernels.forward(one_y.data(), x.data() + n * C, w.data(), nullptr, {1, C, K});
                kernels.forward_packed(one_y2.data(), x.data() + n * C, w.data(), nullptr, memory.data(), {1, C, K});
                kernels.backward_data(one_dx.data(), dy.data() + n * K, w.data(), memory.data(), {1, C, K});
                for (uint32_t k = 0; k < K; ++k) ASSERT_EQ(one_y[k], y[n * K + k]);
                for (uint32_t k = 0; k < K; ++k) ASSERT_EQ(one_y2[k], y2[n * K + k]);
                for (uint32_t c = 0; c < C; ++c) ASSERT_EQ(one_dx[c], dx[n * C + c]);
            }
        }
    }
}

}   // namespace
}   // namespace gradcast
