// Monotonic time, for drivers, links and hosts.  Protocols use Actions::now_us, algorithms Host::now_us().
#pragma once
#include <cstdint>
#include <ctime>

namespace gradcast {

inline uint64_t clock_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

inline uint64_t clock_us() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
}

}   // namespace gradcast
