// The all-reduce benchmark.  A repetition is what a training step pays for communication: quantise the rank's float32 gradient, sum it over
// all ranks by the exchange, turn the sum back to float32.  It starts when all ranks are ready and ends when the last has its sum.
//
//   algbw   = size / time                      busbw = algbw * 2 (n-1) / n      (what a ring would have to move; nccl-tests' definition)
//   bound   = the exchange's own bytes (its formula in spec/coded-sgd.md section 3) moved the same way round by plain TCP sockets, measured
//   in the same run
#pragma once
#include <string>
#include <vector>

#include "transport/exchange/exchange.h"
#include "transport/link/link.h"

namespace gradcast {

struct AllreduceConfig {
    std::string exchange = "ring";
    uint32_t ranks = 4, runs = 20, warmup = 3;
    std::vector<uint64_t> sizes;   // bytes
    LinkKind link = LinkKind::uring_tcp;
    Protect protect = Protect::auth;
    Quantiser quantiser = Quantiser::auto32;
    bool json = false;
};

/// "4K,64K" or "4K..1M"; units of 1024: K, M, G.  Each a multiple of 4, from 4 bytes to 1 GiB.
Status allreduce_sizes(const std::string& text, std::vector<uint64_t>* sizes);

/// Forks the ranks, prints the report on stdout.  *wrong: a sum was wrong.  Error: a rank failed, by name.
Status allreduce_run(const AllreduceConfig& config, const ExchangeKind& kind, bool* wrong);

}   // namespace gradcast
