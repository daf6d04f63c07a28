// Compares the predicted cost of a step with the simulator's counts.
#include "transport/exchange/cost.h"
#include "tests/exchange/world.h"
#include "tests/sim/seeds.h"

namespace gradcast {
namespace {

constexpr uint32_t stream_overhead = 64;   // head, body and tag in the simulator

void expect_counted(uint64_t seed, const ExchangeKind& kind, uint32_t n) {
    WorldConfig config;
    config.sim.seed = seed;
    config.sim.ranks = n;
    config.sim.jitter_us = pick(seed, 1, 100);
    config.exchange = kind.name;
    if (kind.codes) {
        config.s = pick(seed, 2, std::min(n, 4u));
        config.m = 1 + pick(seed, 3, std::min(n - config.s, 8u));
    }
    if (kind.shares) config.r = n > 16 ? 1 : 1 + pick(seed, 4, n > 8 ? 2 : n);
    config.servers = 1 + pick(seed, 5, n);
    const uint32_t blocks[] = {8, n, 1, 2 * n, n + 3};
    config.blocks = kind.shares ? choose(n, config.r) + pick(seed, 6, 2) : blocks[pick(seed, 6, 5)];
    const Quantiser quantisers[] = {Quantiser::auto32, Quantiser::auto16, Quantiser::fixed};
    config.quantiser = quantisers[pick(seed, 7, kind.fixed ? 3 : 2)];
    if (config.quantiser == Quantiser::auto16 && config.blocks > 64) config.quantiser = Quantiser::auto32;
    const uint32_t segments[] = {32, 64, 104, 4096}, pieces[] = {3, 10, 32 * 1024};
    config.segment_bytes = segments[pick(seed, 8, 4)];
    config.piece_words = pieces[pick(seed, 9, 3)];
    config.buckets = {90, 7, 300, 1};
    config.steps = 2;
    if (n > 16) {
        config.buckets = {700, 5};
        config.segment_bytes = 1432;
    }
    SCOPED_TRACE(fmt::format("{} n = {} m = {} s = {} r = {} servers = {} {} B = {} segment {} seed {}", kind.name, n, config.m, config.s,
                             config.r, config.servers, quantiser_name(config.quantiser), config.blocks, config.segment_bytes, seed));
    World world(config);
    for (Rank r = 0; r < n; ++r) world.spy(r).words = (n + 63) / 64;
    Status status = world.run();
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(world.wrong(), 0u);
    EXPECT_TRUE(world.agree());
    const CostWire wire{stream_overhead, CostWire::Multicast::copies};
    const Cost most = cost_of(kind.name, world.exchange_config(0), n, wire);
    for (Rank r = 0; r < n; ++r) {
        const Cost cost = world.cost(r, wire);
        EXPECT_LE(cost.sent, most.sent);
        EXPECT_LE(cost.received, most.received);
        if (config.s > 0) continue;   // ranks that may be missing can send more and end before the last packets arrive
        // Without multicast a Send to several ranks is a copy for each.
        const uint64_t words = kind.datagrams ? world.spy(r).once_bytes : world.spy(r).words_bytes;
        EXPECT_EQ(cost.words_sent * config.steps, static_cast<double>(words)) << r;
        EXPECT_EQ(cost.words_received * config.steps, static_cast<double>(world.spy(r).taken_bytes)) << r;
        EXPECT_EQ(cost.sent * config.steps, static_cast<double>(world.simulator().bytes_sent(r))) << r;
        EXPECT_EQ(cost.received * config.steps, static_cast<double>(world.simulator().bytes_received(r))) << r;
    }
}

TEST(Cost, IsWhatTheSimulatorCounts) {
    uint64_t seed = 1;
    for (const ExchangeKind& kind : exchange_kinds())
        for (uint32_t n : {2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 11u, 12u, 16u, 32u}) {
            expect_counted(seed++, kind, n);
            if (HasFailure()) return;
        }
}

TEST(Cost, ManyAreWhatTheSimulatorCounts) {
    for_seeds(15, [](uint64_t seed) {
        for (const ExchangeKind& kind : exchange_kinds()) expect_counted(seed + 100, kind, 2 + pick(seed, 20, 8));
    });
}

}   // namespace
}   // namespace gradcast
