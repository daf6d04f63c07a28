// `gradcast-bench layers` and `step`: how fast nets train on this machine, beside what it could do at most.
#pragma once
#include <ctime>

#include "bench/comm/options.h"
#include "runtime/core/isa.h"

namespace gradcast {

inline uint64_t clock_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

/// Float operations a second, in 10^9, of that many threads side by side; a multiply-add counts as two.
double peak_gflops(Isa isa, uint32_t threads);

/// Time, work and share of the peak of each layer and pass.
Status layers_run(const Options& options);
/// Whole steps, by number of blocks.
Status step_run(const Options& options);

}   // namespace gradcast
