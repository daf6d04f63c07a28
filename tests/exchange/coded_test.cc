// multicast, ps, coded and coded-rs against plain sums.
#include "tests/exchange/world.h"
#include "tests/sim/seeds.h"

namespace gradcast {
namespace {

uint32_t pick(uint64_t seed, uint32_t what, uint32_t count) { return random4(Purpose::test, seed, 78, what)[0] % count; }

/// What a seed can choose is chosen by it.
WorldConfig world_of(uint64_t seed, const char* exchange, uint32_t ranks, uint32_t m, uint32_t s) {
    WorldConfig config;
    config.sim.seed = seed, config.sim.ranks = ranks;
    config.sim.compute_async = pick(seed, 1, 2);
    config.sim.jitter_us = pick(seed, 2, 200);
    config.sim.batch_us = pick(seed, 3, 20);
    if (pick(seed, 4, 2)) config.sim.break_per_packet = 0.3 / (10.0 + ranks);
    if (pick(seed, 5, 3) == 0) config.sim.compute_ns_per_word = 500;
    config.exchange = exchange, config.m = m, config.s = s;
    config.quantiser = pick(seed, 6, 2) ? Quantiser::auto16 : Quantiser::auto32;
    const uint32_t blocks[] = {8, ranks, 1, 2 * ranks, ranks + 3, 13};
    config.blocks = blocks[pick(seed, 7, 6)];
    const uint32_t segments[] = {16, 64, 104, 4096}, pieces[] = {3, 10, 32 * 1024};
    config.segment_bytes = segments[pick(seed, 8, 4)], config.piece_words = pieces[pick(seed, 9, 3)];
    config.buckets = {20, 90, 7, 1}, config.steps = 4;
    return config;
}

void expect_exact(const WorldConfig& config) {
    World world(config);
    const uint64_t seed = config.sim.seed;
    const std::string what = fmt::format("{} n = {} m = {} s = {} {} B = {} segment {} piece {}", config.exchange, config.sim.ranks, config.m,
                                         config.s, quantiser_name(config.quantiser), config.blocks, config.segment_bytes, config.piece_words);
    if (pick(seed, 8, 2)) world.simulator().slow(pick(seed, 9, config.sim.ranks), 1 + pick(seed, 10, 20));
    for (Rank r = 0; r < config.sim.ranks; ++r) world.spy(r).words = (config.sim.ranks + 63) / 64;
    Status status = world.run();
    ASSERT_TRUE(status.ok()) << status.what << ": " << what;
    EXPECT_EQ(world.wrong(), 0u) << what;
    EXPECT_TRUE(world.agree()) << what;
    for (Rank r = 0; r < config.sim.ranks; ++r) EXPECT_EQ(world.done(r), config.steps) << what;
}

TEST(Coded, SumsAreExactForEveryCode) {
    uint64_t seed = 1;
    for (uint32_t n = 1; n <= 12; ++n)
        for (uint32_t m = 1; m <= n; ++m)
            for (uint32_t s = 0; m + s <= n; ++s)
                for (const char* exchange : {"coded", "coded-rs"}) {
                    expect_exact(world_of(seed++, exchange, n, m, s));
                    if (::testing::Test::HasFailure()) return;
                }
}

}   // namespace
}   // namespace gradcast
