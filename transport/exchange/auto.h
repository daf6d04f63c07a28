// `exchange = "auto"`: what a job starts with, and which exchange it goes on with once its first steps have been measured
// (spec/coded-sgd.md section 4).  All of them sum exactly, so the choice changes no bit of the model; but every rank must make the same
// one, so it follows from numbers on which all have agreed.
#pragma once
#include <string>
#include <vector>

#include "transport/exchange/cost.h"
#include "transport/exchange/exchange_report.h"

namespace gradcast {

/// The first steps as one rank saw them, or all of them together.
struct Measured {
    uint64_t wave_us = 0;            // computing one block on each lane (of those computed together its share), at the slowest rank
    uint64_t lanes = UINT64_MAX;     // the fewest
    uint64_t wait_us = UINT64_MAX;   // after a rank's own blocks, for the sums: the least, for the others wait until that rank has computed
    uint64_t latency_us = 0;         // the longest
    uint64_t copies = 0;             // 1: multicast does not reach everybody, so each rank gets a copy
    void merge(const Measured& other);   // in any order, and as often as one likes
};

/// One way to exchange, ready to be made.
struct Alternative {
    const ExchangeKind* kind = nullptr;
    ExchangeConfig config;
    bool datagrams = false;   // goes by datagrams here
    double predicted_us = 0;
    ExchangePrediction prediction() const;
    std::string text() const { return prediction().text(); }   // "coded-rs m=2 s=0"
};

/// Whether `s` nodes may be lost where n train, as the job asks: that is never made smaller.  *notes: where m has to be smaller than asked
/// for, and where every node computes every block.  Error: what is possible.
Status tolerance_check(std::string_view exchange, const ExchangeConfig& job, uint32_t n, std::vector<std::string>* notes);

/// Of an exchange by its name there is one.  Of `auto` those that may be chosen over n ranks, and the job starts with the first: all allow
/// its quantiser, and with s > 0 they code, so that s ranks may be lost from the first step on.  `job`: m, s, r and servers as the job file
/// has them; m and servers are made smaller where n is too small, s is refused; segment_bytes is filled in here.  datagram_bytes 0: there
/// are none.
Status alternatives_find(std::string_view name, const ExchangeConfig& job, uint32_t n, uint32_t datagram_bytes,
                         std::vector<Alternative>* alternatives);
/// Fills in predicted_us, with the first one's step as measured.  The one with the least; but the first, if that promises less than a
/// tenth: the first was measured with all its work, the others are predicted without theirs on words and packets (cost.h).
const Alternative& alternatives_choose(std::vector<Alternative>& alternatives, const Measured& measured, uint32_t n);
/// chosen: one of them.
ExchangeReport alternatives_report(const std::vector<Alternative>& alternatives, const Alternative& chosen, const Measured& measured);

}   // namespace gradcast
