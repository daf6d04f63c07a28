// Jobs whose stages are kept by buddies, in the simulator: any node of the one replica is lost at any time, and the others go on with the
// digest of a quiet run.
#include "algos/grid/schedule.h"
#include "runtime/core/channel.h"
#include "tests/sim/views.h"
#include "transport/exchange/exchange.h"
#include "transport/wire/packet.h"

namespace gradcast::views_test {
namespace {

constexpr uint32_t buddy_steps = 8;
const std::vector<uint32_t> widths = {8, 8, 8, 4};   // 700 parameters

std::string grid(uint32_t stages, bool buddy = true, const char* schedule = "1f1b") {
    return fmt::format("[parallel]\nstages = {}\nschedule = \"{}\"\nbuddy = {}\n", stages, schedule, buddy);
}

struct Buddies : Lossy {
    explicit Buddies(uint32_t stages, uint64_t seed = 1, bool buddy = true) : Lossy(stages, seed) {
        Lossy::widths = views_test::widths;
        steps = buddy_steps;
        options = grid(stages, buddy);
    }
};

/// The uncut net on one node.
const Quiet& alone() {
    static const Quiet quiet = [] {
        Lossy job(1);
        job.survive = false;
        job.widths = widths;
        job.steps = buddy_steps;
        job.run();
        return Quiet{job.engines[0]->status().digest, lines_in(job.own_folder(0)), 0};
    }();
    return quiet;
}

/// Of a quiet run with buddies.
uint64_t quiet_us(uint32_t stages) {
    static std::map<uint32_t, uint64_t> known;
    if (!known.contains(stages)) {
        Buddies job(stages);
        job.run();
        job.expect(alone().digest);
        known[stages] = job.sim->now_us();
    }
    return known[stages];
}

TEST(StagesBuddies, NobodyIsLost) {
    for (const uint32_t stages : {2u, 3u, 4u})
        for (const char* quantiser : {"auto32", "auto16"})
            for (const char* schedule : {"gpipe", "eager-1f1b", "eager-zero-bubble"})
                for (const uint32_t change_every : {0u, 2u}) {
                    SCOPED_TRACE(fmt::format("{} stages, {}, {}, {}", stages, quantiser, schedule, change_every));
                    Buddies job(stages), without(stages, 1, false);
                    job.options = fmt::format("quantiser = \"{}\"\n{}", quantiser, grid(stages, true, schedule));
                    without.options = fmt::format("quantiser = \"{}\"\n{}", quantiser, grid(stages, false, schedule));
                    job.change_every = change_every;
                    without.run();
                    job.run();
                    job.expect(without.engines[0]->status().digest);
                    if (::testing::Test::HasFailure()) return;
                }
}

TEST(StagesBuddies, AnyNodeAtAnyTime) {
    for (const uint32_t stages : {3u, 4u}) {
        expect_any_rank_at_any_time(fmt::format("{} stages", stages), quiet_us(stages), alone(),
                                    [&](uint64_t seed) { return Buddies(stages, seed); });
        if (::testing::Test::HasFailure()) return;
    }
}

// Of four nodes one, or one of each pair, the second one while the others agree or later.  `make nightly` takes more seeds.
TEST(StagesBuddies, NodesByChance) {
    const uint64_t whole_us = quiet_us(4);
    for_seeds(200, [&](uint64_t seed) {
        const uint64_t random = splitmix64(seed);
        Buddies job(4, seed);
        job.options = grid(4, true, pipeline_schedule_names()[seed % pipeline_schedule_names().size()]);
        job.sim_config.jitter_us = random % 4 * 100;
        const Rank first = random >> 8 & 3, second = first ^ 2 ^ (random >> 10 & 1);
        const uint64_t at_us = 2'000 + (random >> 16) % whole_us;
        job.kills = {{first, at_us}};
        if (seed % 2 == 0) job.kills.emplace_back(second, at_us + (random >> 40) % (3 * D / 2));
        SCOPED_TRACE(fmt::format("{} at {}, {} at {}", first, at_us, second, job.kills.back().second));
        job.run();
        if (!has_begun(job)) return;
        // Two nodes that are lost within one view leave half of it, which goes on with the lowest node.
        const bool two = job.kills.size() == 2;
        bool minority = false;
        for (Rank rank = 0; rank < 4; ++rank)
            minority = minority || std::string(job.sim->result(rank).what).find("is in a minority") != std::string::npos;
        if (!(two && minority)) job.expect(alone().digest);
        expect_one_line(job, alone());
    });
}

// The lowest of two nodes goes on alone.  The other one does not know whether the lowest one lives.
TEST(StagesBuddies, OfTwoNodesTheLowestGoesOn) {
    for (const Rank rank : {0u, 1u})
        for (uint64_t at = 3; at < 12; ++at) {
            SCOPED_TRACE(fmt::format("rank {} at {} of 12", rank, at));
            Buddies job(2, at);
            job.kills = {{rank, quiet_us(2) * at / 12}};
            job.run();
            expect_one_line(job, alone());
            const Status& status = job.sim->result(1 - rank);
            const bool minority = std::string(status.what).find("minority") != std::string::npos;
            EXPECT_TRUE(status.ok() || (rank == 0 && minority)) << status.what;
        }
}

// The node that may not go on alone has both stages, and leaves both: the job goes on from its folder alone.
TEST(StagesBuddies, ANodeThatEndsWritesTheStageThatItKeeps) {
    alone();   // its folder is that of rank 0
    uint32_t resumed = 0;
    for (uint64_t at = 4; at < 12; ++at) {
        SCOPED_TRACE(fmt::format("at {} of 12", at));
        Buddies job(2, at);
        job.checkpoint_every = 1000;   // none but those
        job.kills = {{0, quiet_us(2) * at / 12}};
        job.run();
        const uint64_t steps = job.engines[1]->status().step;
        if (job.sim->result(1).ok() || steps == 0) continue;
        Buddies rest(1);
        rest.survive = false;
        rest.options = "";
        rest.resume = {.on = true, .steps = steps, .state = alone().lines[steps - 1].digest, .holders = {}, .paths = {}, .notes = ""};
        for (uint32_t cell = 0; cell < 2; ++cell) {
            rest.resume.holders.push_back(NodeId{0});
            rest.resume.paths.push_back(checkpoint_path(job.own_folder(1), {steps, cell, 2}));
            EXPECT_TRUE(std::filesystem::exists(rest.resume.paths.back())) << rest.resume.paths.back();
        }
        rest.run();
        rest.expect(alone().digest);
        ++resumed;
        if (::testing::Test::HasFailure()) return;
    }
    EXPECT_GT(resumed, 2u);
}

// A node that comes back, here as another one with the same stage, computes it again.  Then its buddy may be lost.
TEST(StagesBuddies, AJoinerIsABuddyAgain) {
    constexpr uint32_t steps = 60;
    std::string digest;
    for (const uint64_t later : {0u, 4u}) {
        SCOPED_TRACE(later);
        Buddies job(5, 1 + later);
        job.options = grid(4);
        job.steps = steps;
        job.kills = {{0, D / 2}};
        job.joins = {3 * D / 2};
        if (later > 0) job.kills.emplace_back(1, 3 * D / 2 + later * D / 8);
        job.spend_us = 20'000;
        job.run();
        if (digest.empty()) digest = job.engines[2]->status().digest;
        job.expect(digest);
        const std::vector<ViewRecord> views = job.engines[2]->status().views;
        ASSERT_GE(views.size(), later > 0 ? 4u : 3u);
        if (::testing::Test::HasFailure()) return;
    }
    Buddies quiet(4);
    quiet.steps = steps;
    quiet.run();
    quiet.expect(digest);
}

// A spare node takes the place of a lost one, with the state that the buddy has kept.
TEST(StagesBuddies, ASpareTakesThePlace) {
    for (uint64_t at = 4; at < 14; ++at) {
        SCOPED_TRACE(fmt::format("at {} of 14", at));
        Buddies job(5, at);
        job.options = grid(4);
        job.kills = {{0, quiet_us(4) * at / 14}};
        job.run();
        job.expect(alone().digest);
        expect_one_line(job, alone());
        if (::testing::Test::HasFailure()) return;
    }
}

/// From the checkpoint after so many steps, whose parts the job of four has left.
Resume resume_from(const Lossy& job, uint64_t steps, uint32_t cells) {
    Resume resume{.on = true, .steps = steps, .state = alone().lines[steps - 1].digest, .holders = {}, .paths = {}, .notes = ""};
    for (uint32_t cell = 0; cell < cells; ++cell)
        for (Rank rank = 0; rank < 4; ++rank) {
            const std::string path = checkpoint_path(job.own_folder(rank), {steps, cell, cells});
            if (resume.paths.size() > cell || !std::filesystem::exists(path)) continue;
            resume.holders.push_back(NodeId{rank});
            resume.paths.push_back(path);
        }
    return resume;
}

// Parts that were written before or after a loss give the whole state; then any node may be lost again.
TEST(StagesBuddies, ResumedJobsHaveBuddies) {
    alone();   // its folder is that of rank 0
    for (const uint32_t cells : {4u, 3u})
        for (Rank rank = 0; rank < 4; ++rank) {
            SCOPED_TRACE(fmt::format("{} parts, rank {}", cells, rank));
            Buddies first(4);
            if (cells == 3) first.kills = {{1, quiet_us(4) / 4}};
            first.run();
            Buddies job(4);
            job.resume = resume_from(first, 6, cells);
            ASSERT_EQ(job.resume.holders.size(), cells);
            job.spend_us = 10'000;
            job.kills = {{rank, 400'000}};
            job.run();
            job.expect(alone().digest);
            EXPECT_FALSE(job.engines[rank == 0 ? 1 : 0]->status().losses.empty());
            if (::testing::Test::HasFailure()) return;
        }
}

// Both nodes that have a stage: the others end with the line that names it.
TEST(StagesBuddies, ALostPairEndsTheJobByName) {
    for (uint64_t at = 3; at < 10; ++at)
        for (const uint64_t later_us : {uint64_t{0}, D}) {
            SCOPED_TRACE(fmt::format("at {} of 12, {}", at, later_us));
            Buddies job(5, at);
            job.options = grid(5);
            job.widths = {8, 8, 8, 8, 4};
            job.spend_us = later_us > 0 ? 20'000 : 100;
            job.steps = later_us > 0 ? 60 : buddy_steps;
            const uint64_t at_us = later_us > 0 ? D / 2 + at * D / 50 : quiet_us(4) * at / 12;
            job.kills = {{0, at_us}, {1, at_us + later_us}};
            job.run();
            for (const Rank rank : {2u, 3u, 4u}) {
                const std::string what = job.sim->result(rank).what;
                EXPECT_FALSE(job.sim->result(rank).ok());
                EXPECT_NE(what.find("no node has stage 1 of 5 ("), what.npos) << what;
                EXPECT_NE(what.find("which node0, node1 had: `gradcastctl resume`"), what.npos) << what;
                EXPECT_FALSE(checkpoint_files(job.own_folder(rank)).empty());
            }
            if (::testing::Test::HasFailure()) return;
        }
}

// After a loss the job stands until the node is given up, and for the change of view.
TEST(StagesBuddies, ALossTakesAQuarterOfTheDeadline) {
    for (Rank rank = 0; rank < 4; ++rank) {
        Buddies job(4, rank + 1);
        job.spend_us = 10'000;
        job.steps = 20;
        job.kills = {{rank, 1'000'000}};
        job.run();
        const JobStatus status = job.engines[rank == 2 ? 3 : 2]->status();
        ASSERT_EQ(status.views.size(), 2u);
        const uint64_t step_us = 6 * 3 * 10'000 * 2;   // of the new grid: 6 blocks, 3 stages
        EXPECT_LE(status.views.back().stood_us, D / 4 + 2 * step_us);
    }
}

/// Of mail with sums for a buddy; nothing: it is other mail.
std::optional<StepId> step_of(const Event& event) {
    const auto* received = event.is<Event::Received>();
    if (!received || received->packet->type != PacketType::mail) return std::nullopt;
    const uint64_t tag = body_of<MailBody>(*received->packet).tag.get();
    return tag >> 60 == 3 ? std::optional(tag << 4 >> 28) : std::nullopt;
}

/// Flips a bit of a sum that comes from the buddy.
struct Flipping final : Protocol {
    explicit Flipping(Protocol& protocol) : inner(protocol) {}
    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events)
            if (step_of(event) == 3 && !std::exchange(flipped, true))
                event.is<Event::Received>()->packet->payload.as<uint32_t>()[0] ^= 1u << 22;
        inner.on(events, actions);
    }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override { return inner.land(packet, bytes, place); }
    Protocol& inner;
    bool flipped = false;
};

TEST(StagesBuddies, ACopyThatDiffersEndsTheJob) {
    for (Rank rank = 0; rank < 4; ++rank) {
        SCOPED_TRACE(rank);
        Buddies job(4);
        std::unique_ptr<Flipping> flipping;
        job.wrap = [&](Rank of, uint16_t channel, Protocol* protocol) -> Protocol* {
            if (of != rank || channel != mail_channel) return protocol;
            flipping = std::make_unique<Flipping>(*protocol);
            return flipping.get();
        };
        job.run();
        EXPECT_TRUE(flipping->flipped);
        const std::string line = fmt::format("step 4: node{} keeps the state of node{}, and differs from it", rank, rank ^ 1);
        for (Rank each = 0; each < 4; ++each)
            EXPECT_NE(std::string(job.sim->result(each).what).find(line), std::string::npos) << job.sim->result(each).what;
        job.sim.reset();
    }
}

/// Notes when a rank has all sums for a buddy, and when it has applied a step.
struct Watched final : Protocol {
    explicit Watched(Protocol& protocol) : inner(protocol) {}
    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events) {
            if (const auto step = step_of(event)) come_us[*step] = actions.now_us;
            if (const auto* command = event.is<Event::Command>(); command && exchanges)
                if (const auto* release = std::get_if<ExchangeCommand::Release>(&command->as<ExchangeCommand>().what))
                    applied_us[release->step + 1] = actions.now_us;
        }
        inner.on(events, actions);
    }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override { return inner.land(packet, bytes, place); }
    Protocol& inner;
    bool exchanges = false;
    std::map<StepId, uint64_t> come_us, applied_us;
};

// No rank applies a step before every stage's sums are at two ranks.
TEST(StagesBuddies, NobodyAppliesAStepThatABuddyMayMiss) {
    for_seeds(8, [&](uint64_t seed) {
        Buddies job(4, seed);
        job.sim_config.jitter_us = 5'000;
        std::map<std::pair<Rank, uint16_t>, std::unique_ptr<Watched>> watched;
        job.wrap = [&](Rank rank, uint16_t channel, Protocol* protocol) -> Protocol* {
            auto& place = watched[{rank, channel}] = std::make_unique<Watched>(*protocol);
            place->exchanges = channel == gradient_channel;
            return place.get();
        };
        job.run();
        job.expect(alone().digest);
        for (Rank rank = 0; rank < 4; ++rank) {
            const auto& applied = watched[{rank, gradient_channel}]->applied_us;
            EXPECT_EQ(applied.size(), job.steps - 1);
            for (Rank keeper = 0; keeper < 4; ++keeper) {
                const auto& come = watched[{keeper, mail_channel}]->come_us;
                for (const auto& [step, us] : applied)
                    EXPECT_LE(come.at(step), us) << "rank " << rank << ", step " << step << " at rank " << keeper;
            }
        }
        job.sim.reset();
    });
}

}   // namespace
}   // namespace gradcast::views_test
