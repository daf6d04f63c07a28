// random4() of runtime/core/rng.h for kernels: the same numbers.  In .cu files only.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "runtime/core/rng.h"

namespace gradcast::cuda {

struct Draw {
    uint32_t word[4];
};
__device__ inline Draw draw4(Purpose purpose, uint64_t seed, uint64_t a, uint32_t b) {
    uint32_t c0 = static_cast<uint32_t>(a), c1 = static_cast<uint32_t>(a >> 32), c2 = b, c3 = static_cast<uint32_t>(purpose);
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9, k1 += 0xBB67AE85) {
        const uint64_t x = uint64_t{0xD2511F53} * c0, y = uint64_t{0xCD9E8D57} * c2;
        c0 = static_cast<uint32_t>(y >> 32) ^ c1 ^ k0;
        c1 = static_cast<uint32_t>(y);
        c2 = static_cast<uint32_t>(x >> 32) ^ c3 ^ k1;
        c3 = static_cast<uint32_t>(x);
    }
    return {{c0, c1, c2, c3}};
}

}   // namespace gradcast::cuda
