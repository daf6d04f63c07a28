// The instruction set of this process's own kernels and of oneDNN's: fixed once per process, before the first kernel runs, because results
// of one block may differ in the last bit between levels.  Kernels that are exact (integers) may use any level.
#pragma once
#include <cstdint>
#include <string_view>

#include "runtime/core/status.h"

namespace gradcast {

enum class Isa : uint8_t { portable, avx2, avx512, avx512_bf16, amx };

const char* isa_name(Isa isa);                       // "portable", "avx2", "avx512", "avx512-bf16", "amx"
Isa isa_best();                                      // what this CPU has
Status isa_parse(std::string_view name, Isa* isa);   // also "auto"; refuses what this CPU lacks

}   // namespace gradcast
