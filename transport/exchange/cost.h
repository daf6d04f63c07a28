// The cost of a step of an exchange, computed before anything is sent (transport/exchange/CODES.md, "The exchanges").  Exact to the byte
// for a step without losses, with padding, headers, tags and records.  `auto` chooses by it, benches take their bound from it, and tests
// compare it with what the simulator counts.
//
// Time is predicted from these bytes (CODES.md, "Cost model"), not from the paper's T(r) = r Tcalc + Tcomm / r:
//
//   T = d Tcalc + max(sent, received) / rate + rounds * latency
//
// Tcalc is the time to compute one super-block (an n-th of the mini-batch).  Links are full duplex.  A round is a packet that cannot be
// sent before another one has arrived.  Not included: quantising, encoding and decoding, the overlap of sending with computing, and
// acknowledgements, reports and repairs of transport/bulk.
#pragma once
#include "transport/exchange/exchange.h"

namespace gradcast {

/// How packets travel.
struct CostWire {
    enum class Multicast : uint8_t {
        copies,   // no multicast: each rank gets a copy (streams)
        flat,     // reaches every rank of the view (one group on a switch)
    };
    uint32_t overhead_bytes = 0;   // of a packet, beside its payload
    Multicast multicast = Multicast::flat;
};

struct Cost {
    double d = 1;                                // super-blocks computed per rank
    double rounds = 0;                           // latencies that nothing hides
    double sent = 0, received = 0;               // bytes over the rank's link
    double words_sent = 0, words_received = 0;   // of these, words that the rank must send (a multicast once) and receive
    double words_foreign = 0;                    // words of multicasts to others that arrive here too
    double bound() const { return words_sent > words_received + words_foreign ? words_sent : words_received + words_foreign; }
};

/// Returns the cost of rank config.self of n.  `exchange` is a name of exchange_kinds(); install() must accept the configuration.
Cost cost_of_rank(std::string_view exchange, const ExchangeConfig& config, uint32_t n, const CostWire& wire);
/// The largest figure of any rank.
Cost cost_of(std::string_view exchange, const ExchangeConfig& config, uint32_t n, const CostWire& wire);
/// n ranks in groups of g, each with its own multicast group: coded-rs (config.m, s) within the group.  Between its reduce and its gather
/// the ranks of equal position in all groups sum their parts by a ring.
Cost cost_grouped(const ExchangeConfig& config, uint32_t n, uint32_t g, const CostWire& wire);
double predicted_us(const Cost& cost, double block_us, double bits_per_s, double latency_us);

}   // namespace gradcast
