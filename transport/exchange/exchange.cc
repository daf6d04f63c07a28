#include "transport/exchange/exchange.h"

#include <fmt/format.h>

#include <cmath>

#include "transport/exchange/base.h"

namespace gradcast {

std::vector<uint32_t> Placement::blocks_of(Rank rank) const {
    std::vector<uint32_t> blocks;
    for (size_t k = 0; k < holders.size(); ++k)
        for (Rank holder : holders[k])
            for (uint32_t block = bounds[k]; holder == rank && block < bounds[k + 1]; ++block) blocks.push_back(block);
    return blocks;
}

std::string ranks_text(const ExchangeConfig& config, uint64_t ranks) {
    return fmt::format("{} {}{}", ranks, rank_name(config), ranks == 1 ? "" : "s");
}

Status weights_check(const ExchangeConfig& config, uint32_t ranks) {
    if (config.weights.empty()) return {};
    if (config.weights.size() != ranks)
        return fail(Code::invalid, "{} weights for {} nodes: give one a node, or none", config.weights.size(), ranks);
    for (Rank rank = 0; rank < ranks; ++rank)
        if (!(std::isfinite(config.weights[rank]) && config.weights[rank] > 0))
            return fail(Code::invalid, "the weight of rank {} is {}: it must be above 0", rank, config.weights[rank]);
    return {};
}

uint64_t binomial(uint64_t n, uint64_t k) {
    if (k > n) return 0;
    uint64_t count = 1;
    for (uint64_t i = 0; i < std::min(k, n - k) && count <= binomial_max; ++i) count = count * (n - i) / (i + 1);
    return count;
}

std::vector<uint32_t> block_bounds(uint32_t blocks, uint32_t ranks, std::span<const double> weights) {
    GC_ASSERT(weights.empty() || weights.size() == ranks);
    std::vector<uint32_t> bounds = {0};
    double all = 0, sum = 0;
    for (const double weight : weights) all += weight;
    for (Rank k = 0; k < ranks; ++k) {
        if (!weights.empty()) sum += weights[k];
        bounds.push_back(weights.empty() ? static_cast<uint32_t>((k + 1) * uint64_t{blocks} / ranks)
                                         : static_cast<uint32_t>(std::lround(blocks * (sum / all))));
    }
    bounds.back() = blocks;
    return bounds;
}

ExchangeConfig uncoded(const ExchangeConfig& job) {
    ExchangeConfig config = job;
    config.m = config.r = config.servers = 1;
    config.s = 0;
    return config;
}

// Each in the file of its exchange.
extern const ExchangeKind ring_kind, unicast_kind, multicast_kind, ps_kind, coded_rs_kind, coded_kind, cssgd_kind;

std::span<const ExchangeKind> exchange_kinds() {
    static const ExchangeKind kinds[] = {ring_kind, unicast_kind, multicast_kind, ps_kind, coded_rs_kind, coded_kind, cssgd_kind};
    return kinds;
}

std::string exchange_names(bool ExchangeKind::*trait) {
    std::vector<const char*> names;
    for (const ExchangeKind& each : exchange_kinds())
        if (each.*trait) names.push_back(each.name);
    std::string text;
    for (size_t i = 0; i < names.size(); ++i) text += fmt::format("{}{}", i == 0 ? "" : i + 1 < names.size() ? ", " : " or ", names[i]);
    return text;
}

Status exchange_find(std::string_view name, Quantiser quantiser, const ExchangeKind** kind) {
    std::string names;
    for (const ExchangeKind& each : exchange_kinds()) {
        if (name == each.name) {
            if (quantiser == Quantiser::fixed && !each.fixed)
                return fail(Code::invalid, "{} does not allow the quantiser fixed: use auto32", name);
            *kind = &each;
            return {};
        }
        names += names.empty() ? each.name : std::string(", ") + each.name;
    }
    return fail(Code::invalid, "exchange '{}' does not exist; one of: {}", name, names);
}

}   // namespace gradcast
