#include "transport/exchange/exchange.h"

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

Status weights_check(const ExchangeConfig& config, uint32_t ranks) {
    if (config.weights.empty()) return {};
    if (config.weights.size() != ranks)
        return fail(Code::invalid, "{} weights for {} nodes: give one a node, or none", config.weights.size(), ranks);
    for (Rank rank = 0; rank < ranks; ++rank)
        if (!(std::isfinite(config.weights[rank]) && config.weights[rank] > 0))
            return fail(Code::invalid, "the weight of rank {} is {}: it must be above 0", rank, config.weights[rank]);
    return {};
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

namespace {

constexpr ExchangeKind kinds[] = {
    {"ring", "ring reduce-scatter and all-gather: 2G(n-1)/n sent per node", ring_create, false, false},
    {"unicast", "each node sends its gradient to each other: (n-1)G sent per node", unicast_create, true, false},
    {"multicast", "each node sends its gradient once, to all: G sent per node, (n-1)G received", multicast_create, true, true},
    {"ps", "the first `servers` nodes sum up a part each and send the sums to all: G sent and received per node", ps_create, true, true},
    {"coded", "each node sends a combination of its m+s blocks to all: G/m sent per node; s nodes may be lost", coded_create, false, true},
    {"coded-rs", "coded reduce-scatter, then the sums to all: (n-1)G/(n m) + G/n sent per node; s nodes may be lost", coded_rs_create,
     false, true},
    {"cssgd", "the CSSGD paper's: r nodes compute a block, segments go coded by multicast: C(n-1,r) G/r sent per node", cssgd_create, true,
     true},
};

}   // namespace

std::span<const ExchangeKind> exchange_kinds() { return kinds; }

Status exchange_find(std::string_view name, Quantiser quantiser, const ExchangeKind** kind) {
    std::string names;
    for (const ExchangeKind& each : kinds) {
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
