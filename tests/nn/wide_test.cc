// Convolutions of many channels, in each build that this CPU runs, against sums in double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "nn/cpu/wide.h"
#include "tests/nn/rig.h"

namespace gradcast {
namespace emulated {
extern const WideKernels wide_kernels;
}
namespace {

auto builds_of(uint32_t kernel) {
    if (kernel != 1) return builds(wide_kernels);
    decltype(builds(wide_kernels)) all;
    if (isa_best() >= Isa::amx) all.emplace_back("amx", wide_kernels(Isa::amx));
    if (isa_best() >= Isa::avx512) all.emplace_back("emulated", emulated::wide_kernels);
    return all;
}

/// Index in [N, C/16, H, W, 16].
uint64_t place(uint32_t n, uint32_t c, uint32_t h, uint32_t w, uint32_t C, uint32_t H, uint32_t W) {
    return (((uint64_t{n} * (C / 16) + c / 16) * H + h) * W + w) * 16 + c % 16;
}

struct ExactWide {
    std::vector<double> y, dx, dw, db;
};

ExactWide exact(const WideShape& s, const std::vector<float>& x, const std::vector<float>& w, const std::vector<float>& bias,
                const std::vector<float>& dy) {
    ExactWide e{std::vector<double>(dy.size()), std::vector<double>(x.size()), std::vector<double>(w.size()), std::vector<double>(s.K)};
    for (uint32_t n = 0; n < s.N; ++n)
        for (uint32_t k = 0; k < s.K; ++k)
            for (uint32_t p = 0; p < s.P(); ++p)
                for (uint32_t q = 0; q < s.Q(); ++q) {
                    const uint64_t yi = place(n, k, p, q, s.K, s.P(), s.Q());
                    e.y[yi] += bias[k];
                    e.db[k] += dy[yi];
                    for (uint32_t r = 0; r < s.kernel; ++r)
                        for (uint32_t t = 0; t < s.kernel; ++t) {
                            const uint32_t h = p + r - s.pad, column = q + t - s.pad;   // wraps below 0
                            if (h >= s.H || column >= s.W) continue;
                            for (uint32_t c = 0; c < s.C; ++c) {
                                const uint64_t xi = place(n, c, h, column, s.C, s.H, s.W);
                                const uint64_t wi = ((uint64_t{k} * s.C + c) * s.kernel + r) * s.kernel + t;
                                const double weight = w[wi], value = x[xi], gradient = dy[yi];
                                e.y[yi] += weight * value;
                                e.dw[wi] += gradient * value;
                                e.dx[xi] += gradient * weight;
                            }
                        }
                }
    return e;
}

/// Winograd's rounding errors are relative to the largest values: they are compared with the root mean square.
void expect_near(const char* what, const std::vector<float>& got, const std::vector<double>& wanted, double limit) {
    double squares = 0, worst = 0;
    for (uint64_t i = 0; i < wanted.size(); ++i) {
        squares += wanted[i] * wanted[i];
        ASSERT_TRUE(std::isfinite(got[i])) << what << " " << i;
        worst = std::max(worst, std::fabs(got[i] - wanted[i]));
    }
    EXPECT_LE(worst, limit * std::sqrt(squares / static_cast<double>(wanted.size()))) << what;
}

TEST(Wide, AgreesWithDoublePrecisionInEveryBuild) {
    const WideShape shapes[] = {{3, 16, 8, 8, 48, 3, 1},  {2, 32, 9, 11, 16, 3, 1}, {1, 16, 5, 7, 64, 3, 0},   {5, 48, 4, 4, 32, 3, 2},
                                {3, 16, 8, 8, 48, 5, 2},  {2, 32, 9, 11, 16, 5, 2}, {1, 16, 7, 9, 80, 5, 0},   {19, 16, 4, 3, 16, 5, 4},
                                {1, 16, 1, 2, 16, 5, 3},  {2, 48, 6, 7, 32, 1, 0},  {1, 16, 13, 12, 64, 1, 0}, {3, 64, 1, 1, 112, 1, 0},
                                {2, 80, 18, 17, 48, 1, 0}};
    for (const WideShape& s : shapes) {
        for (const auto& [name, kernels] : builds_of(s.kernel)) {
            SCOPED_TRACE(
                fmt::format("{}: {} samples, {}x{}x{}, {} outputs, kernel {}, pad {}", name, s.N, s.C, s.H, s.W, s.K, s.kernel, s.pad));
            const uint64_t outputs = uint64_t{s.N} * s.K * s.P() * s.Q();
            const std::vector<float> x = numbers(uint64_t{s.N} * s.C * s.H * s.W, 1), bias = numbers(s.K, 3), dy = numbers(outputs, 4),
                                     w = numbers(uint64_t{s.K} * s.C * s.kernel * s.kernel, 2);
            const ExactWide wanted = exact(s, x, w, bias, dy);
            const float nan = std::nanf("");   // shows elements that are not written
            std::vector<float> y(outputs, nan), dx(x.size(), nan), dw(w.size(), nan), db(s.K, nan);
            std::vector<float> ahead(kernels.packed(s), nan), turned(kernels.packed(s.turned()), nan);
            std::vector<float> scratch(kernels.forward_scratch(s), nan), scratch_turned(kernels.forward_scratch(s.turned()), nan),
                scratch_weights(kernels.weights_scratch(s), nan);
            kernels.pack(ahead.data(), w.data(), s, false);
            kernels.pack(turned.data(), w.data(), s, true);
            kernels.forward(y.data(), x.data(), ahead.data(), bias.data(), scratch.data(), s);
            kernels.forward(dx.data(), dy.data(), turned.data(), nullptr, scratch_turned.data(), s.turned());
            kernels.backward_weights(dw.data(), db.data(), dy.data(), x.data(), scratch_weights.data(), s);
            const double limit = s.kernel == 5 ? 1e-4 : 2e-5;
            expect_near("y", y, wanted.y, limit);
            expect_near("dx", dx, wanted.dx, limit);
            expect_near("dw", dw, wanted.dw, limit);
            expect_near("db", db, wanted.db, limit);
        }
    }
}

// A sample has the same bits alone and among others; NaN stays NaN.
TEST(Wide, SamplesDoNotMeet) {
    for (uint32_t kernel : {1u, 3u, 5u}) {
        for (const auto& [name, kernels] : builds_of(kernel)) {
            const WideShape many{5, 16, 9, 7, 48, kernel, kernel / 2}, one{1, 16, 9, 7, 48, kernel, kernel / 2};
            std::vector<float> x = numbers(uint64_t{many.N} * 16 * 9 * 7, 1), w = numbers(uint64_t{48} * 16 * kernel * kernel, 2);
            x[0] = std::nanf("");
            std::vector<float> packed(kernels.packed(many)), scratch(kernels.forward_scratch(many)), y(uint64_t{many.N} * 48 * 9 * 7),
                alone(y);
            kernels.pack(packed.data(), w.data(), many, false);
            kernels.forward(y.data(), x.data(), packed.data(), nullptr, scratch.data(), many);
            const uint64_t in = x.size() / many.N, out = y.size() / many.N;
            for (uint32_t n = 0; n < many.N; ++n)
                kernels.forward(alone.data() + n * out, x.data() + n * in, packed.data(), nullptr, scratch.data(), one);
            EXPECT_TRUE(std::isnan(y[0]));
            for (uint64_t i = out; i < y.size(); ++i) ASSERT_EQ(y[i], alone[i]) << name << ", kernel " << kernel << ", " << i;
        }
    }
}

}   // namespace
}   // namespace gradcast
