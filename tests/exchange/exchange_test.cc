#include "tests/exchange/one.h"
#include "tests/exchange/world.h"
#include "tests/sim/seeds.h"
#include "transport/code/kernels.h"
#include "transport/wire/packet.h"

namespace gradcast {
namespace {

/// A world with all options drawn from the seed.
WorldConfig world_of(uint64_t seed, uint32_t ranks, const char* exchange, Quantiser quantiser) {
    WorldConfig config;
    config.sim.seed = seed;
    config.sim.ranks = ranks;
    config.sim.compute_async = pick_exchange(seed, 1, 2);
    config.sim.jitter_us = pick_exchange(seed, 2, 200);
    config.sim.batch_us = pick_exchange(seed, 3, 20);
    if (pick_exchange(seed, 4, 2)) config.sim.break_per_packet = 0.3 / (10.0 + ranks);
    if (pick_exchange(seed, 5, 3) == 0) config.sim.compute_ns_per_word = 500;
    config.exchange = exchange;
    config.quantiser = quantiser;
    const uint32_t blocks[] = {8, ranks, 1, 2 * ranks, ranks + 3, 13};
    config.blocks = std::min(blocks[pick_exchange(seed, 6, 6)], quantiser == Quantiser::auto16 ? 64 : ~0u);
    const uint32_t segments[] = {16, 64, 104, 4096};
    config.segment_bytes = segments[pick_exchange(seed, 7, 4)];
    config.buckets = {20, 90, 7, 1};
    config.steps = 6;
    if (ranks > 12) {
        config.segment_bytes = std::max(config.segment_bytes, 64u);
        config.buckets = {33, 5};
        config.steps = 4;
        config.spend_us = 0;
    }
    return config;
}

void expect_exact(const WorldConfig& config, uint64_t seed) {
    World world(config);
    if (pick_exchange(seed, 8, 2)) world.simulator().slow(pick_exchange(seed, 9, config.sim.ranks), 1 + pick_exchange(seed, 10, 20));
    for (Rank r = 0; r < config.sim.ranks; ++r) world.spy(r).words = (config.sim.ranks + 63) / 64;
    Status status = world.run();
    ASSERT_TRUE(status.ok()) << status.what << " n = " << config.sim.ranks << " B = " << config.blocks << " segment "
                             << config.segment_bytes;
    EXPECT_EQ(world.wrong(), 0u);
    EXPECT_TRUE(world.agree());
    const ExchangeKind* kind;
    ASSERT_TRUE(exchange_find(config.exchange, config.quantiser, &kind).ok());
    for (Rank r = 0; r < config.sim.ranks; ++r) {
        EXPECT_EQ(world.done(r), config.steps);
        EXPECT_EQ(world.spy(r).drops, 0u);
        const uint64_t bytes = kind->datagrams ? world.spy(r).once_bytes : world.spy(r).words_bytes;
        EXPECT_EQ(static_cast<double>(bytes), world.cost(r).words_sent * config.steps);
    }
}

using Param = std::pair<const char*, Quantiser>;
const auto params =
    ::testing::Values(Param{"ring", Quantiser::auto32}, Param{"ring", Quantiser::auto16}, Param{"unicast", Quantiser::auto32},
                      Param{"unicast", Quantiser::auto16}, Param{"unicast", Quantiser::fixed}, Param{"multicast", Quantiser::auto16},
                      Param{"multicast", Quantiser::fixed}, Param{"ps", Quantiser::auto32}, Param{"ps", Quantiser::fixed},
                      Param{"coded", Quantiser::auto32}, Param{"coded-rs", Quantiser::auto16});
std::string param_name(const ::testing::TestParamInfo<Param>& each) {
    std::string name = std::string(each.param.first) + "_" + quantiser_name(each.param.second);
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
}

class Sums : public ::testing::TestWithParam<Param> {};
INSTANTIATE_TEST_SUITE_P(All, Sums, params, param_name);
class ManyRanks : public ::testing::TestWithParam<Param> {};
INSTANTIATE_TEST_SUITE_P(Slow, ManyRanks, params, param_name);

TEST_P(ManyRanks, SumsAreExact) {
    for_seeds(8, [&](uint64_t seed) {   // GC_SEEDS=64 covers every number of ranks
        expect_exact(world_of(seed, static_cast<uint32_t>(seed * 37 % 64 + 1), GetParam().first, GetParam().second), seed);
    });
}

TEST_P(Sums, AreExact) {
    for_seeds(36, [&](uint64_t seed) {
        expect_exact(world_of(seed + 1000, static_cast<uint32_t>(seed % 9 + 1), GetParam().first, GetParam().second), seed);
    });
}

TEST_P(Sums, OneFlippedBitIsSeen) {
    WorldConfig config = world_of(5, 4, GetParam().first, GetParam().second);
    config.flip_seed = 6;
    World world(config);
    ASSERT_TRUE(world.run().ok());
    EXPECT_GT(world.wrong(), 0u);   // the comparison with the reference can fail,
    EXPECT_TRUE(world.agree());     // and the ranks still agree
}

TEST_P(Sums, ADifferentStateIsNamed) {
    for (Rank odd : {0u, 3u}) {
        WorldConfig config = world_of(7, 5, GetParam().first, GetParam().second);
        config.other_state = odd;
        World world(config);
        Status status = world.run();
        EXPECT_EQ(status.code, Code::conflict);
        std::string what = status.what;
        EXPECT_NE(what.find("step 3: "), std::string::npos) << what;
        EXPECT_NE(what.find(fmt::format("rank {0} (node{0})", odd)), std::string::npos) << what;
        EXPECT_NE(what.find("different states"), std::string::npos) << what;
        for (Rank r = 0; r < 5; ++r) EXPECT_LE(world.done(r), 2u);
    }
}

TEST_P(Sums, ALostRankIsNamed) {
    WorldConfig config = world_of(3, 5, GetParam().first, GetParam().second);
    config.steps = 50;
    config.sim.lost_after_us = 100'000;
    World world(config);
    world.simulator().kill(2, 2'000);
    Status status = world.run();
    EXPECT_EQ(status.code, Code::peer_lost) << status.what;
    EXPECT_NE(std::string(status.what).find("rank 2"), std::string::npos) << status.what;
    EXPECT_NE(std::string(status.what).find("missing"), std::string::npos) << status.what;
}

TEST_P(Sums, NothingIsAllocatedInASteadyState) {
    WorldConfig config = world_of(3, 4, GetParam().first, GetParam().second);
    config.steps = 30;
    World world(config);
    allocations = 0;
    for (Rank r = 0; r < 4; ++r) world.spy(r).quiet_after = 1;   // the first batch grows a driver's Actions, which keep their memory
    ASSERT_TRUE(world.run().ok());
    EXPECT_EQ(allocations, 0u);
    for (Rank r = 0; r < 4; ++r) EXPECT_GT(world.spy(r).batches, 100u);   // batches were checked
}

TEST(Exchange, KindsByName) {
    const ExchangeKind* kind = nullptr;
    EXPECT_STREQ(exchange_find("star", Quantiser::auto32, &kind).what,
                 "exchange 'star' does not exist; one of: ring, unicast, multicast, ps, coded-rs, coded, cssgd");
    EXPECT_STREQ(exchange_find("ring", Quantiser::fixed, &kind).what, "ring does not allow the quantiser fixed: use auto32");
    ASSERT_TRUE(exchange_find("unicast", Quantiser::fixed, &kind).ok());
    EXPECT_STREQ(kind->name, "unicast");
}

TEST(Exchange, PlacesEachBlockOnce) {
    Layout layout = layout_make({10});
    for (uint32_t n : {1u, 2u, 3u, 8u, 11u, 64u})
        for (uint32_t blocks : {1u, 2u, 8u, 10u, 64u, 100u}) {
            View view;
            view.members.resize(n);
            std::vector<uint32_t> samples(blocks, 3);
            auto exchange = exchange_kinds()[0].create({.layout = &layout, .blocks = blocks, .segment_bytes = 64});
            Placement placement = exchange->place(view, samples);
            std::vector<uint32_t> all;
            for (Rank r = 0; r < n; ++r) {
                std::vector<uint32_t> own = placement.blocks_of(r);
                EXPECT_EQ(own.size(), (r + 1) * blocks / n - r * blocks / n);
                all.insert(all.end(), own.begin(), own.end());
            }
            ASSERT_EQ(all.size(), blocks);
            for (uint32_t b = 0; b < blocks; ++b) EXPECT_EQ(all[b], b);
        }
}

TEST(Exchange, BytesAreThoseOfTheSpec) {
    Layout layout = layout_make({8 * 1000, 8 * 300});
    auto bounds = [&](const char* name, Quantiser quantiser, uint32_t blocks) {
        const Cost cost = cost_of_rank(name, {.layout = &layout, .self = 3, .blocks = blocks, .quantiser = quantiser}, 8, {});
        return std::pair(cost.words_sent, cost.words_received);
    };
    using Pair = std::pair<double, double>;
    const uint64_t G = layout.elements * 4;
    EXPECT_EQ(bounds("ring", Quantiser::auto32, 8), Pair(2 * G * 7 / 8, 2 * G * 7 / 8));
    EXPECT_EQ(bounds("unicast", Quantiser::auto32, 8), Pair(7 * G, 7 * G));
    EXPECT_EQ(bounds("unicast", Quantiser::fixed, 8), Pair(7 * G, 7 * G));            // one block a rank: int32
    EXPECT_EQ(bounds("unicast", Quantiser::fixed, 16), Pair(2 * 7 * G, 2 * 7 * G));   // two: int64
    EXPECT_EQ(bounds("unicast", Quantiser::fixed, 12), Pair(2 * 7 * G, 10 * G));      // ranks 1, 3, 5, 7 hold two, the others one
    EXPECT_EQ(bounds("unicast", Quantiser::fixed, 2), Pair(7 * G, G));                // ranks 3 and 7 hold one, the others none
}

// Bucket 0 is sent while later buckets are computed, and a segment is forwarded before its part is complete.
TEST(Exchange, OverlapsTheBackwardPassAndPipelinesSegments) {
    for (const char* name : {"ring", "unicast"}) {
        WorldConfig config;
        config.exchange = name;
        config.sim.ranks = 3;
        config.sim.trace = true;
        config.steps = 1;
        config.segment_bytes = 400;
        config.buckets = {3000, 3000};
        config.sim.rate_bytes_per_s = 4e6;   // a segment takes 100 us
        config.spend_us = 2000;
        World world(config);
        ASSERT_TRUE(world.run().ok());
        std::map<Rank, uint64_t> delivered;
        std::map<Rank, std::vector<uint64_t>> passed;   // number of delivered packets of bucket 0 at the time of each send
        std::map<Rank, uint32_t> sent_before_last_ready, sent;
        for (const SimTrace& line : world.simulator().trace()) {
            if (line.what == SimTrace::What::deliver && line.type == PacketType::words && line.bucket == 0) ++delivered[line.rank];
            if (line.what == SimTrace::What::send && line.type == PacketType::words && line.bucket == 0) {
                ++sent[line.rank];
                passed[line.rank].push_back(delivered[line.rank]);
            }
            if (line.what == SimTrace::What::ready && line.bucket == 1) sent_before_last_ready[line.rank] = sent[line.rank];
        }
        for (Rank r = 0; r < 3; ++r) {
            EXPECT_GT(sent_before_last_ready[r], 0u) << name << " rank " << r;
            if (std::string(name) != "ring") continue;
            // 10 segments a part: each part's segments are sent before all 10 of the part have arrived.
            ASSERT_EQ(passed[r].size(), 40u);
            EXPECT_LT(passed[r][10], 10u) << "rank " << r;
        }
    }
}

// Adding is slower than the link, so peers wait for one of the two buffers; the sums are still exact.
TEST(Exchange, UnicastHoldsItsPeersBackWhileItAdds) {
    WorldConfig config;
    config.exchange = "unicast";
    config.sim.ranks = 4;
    config.sim.compute_async = true;
    config.sim.compute_ns_per_word = 10'000;
    World world(config);
    Status status = world.run();
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(world.wrong(), 0u);
    uint64_t laters = 0;
    for (Rank r = 0; r < 4; ++r) laters += world.spy(r).laters;
    EXPECT_GT(laters, 0u);
}

// ---- packets from hell -----------------------------------------------------------------------------------------------------------

TEST(Malformed, EveryFieldIsChecked) {
    for (const char* name : {"ring", "unicast"}) {
        SCOPED_TRACE(name);
        One one(name);
        one.ready(0), one.ready(1);
        // Rank 1 of 3 gets part 0 of bucket 1 (100 of 300 words for the ring, all for unicast) from rank 0 in segments of 16 words.
        const Packet words = packet_make(PacketType::words, 0, 0, 1, 0, 0), record = packet_make(PacketType::record, 0, 0, 1, 0, 0);
        const uint64_t record_size = sizeof(RecordHeader) + 2 * sizeof(float);
        auto refused = [&](const Packet& packet, uint64_t bytes, const char* why) { one.refused(packet, bytes, why); };
        for (auto [valid, bytes] : {std::pair{words, uint64_t{64}}, std::pair{record, record_size}}) {
            auto with = [valid = valid](auto change) { return changed(valid, change); };
            refused(valid, bytes - 1, "a byte less");
            refused(valid, bytes + 1, "a byte more");
            refused(valid, bytes + 4, "a word more");
            refused(valid, 0, "nothing");
            Packet huge = valid;
            EXPECT_EQ(one.exchange->land(huge, uint64_t{1} << 40, &huge.payload), Landing::drop);
            refused(with([](Packet& p, DataBody&) { p.view = 2; }), bytes, "view");
            refused(with([](Packet& p, DataBody&) { p.sender = 1; }), bytes, "own");
            refused(with([](Packet& p, DataBody&) { p.sender = 3; }), bytes, "sender out of range");
            refused(with([](Packet& p, DataBody&) { p.sender = ~0u; }), bytes, "sender far out of range");
            if (std::string(name) == "ring") refused(with([](Packet& p, DataBody&) { p.sender = 2; }), bytes, "not from the one before us");
            refused(with([](Packet&, DataBody& b) { b.bucket.set(2); }), bytes, "bucket");
            refused(with([](Packet&, DataBody& b) { b.bucket.set(65535); }), bytes, "bucket");
            refused(with([](Packet&, DataBody& b) { b.bucket.set(0); }), bytes, "another bucket's size");
            refused(with([](Packet&, DataBody& b) { b.part.set(3); }), bytes, "part");
            refused(with([](Packet&, DataBody& b) { b.part.set(65535); }), bytes, "part");
            refused(with([](Packet&, DataBody& b) { b.index.set(19); }), bytes, "index");
            refused(with([](Packet&, DataBody& b) { b.index.set(0xFFFFFF); }), bytes, "index");
            for (int phase : {0, 2, 3, 255})
                refused(with([&](Packet&, DataBody& b) { b.phase = static_cast<uint8_t>(phase); }), bytes, "phase");
            refused(with([&](Packet&, DataBody& b) { b.reserved = 1; }), bytes, "reserved");
            for (uint32_t step : {6u, 7u, 300u, ~0u}) refused(with([&](Packet&, DataBody& b) { b.step.set(step); }), bytes, "step");
            for (PacketType type : {PacketType::ack, PacketType::key, PacketType::job, PacketType::mail, PacketType{}, PacketType{200}})
                refused(with([&](Packet& p, DataBody&) { p.type = type; }), bytes, "type");
            EXPECT_EQ(one.deliver(with([](Packet&, DataBody& b) { b.step.set(3); }), bytes), Landing::later);   // its slot is still in use
        }
        if (std::string(name) == "ring") {
            refused(packet_make(PacketType::words, 0, 0, 1, 1, 0), 64, "the part that starts here");
            refused(packet_make(PacketType::record, 0, 0, 1, 1, 0), record_size, "the part that starts here");
            refused(packet_make(PacketType::words, 0, 0, 1, 2, 0, Phase::gather), 64, "the part that is whole here");
            refused(packet_make(PacketType::words, 0, 0, 1, 0, 0, Phase::gather), 64, "a sum before its turn");
        }
        // The genuine packets are then taken, once.
        EXPECT_EQ(one.deliver(words, 64), Landing::place);
        EXPECT_EQ(one.actions.computes.size(), std::string(name) == "ring" ? 1u : 0u);   // unicast first adds its own words to that segment
        EXPECT_EQ(one.deliver(record, record_size, 0), Landing::place);
        refused(words, 64, "twice");
        refused(record, record_size, "twice");
    }
}

TEST(Malformed, ARecordOfNoSizeIsNamed) {
    for (const char* name : {"ring", "unicast"}) {
        One one(name);
        one.ready(0);
        EXPECT_EQ(one.deliver(packet_make(PacketType::record, 0, 0, 0, 0, 0), sizeof(RecordHeader) + 4, 0xFF), Landing::place);
        ASSERT_EQ(one.actions.completions.size(), 1u);
        EXPECT_EQ(one.actions.completions[0].status.code, Code::conflict);   // its state differs
    }
    One one("ring");
    one.ready(0);
    Packet packet = packet_make(PacketType::record, 0, 0, 0, 0, 0);
    ASSERT_EQ(one.exchange->land(packet, sizeof(RecordHeader) + 4, &packet.payload), Landing::place);
    std::memset(packet.payload.host, 0, packet.payload.bytes);
    packet.payload.part(sizeof(RecordHeader), 4).as<float>()[0] = -1.0f;
    one.on({Event::Received{&packet}});
    ASSERT_EQ(one.actions.completions.size(), 1u);
    EXPECT_STREQ(one.actions.completions[0].status.what, "step 1: rank 0 (node0) sent a record whose maximum of layer layer0 is no size");
}

TEST(Malformed, NoiseDoesNoHarm) {
    for (const char* name : {"ring", "unicast"}) {
        One one(name, 1, 4, 5);
        one.ready(0);
        for (uint32_t i = 0; i < 200'000; ++i) {
            auto a = random4(Purpose::test, 4, i, 0), b = random4(Purpose::test, 4, i, 1);
            Packet packet = packet_make(static_cast<PacketType>(a[0] % 8), a[1] % 5, a[2] % 5, a[3] % 3, b[0] % 5, b[1] % 22,
                                        static_cast<Phase>(b[2] % 4));
            const uint64_t sizes[] = {64, 32, 28, 44, 16, 12, 4, 8};
            one.deliver(packet, sizes[b[3] % 8], static_cast<uint8_t>(b[3] >> 8));
            const std::vector<Compute> computes = one.actions.computes;
            for (const Compute& compute : computes) {
                one.on({Event::Computed{compute.ticket}});
            }
        }
        EXPECT_GT(one.placed, 0u);
        EXPECT_LT(one.placed, 1000u);   // a step hands out each place once, and no step is released
    }
}

TEST(Exchange, ExplainsWhatIsMissing) {
    One one("ring");
    one.ready(0), one.ready(1);
    one.on(command_event<ExchangeCommand>({ExchangeCommand::Explain{}}));
    ASSERT_EQ(one.actions.completions.size(), 1u);
    EXPECT_EQ(one.actions.completions[0].status.code, Code::deadline);
    EXPECT_STREQ(one.actions.completions[0].status.what, "step 1, bucket 0: 4 of 4 segments and records (64 bytes a segment) are missing");
}

// Acknowledgements of rank 0's sends are held back, so the link still uses the memory of step 0.  Step 3 has the same memory: the trainer
// must not enter it, and its words must not land.
TEST(Exchange, MemoryIsUsedAgainOnlyWhenItsSendsAreAcknowledged) {
    for (const char* name : {"ring", "unicast"}) {
        SCOPED_TRACE(name);
        One ranks[2] = {One(name, 0, 2, 2), One(name, 1, 2, 2)};
        std::vector<uint64_t> held[step_slots + 1];   // by step: tickets of rank 0
        std::vector<Completion> completions[2];
        bool later = false;
        auto feed = [&](Rank r, const Event& event, auto& self) -> void {
            ranks[r].on(event);
            const Actions actions = ranks[r].actions;
            for (const Completion& each : actions.completions) completions[r].push_back(each);
            for (const Compute& each : actions.computes) {
                compute_now(each);
                self(r, {Event::Computed{each.ticket}}, self);
            }
            for (const Send& each : actions.sends) {
                Packet packet;
                packet.type = each.type;
                packet.sender = r;
                packet.view = 1;
                packet.body = each.body;
                const Landing landing = ranks[1 - r].exchange->land(packet, each.payload.bytes, &packet.payload);
                later |= landing == Landing::later;
                if (landing == Landing::place) {
                    std::memcpy(packet.payload.host, each.payload.host, each.payload.bytes);
                    self(1 - r, {Event::Received{&packet}}, self);
                }
                const Event sent{Event::Sent{each.ticket}};
                if (r == 0) held[body_of<DataBody>(packet).step.get()].push_back(each.ticket);
                else self(r, sent, self);
            }
        };
        auto step = [&](StepId number, Rank r) {
            for (uint32_t bucket : {0u, 1u}) {
                Plan plan = ranks[r].exchange->plan(number, bucket);
                std::memset(plan.words.host, 0, plan.words.bytes);
                feed(r, {Event::Ready{number, bucket}}, feed);
            }
        };
        for (StepId number : {0, 1, 2}) step(number, 0), step(number, 1);
        EXPECT_EQ(completions[1].size(), 6u);
        EXPECT_EQ(completions[0].size(), 4u);   // step 2 is not released: step 3 would overwrite memory that is being sent
        for (Rank r : {0u, 1u})
            for (StepId number : {0, 1}) ranks[r].exchange->release(number);
        EXPECT_FALSE(later);
        step(3, 1);
        EXPECT_TRUE(later);
        EXPECT_EQ(completions[0].size(), 4u);
        for (uint64_t ticket : held[0]) {
            const Event sent{Event::Sent{ticket}};
            feed(0, sent, feed);
        }
        EXPECT_EQ(completions[0].size(), 6u);
        Packet packet = packet_make(PacketType::record, 1, 3, 0, name == std::string("ring") ? 1 : 0, 0);
        EXPECT_EQ(ranks[0].exchange->land(packet, sizeof(RecordHeader) + 4, &packet.payload), Landing::place);
    }
}

}   // namespace
}   // namespace gradcast
