// nn/cuda's kernels one by one, against plain loops, where a whole net would not show a fault.
#include <algorithm>
#include <cmath>
#include <random>

#include "runtime/core/rng.h"
#include "tests/cuda/arrays.h"

namespace gradcast::cuda {
namespace {

// Rows of whole and partial packs.
struct CudaKernels : CudaPieces {
    static constexpr uint64_t rows = 3000;
    static constexpr uint32_t channels[] = {1, 6, 8, 12, 20, 33};
};

TEST_F(CudaKernels, BiasesNeedNoAlignment) {
    for (const bool bf16 : {false, true})
        for (const uint32_t C : channels)
            for (const uint32_t offset : {0u, 1u}) {
                const std::vector<float> values = normals(rows * C, C), biases = normals(C + offset, 1);
                const Array x(values, bf16);
                const std::vector<float> before = x.read();
                const DeviceVector<float> bias(biases);
                ASSERT_TRUE(ok(bias_relu(nullptr, x, bias.get() + offset, rows, C, true)));
                const std::vector<float> after = x.read();
                for (uint64_t i = 0; i < rows * C; ++i) {
                    const float expected = std::max(before[i] + biases[offset + i % C], 0.0f);
                    ASSERT_NEAR(after[i], expected, bf16 ? 0x1p-8f * expected : 0) << i;
                }
            }
}

TEST_F(CudaKernels, CurvesAreThoseOfTheCpu) {
    std::vector<float> values = normals(rows * 3 + 1, 1);   // no whole number of packs
    for (float& each : values) each *= 4;
    const std::vector<float> gradients = normals(values.size(), 2);
    for (const bool bf16 : {false, true})
        for (const Curve which : {Curve::gelu, Curve::gelu_tanh, Curve::silu, Curve::sigmoid, Curve::tanh}) {
            const Array x(values, bf16), dy(gradients, bf16), y(values.size(), bf16);
            ASSERT_TRUE(ok(curve(nullptr, which, y, x, values.size())));
            ASSERT_TRUE(ok(curve_backward(nullptr, which, dy, dy, x, values.size())));
            const std::vector<float> in = x.read(), out = y.read(), slopes = dy.read(), before = Array(gradients, bf16).read();
            std::vector<float> want(in.size()), dx(in.size());
            curve_kernels(which).forward(want.data(), in.data(), in.size());
            curve_kernels(which).backward(dx.data(), before.data(), in.data(), in.size());
            for (size_t i = 0; i < in.size(); ++i) {
                ASSERT_NEAR(out[i], want[i], 1e-6 + (bf16 ? 0x1p-8 * std::fabs(want[i]) : 0)) << in[i];
                ASSERT_NEAR(slopes[i], dx[i], 1e-6 * (1 + std::fabs(before[i])) + (bf16 ? 0x1p-8 * std::fabs(dx[i]) : 0)) << in[i];
            }
        }
}

TEST_F(CudaKernels, DropoutDrawsAsTheCpu) {
    constexpr uint32_t samples = 400, pixels = 7, drop = 20000, block = 3;
    constexpr uint64_t number = 12345;
    for (const bool bf16 : {false, true})
        for (const uint32_t C : channels) {
            const std::vector<float> ones(uint64_t{samples} * pixels * C, 1);
            const Array x(ones, bf16), y(ones.size(), bf16);
            const DeviceVector<uint64_t> seed(std::vector<uint64_t>{number});
            const DeviceVector<BlockHeader> header(std::vector<BlockHeader>{{samples, block}});
            ASSERT_TRUE(ok(dropout(nullptr, y, x, seed.get(), header.get(), samples, pixels, C, drop)));
            const std::vector<float> found = y.read();
            for (uint32_t i = 0; i < found.size(); ++i) {
                const uint32_t c = i % C, pixel = i / C % pixels, n = i / C / pixels;
                const Philox draw = random4(Purpose::dropout, number, uint64_t{block} << 32 | n, (c / 16 * pixels + pixel) * 2 + c / 8 % 2);
                ASSERT_EQ(found[i] != 0, (draw[c % 8 / 2] >> (c % 2 * 16) & 0xffff) >= drop) << i;
            }
        }
}

// Pooling treats samples alike: many give what each gives alone.
TEST_F(CudaKernels, PoolingTreatsEachSampleAlike) {
    constexpr uint32_t N = 120;
    for (const bool bf16 : {false, true})
        for (const uint32_t C : channels) {
            const WindowShape all{.N = N, .C = C, .H = 7, .W = 6, .P = 4, .Q = 3, .kernel = 3, .stride = 2, .pad = 1};
            WindowShape one = all;
            one.N = 1;
            const uint64_t in = 7ull * 6 * C, out = 4ull * 3 * C;
            const std::vector<float> values = normals(N * in, 1), gradients = normals(N * out, 2);
            const DeviceVector<float> bias(normals(C, 3));
            auto run = [&](const WindowShape& s, const std::vector<float>& inputs, const std::vector<float>& slopes) {
                const Array x(inputs, bf16), dy(slopes, bf16), y(slopes.size(), bf16), dx(inputs.size(), bf16);
                const DeviceVector<uint8_t> winners(slopes.size());
                std::vector<std::vector<float>> results;
                EXPECT_TRUE(ok(max_pool(nullptr, y, winners.get(), x, bias.get(), s, true)));
                EXPECT_TRUE(ok(max_pool_backward(nullptr, dx, dy, y, winners.get(), s)));
                results = {y.read(), dx.read()};
                EXPECT_TRUE(ok(average_pool(nullptr, y, x, s)));
                EXPECT_TRUE(ok(average_pool_backward(nullptr, dx, dy, s)));
                results.push_back(y.read());
                results.push_back(dx.read());
                return results;
            };
            auto part = [](const std::vector<float>& of, uint32_t n, uint64_t size) {
                return std::vector<float>(of.begin() + static_cast<int64_t>(n * size), of.begin() + static_cast<int64_t>((n + 1) * size));
            };
            const auto together = run(all, values, gradients);
            for (const uint32_t n : {0u, 41u, N - 1}) {
                const auto alone = run(one, part(values, n, in), part(gradients, n, out));
                for (size_t r = 0; r < alone.size(); ++r) EXPECT_EQ(alone[r], part(together[r], n, r % 2 ? in : out)) << r;
            }
        }
}

TEST_F(CudaKernels, BatchNormFollowsItsFormulas) {
    for (const bool bf16 : {false, true})
        for (const uint32_t C : channels) {
            const double count = rows, near = bf16 ? 0x1p-7 : 1e-4;
            const Array x(normals(rows * C, 1), bf16), dy(normals(rows * C, 2), bf16), y(rows * C, bf16), dx(rows * C, bf16);
            const std::vector<float> weights = normals(C, 3), biases = normals(C + 1, 4), inputs = x.read(), gradients = dy.read();
            const DeviceVector<float> weight(weights), bias(biases), found(2 * C), of(5 * C), dweight(C), dbias(C);
            float* row = of.get();
            const NormValues values{row, row + C, row + 2 * C, row + 3 * C, row + 4 * C};
            const NormShape shape{rows, C, 10};
            const Sum memory(columns_size(rows, C, 2, bf16));
            ASSERT_TRUE(ok(norm_statistics(nullptr, x, values, weight.get(), found.get(), memory, shape)));
            ASSERT_TRUE(ok(norm_forward(nullptr, y, x, values, bias.get() + 1, shape, true)));
            const std::vector<float> outputs = y.read();
            ASSERT_TRUE(ok(norm_sums(nullptr, dy, x, y, values, dweight.get(), dbias.get(), memory, shape)));
            ASSERT_TRUE(ok(norm_backward(nullptr, dx, dy, x, y, values, shape)));
            const std::vector<float> back = dx.read(), dweights = dweight.read(), dbiases = dbias.read();
            for (uint32_t c = 0; c < C; ++c) {
                double mean = 0, moment = 0, sum = 0, product = 0;
                for (uint64_t i = c; i < rows * C; i += C) {
                    mean += static_cast<double>(inputs[i]) / count;
                    moment += std::pow(static_cast<double>(inputs[i]), 2) / count;
                }
                const double inverse = 1 / std::sqrt(moment - mean * mean + 1e-5), scale = static_cast<double>(weights[c]) * inverse;
                auto normal = [&](uint64_t i) { return (static_cast<double>(inputs[i]) - mean) * inverse; };
                auto slope = [&](uint64_t i) { return outputs[i] > 0 ? static_cast<double>(gradients[i]) : 0.0; };
                for (uint64_t i = c; i < rows * C; i += C) {
                    const double expected = std::max(normal(i) * static_cast<double>(weights[c]) + static_cast<double>(biases[c + 1]), 0.0);
                    ASSERT_NEAR(static_cast<double>(outputs[i]), expected, near * std::max(expected, 0.1));
                    sum += slope(i);
                    product += slope(i) * normal(i);
                }
                EXPECT_NEAR(static_cast<double>(dbiases[c]), sum, 1e-4 * std::sqrt(count));
                EXPECT_NEAR(static_cast<double>(dweights[c]), product, 1e-4 * std::sqrt(count));
                for (uint64_t i = c; i < rows * C; i += C) {
                    const double expected = scale * (slope(i) - sum / count - normal(i) * product / count);
                    ASSERT_NEAR(static_cast<double>(back[i]), expected, near * std::max(std::abs(expected), 0.1));
                }
            }
        }
}

// Numbers of channels that are whole packs and not, one tile and several; numbers of rows that are one chunk and several.
TEST_F(CudaKernels, ColumnsAreSummedWhateverTheirNumber) {
    for (const bool bf16 : {false, true})
        for (const uint32_t C : {1u, 2u, 6u, 10u, 16u, 33u, 84u, 136u, 257u})
            for (const uint64_t count : {1ull, 3ull, 100ull, 1000ull, 30000ull / C + 1025}) {
                const Array dy(normals(count * C, C), bf16), y(normals(count * C, C + 1), bf16);
                const Sum memory(columns_size(count, C, 1, bf16));
                const DeviceVector<float> dbias(C);
                const std::vector<float> values = dy.read(), outputs = y.read();
                for (const bool masked : {false, true}) {
                    std::vector<double> expected(C), size(C);
                    for (uint64_t i = 0; i < count * C; ++i) {
                        const double value = masked && !(outputs[i] > 0) ? 0 : static_cast<double>(values[i]);
                        expected[i % C] += value;
                        size[i % C] += std::abs(value);
                    }
                    std::vector<float> first;
                    for (int time = 0; time < 2; ++time) {   // the tickets are 0 again
                        ASSERT_TRUE(ok(bias_backward(nullptr, dy, masked ? Values(y) : Values{}, dbias.get(), memory, count, C, false)));
                        const std::vector<float> found = dbias.read();
                        for (uint32_t c = 0; c < C; ++c)
                            ASSERT_NEAR(static_cast<double>(found[c]), expected[c], 1e-7 * size[c]) << count << "x" << C << ", " << c;
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
            const DeviceVector<BlockHeader> header(std::vector<BlockHeader>{{.count = count}});
            const DeviceVector<uint32_t> sound(std::vector<uint32_t>{0}), spoiled(std::vector<uint32_t>{1});
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
            LossTask task{label.get(), header.get(), sound.get(), classes, samples, memory, best.get(), result.get()};
            for (int time = 0; time < 2; ++time) {   // the ticket is 0 again
                ASSERT_TRUE(ok(softmax_cross_entropy(nullptr, x, dx, task)));
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
            task.spoiled = spoiled.get();
            ASSERT_TRUE(ok(softmax_cross_entropy(nullptr, x, dx, task)));
            EXPECT_TRUE(std::isnan(result.read()[0].loss) && std::isnan(dx.read()[0]));
        }
}

TEST_F(CudaKernels, MaxPoolingMasksItsGradient) {
    for (const bool bf16 : {false, true})
        for (const uint32_t C : {6u, 8u}) {
            const WindowShape shape{.N = 3, .C = C, .H = 7, .W = 6, .P = 4, .Q = 3, .kernel = 3, .stride = 2, .pad = 1};
            const uint64_t in = 3ull * 7 * 6 * C, count = 3ull * 4 * 3, out = count * C;
            const Array x(normals(in, 1), bf16), dy(normals(out, 2), bf16), y(out, bf16), dx(in, bf16), masked(out, bf16);
            const DeviceVector<uint8_t> winners(out);
            const Sum memory(columns_size(count, C, 1, bf16));
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
                ASSERT_TRUE(ok(bias_backward(nullptr, dy, y, dbias.get(), memory, count, C, in_place)));
                EXPECT_EQ(dy.read(), in_place ? counted : gradient);
                const std::vector<float> found = dbias.read();
                for (uint32_t c = 0; c < C; ++c) EXPECT_NEAR(static_cast<double>(found[c]), sums[c], 1e-6 * std::abs(sums[c]));
            }
        }
}

TEST_F(CudaKernels, WindowsAreUnfoldedInBothOrders) {
    for (const auto& [C, kernel, stride, pad, by_pixel] : {std::tuple{1u, 5u, 1u, 0u, false},
                                                           {3u, 3u, 1u, 1u, false},
                                                           {3u, 7u, 2u, 3u, false},
                                                           {8u, 3u, 1u, 1u, true},
                                                           {16u, 2u, 2u, 0u, true}})
        for (const bool bf16 : {false, true}) {
            const uint32_t N = 5, H = 11, W = 9, pack = bf16 ? 8 : 4, used = C * kernel * kernel, width = (used + pack - 1) / pack * pack;
            const uint32_t P = (H + 2 * pad - kernel) / stride + 1, Q = (W + 2 * pad - kernel) / stride + 1;
            const Array x(normals(N * H * W * C, 1), bf16), y(uint64_t{N} * P * Q * width, bf16);
            ASSERT_TRUE(ok(unfold(nullptr, y, x, {N, C, H, W, P, Q, kernel, stride, pad}, width, by_pixel)));
            const std::vector<float> from = x.read();
            std::vector<float> want(uint64_t{N} * P * Q * width);
            for (uint32_t n = 0; n < N; ++n)
                for (uint32_t p = 0; p < P; ++p)
                    for (uint32_t q = 0; q < Q; ++q)
                        for (uint32_t r = 0; r < kernel; ++r)
                            for (uint32_t s = 0; s < kernel; ++s)
                                for (uint32_t c = 0; c < C; ++c) {
                                    const uint32_t h = p * stride + r - pad, w = q * stride + s - pad;
                                    const uint32_t column = by_pixel ? (r * kernel + s) * C + c : (c * kernel + r) * kernel + s;
                                    if (h < H && w < W) want[((n * P + p) * Q + q) * width + column] = from[((n * H + h) * W + w) * C + c];
                                }
            EXPECT_EQ(y.read(), want) << C << " channels, kernel " << kernel << (bf16 ? ", bf16" : "");
        }
}

TEST_F(CudaKernels, RowsAreCopiedWithoutWhatIsBehindThem) {
    const std::vector<float> from = normals(7 * 12, 1);
    const DeviceVector<float> x(from), y(7 * 10);
    ASSERT_TRUE(ok(copy_rows(nullptr, y.get(), x.get(), 7, 10, 12)));
    std::vector<float> want;
    for (uint32_t row = 0; row < 7; ++row) want.insert(want.end(), from.begin() + row * 12, from.begin() + row * 12 + 10);
    EXPECT_EQ(y.read(), want);
}

}   // namespace
}   // namespace gradcast::cuda
