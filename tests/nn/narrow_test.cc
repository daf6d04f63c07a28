// Gradients of weights of 1x1 convolutions from bf16, on AMX and emulated, against sums in double precision.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "nn/cpu/narrow.h"
#include "tests/nn/rig.h"

namespace gradcast {
namespace emulated {
extern const NarrowKernels narrow_kernels;
}
namespace {

float wide(uint16_t half) { return std::bit_cast<float>(uint32_t{half} << 16); }

/// Numbers cut to bf16, followed by NaN.
std::vector<uint16_t> halves(uint64_t count, uint32_t key) {
    std::vector<uint16_t> result(count + 32, 0x7fc0);   // NaN
    const std::vector<float> all = numbers(count, key);
    for (uint64_t i = 0; i < count; ++i) result[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(all[i]) >> 16);
    return result;
}

TEST(Narrow, AgreesWithDoublePrecision) {
    if (isa_best() < Isa::avx512) GTEST_SKIP() << "this CPU has no AVX-512";
    for (const auto& [pixels, C, K] :
         {NarrowShape{1, 1, 1}, {31, 16, 32}, {32, 33, 10}, {17, 5, 70}, {300, 96, 48}, {256, 32, 32}, {513, 31, 65}, {775, 64, 10}}) {
        SCOPED_TRACE(std::to_string(pixels) + " pixels, C " + std::to_string(C) + ", K " + std::to_string(K));
        const std::vector<uint16_t> x = halves(uint64_t{pixels} * C, 1), dy = halves(uint64_t{pixels} * K, 2);
        std::vector<float> found[2];
        for (const NarrowKernels* kernels : {&emulated::narrow_kernels, &amx::narrow_kernels}) {
            if (kernels == &amx::narrow_kernels && isa_best() < Isa::amx) continue;
            std::vector<float> dw(K * C + 1, NAN), db(K + 1, NAN), bare = dw;
            const uint64_t floats = kernels->scratch({pixels, C, K});
            std::vector<float> memory(floats + 17, NAN);   // room to align like the arena
            float* scratch = memory.data();
            while (reinterpret_cast<uintptr_t>(scratch) % 64 != 0) ++scratch;
            kernels->backward_weights(dw.data(), db.data(), dy.data(), x.data(), scratch, {pixels, C, K});
            kernels->backward_weights(bare.data(), nullptr, dy.data(), x.data(), scratch, {pixels, C, K});
            EXPECT_TRUE(std::isnan(dw.back()) && std::isnan(db.back()) && std::isnan(bare.back()) && std::isnan(scratch[floats]));
            for (uint32_t k = 0; k < K; ++k) {
                double sum = 0, size = 0;
                for (uint32_t p = 0; p < pixels; ++p) {
                    sum += wide(dy[p * K + k]);
                    size += std::fabs(wide(dy[p * K + k]));
                }
                ASSERT_NEAR(db[k], sum, 2e-6 * size) << "db " << k;
                for (uint32_t c = 0; c < C; ++c) {
                    sum = size = 0;
                    for (uint32_t p = 0; p < pixels; ++p) {
                        const double product = static_cast<double>(wide(dy[p * K + k])) * static_cast<double>(wide(x[p * C + c]));
                        sum += product;
                        size += std::fabs(product);
                    }
                    ASSERT_NEAR(dw[k * C + c], sum, 2e-6 * size) << "dw " << k << " " << c;
                    ASSERT_EQ(dw[k * C + c], bare[k * C + c]);
                }
            }
            dw.pop_back();
            db.pop_back();
            dw.insert(dw.end(), db.begin(), db.end());
            found[kernels == &amx::narrow_kernels] = dw;
        }
        if (isa_best() >= Isa::amx) {
            EXPECT_EQ(found[0], found[1]) << "instructions and their emulation";
        }
    }
}

}   // namespace
}   // namespace gradcast
