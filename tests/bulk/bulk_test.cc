// Everything arrives exactly once on every kind of network.
#include "tests/bulk/crowd.h"
#include "tests/sim/seeds.h"

namespace gradcast {
namespace {

struct Random {
    uint64_t state;
    uint64_t next() { return splitmix64(state += 0x9E3779B97F4A7C15); }
    uint64_t below(uint64_t limit) { return next() % limit; }
};

TEST(Bulk, WithoutLossEverySegmentIsSentOnce) {
    Crowd crowd;
    crowd.config.ranks = 4;
    crowd.config.jitter_us = 0;
    crowd.config.end_us = 10'000'000;
    for (Rank from = 0; from < 4; ++from) {
        crowd.transfers.push_back({from, 0, 0b1111u & ~(1u << from), PacketType::words, Phase::gather, 1'000'000});
        crowd.transfers.push_back({from, (from + 1) % 4, 0, PacketType::words, Phase::reduce, 300'001});
        crowd.transfers.push_back({from, 0, 0b1111u & ~(1u << from), PacketType::record, Phase::reduce, 100});
    }
    crowd.build();
    crowd.run();
    EXPECT_EQ(crowd.total(&BulkCounters::repairs_sent), 0u);
    EXPECT_EQ(crowd.total(&BulkCounters::duplicates), 0u);
    EXPECT_EQ(crowd.total(&BulkCounters::packets_sent), 4u * (699 + 210 + 1));
}

// Rank 2 has received a record of that name, in the slot of the words, which are not for it.
TEST(Bulk, ARecordAndWordsForOthersMayHaveOneName) {
    Crowd crowd;
    crowd.config.ranks = 3;
    crowd.config.end_us = 10'000'000;
    crowd.transfers.push_back({0, 0, 0b110, PacketType::record, Phase::reduce, 100, 0, 0});
    crowd.transfers.push_back({0, 0, 0b010, PacketType::words, Phase::reduce, 100, 1, 0});
    crowd.transfers.push_back({0, 0, 0b110, PacketType::words, Phase::reduce, 100, 2, 1});
    crowd.build();
    crowd.run();
    EXPECT_EQ(crowd.total(&BulkCounters::duplicates), 0u);
}

/// A crowd with options drawn from the seed.
void random_crowd(uint64_t seed, Crowd* crowd) {
    Random random{seed};
    const uint32_t sizes[] = {1432, 1024, 2048, 4096, 8952};
    SimConfig& config = crowd->config;
    config.seed = seed;
    config.ranks = 2 + static_cast<uint32_t>(random.below(random.below(8) ? 7 : 63));
    const uint32_t n = config.ranks;
    crowd->segment_bytes = sizes[random.below(5)];
    config.end_us = 200'000'000;
    config.lost_after_us = 300'000;
    config.loss = random.below(4) ? static_cast<double>(random.below(21)) / 100 : 0;
    config.loss_sent = random.below(5) ? 0 : 0.05;
    config.loss_burst = random.below(3) ? 1 : random.below(4) ? 8 : 200;
    config.duplicate = random.below(2) ? 0 : 0.05;
    config.jitter_us = random.below(3) ? 20 : random.below(400);
    config.batch_us = random.below(100);
    config.latency_us = 20 + random.below(200);
    config.rate_bytes_per_s = random.below(2) ? 125e6 : 12.5e6;
    config.queue_bytes = random.below(2) ? 0 : 512 * 1024;
    if (random.below(2)) {   // as on InfiniBand: 40 bytes of headers and a GRH
        config.header_bytes = 40 + 40;
        config.lead_bytes = 40;
    }
    uint64_t budget = 4'000'000;
    for (uint64_t t = 2 + random.below(60); t-- && budget;) {
        Crowd::Transfer transfer{};
        transfer.from = static_cast<Rank>(random.below(n));
        transfer.to = static_cast<Rank>((transfer.from + 1 + random.below(n - 1)) % n);
        const uint64_t all = (n == 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1) & ~(uint64_t{1} << transfer.from);
        if (random.below(2)) transfer.bits = random.below(2) ? all : (random.next() & all) | uint64_t{1} << transfer.to;
        transfer.type = random.below(4) ? PacketType::words : PacketType::record;
        transfer.phase = random.below(2) ? Phase::reduce : Phase::gather;
        const uint64_t kind = random.below(6);
        transfer.bytes = kind == 0 ? random.below(20) : kind < 4 ? 1 + random.below(20'000) : 1 + random.below(400'000);
        transfer.bytes = std::min(transfer.bytes, budget);
        budget -= transfer.bytes;
        transfer.after = random.below(3) ? 0 : random.below(3);
        crowd->transfers.push_back(transfer);
    }
    // A transfer may depend on earlier ones only.  A record shares the name of words.
    std::vector<uint64_t> before(n);
    std::vector<uint32_t> words(n, Crowd::none);
    for (uint32_t i = 0; Crowd::Transfer & t : crowd->transfers) {
        t.after = std::min(t.after, before[t.from]);
        ++before[t.from];
        if (t.type == PacketType::words) words[t.from] = i;
        else t.name = std::exchange(words[t.from], Crowd::none);
        ++i;
    }
}

TEST(Bulk, EverythingArrivesExactlyOnce) {
    for_seeds(200, [](uint64_t seed) {
        Crowd crowd;
        random_crowd(seed, &crowd);
        crowd.build();
        crowd.run();
    });
}

// The sender is cut off for a few ms, so all receivers lack the same whole blocks and report them at the same time.
TEST(Bulk, WholeBlocksThatNobodyGotComeSoon) {
    for_seeds(12, [](uint64_t seed) {
        Random random{seed};
        Crowd crowd;
        crowd.config.ranks = 4;
        crowd.config.jitter_us = 0;
        crowd.config.seed = seed;
        crowd.config.end_us = 60'000'000;
        crowd.contents = false;
        crowd.transfers.push_back({0, 0, 0b1110, PacketType::words, Phase::gather, 3000 * 1432});
        crowd.build();
        for (uint64_t at_us = 0; at_us < 100'000; at_us += 10'000) {
            const uint64_t from_us = at_us + random.below(8000);
            crowd.sim->partition({0}, from_us, from_us + 2000);
        }
        crowd.run();
        EXPECT_LT(crowd.nodes[0].done_us, 200'000u) << "of 35 ms without";
    });
}

/// Ranks that wait, forgo or take leases; one dies, one is very slow, a partition heals.
TEST(Bulk, RanksMayBeSlowDeadPartedOrUnwilling) {
    for_seeds(200, [](uint64_t seed) {
        Crowd crowd;
        random_crowd(seed + 1'000'000, &crowd);
        Random random{seed};
        const uint32_t n = crowd.config.ranks;
        crowd.manners.resize(n), crowd.dead.resize(n);
        for (Crowd::Manner& manner : crowd.manners) manner = static_cast<Crowd::Manner>(random.below(4));
        crowd.wait_until_us = random.below(50'000);
        crowd.config.lost_after_us = 100'000 + random.below(300'000);
        const Rank odd = static_cast<Rank>(random.below(n));
        const uint64_t kind = random.below(4);
        if (kind == 0 && n > 2) crowd.dead[odd] = true;
        crowd.build();
        if (kind == 0 && n > 2) crowd.sim->kill(odd, random.below(30'000));
        if (kind == 1) crowd.sim->slow(odd, 1000);
        if (kind == 2) {
            const uint64_t from_us = random.below(20'000);
            crowd.sim->partition({odd}, from_us, from_us + 1 + random.below(90'000));
        }
        crowd.run();
    });
}

/// Multicast stops in the middle, for some ranks or for all.
TEST(Bulk, WhereMulticastStopsEachRankGetsItsCopy) {
    for_seeds(15, [](uint64_t seed) {
        Random random{seed};
        const uint32_t n = 3 + static_cast<uint32_t>(random.below(6));
        Crowd crowd;
        crowd.config.seed = seed;
        crowd.config.ranks = n;
        crowd.config.end_us = 30'000'000;
        crowd.config.loss = random.below(2) ? 0.05 : 0;
        const uint64_t bytes = random.below(2) ? 100'000 : 1000;
        for (uint64_t t = 0; t < 2'000'000 / bytes / n; ++t)
            for (Rank from = 0; from < n; ++from)
                crowd.transfers.push_back({from, 0, ((1u << n) - 1) & ~(1u << from), PacketType::words, Phase::gather, bytes, t});
        crowd.build();
        crowd.deafened = true;
        uint64_t deaf = random.below(3) ? 1 + random.below((1u << n) - 1) : (1u << n) - 1;
        for (Rank r = 0; r < n; ++r)
            if (deaf >> r & 1) crowd.sim->deafen(r, random.below(4) * 5000);
        crowd.run();
        for (const auto& node : crowd.nodes) {
            const uint32_t found = node.counters.deaf.load();
            const bool others = deaf & ~(uint64_t{1} << node.self);   // 100 kB are too few segments to detect all of them
            EXPECT_TRUE(found ? deaf >> (found - 1) & 1 : !others || bytes > 1000) << "rank " << node.self << " found " << found;
            EXPECT_LT(node.done_us, bytes > 1000 ? 2'000'000u : 8'000'000u);   // proves the switch to copies
        }
    });
}

}   // namespace
}   // namespace gradcast
