// The builds of a *.isa.cc file, and which of them serves an instruction set.
#pragma once
#include "runtime/core/isa.h"

namespace gradcast {

/// One of three builds of a table of kernels, or of a function.  `common` takes the widest one of this CPU, because avx2 and avx512 give
/// the same bits; this CPU must have what it asks for.
template <typename T>
T& isa_build(Isa isa, T& portable, T& avx2, T& avx512) {
    if (isa == Isa::common) isa = isa_best();
    return isa >= Isa::avx512 ? avx512 : isa == Isa::avx2 ? avx2 : portable;
}

}   // namespace gradcast
