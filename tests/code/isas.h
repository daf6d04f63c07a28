// The instruction sets whose kernels are compared with plain references.
#pragma once
#include <vector>

#include "runtime/core/isa.h"

namespace gradcast {

/// Those that this CPU has.
inline std::vector<Isa> isas() {
    std::vector<Isa> list;
    for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512})
        if (isa <= isa_best()) list.push_back(isa);
    return list;
}

}   // namespace gradcast
