#include "runtime/core/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gradcast {
namespace {

/// AMX with bf16 and int8 on a CPU with AVX-512, and a kernel that saves tiles and permits this process to use them.  (clang 14's
/// __builtin_cpu_supports does not know AMX.)
bool has_amx() {
    constexpr uint32_t bf16 = 1u << 22, tile = 1u << 24, int8 = 1u << 25, tile_state = 3u << 17;
    uint32_t a, b, c, d, state, high;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (~d & (bf16 | tile | int8))) return false;
    asm volatile("xgetbv" : "=a"(state), "=d"(high) : "c"(0));
    constexpr long request = 0x1023, tile_data = 18;   // ARCH_REQ_XCOMP_PERM
    return (state & tile_state) == tile_state && syscall(SYS_arch_prctl, request, tile_data) == 0;
}

}   // namespace

const char* isa_name(Isa isa) {
    switch (isa) {
        case Isa::portable: return "portable";
        case Isa::common: return "common";
        case Isa::avx2: return "avx2";
        case Isa::avx512: return "avx512";
        case Isa::avx512_bf16: return "avx512-bf16";
        case Isa::amx: return "amx";
    }
    return "?";
}

Isa isa_best() {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl")) {
        if (!__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512bf16")) return Isa::avx512;
        static const bool amx = has_amx();
        return amx ? Isa::amx : Isa::avx512_bf16;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
    return Isa::portable;
}

Status isa_parse(std::string_view name, Isa* isa) {
    if (name == "auto") {
        *isa = isa_best();
        return {};
    }
    for (Isa each : {Isa::portable, Isa::common, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx}) {
        if (name != isa_name(each)) continue;
        if (each > isa_best())
            return fail(Code::unsupported, "isa = \"{}\"{}: this CPU has {} at most", name, each == Isa::common ? ", which needs AVX2" : "",
                        isa_name(isa_best()));
        *isa = each;
        return {};
    }
    return fail(Code::invalid, "isa = \"{}\": one of auto, portable, common, avx2, avx512, avx512-bf16, amx", name);
}

}   // namespace gradcast
