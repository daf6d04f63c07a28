// Kernels of attention, embedding, norms of positions, losses by position and resizing, against plain loops in double.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "runtime/core/rng.h"
#include "tests/cuda/arrays.h"

namespace gradcast::cuda {
namespace {

using CudaKindKernels = CudaPieces;

void expect_near(const std::vector<float>& found, const std::vector<double>& wanted, bool bf16, double most) {
    ASSERT_EQ(found.size(), wanted.size());
    double largest = 0;
    for (const double each : wanted) largest = std::max(largest, std::fabs(each));
    for (size_t i = 0; i < found.size(); ++i)
        ASSERT_NEAR(static_cast<double>(found[i]), wanted[i], most * largest + (bf16 ? 0x1p-8 * std::fabs(wanted[i]) : 0)) << i;
}

/// y and dx of attention, by its definition.
struct PlainAttention {
    const AttentionShape s;
    const std::vector<float>&x, &dy;
    uint64_t seed = 0;
    uint32_t block = 0, drop = 0;   // of 65536
    std::vector<double> y = {}, dx = {};
    /// 0, or what a probability is multiplied by.
    double kept(uint32_t n, uint32_t head, uint32_t query, uint32_t key) const {
        const Philox draw =
            random4(Purpose::dropout, seed, uint64_t{block} << 32 | n, (head * s.positions + query) * ((s.positions + 7) / 8) + key / 8);
        return (draw[key % 8 / 2] >> key % 2 * 16 & 0xffff) >= drop ? 65536.0 / (65536 - drop) : 0;
    }
    double at(uint32_t n, uint32_t position, uint32_t part, uint32_t head, uint32_t d) const {
        return x[place(n, position, part, head, d)];
    }
    size_t place(uint32_t n, uint32_t position, uint32_t part, uint32_t head, uint32_t d) const {
        return ((size_t{n} * s.positions + position) * 3 + part) * s.heads * s.width + head * s.width + d;
    }
    size_t out(uint32_t n, uint32_t position, uint32_t head, uint32_t d) const {
        return (size_t{n} * s.positions + position) * s.heads * s.width + head * s.width + d;
    }
    void compute() {
        y.assign(dy.size(), 0);
        dx.assign(x.size(), 0);
        for (uint32_t n = 0; n < s.samples; ++n)
            for (uint32_t head = 0; head < s.heads; ++head)
                for (uint32_t query = 0; query < s.positions; ++query) one(n, head, query);
    }

private:
    void one(uint32_t n, uint32_t head, uint32_t query) {
        const uint32_t keys = s.causal ? query + 1 : s.positions;
        std::vector<double> p(keys), dp(keys);
        double sum = 0, mean = 0;
        for (uint32_t key = 0; key < keys; ++key) {
            double score = 0;
            for (uint32_t d = 0; d < s.width; ++d) score += at(n, query, 0, head, d) * at(n, key, 1, head, d);
            sum += p[key] = std::exp(static_cast<double>(s.scale) * score);
        }
        for (uint32_t key = 0; key < keys; ++key) {
            p[key] /= sum;
            for (uint32_t d = 0; d < s.width; ++d) {
                y[out(n, query, head, d)] += p[key] * kept(n, head, query, key) * at(n, key, 2, head, d);
                dp[key] += static_cast<double>(dy[out(n, query, head, d)]) * kept(n, head, query, key) * at(n, key, 2, head, d);
            }
            mean += p[key] * dp[key];
        }
        for (uint32_t key = 0; key < keys; ++key)
            for (uint32_t d = 0; d < s.width; ++d) {
                const double ds = static_cast<double>(s.scale) * p[key] * (dp[key] - mean);
                dx[place(n, query, 0, head, d)] += ds * at(n, key, 1, head, d);
                dx[place(n, key, 1, head, d)] += ds * at(n, query, 0, head, d);
                dx[place(n, key, 2, head, d)] += p[key] * kept(n, head, query, key) * static_cast<double>(dy[out(n, query, head, d)]);
            }
    }
};

// Fewer positions than a tile, exactly a tile of queries or of keys, several of both; heads narrower and wider than a slice.
TEST_F(CudaKindKernels, AttentionIsThatOfItsDefinition) {
    for (const bool bf16 : {false, true})
        for (const auto& [positions, heads, width] :
             {std::tuple{1u, 1u, 1u}, {5u, 3u, 4u}, {64u, 1u, 32u}, {97u, 2u, 20u}, {33u, 1u, 130u}})
            for (const auto& [causal, drop] : {std::pair{false, 0u}, {true, 0u}, {false, 20000u}, {true, 20000u}}) {
                SCOPED_TRACE(
                    fmt::format("{} positions, {} heads of {}{}, {} dropped", positions, heads, width, causal ? ", causal" : "", drop));
                const AttentionShape shape{2, positions, heads, width, 1 / std::sqrt(static_cast<float>(width)), causal};
                const uint64_t values = uint64_t{2} * positions * heads * width;
                const Array x(normals(3 * values, 1), bf16), dy(normals(values, 2), bf16), y(values, bf16), dx(3 * values, bf16);
                const DeviceVector<AttentionKept> kept(uint64_t{2} * positions * heads);
                const DeviceVector<float> delta(uint64_t{2} * positions * heads);
                constexpr uint64_t number = 123456789012345;
                constexpr uint32_t block = 3;
                const DeviceVector<uint64_t> seed(std::vector<uint64_t>{number});
                const DeviceVector<BlockHeader> header(std::vector<BlockHeader>{{2, block}});
                const AttentionDrops drops{drop > 0 ? seed.get() : nullptr, header.get(), drop,
                                           static_cast<float>(65536.0 / (65536 - drop))};
                ASSERT_TRUE(ok(attention_forward(nullptr, y, x, kept.get(), shape, drops)));
                ASSERT_TRUE(ok(attention_backward(nullptr, dx, dy, x, y, kept.get(), delta.get(), shape, drops)));
                const std::vector<float> inputs = x.read(), slopes = dy.read();
                PlainAttention plain{shape, inputs, slopes, number, block, drop};
                plain.compute();
                expect_near(y.read(), plain.y, bf16, 1e-5);
                expect_near(dx.read(), plain.dx, bf16, bf16 ? 2e-2 : 1e-5);   // delta comes from the rounded y
                if (::testing::Test::HasFatalFailure()) return;
            }
}

// Halves of one channel, of a pack and of several; positions of several samples in one launch and in several.
TEST_F(CudaKindKernels, RotaryTurnsQueriesAndKeys) {
    for (const bool bf16 : {false, true})
        for (const auto& [positions, heads, width] : {std::tuple{1u, 1u, 2u}, {5u, 3u, 6u}, {37u, 2u, 32u}, {9u, 1u, 64u}}) {
            SCOPED_TRACE(fmt::format("{} positions, {} heads of {}{}", positions, heads, width, bf16 ? ", bf16" : ""));
            constexpr uint32_t samples = 7;
            const uint32_t half = width / 2, matrices = 3 * heads;
            const AttentionShape shape{samples, positions, heads, width, 1, true};
            const uint64_t values = uint64_t{samples} * positions * matrices * width;
            std::vector<float> turns(2 * uint64_t{positions} * half);
            for (uint64_t i = 0; i < turns.size() / 2; ++i) {
                const double angle = static_cast<double>(i / half) * std::pow(10000.0, -static_cast<double>(i % half) / half);
                turns[i] = static_cast<float>(std::cos(angle));
                turns[turns.size() / 2 + i] = static_cast<float>(std::sin(angle));
            }
            const Array x(normals(values, 1), bf16), y(values, bf16), dx(normals(values, 2), bf16);
            const DeviceVector<float> angles(turns);
            const std::vector<float> inputs = x.read(), slopes = dx.read();
            ASSERT_TRUE(ok(rotary(nullptr, y, x, angles.get(), shape)));
            ASSERT_TRUE(ok(rotary_backward(nullptr, dx, angles.get(), shape)));
            std::vector<double> turned(inputs.begin(), inputs.end()), back(slopes.begin(), slopes.end());
            for (uint64_t row = 0; row < uint64_t{samples} * positions; ++row)
                for (uint32_t matrix = 0; matrix < 2 * heads; ++matrix)
                    for (uint32_t i = 0; i < half; ++i) {
                        const uint64_t left = (row * matrices + matrix) * width + i, right = left + half, turn = row % positions * half + i;
                        const double cosine = turns[turn], sine = turns[turns.size() / 2 + turn];
                        turned[left] = inputs[left] * cosine - inputs[right] * sine;
                        turned[right] = inputs[right] * cosine + inputs[left] * sine;
                        back[left] = slopes[left] * cosine + slopes[right] * sine;
                        back[right] = slopes[right] * cosine - slopes[left] * sine;
                    }
            expect_near(y.read(), turned, bf16, 1e-7);
            expect_near(dx.read(), back, bf16, 1e-7);
        }
}

// Rows of one thread, of several, and longer than a thread block; with mean and bias, and without both as rms_norm.
TEST_F(CudaKindKernels, NormsOfRowsAreThoseOfTheirDefinition) {
    for (const bool bf16 : {false, true})
        for (const bool centred : {true, false})
            for (const auto& [rows, C] : {std::pair{3u, 4u}, {300u, 24u}, {5u, 1030u}}) {
                SCOPED_TRACE(fmt::format("{} rows of {}{}{}", rows, C, centred ? ", centred" : "", bf16 ? ", bf16" : ""));
                constexpr double epsilon = 1e-5;
                const SetShape shape{rows, 1, C, 1, centred};
                const uint64_t count = uint64_t{rows} * C;
                const std::vector<float> weights = normals(C, 3), biases = centred ? normals(C, 4) : std::vector<float>(C);
                const Array x(normals(count, 1), bf16), dy(normals(count, 2), bf16), y(count, bf16), dx(count, bf16);
                const DeviceVector<float> w(weights), b(biases), dw(C), db(std::vector<float>(C, 5));
                const DeviceVector<SetScale> scales(rows);
                const Sum sum(columns_size(rows, C, 2, bf16));
                ASSERT_TRUE(ok(set_norm_forward(nullptr, y, x, scales.get(), w.get(), centred ? b.get() : nullptr, shape, epsilon)));
                ASSERT_TRUE(ok(set_norm_weights(nullptr, dy, x, scales.get(), dw.get(), centred ? db.get() : nullptr, sum, shape)));
                ASSERT_TRUE(ok(set_norm_backward(nullptr, dx, dy, x, scales.get(), w.get(), shape)));
                const std::vector<float> inputs = x.read(), slopes = dy.read();
                std::vector<double> values(count), back(count), dweight(C), dbias(C, centred ? 0 : 5);
                for (uint64_t row = 0; row < rows; ++row) {
                    const float *of = &inputs[row * C], *slope = &slopes[row * C];
                    double mean = 0, squares = 0, g = 0, gz = 0;
                    for (uint32_t c = 0; centred && c < C; ++c) mean += static_cast<double>(of[c]) / C;
                    for (uint32_t c = 0; c < C; ++c) squares += (of[c] - mean) * (of[c] - mean) / C;
                    const double inverse = 1 / std::sqrt(squares + epsilon);
                    for (uint32_t c = 0; c < C; ++c) {
                        const double z = (of[c] - mean) * inverse, by = static_cast<double>(slope[c]) * weights[c];
                        values[row * C + c] = z * weights[c] + biases[c];
                        dweight[c] += slope[c] * z;
                        if (centred) dbias[c] += slope[c];
                        if (centred) g += by / C;
                        gz += by * z / C;
                    }
                    for (uint32_t c = 0; c < C; ++c) {
                        const double z = (of[c] - mean) * inverse, by = static_cast<double>(slope[c]) * weights[c];
                        back[row * C + c] = inverse * (by - g - z * gz);
                    }
                }
                expect_near(y.read(), values, bf16, 1e-6);
                expect_near(dx.read(), back, bf16, 1e-5);
                expect_near(dw.read(), dweight, false, 1e-5);
                expect_near(db.read(), dbias, false, 1e-5);
            }
}

TEST_F(CudaKindKernels, ProductsAreThoseOfElements) {
    for (const bool bf16 : {false, true})
        for (const uint64_t count : {1, 7, 4096, 5000}) {
            const Array a(normals(count, 1), bf16), b(normals(count, 2), bf16), y(count, bf16);
            ASSERT_TRUE(ok(multiply(nullptr, y, a, b, count)));
            const std::vector<float> left = a.read(), right = b.read();
            std::vector<double> values(count);
            for (uint64_t i = 0; i < count; ++i) values[i] = static_cast<double>(left[i]) * right[i];
            expect_near(y.read(), values, bf16, 1e-7);
            ASSERT_TRUE(ok(multiply(nullptr, a, a, b, count)));
            EXPECT_EQ(a.read(), y.read());
        }
}

// Vocabularies whose rows are cut into chunks or not, more rows than a thread block compares at once, weights at any alignment.
TEST_F(CudaKindKernels, EmbeddingGathersItsGradient) {
    for (const bool bf16 : {false, true})
        for (const auto& [vocabulary, C, rows] : {std::tuple{2u, 5u, 40u}, {7u, 300u, 700u}, {1500u, 12u, 5000u}}) {
            std::mt19937 random(3);
            std::vector<uint32_t> tokens(rows);
            for (uint32_t& token : tokens) token = random() % vocabulary;
            const std::vector<float> weights = normals(uint64_t{vocabulary} * C + 1, 1);
            const DeviceVector<uint32_t> at(tokens);
            const DeviceVector<float> w(weights), dw(uint64_t{vocabulary} * C), scratch(embedding_scratch(vocabulary, C));
            const Array y(uint64_t{rows} * C, bf16), dy(normals(uint64_t{rows} * C, 2), bf16);
            ASSERT_TRUE(ok(embedding(nullptr, y, at.get(), w.get() + 1, rows, C)));
            ASSERT_TRUE(ok(embedding_backward(nullptr, dw.get(), dy, at.get(), scratch.get(), rows, vocabulary, C)));
            const std::vector<float> slopes = dy.read();
            std::vector<double> values(uint64_t{rows} * C), sums(uint64_t{vocabulary} * C);
            for (uint64_t row = 0; row < rows; ++row)
                for (uint32_t c = 0; c < C; ++c) {
                    values[row * C + c] = weights[1 + uint64_t{tokens[row]} * C + c];
                    sums[uint64_t{tokens[row]} * C + c] += slopes[row * C + c];
                }
            expect_near(y.read(), values, bf16, 1e-7);
            expect_near(dw.read(), sums, false, 1e-6);
        }
}

// Rows of few and of many classes, some ignored, more than a block has; the last thread block to end adds all losses.
TEST_F(CudaKindKernels, LossesByPositionAreMeansOfASample) {
    for (const bool bf16 : {false, true})
        for (const auto& [positions, classes, smoothing] :
             {std::tuple{300u, 3u, 0.0}, {37u, 21u, 0.1}, {5u, 700u, 0.25}, {1u, 1000u, 0.0}}) {
            SCOPED_TRACE(fmt::format("{} positions, {} classes, {}", positions, classes, bf16 ? "bf16" : "float"));
            constexpr uint32_t samples = 4, count = 3;   // one is none of the block's
            const uint64_t rows = uint64_t{samples} * positions;
            std::mt19937 random(5);
            std::vector<int32_t> labels(rows);
            for (int32_t& label : labels) label = random() % 5 == 0 ? loss_ignored : static_cast<int32_t>(random() % classes);
            const Array x(normals(rows * classes, 1), bf16), dx(rows * classes, bf16);
            const DeviceVector<int32_t> truth(labels), best(rows);
            const DeviceVector<BlockHeader> header(std::vector<BlockHeader>{{count}});
            const DeviceVector<uint32_t> spoiled(std::vector<uint32_t>(1));
            const DeviceVector<LossResult> result(1);
            const Sum sum(loss_rows_size(rows, classes));
            ASSERT_TRUE(ok(softmax_cross_entropy_rows(
                nullptr, x, dx,
                {truth.get(), header.get(), spoiled.get(), classes, samples, sum, best.get(), result.get(), positions, smoothing})));
            const std::vector<float> values = x.read();
            const std::vector<int32_t> predicted = best.read();
            std::vector<double> slopes(rows * classes);
            double loss = 0;
            uint64_t right = 0;
            for (uint64_t row = 0; row < uint64_t{count} * positions; ++row) {
                const float* each = &values[row * classes];
                const auto top = static_cast<int32_t>(std::max_element(each, each + classes) - each);
                ASSERT_EQ(predicted[row], top);
                if (labels[row] == loss_ignored) continue;
                double exponentials = 0;
                for (uint32_t k = 0; k < classes; ++k) exponentials += std::exp(static_cast<double>(each[k]));
                for (uint32_t k = 0; k < classes; ++k) {
                    const double target = (static_cast<int32_t>(k) == labels[row] ? 1 - smoothing : 0) + smoothing / classes;
                    slopes[row * classes + k] = (std::exp(static_cast<double>(each[k])) / exponentials - target) / positions;
                    loss += target * (std::log(exponentials) - static_cast<double>(each[k])) / positions;
                }
                right += top == labels[row];
            }
            EXPECT_NEAR(result.read()[0].loss, loss, 1e-5 * loss);
            EXPECT_EQ(result.read()[0].right, right);
            expect_near(dx.read(), slopes, bf16, 2e-6);
        }
}

// Resizing and joining treat samples alike: many, in several launches, give what each gives alone.
TEST_F(CudaKindKernels, ResizingTreatsEachSampleAlike) {
    constexpr uint32_t N = 40;
    for (const bool bf16 : {false, true})
        for (const bool bilinear : {false, true})
            for (const uint32_t C : {1u, 6u, 8u}) {
                const UpsampleShape all{N, C, 3, 4, 3, bilinear}, one{1, C, 3, 4, 3, bilinear};
                const uint64_t in = 12ull * C, out = 9 * in;
                const std::vector<float> values = normals(N * in, 1), gradients = normals(N * out, 2);
                const auto run = [&](const UpsampleShape& s, const std::vector<float>& inputs, const std::vector<float>& slopes) {
                    const Array x(inputs, bf16), dy(slopes, bf16), y(slopes.size(), bf16), dx(inputs.size(), bf16);
                    EXPECT_TRUE(ok(upsample(nullptr, y, x, s)));
                    EXPECT_TRUE(ok(upsample_backward(nullptr, dx, dy, s)));
                    return std::pair(y.read(), dx.read());
                };
                const auto together = run(all, values, gradients);
                for (uint32_t n = 0; n < N; n += 13) {
                    const auto part = [n](const std::vector<float>& of, uint64_t size) {
                        return std::vector<float>(of.begin() + static_cast<int64_t>(n * size),
                                                  of.begin() + static_cast<int64_t>((n + 1) * size));
                    };
                    const auto alone = run(one, part(values, in), part(gradients, out));
                    EXPECT_EQ(part(together.first, out), alone.first);
                    EXPECT_EQ(part(together.second, in), alone.second);
                }
                const Array a(values, bf16), b(gradients, bf16), y(values.size() + gradients.size(), bf16), back(gradients.size(), bf16);
                ASSERT_TRUE(ok(join(nullptr, y, a, b, N * 12, C, 9 * C)));
                ASSERT_TRUE(ok(take_columns(nullptr, back, y, N * 12, 9 * C, C, 10 * C)));
                EXPECT_EQ(back.read(), b.read());
                ASSERT_TRUE(ok(take_columns(nullptr, a, y, N * 12, C, 0, 10 * C)));
                EXPECT_EQ(a.read(), Array(values, bf16).read());
            }
}

}   // namespace
}   // namespace gradcast::cuda
