// `gradcast-bench layers` and `step`: how fast nets train on this machine, beside its peak.
#pragma once
#include "bench/comm/options.h"
#include "runtime/core/clock.h"
#include "runtime/core/isa.h"

namespace gradcast {

/// Float operations a second, in 10^9, of that many threads side by side; a multiply-add counts as two.
double peak_gflops(Isa isa, uint32_t threads);

/// Time, work and share of the peak of each layer and pass.
Status layers_run(const Options& options);
/// Whole steps, by number of blocks.
Status step_run(const Options& options);

}   // namespace gradcast
