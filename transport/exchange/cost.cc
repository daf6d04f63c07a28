#include "transport/exchange/cost.h"

#include <algorithm>
#include <cmath>

#include "transport/exchange/base.h"
#include "transport/wire/packet.h"

namespace gradcast {
namespace {

double choose(uint32_t n, uint32_t k) {
    double result = k > n ? 0 : 1;
    for (uint32_t i = 0; i < k && result > 0; ++i) result = result * (n - i) / (i + 1);
    return std::round(result);
}

double ceil_of(double a, double b) { return std::ceil(a / b); }

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
        return config.quantiser == Quantiser::auto16 ? 2 : config.quantiser == Quantiser::auto32 || one_block ? 4 : 8;
    }
    uint32_t sum_width() const { return width(false); }

    void ring();
    void unicast();
    void coded(bool codes, uint32_t reducers);
    void cssgd();
};

void Counting::ring() {
    cost.rounds = 2.0 * (n - 1);
    for (const Bucket& bucket : config.layout->buckets) {
        for (uint64_t part = 0; part < n; ++part) {
            const uint64_t elements = (part + 1) * bucket.count / n - part * bucket.count / n;
            const double bytes = static_cast<double>(elements) * sum_width();
            const uint64_t passed = (config.self + n - part) % n;   // ranks that the part has passed before this one
            sends(words, bytes, (passed != n - 1) + (passed != n - 2), config.segment_bytes);
            const double comes = (passed != 0) + (passed != n - 1);
            receives(words, bytes, comes, comes, config.segment_bytes);
        }
        const double bytes = sizeof(RecordHeader) + bucket.group_count * sizeof(float);
        sends(record, bytes, n - 1, segment_bytes_stream);
        receives(record, bytes, n - 1, 0, segment_bytes_stream);
    }
}

void Counting::unicast() {
    cost.rounds = 1;
    for (const Bucket& bucket : config.layout->buckets) {
        for (Rank rank = 0; rank < n; ++rank) {
            if (blocks_of(rank) == 0) continue;
            const uint32_t width_of = width(blocks_of(rank) == 1), segment = config.segment_bytes / sum_width() * width_of;
            const double bytes = static_cast<double>(bucket.count) * width_of;
            if (rank == config.self) sends(words, bytes, n - 1, segment);
            else receives(words, bytes, 1, 1, segment);
        }
        const double bytes = sizeof(RecordHeader) + bucket.group_count * sizeof(float);
        sends(record, bytes, n - 1, segment_bytes_stream);
        receives(record, bytes, n - 1, 0, segment_bytes_stream);
    }
}

// multicast, ps, coded, coded-rs.  reducers 0: everybody reduces everything.
void Counting::coded(bool codes, uint32_t reducers) {
    const uint32_t m = codes ? config.m : 1, s = codes ? config.s : 0, targets = codes ? m + s : 1, segment = config.segment_bytes;
    const bool local = codes && targets == n, scatters = reducers > 0;   // local: every rank holds everything
    cost.d = targets;
    cost.rounds = scatters && !local ? 2 : 1;
    auto word = [&](Rank rank) { return width(blocks_of(rank) == 1); };
    auto contributes = [&](Rank rank) { return codes || blocks_of(rank) > 0; };
    uint32_t others = 0;   // that contribute
    for (Rank rank = 0; rank < n; ++rank) others += rank != config.self && contributes(rank);
    for (const Bucket& bucket : config.layout->buckets) {
        const uint32_t cuts = scatters ? reducers : 1;
        const double count = static_cast<double>(bucket.count),
                     pieces = std::max(1.0, ceil_of(count, static_cast<double>(config.piece_words) * cuts * m));
        const double coded_words = ceil_of(count, pieces * cuts * m), whole = coded_words * m * sum_width();
        // Parts that this rank reduces, and those that others do.
        const double own = local                    ? 0
                           : !scatters              ? pieces
                           : config.self < reducers ? pieces
                                                    : 0,
                     foreign = scatters && !local ? pieces * cuts - own : 0;
        const double mine = contributes(config.self) ? coded_words * word(config.self) : 0;
        if (scatters) {
            sends(words, mine, foreign, segment);
            multicasts(words, whole, own, n - 1);
        } else multicasts(words, mine, own, n - 1);
        receives(words, whole, foreign, foreign, segment);
        double needed = codes ? n - 1 - s : others;
        for (Rank rank = 0; rank < n; ++rank) {
            if (rank == config.self || !contributes(rank)) continue;
            receives(words, coded_words * word(rank), own, needed > 0 ? own : 0, segment);
            --needed;
        }
        const double bytes = sizeof(Le64) + targets * sizeof(HeldRecord) + bucket.group_count * sizeof(float);
        multicasts(record, bytes, 1, n - 1);
        receives(record, bytes, n - 1, 0, segment);
    }
}

void Counting::cssgd() {
    const uint32_t r = config.r, segment = config.segment_bytes;
    const double sets = choose(n - 1, r), held = choose(n - 1, r - 1);   // sets: of r + 1 ranks with this one
    cost.d = r;
    cost.rounds = 1;
    const bool fixed = config.quantiser == Quantiser::fixed;   // only `fixed` has two widths
    const uint32_t wide = width(fixed && cssgd_narrow(cssgd_bounds(config, n, config.blocks)));
    for (const Bucket& bucket : config.layout->buckets) {
        const double bytes = ceil_of(static_cast<double>(bucket.count), r) * wide;
        multicasts(words, bytes, sets, r);
        const double come = wire.multicast == CostWire::Multicast::flat ? sets * (n - 1) : sets * r;
        receives(words, bytes, come, sets * r, segment);
        cost.words_foreign += bytes * (come - sets * r);
        const double record_bytes = sizeof(Le64) + held * sizeof(HeldRecord) + bucket.group_count * sizeof(float);
        multicasts(record, record_bytes, 1, n - 1);
        receives(record, record_bytes, n - 1, 0, segment);
    }
}

}   // namespace

Cost cost_of_rank(std::string_view exchange, const ExchangeConfig& config, uint32_t n, const CostWire& wire) {
    Counting counting{config, n, wire};
    if (exchange == "ring") counting.ring();
    else if (exchange == "unicast") counting.unicast();
    else if (exchange == "multicast") counting.coded(false, 0);
    else if (exchange == "ps") counting.coded(false, config.servers);
    else if (exchange == "coded") counting.coded(true, 0);
    else if (exchange == "coded-rs") counting.coded(true, n);
    else if (exchange == "cssgd") counting.cssgd();
    else GC_ASSERT(!"an exchange without a row in cost.cc");
    return n == 1 ? Cost{.d = counting.cost.d} : counting.cost;
}

Cost cost_of(std::string_view exchange, const ExchangeConfig& config, uint32_t n, const CostWire& wire) {
    Cost most;
    ExchangeConfig each = config;
    for (each.self = 0; each.self < n; ++each.self) {
        const Cost cost = cost_of_rank(exchange, each, n, wire);
        most.d = cost.d;
        most.rounds = cost.rounds;
        most.sent = std::max(most.sent, cost.sent);
        most.received = std::max(most.received, cost.received);
        most.words_sent = std::max(most.words_sent, cost.words_sent);
        most.words_received = std::max(most.words_received, cost.words_received);
        most.words_foreign = std::max(most.words_foreign, cost.words_foreign);
    }
    return most;
}

Cost cost_grouped(const ExchangeConfig& config, uint32_t n, uint32_t g, const CostWire& wire) {
    Layout part = *config.layout;
    for (Bucket& bucket : part.buckets) {
        const uint64_t share = uint64_t{g} * config.m;
        bucket.count = (bucket.count + share - 1) / share * config.m;
    }
    ExchangeConfig ring = config;
    ring.layout = &part;
    Cost cost = cost_of("coded-rs", config, g, wire);
    const Cost more = cost_of("ring", ring, n / g, wire);
    cost.rounds += more.rounds;
    cost.sent += more.sent;
    cost.received += more.received;
    cost.words_sent += more.words_sent;
    cost.words_received += more.words_received;
    return cost;
}

double predicted_us(const Cost& cost, double block_us, double bits_per_s, double latency_us) {
    return cost.d * block_us + std::max(cost.sent, cost.received) * 8e6 / bits_per_s + cost.rounds * latency_us;
}

}   // namespace gradcast
