// The benchmarks of gradcast-bench, each run by every rank alike.  *wrong: what arrived was not what was sent.
//
// allreduce, ps: from a barrier until the slowest rank has the exact integer sum, ready to be turned to float.  Inside: quantising the d
// super-blocks that a rank holds, encoding, exchanging, decoding.  Outside: computing the gradients.
//
//   algbw = size / time          busbw = algbw * 2 (n-1) / n      (what a ring would have to move; nccl-tests' definition)
//   bound = the larger of what the exchange's formula (transport/exchange/cost.h: words alone) makes a rank send and receive, at the
//   link's rate; where no rate is known (loopback), the time that plain TCP sockets take to move as much round a ring in the same run
#pragma once
#include "bench/comm/report.h"
#include "bench/comm/station.h"

namespace gradcast {

/// Mistakes in m, s, r, servers that only the exchange itself knows.
Status allreduce_check(const Options& options);
Status allreduce_run(Bench& bench, bool* wrong);
/// Without ranks: all of them in the simulator, in this process.
Status simulate_run(const Options& options, bool* wrong);

// What both need.
uint32_t blocks_of(const ExchangeKind& kind, const Options& options, uint32_t n);
View view_of(uint32_t n);
int64_t word_at(Word word, Buffer words, uint64_t i);
ExchangeConfig exchange_config(const Options& options, const Layout& layout, Rank self, uint32_t blocks, uint32_t segment_bytes);
Status exchange_check(const ExchangeKind& kind, const Options& options, uint32_t n);

/// One buffer from rank 0, or one from each rank, to all others.
Status multicast_run(Bench& bench, bool* wrong);
/// Between two ranks, there and back; over streams and, where an interface is named, over datagrams.
Status p2p_run(Bench& bench, bool* wrong);

}   // namespace gradcast
