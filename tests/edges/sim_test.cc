// Edges over the simulator: transfers between all ranks in random order, with breaks, abandoned blocks, wrong sizes and lost ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "runtime/core/digest.h"
#include "tests/mail/buffer.h"
#include "tests/sim/seeds.h"
#include "transport/edges/edges.h"
#include "transport/sim/sim.h"

namespace gradcast {
namespace {

constexpr uint64_t wait_us = 60'000'000;

struct Random {
    uint64_t state;
    uint64_t operator()(uint64_t below) { return splitmix64(state += 0x9E3779B97F4A7C15) % below; }
};

struct Transfer {
    Rank from, to;
    EdgeKey key;
    std::vector<std::byte> sent, got;
    Status send = {}, receive = {};
    uint32_t sends = 0, receives = 0;   // completions
};

/// What each rank does: all of its transfers, in an order of its own.
struct World {
    SimConfig config;
    uint32_t segment;
    std::vector<Transfer> transfers;
    std::unique_ptr<Simulator> sim;
    std::vector<std::unique_ptr<Protocol>> protocols;

    World(uint64_t seed, uint32_t count, Random& random) {
        config.seed = seed;
        config.ranks = 2 + static_cast<uint32_t>(random(5));
        config.break_per_packet = random(2) ? 0.01 : 0;
        config.jitter_us = random(500);
        config.batch_us = random(100);
        config.window_bytes = random(2) ? 20'000 : 1 << 20;
        config.segment_bytes = segment = random(2) ? 4096 : 65536;
        for (uint32_t i = 0; i < count; ++i) {
            Transfer each;
            each.from = static_cast<Rank>(random(config.ranks));
            each.to = static_cast<Rank>((each.from + 1 + random(config.ranks - 1)) % config.ranks);
            each.key = {i / 64, i % 8, static_cast<uint16_t>(i / 8 % 8), random(2) == 1};
            const uint64_t sizes[] = {0, 1, segment - 1, segment, segment + 1, random(1000), random(4 * segment)};
            each.sent.resize(sizes[random(std::size(sizes))]);
            each.got.resize(each.sent.size());
            uint64_t byte = random(256);
            for (std::byte& b : each.sent) b = static_cast<std::byte>(byte += 7);
            transfers.push_back(std::move(each));
        }
    }
    /// call(edges, rank, host, i) before each post.
    template <typename Call>
    Status run(Random& random, Call call) {
        sim = Simulator::create(config);
        for (Rank r = 0; r < config.ranks; ++r) {
            protocols.push_back(edges_protocol(r, config.ranks, segment));
            sim->attach(r, edge_channel, protocols[r].get());
            std::vector<size_t> order;
            for (size_t i = 0; i < transfers.size(); ++i)
                if (transfers[i].from == r || transfers[i].to == r) order.push_back(i);
            for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random(i)]);
            const uint64_t pause_us = random(50);
            sim->trainer(r, [this, r, order, pause_us, call](Host& host) -> Status {
                Edges edges(host, edge_channel);
                for (size_t i : order) {
                    Transfer& each = transfers[i];
                    call(edges, r, host, i);
                    if (each.from == r) edges.send(each.to, each.key, buffer_of(each.sent), 2 * i);
                    else edges.receive(each.from, each.key, buffer_of(each.got), 2 * i + 1);
                    host.spend(pause_us);
                }
                std::vector<Completion> out;
                for (size_t missing = order.size(); missing > 0;) {
                    out.clear();
                    GC_TRY(host.wait(&out, host.now_us() + wait_us));
                    for (const Completion& each : out) {
                        if (each.status.code == Code::deadline) continue;
                        Transfer& transfer = transfers[each.id / 2];
                        (each.id % 2 ? transfer.receive : transfer.send) = each.status;
                        ++(each.id % 2 ? transfer.receives : transfer.sends);
                        --missing;
                        // Completed: the memory is the trainer's.
                        if (each.id % 2 && !each.status.ok()) std::fill(transfer.got.begin(), transfer.got.end(), std::byte{0xAA});
                        if (each.id % 2 == 0 && !each.status.ok()) std::fill(transfer.sent.begin(), transfer.sent.end(), std::byte{0xBB});
                    }
                }
                return {};
            });
        }
        return sim->run();
    }
};

TEST(EdgesSim, EveryValueReachesItsReceive) {
    for_seeds(20, [](uint64_t seed) {
        Random random{seed};
        World world(seed, 2000, random);
        const Status status = world.run(random, [](Edges& edges, Rank, Host&, size_t i) {
            if (i % 16 == 0) edges.explain(2 * i);
        });
        ASSERT_TRUE(status.ok()) << status.what;
        for (const Transfer& each : world.transfers) {
            ASSERT_TRUE(each.send.ok() && each.receive.ok()) << each.send.what << each.receive.what;
            ASSERT_TRUE(each.sends == 1 && each.receives == 1);
            ASSERT_EQ(each.got, each.sent);
        }
    });
}

// Both ranks, one or none abandon a block, before, while or after its transfers are posted: each transfer ends at both, and a value that a
// receive was completed with is whole.
TEST(EdgesSim, AbandonedBlocksEndAtBothSides) {
    uint64_t whole = 0, cancelled = 0;
    for_seeds(30, [&](uint64_t seed) {
        Random random{seed};
        World world(seed, 1000, random);
        std::vector<std::vector<std::pair<size_t, EdgeKey>>> abandons(world.config.ranks);
        for (uint32_t i = 0; i < 20; ++i) {
            const EdgeKey& key = world.transfers[random(world.transfers.size())].key;
            for (uint64_t by = random(3); by-- > 0;)
                abandons[random(world.config.ranks)].push_back({random(1000 / world.config.ranks), {key.step, key.block}});
        }
        std::vector<size_t> posts(world.config.ranks);
        const Status status = world.run(random, [&](Edges& edges, Rank rank, Host&, size_t) {
            for (const auto& [at, block] : abandons[rank])
                if (at == posts[rank]) edges.abandon(block.step, block.block);
            ++posts[rank];
        });
        ASSERT_TRUE(status.ok()) << status.what;
        for (const Transfer& each : world.transfers) {
            ASSERT_TRUE(each.sends == 1 && each.receives == 1);
            const bool mayend = std::any_of(abandons.begin(), abandons.end(), [&](const auto& all) {
                return std::any_of(all.begin(), all.end(),
                                   [&](const auto& one) { return one.second.step == each.key.step && one.second.block == each.key.block; });
            });
            for (const Status& end : {each.send, each.receive})
                ASSERT_TRUE(end.ok() || (mayend && end.code == Code::cancelled)) << end.what;
            if (each.receive.ok()) ASSERT_TRUE(each.send.ok() && each.got == each.sent);
            else ASSERT_TRUE(each.got == std::vector<std::byte>(each.got.size(), std::byte{0xAA}));
            ++(each.receive.ok() ? whole : cancelled);
        }
    });
    EXPECT_TRUE(std::getenv("GC_SEED") || (whole > 10'000 && cancelled > 500)) << whole << " " << cancelled;
}

TEST(EdgesSim, WrongSizesAreNamedAtBothSides) {
    for_seeds(10, [](uint64_t seed) {
        Random random{seed};
        World world(seed, 300, random);
        for (size_t i = 0; i < world.transfers.size(); i += 3)
            world.transfers[i].got.resize(world.transfers[i].sent.size() + 1 + random(5000));
        const Status status = world.run(random, [](Edges&, Rank, Host&, size_t) {});
        ASSERT_TRUE(status.ok()) << status.what;
        for (size_t i = 0; i < world.transfers.size(); ++i) {
            const Transfer& each = world.transfers[i];
            ASSERT_EQ(each.send.code, i % 3 ? Code::ok : Code::conflict);
            ASSERT_EQ(each.receive.code, i % 3 ? Code::ok : Code::conflict);
            ASSERT_TRUE(i % 3 == 0 || each.got == each.sent);
        }
    });
}

TEST(EdgesSim, ALostRankEndsItsTransfersAtTheOthers) {
    for_seeds(20, [](uint64_t seed) {
        Random random{seed};
        World world(seed, 1000, random);
        world.config.lost_after_us = 50'000;
        const auto dead = static_cast<Rank>(random(world.config.ranks));
        const size_t last = random(200);
        std::vector<size_t> posts(world.config.ranks);
        const Status status = world.run(random, [&](Edges&, Rank rank, Host& host, size_t) {
            if (rank == dead && posts[rank]++ == last) world.sim->kill(dead, host.now_us() + 1);
        });
        ASSERT_TRUE(status.ok()) << status.what;
        for (const Transfer& each : world.transfers) {
            const bool lost = each.from == dead || each.to == dead;
            if (each.to != dead) {
                ASSERT_EQ(each.receives, 1u);
                ASSERT_TRUE(each.receive.ok() || (lost && each.receive.code == Code::peer_lost)) << each.receive.what;
                ASSERT_TRUE(!each.receive.ok() || each.got == each.sent);
            }
            if (each.from == dead) continue;
            ASSERT_EQ(each.sends, 1u);
            ASSERT_TRUE(each.send.ok() || (lost && each.send.code == Code::peer_lost)) << each.send.what;
        }
    });
}

// Where receives are posted ahead, a value takes one way: no round trip.
TEST(EdgesSim, AValueThatIsAwaitedTakesOneLatency) {
    SimConfig config;
    config.latency_us = 10'000;
    config.jitter_us = 0;
    auto sim = Simulator::create(config);
    std::unique_ptr<Protocol> protocols[2];
    std::vector<std::byte> value(1000, std::byte{3}), place(1000);
    for (Rank r = 0; r < 2; ++r) {
        protocols[r] = edges_protocol(r, 2, config.segment_bytes);
        sim->attach(r, edge_channel, protocols[r].get());
    }
    uint64_t sent_us = 0, took_us = 0;
    sim->trainer(0, [&](Host& host) -> Status {
        host.spend(100'000);
        sent_us = host.now_us();
        Edges(host, edge_channel).send(1, {1}, buffer_of(value), 1);
        std::vector<Completion> out;
        return host.wait(&out, wait_us);
    });
    sim->trainer(1, [&](Host& host) -> Status {
        Edges(host, edge_channel).receive(0, {1}, buffer_of(place), 1);
        std::vector<Completion> out;
        GC_TRY(host.wait(&out, wait_us));
        took_us = host.now_us() - sent_us;
        return out[0].status;
    });
    const Status status = sim->run();
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_LT(took_us, 11'000u);
    EXPECT_EQ(place, value);
}

// A view ends with transfers of all kinds open: its memory is free, and the next view has the same keys.
TEST(EdgesSim, AViewEndsWithTransfersThatWait) {
    for_seeds(20, [](uint64_t seed) {
        SimConfig config;
        config.seed = seed;
        auto sim = Simulator::create(config);
        std::unique_ptr<Protocol> protocols[2][2];
        std::vector<std::byte> sent[2], got[2];
        for (Rank r = 0; r < 2; ++r)
            sim->trainer(r, [&, r](Host& host) -> Status {
                for (uint32_t view = 0; view < 2; ++view) {
                    std::vector<std::byte> unposted(300'000), unsent(300'000);
                    protocols[r][view] = edges_protocol(r, 2, config.segment_bytes);
                    const Attachment attachment{edge_channel, protocols[r][view].get(), false};
                    host.open_view(1 + view, {&attachment, 1});
                    Edges edges(host, edge_channel);
                    if (r == 0) sent[view].assign(300'000, std::byte(view + 1));
                    else got[view].resize(300'000);
                    if (r == 0) edges.send(1, {4, 5}, buffer_of(sent[view]), 1);
                    else edges.receive(0, {4, 5}, buffer_of(got[view]), 1);
                    if (r == 0) edges.send(1, {4, 6}, buffer_of(unposted), 2);
                    else edges.receive(0, {4, 7}, buffer_of(unsent), 3);
                    std::vector<Completion> out;
                    GC_TRY(host.wait(&out, host.now_us() + 1'000'000));
                    GC_TRY(out[0].status);
                    EXPECT_EQ(out[0].id, 1u);
                    GC_TRY(host.close_view(host.now_us() + 1'000'000));
                    std::fill(unposted.begin(), unposted.end(), std::byte{9});
                    std::fill(unsent.begin(), unsent.end(), std::byte{9});
                }
                return {};
            });
        const Status status = sim->run();
        EXPECT_TRUE(status.ok()) << status.what;
        for (uint32_t view = 0; view < 2; ++view) EXPECT_EQ(got[view], sent[view]);
    });
}

}   // namespace
}   // namespace gradcast
