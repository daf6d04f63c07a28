// Jobs in stages whose replicas may be late or lost, over the simulator: the bits are those of the uncut net, and nobody waits for the
// replica that is late.
#include <set>

#include "runtime/core/channel.h"
#include "runtime/job/model/checkpoint_files.h"
#include "tests/sim/lost_grids.h"
#include "transport/exchange/exchange.h"
#include "transport/wire/packet.h"

namespace gradcast {
namespace {

constexpr Spare all_spares[] = {
    {"coded", "m = 1\ns = 1\n", 2},    {"coded-rs", "m = 1\ns = 1\n", 2}, {"coded", "m = 1\ns = 1\n", 3},
    {"coded-rs", "m = 1\ns = 1\n", 3}, {"coded", "m = 2\ns = 1\n", 3},    {"coded-rs", "m = 2\ns = 1\n", 3},
};

constexpr LostGrid two_stages{.stages = 2};

TEST(StagesLost, NobodyWaitsForASlowReplica) { expect_nobody_waits_for_a_slow_replica(all_spares, two_stages, 1.25); }

TEST(StagesLost, GoOnWithoutARankThatDies) { expect_the_others_go_on(all_spares, two_stages, 2); }

TEST(StagesLost, GoOnWithARankThatWasStopped) { expect_a_stopped_rank_goes_on_or_is_missed(all_spares, two_stages); }

// A slow replica, then a lost one, leave checkpoints whose parts are all there.
TEST(StagesLost, CheckpointsHaveAllTheirParts) {
    for (const bool kill : {false, true}) {
        StagesJob job;
        set(job, {"coded-rs", "m = 1\ns = 1\n", 3}, two_stages);
        job.checkpoints = "checkpoint_every = 3\n";
        job.steps = 16, job.evaluate = 16;
        job.before = [&](Simulator& sim) {
            sim.slow(0, 4);
            if (kill) sim.kill(0, 300'000);
        };
        const Status status = job.run();
        ASSERT_TRUE(status.ok()) << status.what;
        expect_wanted(job, kill ? std::vector<Rank>{0} : std::vector<Rank>{});
        std::map<uint64_t, std::set<uint32_t>> cells;   // by steps
        for (Rank rank = kill ? 1 : 0; rank < job.sim.ranks; ++rank)
            for (const CheckpointName& name : checkpoint_files(job.folders[rank])) cells[name.steps].insert(name.cell);
        EXPECT_TRUE(std::ranges::any_of(cells, [](const auto& each) { return each.first >= 9 && each.second.size() == 2; }))
            << cells.size();
    }
}

TEST(StagesLost, OneReplicaIsMissedAndNoSecondOne) {
    expect_one_replica_is_missed_and_no_second_one(two_stages, "stage 1 of 2 (conv1 .. relu1)");
}

TEST(StagesLost, AutoMissesAReplica) {
    for (const uint64_t at_us : {0, 200'000, 400'000, 900'000}) {
        StagesJob job;
        set(job, {"auto", "s = 1\n", 3}, two_stages);
        job.steps = 30, job.evaluate = 15;
        if (at_us > 0) job.before = [&](Simulator& sim) { sim.kill(3, at_us); };
        const Status status = job.run();
        ASSERT_TRUE(status.ok()) << status.what;
        expect_wanted(job, at_us > 0 ? std::vector<Rank>{3} : std::vector<Rank>{});
        for (Rank rank = 0; rank < job.sim.ranks; ++rank) {
            if (at_us > 0 && rank == 3) continue;
            ASSERT_TRUE(job.engines[rank]->status().choice.has_value());
            EXPECT_EQ(exchange_report_text(*job.engines[rank]->status().choice), exchange_report_text(*job.engines[0]->status().choice));
        }
    }
}

/// Notes when a rank has which sums, and when it has applied them.
struct Watched final : Protocol {
    explicit Watched(Protocol& protocol) : inner(protocol) {}
    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events)
            if (const auto* command = event.is<Event::Command>())
                if (const auto* release = std::get_if<ExchangeCommand::Release>(&command->as<ExchangeCommand>().what))
                    applied_us[release->step + 1] = actions.now_us;
        inner.on(events, actions);
        for (const Completion& each : actions.completions)
            if (each.sum) summed_us[each.step] = actions.now_us;
    }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override { return inner.land(packet, bytes, place); }
    Protocol& inner;
    std::map<StepId, uint64_t> summed_us, applied_us;   // by step: the last sum; applied
};

// No rank applies a step before `replicas - s` replicas hold all sums of it.
TEST(StagesLost, NobodyAppliesAStepThatOthersMayMiss) {
    for (const char* options : {"", "m = 1\ns = 1\n"})
        for_seeds(4, [&](uint64_t seed) {
            StagesJob job;
            set(job, {"coded", options, 3}, two_stages);
            const uint32_t needed = *options ? 2 : 3;
            job.sim.seed = seed;
            job.sim.jitter_us = 5'000;
            std::vector<std::unique_ptr<Watched>> ranks(job.sim.ranks);
            job.wrap = [&](Rank rank, uint16_t channel, Protocol* protocol) -> Protocol* {
                if (channel != gradient_channel) return protocol;
                ranks[rank] = std::make_unique<Watched>(*protocol);
                return ranks[rank].get();
            };
            const Status status = job.run();
            ASSERT_TRUE(status.ok()) << status.what;
            expect_wanted(job);
            for (Rank rank = 0; rank < job.sim.ranks; ++rank) {
                EXPECT_EQ(ranks[rank]->applied_us.size(), job.steps - 1) << "rank " << rank;
                for (const auto& [step, applied_us] : ranks[rank]->applied_us) {
                    uint32_t whole = 0;
                    for (Rank first = 0; first < job.sim.ranks; first += 2)
                        whole += std::max(ranks[first]->summed_us.at(step), ranks[first + 1]->summed_us.at(step)) <= applied_us;
                    EXPECT_GE(whole, needed) << "rank " << rank << " has applied step " << step;
                }
            }
            job.simulator.reset();
        });
}

/// Flips a bit of a gradient that comes over an edge.
struct Flipping final : Protocol {
    explicit Flipping(Protocol& protocol) : inner(protocol) {}
    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events) {
            const auto* received = event.is<Event::Received>();
            if (!received || received->packet->type != PacketType::edge) continue;
            const auto body = body_of<EdgeBody>(*received->packet);
            if (body.step.get() != 2 || body.gradient == 0 || std::exchange(flipped, true)) continue;
            received->packet->payload.as<uint32_t>()[0] ^= 1u << 22;
        }
        inner.on(events, actions);
    }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override { return inner.land(packet, bytes, place); }
    Protocol& inner;
    bool flipped = false;
};

// Two replicas outvote the rank.  The other rank of its replica stays.
TEST(StagesLost, ARankThatComputesWronglyIsMissed) {
    for (const char* exchange : {"coded", "coded-rs"}) {
        SCOPED_TRACE(exchange);
        StagesJob job;
        set(job, {exchange, "m = 2\ns = 1\n", 3}, two_stages);
        std::unique_ptr<Flipping> flipping;
        job.wrap = [&](Rank rank, uint16_t channel, Protocol* protocol) -> Protocol* {
            if (rank != 2 || channel != edge_channel) return protocol;
            flipping = std::make_unique<Flipping>(*protocol);
            return flipping.get();
        };
        (void)job.run();
        EXPECT_TRUE(flipping->flipped);
        for (Rank rank = 0; rank < job.sim.ranks; ++rank)
            EXPECT_EQ(job.simulator->result(rank).code, rank == 2 ? Code::conflict : Code::ok) << job.simulator->result(rank).what;
        expect_wanted(job, {2});
        job.simulator.reset();
    }
}

// cssgd shares out blocks, and misses nobody.
TEST(StagesLost, SharedBlocksGiveTheBitsOfTheWholeNet) {
    for (const char* options : {"r = 2\n", "r = 3\n"})
        for (const double factor : {1.0, 4.0}) {
            StagesJob job;
            set(job, {"cssgd", options, 3}, two_stages);
            job.before = [&](Simulator& sim) { sim.slow(2, factor); };
            const Status status = job.run();
            ASSERT_TRUE(status.ok()) << status.what;
            expect_wanted(job);
        }
}

}   // namespace
}   // namespace gradcast
