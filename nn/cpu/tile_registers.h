// AMX instructions with register numbers as template parameters, which GCC's intrinsics do not take.
#pragma once
#include <cstdint>

namespace gradcast {
namespace GC_ISA {

template <int t>
inline void tile_zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(t));
}
template <int t>
inline void tile_load(const void* from, uint64_t stride = 64) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(t), "r"(from), "r"(stride) : "memory");
}
template <int t>
inline void tile_store(void* to, uint64_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(t), "r"(to), "r"(stride) : "memory");
}
template <int sum, int a, int b>
inline void tile_multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sum), "i"(a), "i"(b));
}
/// Configures this thread's tiles while it lives: 0 to 3 are sums and 4 and 5 parts of a, with `down` rows; 6 and 7 are parts of b.
struct TileRegisters {
    explicit TileRegisters(uint32_t down) {
        alignas(64) struct {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            uint8_t rows[16] = {};
        } wanted;
        for (uint32_t t = 0; t < 8; ++t) wanted.rows[t] = static_cast<uint8_t>(t < 6 ? down : 16);
        asm volatile("ldtilecfg %0" ::"m"(wanted));
    }
    ~TileRegisters() { asm volatile("tilerelease"); }
    TileRegisters(const TileRegisters&) = delete;
    TileRegisters& operator=(const TileRegisters&) = delete;
};

}   // namespace GC_ISA
}   // namespace gradcast
