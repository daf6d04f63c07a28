// What `auto` has chosen and why, for people and programs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gradcast {

/// An exchange with what the choice sets, and what a step by it is predicted to take.
struct ExchangePrediction {
    std::string exchange;                        // of exchange_kinds()
    uint32_t m = 0, s = 0, r = 0, servers = 0;   // m and s of coded exchanges, r of cssgd, servers of ps
    double step_us = 0;
    uint64_t measured_us = 0;   // a step by it at the slowest rank; 0: it was not tried
    std::string text() const;   // "coded-rs m=2 s=0"
    bool operator==(const ExchangePrediction&) const = default;
};

struct ExchangeReport {
    std::vector<ExchangePrediction> predictions;          // the first step's exchange first
    size_t chosen = 0;                                    // of them
    uint64_t block_us = 0, wait_us = 0, latency_us = 0;   // measured: computing a block, waiting for sums by the first exchange, a message
    bool operator==(const ExchangeReport&) const = default;
};
/// "coded-rs m=2 s=0, 9.800 ms a step (ring 20.300); predicted: coded-rs m=2 s=0 10.500, ring 20.100, …, where a block takes …".  Where
/// none was tried: "coded-rs m=2 s=0; predicted: …".
std::string exchange_report_text(const ExchangeReport& report);

}   // namespace gradcast
