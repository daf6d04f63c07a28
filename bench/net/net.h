// `gradcast-bench layers` and `step`: the speed of nets on this machine, compared with its peak.
#pragma once
#include "bench/comm/options.h"
#include "runtime/core/clock.h"
#include "runtime/core/isa.h"

namespace gradcast {

/// Peak of so many threads in 10^9 float operations per second; a multiply-add counts as two.
double peak_gflops(Isa isa, uint32_t threads);

/// Measures every net of the options with each batch and precision: `layers`, time, work and share of the peak for each layer and pass, and
/// the kernels that a library has chosen; `step`, whole steps by number of blocks, each waited for before the next and, on GPUs that allow
/// it, queued: the next one is begun before the host waits.  Prints a table or a line of JSON for each at once, with "error" where one
/// failed.  Ends after two equal errors in a row.  Error: the first one.
Status net_run(const BenchOptions& options);

}   // namespace gradcast
