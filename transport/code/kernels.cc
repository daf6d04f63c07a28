#include "transport/code/kernels.h"

#include <algorithm>
#include <cstring>

#include "transport/code/field.h"

namespace gradcast {

extern const WordKernels kernels_portable, kernels_avx2, kernels_avx512;   // kernels.isa.cc

const WordKernels& word_kernels(Isa isa) {
    switch (isa) {
        case Isa::portable: return kernels_portable;
        case Isa::avx2: return kernels_avx2;
        case Isa::avx512: return kernels_avx512;
    }
    GC_ASSERT(false && "isa");
}

namespace {
struct Sizes {
    uint64_t src, dst;   // bytes of a word
};
Sizes sizes_of(Kernel kernel) {
    switch (kernel) {
        case Kernel::copy: return {1, 1};
        case Kernel::add_i16: return {2, 2};
        case Kernel::add_i32: return {4, 4};
        case Kernel::add_i64: return {8, 8};
        case Kernel::add_i32_to_i64:
        case Kernel::copy_i32_to_i64: return {4, 8};
        case Kernel::combine: return {0, 0};   // has no src and dst
    }
    GC_ASSERT(false && "kernel");
}

void combine_now(const WordKernels& kernels, Combine& combine, uint64_t count) {
    GC_ASSERT(combine.prime == prime_32 || combine.prime == prime_16);
    const uint64_t bytes = count * (combine.prime == prime_16 ? 2 : 4);
    for (uint32_t i = 0; i < combine.ins; ++i) GC_ASSERT(combine.in[i].bytes >= bytes);
    for (uint32_t o = 0; o < combine.outs; ++o) GC_ASSERT(combine.out[o].bytes >= bytes);
    combine.refused = kernels.combine(combine, count) != combine.ins;
}
}   // namespace

void compute_now(const Compute& compute) {
    static const WordKernels& kernels = word_kernels(isa_best());   // exact at every level, so the fastest
    const Buffer &dst = compute.dst, &src = compute.src;
    const Sizes sizes = sizes_of(compute.kernel);
    GC_ASSERT(compute.count * sizes.src <= src.bytes && compute.count * sizes.dst <= dst.bytes);
    switch (compute.kernel) {
        case Kernel::copy: std::memcpy(dst.host, src.host, compute.count); return;
        case Kernel::add_i32: kernels.add_i32(dst.as<int32_t>(), src.as<int32_t>(), compute.count); return;
        case Kernel::add_i64: kernels.add_i64(dst.as<int64_t>(), src.as<int64_t>(), compute.count); return;
        case Kernel::add_i32_to_i64: kernels.add_i32_to_i64(dst.as<int64_t>(), src.as<int32_t>(), compute.count); return;
        case Kernel::add_i16: kernels.add_i16(dst.as<int16_t>(), src.as<int16_t>(), compute.count); return;
        case Kernel::combine: combine_now(kernels, *compute.combine, compute.count); return;
        case Kernel::copy_i32_to_i64: std::copy_n(src.as<int32_t>(), compute.count, dst.as<int64_t>()); return;
    }
}

}   // namespace gradcast
