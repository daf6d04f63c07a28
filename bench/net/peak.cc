// Peak multiply-adds of this CPU: enough independent chains to hide the latency.  Each starts from a value unknown to the compiler, which
// would merge equal chains.
#include <immintrin.h>

#include <barrier>
#include <thread>
#include <vector>

#include "bench/net/net.h"

namespace gradcast {
namespace {

constexpr uint64_t rounds = 2'000'000;
constexpr uint32_t sums = 12;

__attribute__((target("avx512f"))) void loop_avx512(float* out) {
    __m512 sum[sums], a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
#pragma GCC unroll 12
    for (uint32_t i = 0; i < sums; ++i) sum[i] = _mm512_set1_ps(out[i]);
    for (uint64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 12
        for (__m512& each : sum) each = _mm512_fmadd_ps(each, a, b);
    for (const __m512& each : sum) *out += _mm512_cvtss_f32(each);
}

__attribute__((target("avx2,fma"))) void loop_avx2(float* out) {
    __m256 sum[sums], a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
#pragma GCC unroll 12
    for (uint32_t i = 0; i < sums; ++i) sum[i] = _mm256_set1_ps(out[i]);
    for (uint64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 12
        for (__m256& each : sum) each = _mm256_fmadd_ps(each, a, b);
    for (const __m256& each : sum) *out += _mm256_cvtss_f32(each);
}

void loop_portable(float* out) {
    __m128 sum[sums], a = _mm_set1_ps(0.999f), b = _mm_set1_ps(0.001f);
#pragma GCC unroll 12
    for (uint32_t i = 0; i < sums; ++i) sum[i] = _mm_set1_ps(out[i]);
    for (uint64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 12
        for (__m128& each : sum) each = _mm_add_ps(_mm_mul_ps(each, a), b);
    for (const __m128& each : sum) *out += _mm_cvtss_f32(each);
}

}   // namespace

double peak_gflops(Isa isa, uint32_t threads) {
    const uint32_t lanes = isa >= Isa::avx512 ? 16 : isa == Isa::avx2 ? 8 : 4;
    std::vector<double> best(threads);
    std::barrier together(threads);
    auto work = [&](uint32_t thread) {
        float out[sums] = {};
        for (int run = 0; run < 5; ++run) {
            together.arrive_and_wait();
            const uint64_t begin = clock_ns();
            (isa >= Isa::avx512 ? loop_avx512 : isa == Isa::avx2 ? loop_avx2 : loop_portable)(out);
            const double rate = 2.0 * rounds * sums * lanes / static_cast<double>(clock_ns() - begin);
            best[thread] = std::max(best[thread], out[0] != 0 ? rate : 0);
        }
    };
    std::vector<std::thread> others;
    for (uint32_t thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
    work(0);
    for (std::thread& other : others) other.join();
    double sum = 0;
    for (double each : best) sum += each;
    return sum;
}

}   // namespace gradcast
