#include "runtime/core/isa.h"

namespace gradcast {

const char* isa_name(Isa isa) {
    switch (isa) {
        case Isa::portable: return "portable";
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
        return __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("amx-int8") ? Isa::amx : Isa::avx512_bf16;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
    return Isa::portable;
}

Status isa_parse(std::string_view name, Isa* isa) {
    if (name == "auto") {
        *isa = isa_best();
        return {};
    }
    for (Isa each : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx}) {
        if (name != isa_name(each)) continue;
        if (each > isa_best()) return fail(Code::unsupported, "isa = \"{}\": this CPU has {} at most", name, isa_name(isa_best()));
        *isa = each;
        return {};
    }
    return fail(Code::invalid, "isa = \"{}\": one of auto, portable, avx2, avx512, avx512-bf16, amx", name);
}

}   // namespace gradcast
