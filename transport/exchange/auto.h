// `exchange = "auto"`: the exchange that a job starts with, and the choice of one after its first steps have been measured
// (transport/exchange/CODES.md, "How auto chooses").  All exchanges sum exactly, so the choice does not change the model.  Every rank must
// make the same choice, so it depends only on numbers that all have agreed on.
#pragma once
#include <string>
#include <vector>

#include "transport/exchange/cost.h"
#include "transport/exchange/exchange_report.h"

namespace gradcast {

/// Measurements of the first steps, of one rank or of all.
struct Measured {
    uint64_t wave_us = 0;          // for one block on each lane, at the slowest rank; of blocks computed together: their mean
    uint64_t lanes = UINT64_MAX;   // of the rank with the fewest
    uint64_t wait_us =
        UINT64_MAX;            // for the sums, after the rank's own blocks: the least of all ranks, as others also wait for slower ones
    uint64_t latency_us = 0;   // of the rank with the longest
    uint64_t step_us = 0;      // the median of whole steps, at the slowest rank
    uint64_t copies = 0;       // 1: multicast does not reach all ranks, so each gets a copy
    void merge(const Measured& other);   // the order does not matter, nor does a repetition
};

/// One exchange with its configuration.
struct Alternative {
    const ExchangeKind* kind = nullptr;
    ExchangeConfig config;
    bool datagrams = false;   // travels as datagrams
    double predicted_us = 0;
    uint64_t measured_us = 0;   // 0: not tried
    ExchangePrediction prediction() const;
    std::string text() const { return prediction().text(); }   // "coded-rs m=2 s=0"
    /// The largest figure of any of n ranks.  copies: multicast does not reach all of them.
    Cost cost(uint32_t n, bool copies) const;
};

/// Whether n ranks can tolerate the loss of the `s` ranks that the job asks for; s is never lowered.  `job`: quantiser, m and s as in the
/// job file, and cells.  *notes: that m is lowered, or that every rank computes every block.  Error: what is possible.  Error and notes
/// call the ranks what rank_name() says.
Status tolerance_check(std::string_view exchange, const ExchangeConfig& job, uint32_t n, std::vector<std::string>* notes);

/// For a named exchange one alternative; for `auto` all that may be chosen for n ranks, of which the job starts with the first.  All allow
/// the job's quantiser.  With s > 0 all of them code, so that s ranks may be lost from the first step on.  `job`: m, s, r and servers as in
/// the job file.  m and servers are lowered if n is too small, s is refused; segment_bytes is set here.  datagram_bytes 0: no datagrams.
Status alternatives_find(std::string_view name, const ExchangeConfig& job, uint32_t n, uint32_t datagram_bytes,
                         std::vector<Alternative>* alternatives);
/// Sets predicted_us (of the first one: as measured) and returns the fastest.  Returns the first one if the gain is below a tenth, because
/// predictions of the others lack their work on words and packets (cost.h).
const Alternative& alternatives_choose(std::vector<Alternative>& alternatives, const Measured& measured, uint32_t n);
/// Those that are worth some steps, by their places; the first one, which has been measured, is before them.  Predictions miss what
/// computing and summing take from each other on a busy CPU, so the best of each kind is measured: of those that compute less than every
/// block at every rank, and of those that compute all and send nothing.  Not those that are predicted to take four times the best.
std::vector<size_t> alternatives_to_try(const std::vector<Alternative>& alternatives, uint32_t n);
/// `chosen`: one of `alternatives`.
ExchangeReport alternatives_report(const std::vector<Alternative>& alternatives, const Alternative& chosen, const Measured& measured);

}   // namespace gradcast
