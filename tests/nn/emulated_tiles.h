// nn/cpu/tile_registers.h with AVX-512 in place of AMX.  The same bits, as Intel's manual defines them: two fused sums, of the first and of
// the second products of all pairs.  Exception: AMX takes subnormal numbers as 0.
#pragma once
#include "nn/cpu/vector.h"

namespace gradcast {
namespace GC_ISA {

struct TileRegisters {
    explicit TileRegisters(uint32_t rows_of_a) { rows = rows_of_a; }
    static inline thread_local uint32_t rows;
    static inline thread_local float at[8][16][16];
};
template <int t>
inline void tile_zero() {
    __builtin_memset(TileRegisters::at[t], 0, sizeof TileRegisters::at[t]);
}
template <int t>
inline void tile_load(const void* from, uint64_t stride = 64) {
    for (uint32_t r = 0; r < (t < 6 ? TileRegisters::rows : 16); ++r)
        __builtin_memcpy(TileRegisters::at[t][r], static_cast<const uint8_t*>(from) + r * stride, 64);
}
template <int t>
inline void tile_store(void* to, uint64_t stride) {
    for (uint32_t r = 0; r < TileRegisters::rows; ++r)
        __builtin_memcpy(static_cast<uint8_t*>(to) + r * stride, TileRegisters::at[t][r], 64);
}
template <int sum, int a, int b>
inline void tile_multiply() {
    for (uint32_t r = 0; r < TileRegisters::rows; ++r) {
        V first{}, second{};   // sums of the first and second products
        for (uint32_t pair = 0; pair < 16; ++pair) {
            const V line = load(TileRegisters::at[b][pair]);
            typedef uint32_t U __attribute__((vector_size(64)));
            const U words = (U)line, factor = U{} + __builtin_bit_cast(uint32_t, TileRegisters::at[a][r][pair]);
            multiply_add(first, (V)(factor << 16), (V)(words << 16));
            multiply_add(second, (V)(factor & ~0xffffu), (V)(words & ~0xffffu));
        }
        store(TileRegisters::at[sum][r], load(TileRegisters::at[sum][r]) + (first + second));
    }
}

}   // namespace GC_ISA
}   // namespace gradcast
