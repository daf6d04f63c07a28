// How much memory this process has in RAM, as Linux counts it.
#pragma once
#include <malloc.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace gradcast {

/// A line of /proc/self/status in bytes, for example "VmRSS:"; 0 where there is none.
inline uint64_t status_bytes(const std::string& key) {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;)
        if (uint64_t kib = 0; word == key && status >> kib) return kib << 10;
    return 0;
}
inline uint64_t resident_bytes() { return status_bytes("VmRSS:"); }
/// The most since the last resident_peak_reset(), else since the process began.
inline uint64_t resident_peak_bytes() { return status_bytes("VmHWM:"); }
/// Gives free memory back to the kernel and begins a new peak.  false: this kernel cannot.
inline bool resident_peak_reset() {
    ::malloc_trim(0);
    std::ofstream refs("/proc/self/clear_refs");
    return static_cast<bool>(refs << 5 << std::flush);
}

}   // namespace gradcast
