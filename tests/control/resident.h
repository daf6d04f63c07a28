// How much memory this process holds.
#pragma once
#include <malloc.h>

#include <fstream>
#include <string>

namespace gradcast {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool memory_is_judged = false;   // sanitizers keep what is freed
#else
constexpr bool memory_is_judged = true;
#endif

inline uint64_t status_bytes(const std::string& key) {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;)
        if (uint64_t kib = 0; word == key && status >> kib) return kib << 10;
    return 0;
}
inline uint64_t resident_bytes() { return status_bytes("VmRSS:"); }
/// The most since resident_peak_reset().
inline uint64_t resident_peak_bytes() { return status_bytes("VmHWM:"); }
inline bool resident_peak_reset() {
    ::malloc_trim(0);
    std::ofstream refs("/proc/self/clear_refs");
    return static_cast<bool>(refs << 5 << std::flush);
}

}   // namespace gradcast
