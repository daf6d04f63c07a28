// Whether this build's memory says something about gradcast's.
#pragma once
#include "runtime/core/resident_memory.h"

namespace gradcast {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool memory_is_judged = false;   // sanitizers keep what is freed
#else
constexpr bool memory_is_judged = true;
#endif

}   // namespace gradcast
