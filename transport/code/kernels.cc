#include "transport/code/kernels.h"

#include <algorithm>
#include <cstring>

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

void compute_now(const Compute& compute) {
    static const WordKernels& kernels = word_kernels(isa_best());   // exact at every level, so the fastest
    const Buffer &dst = compute.dst, &src = compute.src;
    const uint64_t src_bytes = compute.count * (compute.kernel == Kernel::copy ? 1 : compute.kernel == Kernel::add_i64 ? 8 : 4);
    const uint64_t dst_bytes = compute.kernel >= Kernel::add_i32_to_i64 ? 2 * src_bytes : src_bytes;
    GC_ASSERT(src_bytes <= src.bytes && dst_bytes <= dst.bytes);
    switch (compute.kernel) {
        case Kernel::copy: std::memcpy(dst.host, src.host, compute.count); return;
        case Kernel::add_i32: kernels.add_i32(dst.as<int32_t>(), src.as<int32_t>(), compute.count); return;
        case Kernel::add_i64: kernels.add_i64(dst.as<int64_t>(), src.as<int64_t>(), compute.count); return;
        case Kernel::add_i32_to_i64: kernels.add_i32_to_i64(dst.as<int64_t>(), src.as<int32_t>(), compute.count); return;
        case Kernel::add_i16:
        case Kernel::combine: GC_ASSERT(false && "no exchange asks for it yet"); return;
        case Kernel::copy_i32_to_i64: std::copy_n(src.as<int32_t>(), compute.count, dst.as<int64_t>()); return;
    }
}

}   // namespace gradcast
