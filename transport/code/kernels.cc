#include "transport/code/kernels.h"

#include <algorithm>
#include <cstring>

#include "runtime/core/isa_build.h"
#include "transport/code/codec.h"
#include "transport/code/field.h"

namespace gradcast {

extern const WordKernels kernels_portable, kernels_avx2, kernels_avx512;   // kernels.isa.cc

const WordKernels& word_kernels(Isa isa) { return isa_build(isa, kernels_portable, kernels_avx2, kernels_avx512); }

namespace {

uint64_t read_bytes(const Compute& compute) {   // of a word
    switch (compute.kernel) {
        case Kernel::copy: return 1;
        case Kernel::add_i16:
        case Kernel::sub_i16: return 2;
        case Kernel::add_i32:
        case Kernel::sub_i32:
        case Kernel::add_i32_to_i64:
        case Kernel::copy_i32_to_i64: return 4;
        case Kernel::add_i64:
        case Kernel::sub_i64: return 8;
        case Kernel::combine: return compute.combine->prime == prime_16 ? 2 : 4;
    }
    GC_ASSERT(false && "kernel");
}

uint64_t written_bytes(const Compute& compute) {
    return compute.kernel == Kernel::add_i32_to_i64 || compute.kernel == Kernel::copy_i32_to_i64 ? 8 : read_bytes(compute);
}

Buffer cut(const Buffer& buffer, uint64_t bytes) {
    GC_ASSERT(bytes <= buffer.bytes);
    return buffer.part(0, bytes);
}

}   // namespace

uint32_t compute_reads(const Compute& compute) { return compute.kernel == Kernel::combine ? compute.combine->ins : 1; }
Buffer compute_read(const Compute& compute, uint32_t part) {
    return cut(compute.kernel == Kernel::combine ? compute.combine->in[part] : compute.src, compute.count * read_bytes(compute));
}
uint32_t compute_writes(const Compute& compute) { return compute.kernel == Kernel::combine ? compute.combine->outs : 1; }
Buffer compute_written(const Compute& compute, uint32_t part) {
    return cut(compute.kernel == Kernel::combine ? compute.combine->out[part] : compute.dst, compute.count * written_bytes(compute));
}

void compute_now(const Compute& compute) {
    static const WordKernels& kernels = word_kernels(isa_best());   // exact at every level, so the fastest
    for (uint32_t i = 0; i < compute_reads(compute); ++i) (void)compute_read(compute, i);
    for (uint32_t o = 0; o < compute_writes(compute); ++o) (void)compute_written(compute, o);
    const Buffer &dst = compute.dst, &src = compute.src;
    switch (compute.kernel) {
        case Kernel::copy: std::memcpy(dst.host, src.host, compute.count); return;
        case Kernel::add_i32: kernels.add_i32(dst.as<int32_t>(), src.as<int32_t>(), compute.count); return;
        case Kernel::add_i64: kernels.add_i64(dst.as<int64_t>(), src.as<int64_t>(), compute.count); return;
        case Kernel::add_i32_to_i64: kernels.add_i32_to_i64(dst.as<int64_t>(), src.as<int32_t>(), compute.count); return;
        case Kernel::add_i16: kernels.add_i16(dst.as<int16_t>(), src.as<int16_t>(), compute.count); return;
        case Kernel::sub_i16: kernels.sub_i16(dst.as<int16_t>(), src.as<int16_t>(), compute.count); return;
        case Kernel::sub_i32: kernels.sub_i32(dst.as<int32_t>(), src.as<int32_t>(), compute.count); return;
        case Kernel::sub_i64: kernels.sub_i64(dst.as<int64_t>(), src.as<int64_t>(), compute.count); return;
        case Kernel::combine:
            GC_ASSERT(compute.combine->prime == prime_32 || compute.combine->prime == prime_16);
            if (compute.combine->device) {
                const Status status = compute.combine->device->combine(*compute.combine, compute.count);
                if (!status.ok()) fmt::print(stderr, "{}\n", status.what);
                GC_ASSERT(status.ok() && "a device that has failed gives no words");   // nor would it for the next step
                return;
            }
            compute.combine->refused = kernels.combine(*compute.combine, compute.count) != compute.combine->ins;
            return;
        case Kernel::copy_i32_to_i64: std::copy_n(src.as<int32_t>(), compute.count, dst.as<int64_t>()); return;
    }
}

}   // namespace gradcast
