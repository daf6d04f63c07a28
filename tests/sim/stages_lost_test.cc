// Jobs in stages whose replicas may be late or lost, over the simulator: the bits are those of the uncut net, and nobody waits for the
// replica that is late.
#include <set>

#include "algos/grid/schedule.h"
#include "runtime/core/channel.h"
#include "runtime/job/model/checkpoint_files.h"
#include "tests/sim/seeds.h"
#include "tests/sim/stages_job.h"
#include "transport/exchange/exchange.h"
#include "transport/wire/packet.h"

namespace gradcast {
namespace {

struct Spare {
    const char *exchange, *options;
    uint32_t replicas;
};
constexpr Spare spares[] = {
    {"coded", "m = 1\ns = 1\n", 2},    {"coded-rs", "m = 1\ns = 1\n", 2}, {"coded", "m = 1\ns = 1\n", 3},
    {"coded-rs", "m = 1\ns = 1\n", 3}, {"coded", "m = 2\ns = 1\n", 3},    {"coded-rs", "m = 2\ns = 1\n", 3},
};

void set(StagesJob& job, const Spare& spare) {
    job.parallel = "stages = 2\n";
    job.exchange = spare.exchange, job.options = spare.options;
    job.sim.ranks = 2 * spare.replicas;
    job.sim.lost_after_us = 300'000;
    job.sim.jitter_us = 200;
    job.steps = 8, job.evaluate = 4;
    job.spend_us = 2'000;
}

std::string text(const Spare& spare) { return fmt::format("{} {} {}", spare.exchange, spare.options, spare.replicas); }

// One rank is slow, so its words are late in every step.
TEST(StagesLost, NobodyWaitsForASlowReplica) {
    for (const Spare& spare : spares)
        for (Rank slow : {0u, 1u}) {
            SCOPED_TRACE(text(spare) + fmt::format("rank {}", slow));
            uint64_t quiet_us = 0;
            for (const double factor : {1.0, 20.0}) {
                StagesJob job;
                set(job, spare);
                job.steps = 24, job.evaluate = 24;
                job.before = [&](Simulator& sim) { sim.slow(slow, factor); };
                const Status status = job.run();
                ASSERT_TRUE(status.ok()) << status.what;
                expect_wanted(job);
                if (factor == 1) quiet_us = job.simulator->now_us();
                else EXPECT_LT(job.simulator->now_us(), quiet_us * 5 / 4 + 100'000);   // a pass of the slow rank takes up to 80 ms
            }
        }
}

// From the barrier before the first step on, which the first few milliseconds take; also while another replica is the slowest.
TEST(StagesLost, GoOnWithoutARankThatDies) {
    for_seeds(2, [&](uint64_t seed) {
        for (const Spare& spare : spares) {
            const uint32_t stages = 2 + seed % 2, ranks = stages * spare.replicas;
            const Rank dead = splitmix64(seed) % ranks, slow = splitmix64(seed + 99) % ranks;
            uint64_t at_us = 0;
            for (bool kill : {false, true}) {   // the first run measures the duration
                SCOPED_TRACE(fmt::format("{}, {} stages, rank {} killed at {} us", text(spare), stages, dead, at_us));
                StagesJob job;
                set(job, spare);
                job.parallel = fmt::format("stages = {}\nschedule = \"{}\"\nmicro_batch = {}\n", stages,
                                           pipeline_schedule_names()[seed % pipeline_schedule_names().size()], 1 + seed % 4 / 2);
                job.sim.ranks = ranks, job.sim.seed = seed;
                job.sim.break_per_packet = seed % 5 == 0 ? 0.01 : 0;
                job.before = [&](Simulator& sim) {
                    if (seed % 2 == 0) sim.slow(slow, 3);
                    if (kill) sim.kill(dead, at_us);
                };
                const Status status = job.run();
                ASSERT_TRUE(status.ok()) << status.what;
                expect_wanted(job, kill ? std::vector{dead} : std::vector<Rank>{});
                at_us = 5'000 + (seed == 1 ? 0 : job.simulator->now_us() * (splitmix64(seed + 7) % 1000) / 1000);
            }
        }
    });
}

// A process that is stopped goes on before it is given up, or is given up.
TEST(StagesLost, GoOnWithARankThatWasStopped) {
    for (const Spare& spare : spares)
        for (const uint64_t stopped_us : {300'000, 3'000'000})
            for (Rank rank : {0u, 1u, 3u}) {
                SCOPED_TRACE(text(spare) + fmt::format("rank {} stopped for {} us", rank, stopped_us));
                StagesJob job;
                set(job, spare);
                job.before = [&](Simulator& sim) { sim.stall(rank, 90'000, 90'000 + stopped_us); };
                (void)job.run();
                const bool given_up = stopped_us > 1'000'000;   // a quarter of the deadline
                for (Rank each = 0; each < job.sim.ranks; ++each)
                    EXPECT_EQ(job.simulator->result(each).ok(), !(given_up && each == rank)) << job.simulator->result(each).what;
                expect_wanted(job, given_up ? std::vector{rank} : std::vector<Rank>{});
            }
}

// A slow replica, then a lost one, leave checkpoints whose parts are all there.
TEST(StagesLost, CheckpointsHaveAllTheirParts) {
    for (const bool kill : {false, true}) {
        StagesJob job;
        set(job, {"coded-rs", "m = 1\ns = 1\n", 3});
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

// What is lost is a replica: of the same one all ranks may die, of another one none.
TEST(StagesLost, OneReplicaIsMissedAndNoSecondOne) {
    for (const Rank second : {1u, 2u, 3u}) {
        StagesJob job;
        set(job, {"coded-rs", "m = 1\ns = 1\n", 2});
        job.before = [&](Simulator& sim) {
            sim.kill(0, 60'000);
            sim.kill(second, 150'000);
        };
        const Status status = job.run();
        EXPECT_EQ(status.ok(), second == 1) << status.what;
        if (second == 1) expect_wanted(job, {0, 1});
        else
            EXPECT_NE(std::string(status.what).find(fmt::format("rank {} (node{}) lost in step", second, second)), std::string::npos)
                << status.what;
        const bool alone = std::string(status.what).find("; stage 1 of 2 (conv1 .. relu1) is lost with it") != std::string::npos;
        EXPECT_EQ(alone, second == 2) << status.what;
    }
}

TEST(StagesLost, AutoMissesAReplica) {
    for (const uint64_t at_us : {0, 200'000, 400'000, 900'000}) {
        StagesJob job;
        set(job, {"auto", "s = 1\n", 3});
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
            set(job, {"coded", options, 3});
            const uint32_t needed = *options ? 2 : 3;
            job.sim.seed = seed;
            job.sim.jitter_us = 5'000;
            std::vector<std::unique_ptr<Watched>> ranks(job.sim.ranks);
            job.wrap = [&](Rank rank, uint16_t channel, Protocol* protocol) -> Protocol* {
                if (channel != static_cast<uint16_t>(Channel::gradient)) return protocol;
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
        set(job, {exchange, "m = 2\ns = 1\n", 3});
        std::unique_ptr<Flipping> flipping;
        job.wrap = [&](Rank rank, uint16_t channel, Protocol* protocol) -> Protocol* {
            if (rank != 2 || channel != static_cast<uint16_t>(Channel::edge)) return protocol;
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
            set(job, {"cssgd", options, 3});
            job.before = [&](Simulator& sim) { sim.slow(2, factor); };
            const Status status = job.run();
            ASSERT_TRUE(status.ok()) << status.what;
            expect_wanted(job);
        }
}

}   // namespace
}   // namespace gradcast
