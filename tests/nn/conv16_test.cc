// Convolutions with 16 samples in a vector, in each build that this CPU runs, against sums in double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "nn/cpu/conv16.h"
#include "tests/nn/rig.h"

namespace gradcast {
namespace {

struct ExactConv16 {
    std::vector<double> y, dx, dw, db;
    std::vector<double> y_size, dx_size, dw_size, db_size;   // sums of magnitudes: the scale of rounding errors
};

ExactConv16 exact(const Conv16Shape& s, const std::vector<float>& x, const std::vector<float>& w, const std::vector<float>& bias,
                  const std::vector<float>& dy) {
    ExactConv16 e;
    e.y.resize(dy.size());
    e.dx.resize(x.size());
    e.dw.resize(w.size());
    e.db.resize(s.K);
    e.y_size = e.y;
    e.dx_size = e.dx;
    e.dw_size = e.dw;
    e.db_size = e.db;
    auto add = [](std::vector<double>& sum, std::vector<double>& size, uint64_t at, double a, double b) {
        sum[at] += a * b;
        size[at] += std::fabs(a * b);
    };
    uint64_t yi = 0;
    for (uint32_t g = 0; g < s.groups; ++g)
        for (uint32_t k = 0; k < s.K; ++k)
            for (uint32_t p = 0; p < s.P(); ++p)
                for (uint32_t q = 0; q < s.Q(); ++q)
                    for (uint32_t n = 0; n < 16; ++n, ++yi) {
                        add(e.y, e.y_size, yi, bias[k], 1);
                        add(e.db, e.db_size, k, dy[yi], 1);
                        for (uint32_t c = 0; c < s.C; ++c)
                            for (uint32_t r = 0; r < s.R; ++r)
                                for (uint32_t t = 0; t < s.S; ++t) {
                                    const uint64_t xi = (((uint64_t{g} * s.C + c) * s.H + p + r) * s.W + q + t) * 16 + n;
                                    const uint64_t wi = ((uint64_t{k} * s.C + c) * s.R + r) * s.S + t;
                                    add(e.y, e.y_size, yi, w[wi], x[xi]);
                                    add(e.dw, e.dw_size, wi, dy[yi], x[xi]);
                                    add(e.dx, e.dx_size, xi, dy[yi], w[wi]);
                                }
                    }
    return e;
}

void expect_near(const char* what, const std::vector<float>& got, const std::vector<double>& wanted, const std::vector<double>& size) {
    for (uint64_t i = 0; i < wanted.size(); ++i)
        ASSERT_LE(std::fabs(got[i] - wanted[i]), 2e-6 * size[i] + 1e-30) << what << " " << i << ": " << got[i] << " for " << wanted[i];
}

TEST(Conv16, AgreesWithDoublePrecisionInEveryBuild) {
    const Conv16Shape shapes[] = {{2, 1, 12, 12, 6, 5, 5}, {1, 6, 14, 14, 16, 5, 5}, {1, 3, 9, 11, 7, 3, 3},
                                  {2, 2, 6, 6, 5, 1, 1},   {1, 4, 8, 9, 13, 2, 7},   {1, 15, 5, 5, 1, 5, 5},
                                  {3, 1, 7, 3, 2, 7, 3},   {1, 2, 4, 17, 3, 4, 4},   {1, 6, 9, 11, 20, 5, 5}};
    for (const auto& [name, kernels] : builds(conv16_kernels)) {
        for (const Conv16Shape& s : shapes) {
            SCOPED_TRACE(std::string(name) + " C " + std::to_string(s.C) + " K " + std::to_string(s.K));
            const std::vector<float> x = numbers(uint64_t{s.groups} * s.C * s.H * s.W * 16, 1), w = numbers(s.K * s.C * s.taps(), 2),
                                     bias = numbers(s.K, 3), dy = numbers(uint64_t{s.groups} * s.K * s.P() * s.Q() * 16, 4);
            const ExactConv16 wanted = exact(s, x, w, bias, dy);
            const float nan = std::nanf("");   // shows elements that are not written
            std::vector<float> y(dy.size(), nan), dx(x.size(), nan), dw(w.size(), nan), db(s.K, nan);
            std::vector<float> ahead(kernels.packed(s, WeightOrder::forward), nan), turned(kernels.packed(s, WeightOrder::data), nan);
            std::vector<float> rows(uint64_t{s.K} * s.P() * (s.Q() + 2 * (s.S - 1)) * 16, nan), sums(kernels.weights_scratch(s), nan);
            kernels.pack(ahead.data(), w.data(), s, WeightOrder::forward);
            kernels.pack(turned.data(), w.data(), s, WeightOrder::data);
            kernels.forward(y.data(), x.data(), ahead.data(), bias.data(), s);
            kernels.backward_data(dx.data(), dy.data(), nullptr, turned.data(), rows.data(), s);
            kernels.backward_weights(dw.data(), db.data(), dy.data(), x.data(), sums.data(), s);
            expect_near("y", y, wanted.y, wanted.y_size);
            expect_near("dx", dx, wanted.dx, wanted.dx_size);
            expect_near("dw", dw, wanted.dw, wanted.dw_size);
            expect_near("db", db, wanted.db, wanted.db_size);
        }
    }
}

// Fused pooling and ReLU give the bits of the convolution alone, pooled by the test.
TEST(Conv16, PooledIsTheSameAsPoolingAfterwards) {
    const Conv16Shape shapes[] = {{2, 1, 12, 12, 6, 5, 5}, {1, 6, 14, 14, 16, 5, 5}, {1, 3, 10, 12, 7, 3, 3},
                                  {1, 2, 6, 6, 5, 1, 1},   {1, 4, 9, 10, 13, 2, 7},  {2, 2, 8, 10, 3, 7, 3},
                                  {1, 2, 5, 9, 9, 4, 4},   {1, 11, 6, 8, 2, 3, 3},   {1, 6, 8, 10, 20, 3, 3}};
    for (const auto& [name, kernels] : builds(conv16_kernels)) {
        for (const Conv16Shape& s : shapes) {
            SCOPED_TRACE(std::string(name) + " C " + std::to_string(s.C) + " K " + std::to_string(s.K));
            ASSERT_TRUE(s.P() % 2 == 0 && s.Q() % 2 == 0);
            const uint64_t count = uint64_t{s.groups} * s.K * s.P() * s.Q() * 16;
            std::vector<float> x = numbers(uint64_t{s.groups} * s.C * s.H * s.W * 16, 1), bias = numbers(s.K, 3);
            const std::vector<float> w = numbers(s.K * s.C * s.taps(), 2), dy = numbers(count / 4, 4);
            for (uint64_t i = 0; i < 16; ++i) x[(s.W + 1 + i) * 16 + i] = i == 3 ? std::nanf("") : 0;
            const float nan = std::nanf("");   // shows elements that are not written
            std::vector<float> whole(count, nan), y(count / 4, nan), dx(x.size(), nan), dw(w.size(), nan), db(s.K, nan);
            std::vector<int32_t> winners(count / 4, -1);
            std::vector<float> ahead(kernels.packed(s, WeightOrder::forward), nan),
                turned(kernels.packed(s, WeightOrder::data_pooled), nan);
            std::vector<float> rows(uint64_t{s.K} * s.P() * (s.Q() + 2 * (s.S - 1)) * 16, nan), sums(kernels.weights_scratch(s), nan);
            kernels.pack(ahead.data(), w.data(), s, WeightOrder::forward),
                kernels.pack(turned.data(), w.data(), s, WeightOrder::data_pooled);
            kernels.forward(whole.data(), x.data(), ahead.data(), bias.data(), s);
            kernels.forward_pooled(y.data(), winners.data(), x.data(), ahead.data(), bias.data(), s);
            std::vector<float> dense(count, 0.0f);   // the gradient before pooling
            for (uint64_t i = 0; i < count / 4; ++i) {
                const uint64_t n = i % 16, q = i / 16 % (s.Q() / 2), row = i / 16 / (s.Q() / 2);   // row: of all planes
                uint64_t best = 0, winner = 0;
                for (uint64_t place = 0; place < 4; ++place) {
                    const uint64_t at = ((row * 2 + place / 2) * s.Q() + q * 2 + place % 2) * 16 + n;
                    if (place == 0 || whole[at] > whole[best] || std::isnan(whole[at])) {
                        best = at;
                        winner = place;
                    }
                }
                ASSERT_EQ(winners[i], winner) << i;
                if (std::isnan(whole[best])) ASSERT_TRUE(std::isnan(y[i])) << i;
                else ASSERT_EQ(y[i], std::max(whole[best], 0.0f)) << i;
                dense[best] = dy[i];
            }
            for (float& each : x) each = std::isnan(each) ? 0.5f : each;
            const ExactConv16 wanted = exact(s, x, w, bias, dense);
            kernels.backward_data(dx.data(), dy.data(), winners.data(), turned.data(), rows.data(), s);
            kernels.backward_weights_pooled(dw.data(), db.data(), dy.data(), winners.data(), x.data(), sums.data(), s);
            expect_near("dx", dx, wanted.dx, wanted.dx_size);
            expect_near("dw", dw, wanted.dw, wanted.dw_size);
            expect_near("db", db, wanted.db, wanted.db_size);
        }
    }
}

}   // namespace
}   // namespace gradcast
