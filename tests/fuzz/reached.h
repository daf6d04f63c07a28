// What the inputs of this process have got to, so that tests/replay can tell that the corpus still gets past a target's first checks.
#pragma once
#include <cstdint>

namespace gradcast {

inline uint64_t fuzz_reached = 0;   // bits; each target says which

inline void fuzz_reaches(uint32_t what, bool really = true) { fuzz_reached |= uint64_t{really} << what; }

}   // namespace gradcast
