// Sums of rows with the same bits in every build, for *.isa.cc alone.
#pragma once
#include <cstdint>

namespace gradcast::cpu {
namespace GC_ISA {

/// The sum of term(0) .. term(count - 1) in T.  Term i is added to lane i mod 16; then the lanes as a binary tree.
template <typename T, typename Term>
T lane_sum(uint64_t count, Term term) {
    constexpr uint32_t lanes = 16;
    T lane[lanes] = {};
    uint64_t i = 0;
    for (; i + lanes <= count; i += lanes)
        for (uint32_t k = 0; k < lanes; ++k) lane[k] += term(i + k);
    for (uint32_t k = 0; i < count; ++i, ++k) lane[k] += term(i);
    for (uint32_t half = lanes / 2; half > 0; half /= 2)
        for (uint32_t k = 0; k < half; ++k) lane[k] += lane[k + half];
    return lane[0];
}

}   // namespace GC_ISA
}   // namespace gradcast::cpu
