// The benchmarks of gradcast-bench; every rank runs them alike.  *wrong: received data differs from the data sent.
//
// allreduce, ps: from a barrier until the slowest rank has the exact integer sum, before its conversion to float.  Included: quantising the
// d super-blocks that a rank holds, encoding, exchanging, decoding.  Not included: computing the gradients.
//
//   algbw = size / time          busbw = algbw * 2 (n-1) / n      (the bytes of a ring; nccl-tests' definition)
//   bound = the larger of the bytes that a rank must send and receive by the exchange's formula (transport/exchange/cost.h, words only), at
//   the link's rate; without a known rate (loopback), the time of the same bytes round a ring of plain TCP sockets in the same run
#pragma once
#include "bench/comm/report.h"
#include "bench/comm/station.h"

namespace gradcast {

constexpr uint64_t deadline_least_us = 30'000'000;   // of a measurement, before what its bytes take on a known link

/// Checks of m, s, r and servers that only the exchange can make.
Status allreduce_check(const BenchOptions& options);
Status allreduce_run(Bench& bench, bool* wrong);
/// Simulates all ranks in this process.
Status simulate_run(const BenchOptions& options, bool* wrong);

// Shared by allreduce and simulate.
uint32_t blocks_of(const ExchangeKind& kind, const BenchOptions& options, uint32_t n);
View view_of(uint32_t n);
int64_t word_at(Word word, Buffer words, uint64_t i);
ExchangeConfig exchange_config(const BenchOptions& options, const Layout& layout, Rank self, uint32_t blocks, uint32_t segment_bytes);
Status exchange_check(const ExchangeKind& kind, const BenchOptions& options, uint32_t n);

/// One buffer from rank 0, or one from each rank, to all others.
Status multicast_run(Bench& bench, bool* wrong);
/// Round trips between two ranks, over streams and, if an interface is given, over datagrams.
Status p2p_run(Bench& bench, bool* wrong);

}   // namespace gradcast
