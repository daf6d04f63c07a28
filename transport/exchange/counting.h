// What an exchange's row adds up for its cost: transfers of words and records, with the headers of their packets.
#pragma once
#include <algorithm>
#include <cmath>

#include "transport/exchange/base.h"
#include "transport/exchange/cost.h"
#include "transport/wire/packet.h"

namespace gradcast {

inline double ceil_of(double a, double b) { return std::ceil(a / b); }

/// Adds up the cost of rank config.self of n.
struct Counting {
    const ExchangeConfig& config;
    const uint32_t n;
    const CostWire& wire;
    const std::vector<uint32_t> bounds =   // of ranks that compute super-blocks alone
        block_bounds(config.blocks, n, config.weights.size() == n ? std::span<const double>(config.weights) : std::span<const double>{});
    Cost cost{};

    enum What : uint8_t { words, record };
    // `times` transfers of `bytes`, in packets of `segment`.
    double wired(double bytes, double times, uint32_t segment) const {
        return times * (bytes + ceil_of(bytes, segment) * wire.overhead_bytes);
    }
    void sends(What what, double bytes, double times, uint32_t segment) {
        cost.sent += wired(bytes, times, segment);
        if (what == words) cost.words_sent += bytes * times;
    }
    void multicasts(What what, double bytes, double times, uint32_t receivers) {
        cost.sent += wired(bytes, wire.multicast == CostWire::Multicast::copies ? times * receivers : times, config.segment_bytes);
        if (what == words) cost.words_sent += bytes * times;
    }
    // `needed` of the `times` transfers that arrive.
    void receives(What what, double bytes, double times, double needed, uint32_t segment) {
        cost.received += wired(bytes, times, segment);
        if (what == words) cost.words_received += bytes * needed;
    }

    uint32_t blocks_of(Rank rank) const { return bounds[rank + 1] - bounds[rank]; }
    // `fixed` words of one block fit int32 and travel so.
    uint32_t width(bool one_block) const {
        if (config.quantiser == Quantiser::auto16) return 2;
        return config.quantiser == Quantiser::auto32 || (one_block && one_gradient(*config.layout)) ? 4 : 8;
    }
    uint32_t sum_width() const { return width(false); }
};

}   // namespace gradcast
