#include "transport/exchange/cost.h"

#include <algorithm>

namespace gradcast {
namespace {

const ExchangeKind& kind_of(std::string_view name) {
    const ExchangeKind* kind = nullptr;
    GC_ASSERT(exchange_find(name, Quantiser::auto32, &kind).ok());
    return *kind;
}

}   // namespace

Cost cost_of_rank(std::string_view exchange, const ExchangeConfig& config, uint32_t n, const CostWire& wire) {
    const Cost cost = kind_of(exchange).cost(config, n, wire);
    return n == 1 ? Cost{.d = cost.d} : cost;
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
