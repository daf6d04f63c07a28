// `gradcast-bench layers` and `step`: the speed of nets on this machine, compared with its peak.
#pragma once
#include "bench/comm/options.h"
#include "runtime/core/clock.h"
#include "runtime/core/isa.h"

namespace gradcast {

/// Peak of so many threads in 10^9 float operations per second; a multiply-add counts as two.
double peak_gflops(Isa isa, uint32_t threads);

/// Time, work and share of the peak for each layer and pass.
Status layers_run(const Options& options);
/// Whole steps by number of blocks.
Status step_run(const Options& options);

}   // namespace gradcast
