// The instruction set of this process's own kernels and oneDNN's: fixed once a process, before the first kernel, because results may differ
// in the last bit between levels.  Exact (integer) kernels may use any level.
//
// `common` is a promise about results and not an instruction set: CPUs with AVX2 and CPUs with AVX-512 give the same bits.  Own kernels
// take the widest registers of the CPU and add in one order.  oneDNN has no such order, so its layers are refused.
#pragma once
#include <cstdint>
#include <string_view>

#include "runtime/core/status.h"

namespace gradcast {

enum class Isa : uint8_t { portable, common, avx2, avx512, avx512_bf16, amx };

/// The name in messages of a daemon's setting of the instruction set, if no launcher has started it with an option
/// (DaemonConfig::setting_in).
constexpr char isa_setting_in_file[] = "`isa` in gradcastd.toml";

const char* isa_name(Isa isa);                       // "portable", "common", "avx2", "avx512", "avx512-bf16", "amx"
Isa isa_best();                                      // the highest instruction set of this CPU, never `common`
Status isa_parse(std::string_view name, Isa* isa);   // also "auto"; error if this CPU lacks it

}   // namespace gradcast
