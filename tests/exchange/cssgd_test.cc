// cssgd compared with plain sums and with the paper: placement, decodability, bytes.
#include <algorithm>
#include <numeric>
#include <set>

#include "tests/exchange/one.h"
#include "tests/exchange/world.h"
#include "tests/sim/seeds.h"

namespace gradcast {
namespace {

WorldConfig world_of(uint64_t seed, uint32_t ranks, uint32_t r, Quantiser quantiser) {
    WorldConfig config;
    config.sim.seed = seed;
    config.sim.ranks = ranks;
    config.sim.compute_async = pick(seed, 1, 2);
    config.sim.jitter_us = pick(seed, 2, 200);
    config.sim.batch_us = pick(seed, 3, 20);
    if (pick(seed, 4, 2)) config.sim.break_per_packet = 0.3 / (10.0 + ranks * choose(ranks, r));
    if (pick(seed, 5, 3) == 0) config.sim.compute_ns_per_word = 500;
    config.exchange = "cssgd";
    config.r = r;
    config.quantiser = quantiser;
    const uint32_t super_blocks = choose(ranks, r), blocks[] = {super_blocks, super_blocks + 3, 2 * super_blocks};
    config.blocks = blocks[pick(seed, 6, 3)];
    if (quantiser == Quantiser::auto16) config.blocks = std::max(super_blocks, std::min(config.blocks, 64u));
    const uint32_t segments[] = {16, 64, 104, 4096};
    config.segment_bytes = segments[pick(seed, 7, 4)];
    config.buckets = {20, 40, 7, 1};
    config.steps = 4;
    return config;
}

void expect_exact_cssgd(const WorldConfig& config) {
    World world(config);
    const uint32_t n = config.sim.ranks, r = config.r;
    const uint64_t seed = config.sim.seed;
    const std::string what = fmt::format("n = {} r = {} {} B = {} segment {} seed {}", n, r, quantiser_name(config.quantiser),
                                         config.blocks, config.segment_bytes, seed);
    if (pick(seed, 8, 2)) world.simulator().slow(pick(seed, 9, n), 1 + pick(seed, 10, 20));
    Status status = world.run();
    ASSERT_TRUE(status.ok()) << status.what << ": " << what;
    EXPECT_EQ(world.wrong(), 0u) << what;
    EXPECT_TRUE(world.agree()) << what;
    uint64_t words = 0;
    for (uint64_t count : config.buckets) words += (count + r - 1) / r;
    const Word word = world.exchange(0).plan(config.steps, 0).word;
    if (config.quantiser == Quantiser::fixed && config.weights.empty()) {
        EXPECT_EQ(word, config.blocks == choose(n, r) ? Word::i32 : Word::i64) << what;
    }
    for (Rank k = 0; k < n; ++k) {
        EXPECT_EQ(world.done(k), config.steps) << what;
        const uint64_t bytes = choose(n - 1, r) * words * word_bytes(word);
        EXPECT_EQ(world.cost(k).words_sent, static_cast<double>(bytes)) << what;
        EXPECT_EQ(world.cost(k).words_received, static_cast<double>(bytes * r)) << what;
        // The spy counts a packet once for each of its r receivers.
        EXPECT_EQ(world.spy(k).words_bytes, bytes * r * config.steps) << what;
        EXPECT_EQ(world.spy(k).drops, 0u) << what;
    }
}

TEST(Cssgd, SumsAreExactForEveryNumberOfNodes) {
    uint64_t seed = 1;
    for (uint32_t n = 1; n <= 8; ++n)
        for (uint32_t r = 1; r <= n; ++r)
            for (Quantiser quantiser : {Quantiser::fixed, Quantiser::auto32, Quantiser::auto16}) {
                if (quantiser == Quantiser::auto16 && choose(n, r) > 64) continue;
                expect_exact_cssgd(world_of(seed++, n, r, quantiser));
                if (::testing::Test::HasFailure()) return;
            }
}

TEST(SlowCssgd, SumsAreExactForManyNodes) {
    uint64_t seed = 1;
    const Quantiser quantisers[] = {Quantiser::fixed, Quantiser::auto32};
    auto exact = [&](uint32_t n, uint32_t r) {
        ++seed;
        WorldConfig config = world_of(seed, n, r, choose(n, r) <= 64 && seed % 3 == 0 ? Quantiser::auto16 : quantisers[seed % 2]);
        config.buckets = {13};
        config.steps = 1;
        config.spend_us = 0;
        expect_exact_cssgd(config);
    };
    for (uint32_t n = 9; n <= 12; ++n)
        for (uint32_t r = 1; r <= n; ++r) exact(n, r);
    for (auto [n, r] : {std::pair{16u, 2u}, {16u, 3u}, {16u, 15u}, {32u, 1u}, {32u, 2u}, {32u, 31u}, {64u, 1u}, {64u, 63u}, {64u, 64u}})
        exact(n, r);
}

TEST(Cssgd, SumsAreExactInAnyOrder) {
    for_seeds(40, [](uint64_t seed) {
        const uint32_t n = 2 + pick(seed, 20, 6), r = 1 + pick(seed, 21, n);
        const Quantiser quantisers[] = {Quantiser::fixed, Quantiser::auto32, Quantiser::auto16};
        WorldConfig config = world_of(seed + 1000, n, r, quantisers[pick(seed, 22, 3)]);
        if (pick(seed, 23, 2))
            for (Rank k = 0; k < n; ++k) config.weights.push_back(0.1 + pick(seed, 24 + k, 100));
        expect_exact_cssgd(config);
    });
}

// With weights every super-block is one block: its words are as narrow as without weights.
TEST(Cssgd, EqualWeightsAreNone) {
    WorldConfig config = world_of(7, 4, 2, Quantiser::fixed);
    config.blocks = 6;
    config.weights = {1, 1, 1, 1};
    expect_exact_cssgd(config);
}

TEST(Cssgd, SumsAreExactOverLossyDatagrams) {
    for_seeds(30, [](uint64_t seed) {
        const uint32_t n = 2 + pick(seed, 40, 5), r = 1 + pick(seed, 41, n);
        const Quantiser quantisers[] = {Quantiser::fixed, Quantiser::auto32, Quantiser::auto16};
        WorldConfig config = world_of(seed + 2000, n, r, quantisers[pick(seed, 42, 3)]);
        config.bulk = true;
        config.sim.break_per_packet = 0;
        config.segment_bytes = 384;
        config.buckets = {3000, 700, 1};
        const double losses[] = {0, 0.01, 0.1, 0.2};
        config.sim.loss = losses[pick(seed, 43, 4)];
        config.sim.duplicate = 0.02;
        expect_exact_cssgd(config);
    });
}

// With two holders both are named, with three the one that differs.
TEST(Cssgd, OneFlippedBitIsFoundAndItsHoldersAreNamed) {
    for (uint32_t r : {2u, 3u})
        for (Rank faulty : {0u, 2u}) {
            WorldConfig config = world_of(5, 5, r, Quantiser::auto32);
            config.faulty = faulty;
            World world(config);
            const Status status = world.run();
            EXPECT_EQ(status.code, Code::conflict);
            EXPECT_NE(std::string(status.what).find(fmt::format("rank {0} (node{0})", faulty)), std::string::npos) << status.what;
            for (Rank k = 0; k < 5; ++k) EXPECT_LE(world.done(k), 2u);
            const Conflict* conflict = nullptr;
            for (Rank k = 0; k < 5 && !conflict; ++k) conflict = world.exchange(k).conflict(2);
            ASSERT_TRUE(conflict);
            EXPECT_TRUE(conflict->ranks[1] == faulty || (r == 2 && conflict->ranks[0] == faulty));
            EXPECT_EQ(conflict->outvoted, r == 3);
            EXPECT_TRUE(conflict->spoiled);
            EXPECT_NE(conflict->digests[0], conflict->digests[1]);
            EXPECT_EQ(conflict->bucket, 0u);
        }
}

TEST(Cssgd, ADifferentStateIsNamed) {
    WorldConfig config = world_of(7, 4, 2, Quantiser::fixed);
    config.other_state = 3;
    World world(config);
    const Status status = world.run();
    EXPECT_EQ(status.code, Code::conflict);
    EXPECT_NE(std::string(status.what).find("rank 3 (node3)"), std::string::npos) << status.what;
    EXPECT_NE(std::string(status.what).find("different states"), std::string::npos) << status.what;
}

TEST(Cssgd, ALostRankIsNamed) {
    WorldConfig config = world_of(3, 5, 2, Quantiser::auto32);
    config.steps = 50;
    config.sim.lost_after_us = 100'000;
    World world(config);
    EXPECT_EQ(world.exchange(0).losses_tolerated(), 0u);
    world.simulator().kill(2, 2'000);
    const Status status = world.run();
    EXPECT_EQ(status.code, Code::peer_lost) << status.what;
    EXPECT_NE(std::string(status.what).find("rank 2"), std::string::npos) << status.what;
    EXPECT_NE(std::string(status.what).find("missing"), std::string::npos) << status.what;
}

TEST(Cssgd, NothingIsAllocatedInASteadyState) {
    WorldConfig config = world_of(3, 5, 3, Quantiser::auto32);
    config.steps = 20;
    World world(config);
    allocations = 0;
    for (Rank k = 0; k < 5; ++k) world.spy(k).quiet_after = 1;
    ASSERT_TRUE(world.run().ok());
    EXPECT_EQ(allocations, 0u);
    for (Rank k = 0; k < 5; ++k) EXPECT_GT(world.spy(k).batches, 100u);
}

// ---- Algorithm 2 -----------------------------------------------------------------------------------------------------------------

struct Placed {
    Layout layout = layout_make({10});
    std::unique_ptr<Exchange> exchange;
    View view;
    Arena arena;
    Status installed;
    Placed(uint32_t n, uint32_t r, uint32_t blocks, std::vector<double> weights = {}, Quantiser quantiser = Quantiser::auto32,
           uint64_t elements = 10) {
        layout = layout_make({elements});
        for (Rank k = 0; k < n; ++k) view.members.push_back({"node" + std::to_string(k), {}, 1});
        const ExchangeKind* kind = nullptr;
        EXPECT_TRUE(exchange_find("cssgd", quantiser, &kind).ok());
        EXPECT_TRUE(kind->datagrams);
        exchange = kind->create(
            {.layout = &layout, .self = n - 1, .blocks = blocks, .quantiser = quantiser, .r = r, .weights = std::move(weights)});
        installed = exchange->install(view, arena);
        samples.resize(blocks, 1);
    }
    Placement place() { return exchange->place(view, samples); }
    std::vector<uint32_t> samples;
};

TEST(Cssgd, PlacementIsThePapers) {
    EXPECT_EQ(Placed(4, 2, 6).place().holders, (std::vector<std::vector<Rank>>{{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}}));
    EXPECT_EQ(Placed(4, 2, 6).place().bounds, (std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6}));
    for (uint32_t n = 1; n <= 10; ++n)
        for (uint32_t r = 1; r <= n; ++r) {
            const uint32_t super_blocks = choose(n, r), blocks = super_blocks + n;
            Placed placed(n, r, blocks);
            ASSERT_TRUE(placed.installed.ok()) << placed.installed.what;
            const Placement placement = placed.place();
            ASSERT_EQ(placement.holders.size(), super_blocks);
            EXPECT_TRUE(std::is_sorted(placement.holders.begin(), placement.holders.end()));
            EXPECT_EQ(std::set(placement.holders.begin(), placement.holders.end()).size(), super_blocks);
            for (uint32_t q = 0; q <= super_blocks; ++q) EXPECT_EQ(placement.bounds[q], uint64_t{q} * blocks / super_blocks);
            EXPECT_EQ(placed.exchange->targets(), choose(n - 1, r - 1));
            // The rank's targets: one for each of its super-blocks, in order.
            uint32_t target = 0;
            for (uint32_t q = 0; q < super_blocks; ++q) {
                const std::vector<Rank>& holders = placement.holders[q];
                EXPECT_EQ(std::set(holders.begin(), holders.end()).size(), r);
                if (holders.back() != n - 1) continue;
                for (uint32_t block = placement.bounds[q]; block < placement.bounds[q + 1]; ++block)
                    EXPECT_EQ(placed.exchange->target_of(block), target);
                ++target;
            }
        }
}

TEST(Cssgd, WeightsShareOutTheBlocks) {
    // Weights that can be met exactly: a rank's number of blocks is proportional to its weight.
    const std::vector<double> weights = {3, 4, 5, 6, 6};
    for (uint32_t r : {1u, 2u, 3u}) {
        Placed placed(5, r, 60'000, weights);
        ASSERT_TRUE(placed.installed.ok()) << placed.installed.what;
        const Placement placement = placed.place();
        for (Rank k = 0; k < 5; ++k) EXPECT_NEAR(placement.blocks_of(k).size(), 60'000 * r * weights[k] / 24, 10) << r;
    }
    // A rank with a large weight gets its maximum, one with a tiny weight few, and no block is lost.
    for (const std::vector<double>& extreme : {std::vector<double>{1e9, 1, 1, 1}, {1, 1e-9, 1, 1}, {1e-300, 1, 1, 1e-300}}) {
        Placed placed(4, 2, 100, extreme);
        const Placement placement = placed.place();
        EXPECT_EQ(placement.bounds.front(), 0u);
        EXPECT_EQ(placement.bounds.back(), 100u);
        EXPECT_TRUE(std::is_sorted(placement.bounds.begin(), placement.bounds.end()));
        for (Rank a = 0; a < 4; ++a)
            for (Rank b = 0; b < 4; ++b)
                EXPECT_TRUE(extreme[a] <= extreme[b] || placement.blocks_of(a).size() >= placement.blocks_of(b).size());
    }
    for (uint32_t n = 1; n <= 8; ++n)
        for (uint32_t r = 1; r <= n; ++r)
            EXPECT_EQ(Placed(n, r, 100, std::vector<double>(n, 0.3)).place().bounds, Placed(n, r, 100).place().bounds);
}

TEST(Cssgd, WhatCannotBeIsRefusedByName) {
    auto said = [](const Placed& placed) {
        EXPECT_NE(placed.installed.code, Code::ok);
        return std::string(placed.installed.what);
    };
    EXPECT_EQ(said(Placed(8, 3, 55)), "cssgd with r = 3 on 8 nodes needs 56 blocks at least, and there are 55: set blocks, or another r");
    EXPECT_TRUE(Placed(8, 3, 56).installed.ok());
    EXPECT_EQ(said(Placed(64, 8, 65536)),
              "cssgd with r = 8 on 64 nodes needs more than 65536 blocks at least, and there are 65536: set blocks, or another r");
    EXPECT_EQ(said(Placed(3, 4, 8)), "cssgd: r = 4 nodes cannot share a block of 3 nodes: r is 1 to 3");
    EXPECT_EQ(said(Placed(3, 0, 8)), "cssgd: r = 0 nodes cannot share a block of 3 nodes: r is 1 to 3");
    EXPECT_NE(said(Placed(100, 2, 8000)).find("more parts than a packet can name (65536)"), std::string::npos);
    EXPECT_NE(said(Placed(8, 4, 70, {}, Quantiser::auto16)).find("auto16 adds at most 64 blocks"), std::string::npos);
    EXPECT_NE(said(Placed(3, 2, 8, {1, 2})).find("2 weights for 3 nodes"), std::string::npos);
    for (double weight : {0.0, -1.0, std::nan(""), HUGE_VAL})
        EXPECT_NE(said(Placed(3, 2, 8, {1, weight, 2})).find("the weight of rank 1 is"), std::string::npos);
    EXPECT_NE(said(Placed(8, 4, 70, {}, Quantiser::auto32, uint64_t{1} << 33)).find("keeps 70 gradients for each of 3 steps"),
              std::string::npos);
    EXPECT_FALSE(Placed(3, 4, 8).place().holders.empty());   // a direct call is harmless
}

// ---- packets from outside --------------------------------------------------------------------------------------------------------

TEST(Cssgd, EveryFieldOfAPacketIsChecked) {
    One one("cssgd", 1, 4, 6);
    one.ready(0), one.ready(1);
    // Rank 1 of 4 with r = 2 gets parts 0, 1 and 3 of the 3-subsets 012 013 023 123; 150 of 300 words from each of the other two, in
    // segments of 16 words.  Records: three super-blocks and two maxima, two packets.
    const Packet words = packet_make(PacketType::words, 0, 0, 1, 0, 0), last = packet_make(PacketType::words, 0, 0, 1, 0, 9);
    const Packet record = packet_make(PacketType::record, 0, 0, 1, 0, 0), rest = packet_make(PacketType::record, 0, 0, 1, 0, 1);
    auto refused = [&](const Packet& packet, uint64_t bytes, const char* why) {
        const bool foreign =
            packet.type == PacketType::words && body_of<DataBody>(packet).part.get() == 2;   // 023, which does not contain this rank
        one.refused(packet, bytes, why, foreign ? Landing::foreign : Landing::drop);
    };
    for (auto [valid, bytes] :
         {std::pair{words, uint64_t{64}}, std::pair{last, uint64_t{24}}, std::pair{record, uint64_t{64}}, std::pair{rest, uint64_t{48}}}) {
        auto with = [valid = valid](auto change) { return changed(valid, change); };
        refused(valid, bytes - 1, "a byte less");
        refused(valid, bytes + 1, "a byte more");
        refused(valid, bytes + 4, "a word more");
        refused(valid, 0, "nothing");
        Packet huge = valid;
        EXPECT_EQ(one.exchange->land(huge, uint64_t{1} << 40, &huge.payload), Landing::drop);
        refused(with([](Packet& p, DataBody&) { p.view = 2; }), bytes, "view");
        refused(with([](Packet& p, DataBody&) { p.sender = 1; }), bytes, "own");
        refused(with([](Packet& p, DataBody&) { p.sender = 4; }), bytes, "sender out of range");
        refused(with([](Packet& p, DataBody&) { p.sender = ~0u; }), bytes, "sender far out of range");
        if (valid.type == PacketType::words) refused(with([](Packet& p, DataBody&) { p.sender = 3; }), bytes, "not in the set");
        for (uint32_t bucket : {2u, 65535u}) refused(with([&](Packet&, DataBody& b) { b.bucket.set(bucket); }), bytes, "bucket");
        if (bytes < 64 || valid.type == PacketType::words) refused(with([](Packet&, DataBody& b) { b.bucket.set(0); }), bytes, "its size");
        for (uint32_t part : {2u, 4u, 65535u}) refused(with([&](Packet&, DataBody& b) { b.part.set(part); }), bytes, "part");
        for (uint32_t index : {10u, 0xFFFFFFu}) refused(with([&](Packet&, DataBody& b) { b.index.set(index); }), bytes, "index");
        for (int phase : {0, 2, 3, 4, 255})
            refused(with([&](Packet&, DataBody& b) { b.phase = static_cast<uint8_t>(phase); }), bytes, "phase");
        refused(with([&](Packet&, DataBody& b) { b.reserved = 1; }), bytes, "reserved");
        for (uint32_t step : {6u, 7u, 300u, ~0u}) refused(with([&](Packet&, DataBody& b) { b.step.set(step); }), bytes, "step");
        for (PacketType type : {PacketType::ack, PacketType::key, PacketType::job, PacketType::mail, PacketType{}, PacketType{200}})
            refused(with([&](Packet& p, DataBody&) { p.type = type; }), bytes, "type");
        EXPECT_EQ(one.deliver(with([](Packet&, DataBody& b) { b.step.set(3); }), bytes), Landing::later);   // its slot is still in use
    }
    // The genuine packets are then taken, once and in any order.
    EXPECT_EQ(one.deliver(last, 24), Landing::place);
    EXPECT_EQ(one.deliver(words, 64), Landing::place);
    EXPECT_EQ(one.deliver(rest, 48, 0), Landing::place);
    EXPECT_EQ(one.deliver(record, 64, 0), Landing::place);
    refused(words, 64, "twice");
    refused(last, 24, "twice");
    refused(record, 64, "twice");
    refused(rest, 48, "twice");
}

TEST(Cssgd, NoiseDoesNoHarm) {
    One one("cssgd", 1, 4, 7);
    one.ready(0);
    for (uint32_t i = 0; i < 200'000; ++i) {
        auto a = random4(Purpose::test, 4, i, 0), b = random4(Purpose::test, 4, i, 1);
        Packet packet =
            packet_make(static_cast<PacketType>(a[0] % 8), a[1] % 5, a[2] % 5, a[3] % 3, b[0] % 5, b[1] % 12, static_cast<Phase>(b[2] % 4));
        const uint64_t sizes[] = {64, 24, 20, 16, 28, 12, 4, 8};
        one.deliver(packet, sizes[b[3] % 8], static_cast<uint8_t>(b[3] >> 8));
        const std::vector<Compute> computes = one.actions.computes;
        for (const Compute& compute : computes) {
            one.on({Event::Computed{compute.ticket}});
        }
    }
    EXPECT_GT(one.placed, 0u);
    EXPECT_LT(one.placed, 1000u);   // a step hands out each place once, and no step is released
}

TEST(Cssgd, ExplainsWhatIsMissing) {
    One one("cssgd", 1, 4, 6);
    one.ready(1);
    EXPECT_EQ(one.deliver(packet_make(PacketType::words, 0, 0, 1, 0, 0), 64), Landing::place);
    one.on(command_event<ExchangeCommand>({ExchangeCommand::Explain{}}));
    ASSERT_EQ(one.actions.completions.size(), 1u);
    EXPECT_STREQ(one.actions.completions[0].status.what,
                 "step 1, bucket 0: not computed here, no record of ranks 0, 1, 2, 3; "
                 "6 of 6 coded segments are missing: part 0 lacks 16 bytes from rank 0");
}

}   // namespace
}   // namespace gradcast
