// What a step of an exchange costs, told before anything is sent: the figures of spec/coded-sgd.md section 3 (cssgd: section 4, coded-rs:
// section 6), exact to the byte for a step without losses, with padding, headers, tags and records.  `auto` chooses by it, benches take
// their bound from it, and tests hold it against what the simulator counts.
//
// Time is predicted, after the last paragraph of section 4, from these bytes and not from the paper's T(r) = r Tcalc + Tcomm / r:
//
//   T = d Tcalc + max(sent, received) / rate + rounds * latency
//
// Tcalc computes one super-block (an n-th of the mini-batch), the link is full duplex, and a round is a latency that nothing hides: a
// packet that cannot leave before another one has come.  Not in it: quantising, encoding and decoding, the overlap of sending with
// computing, acknowledgements, reports and repairs of transport/bulk.
#pragma once
#include "transport/exchange/exchange.h"

namespace gradcast {

/// How packets travel.
struct CostWire {
    enum class Multicast : uint8_t {
        copies,   // there is none: each rank gets a copy (streams)
        flat,     // reaches every rank of the view (one group on a switch)
    };
    uint32_t overhead_bytes = 0;   // of a packet, beside its payload
    Multicast multicast = Multicast::flat;
};

struct Cost {
    double d = 1;                                // super-blocks computed per rank
    double rounds = 0;                           // latencies, one after the other
    double sent = 0, received = 0;               // bytes over the rank's link
    double words_sent = 0, words_received = 0;   // of these, bytes of words that it must send (a multicast once) and receive
    double words_foreign = 0;                    // multicasts to others, which the one group brings along
    double bound() const { return words_sent > words_received + words_foreign ? words_sent : words_received + words_foreign; }
};

/// Of rank config.self of n.  `exchange` is a name of exchange_kinds(), and install() would accept the configuration.
Cost cost_of_rank(std::string_view exchange, const ExchangeConfig& config, uint32_t n, const CostWire& wire);
/// The largest figure of any rank.
Cost cost_of(std::string_view exchange, const ExchangeConfig& config, uint32_t n, const CostWire& wire);
/// Groups of g ranks, each with a multicast group of its own, n a multiple: coded-rs (config.m, s) in the group, between whose two halves
/// the ranks of equal position in all groups sum their parts by a ring.
Cost cost_grouped(const ExchangeConfig& config, uint32_t n, uint32_t g, const CostWire& wire);
double predicted_us(const Cost& cost, double block_us, double bits_per_s, double latency_us);

}   // namespace gradcast
