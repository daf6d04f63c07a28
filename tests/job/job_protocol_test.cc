// The job protocol alone, in the simulator: trainers that only begin, pass time and end.
#include "runtime/job/run/job_protocol.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "runtime/job/run/job_news.h"
#include "transport/sim/sim.h"

namespace gradcast {
namespace {

constexpr uint64_t deadline_us = 4'000'000;

struct Script {   // what one rank does
    std::string kernel_set = std::string(16, 'a'), data = std::string(64, 'b'), start, digest = std::string(64, 'c');
    std::string name;
    uint64_t state = 7;
    uint32_t steps = 20;
    uint64_t step_us = 100'000;
    bool begins = true;
    uint32_t fails_at = ~0u;   // this step, with
    Status failure = {};
    uint32_t waits_from = ~0u;              // from this step on it says that it waits for others
    uint32_t leaves_at = ~0u;               // this step
    std::optional<uint64_t> pauses;         // it does not end the job but the view, with this state
    bool cancels = false;                   // then
    std::vector<std::string> losses = {};   // of its `lost` completions
};

struct World {
    explicit World(uint32_t n, SimConfig sim = {}, bool by_datagrams = false)
        : datagrams(by_datagrams), ranks(n), progress(n), ending(n), steps_received(n, std::vector<uint32_t>(n)) {
        times.step({}, 1);
        sim.ranks = n;
        sim.lost_after_us = timeouts_of(deadline_us).lost_us;
        simulator = Simulator::create(sim);
        log_level(Level::error);
    }
    void run() {
        View view;
        for (Rank rank = 0; rank < ranks.size(); ++rank) {
            ranks[rank].name = fmt::format("node-{}", static_cast<char>('a' + rank));
            view.members.push_back({ranks[rank].name});
        }
        for (Rank rank = 0; rank < ranks.size(); ++rank) {
            protocols.push_back(job_protocol({view,
                                              rank,
                                              deadline_us,
                                              ranks[rank].kernel_set,
                                              ranks[rank].data,
                                              ranks[rank].start,
                                              &progress[rank],
                                              tolerated,
                                              !later,
                                              lost,
                                              steps,
                                              first,
                                              {},
                                              &times,
                                              [this, rank](Rank of, const RankTimes& theirs) { steps_received[rank][of] = theirs.steps; },
                                              nullptr,
                                              {},
                                              isa_setting,
                                              grid ? &*grid : nullptr,
                                              {},
                                              &ending[rank]},
                                             Log()));
            if (datagrams) simulator->attach_datagrams(rank, 0, protocols.back().get());
            else simulator->attach(rank, 0, protocols.back().get());
            progress[rank].step.store(first, std::memory_order_relaxed);
            simulator->trainer(rank, [this, rank](Host& host) { return train(host, ranks[rank], progress[rank], first); });
        }
        (void)simulator->run();   // the first trainer's error; each is looked at below
    }
    static void command(Host& host, const JobCommand& command) { host.post(0, command_event(command)); }
    /// What the job protocol said by then, if anything.
    static std::optional<Status> verdict_of(Host& host, uint64_t until_us, Script& self) {
        for (;;) {
            std::vector<Completion> done;
            if (!host.wait(&done, until_us).ok()) return {};
            for (const Completion& each : done)
                if (each.id == job_rank_lost) self.losses.emplace_back(each.status.what);
            for (const Completion& each : done)
                if (!each.status.ok() && each.id != job_rank_lost) return each.status;
            for (const Completion& each : done)
                if (each.id != job_rank_lost) return Status{};
        }
    }
    static Status await(Host& host, Script& self) {
        return verdict_of(host, host.now_us() + 20 * deadline_us, self).value_or(fail(Code::node_io, "the job protocol never answers"));
    }
    static JobCommand::End end_of(const std::string& digest) {
        JobCommand::End end;
        std::copy(digest.begin(), digest.end(), end.digest.begin());
        return end;
    }
    static Status train(Host& host, Script& self, Progress& progress, StepId first) {
        if (self.begins) command(host, {JobCommand::Begin{self.state}});
        GC_TRY(await(host, self));
        for (uint32_t at = 0; at < self.steps; ++at) {
            const StepId step = first + at;
            if (step == self.fails_at) {
                command(host, {JobCommand::Abort{self.failure}});
                return await(host, self);
            }
            if (step == self.leaves_at) {
                command(host, {JobCommand::Leave{fail(Code::cancelled, "node {} leaves", self.name)}});
                return await(host, self);
            }
            progress.waiting.store(step >= self.waits_from, std::memory_order_relaxed);
            host.spend(self.step_us);
            if (std::optional<Status> verdict = verdict_of(host, host.now_us() + 1, self)) return *verdict;
            progress.step.store(step + 1, std::memory_order_relaxed);
            progress.advance();
        }
        progress.waiting.store(true, std::memory_order_relaxed);
        if (self.pauses) command(host, {JobCommand::Pause{*self.pauses}});
        else command(host, {end_of(self.digest)});
        if (self.cancels) command(host, {JobCommand::Abort{fail(Code::cancelled, "cancelled too late")}});
        return await(host, self);
    }
    /// All living ranks ended with this code and one and the same line.
    std::string one_line(Code code, std::vector<Rank> dead = {}) {
        std::string line;
        for (Rank rank = 0; rank < ranks.size(); ++rank) {
            if (std::find(dead.begin(), dead.end(), rank) != dead.end()) continue;
            Status status = simulator->result(rank);
            EXPECT_EQ(status.code, code) << "rank " << rank << ": " << status.what;
            if (line.empty()) line = status.what;
            EXPECT_EQ(line, status.what) << "rank " << rank;
        }
        return line;
    }

    const bool datagrams;
    std::string isa_setting = isa_setting_in_file;
    uint32_t tolerated = 0;   // losses
    std::optional<Grid> grid;
    StepId steps = ~StepId{0}, first = 0;
    bool later = false;       // the job has had another view before
    std::vector<bool> lost;   // before this one
    std::vector<Script> ranks;
    std::vector<Progress> progress;
    std::vector<std::atomic<bool>> ending;   // that their computing is to give up
    StepTimes times;
    std::vector<std::vector<uint32_t>> steps_received;   // [rank][of]: of the last times that came
    std::unique_ptr<Simulator> simulator;
    std::vector<std::unique_ptr<Protocol>> protocols;
};

TEST(JobProtocol, AViewEndsWhereAllHaveTheSameState) {
    World world(3);
    for (Script& each : world.ranks) each.pauses = 17;
    world.ranks[1].cancels = true;   // others may have closed the view by then
    world.run();
    world.one_line(Code::ok);
    for (bool pauses : {true, false}) {
        World torn(3);
        for (Script& each : torn.ranks) each.pauses = 17;
        if (pauses) torn.ranks[2].pauses = 18;
        else torn.ranks[2].pauses.reset();   // the job has ended for it
        torn.run();
        EXPECT_NE(torn.one_line(Code::conflict).find("ends with digest"), std::string::npos);
    }
}

TEST(JobProtocol, ALaterViewBeginsWithoutTheRanksThatAreLost) {
    World known(4);   // before
    known.tolerated = 1;
    known.later = true;
    known.lost = {false, false, true, false};
    known.simulator->kill(2, 0);
    known.run();
    known.one_line(Code::ok, {2});
    for (bool dead : {true, false}) {   // or it never begins
        World meanwhile(4);
        meanwhile.tolerated = 1;
        meanwhile.later = true;
        meanwhile.ranks[3].begins = false;
        if (dead) meanwhile.simulator->kill(3, 10'000);
        else meanwhile.simulator->partition({3}, 10'000, 100 * deadline_us);
        meanwhile.run();
        meanwhile.one_line(Code::ok, {3});
    }
    World first(4);
    first.tolerated = 1;
    first.ranks[3].begins = false;
    first.simulator->kill(3, 10'000);
    first.run();
    EXPECT_NE(first.one_line(Code::peer_lost, {3}).find("rank 3 (node-d) lost"), std::string::npos);
}

TEST(JobProtocol, GoesOnWithoutTheRanksThatTheExchangeCanMiss) {
    for (Rank dead : {0u, 2u, 4u}) {
        World world(5);
        world.tolerated = 1;
        world.simulator->kill(dead, 700'000);
        world.run();
        world.one_line(Code::ok, {dead});
        for (Rank rank = 0; rank < 5; ++rank)
            for (Rank of = 0; rank != dead && of < 5; ++of)
                EXPECT_EQ(world.steps_received[rank][of], of != dead && of != rank) << rank << of;
    }
    World world(5);
    world.tolerated = 1;
    world.simulator->kill(1, 500'000), world.simulator->kill(3, 900'000);
    world.run();
    EXPECT_NE(world.one_line(Code::peer_lost, {1, 3}).find("lost in step"), std::string::npos);
    // A rank that is silent is given up after D/4; what it sends later is ignored.
    World mute(4);
    mute.tolerated = 1;
    mute.simulator->partition({3}, 600'000, 600'000 + deadline_us * 2 / 5);
    for (Script& each : mute.ranks) each.steps = 60;
    mute.ranks[3].digest = std::string(64, '3');
    mute.run();
    mute.one_line(Code::ok, {3});
    EXPECT_FALSE(mute.simulator->result(3).ok());
}

// In a later view the ranks of a replica need not follow one another.  A spare belongs to none, and counts by itself.
TEST(JobProtocol, LossesCountByReplica) {
    const uint32_t cells[] = {0, 0, 1, 1, 0};   // replicas: ranks 0 and 2, 1 and 3; 4 is a spare
    const auto run = [&](World& world, Rank first, Rank second) {
        world.tolerated = 1;
        world.grid = Grid::of(cells, 2, 1);
        world.simulator->kill(first, 500'000), world.simulator->kill(second, 900'000);
        world.run();
    };
    World same(5);
    run(same, 0, 2);
    same.one_line(Code::ok, {0, 2});
    for (const Rank second : {1u, 4u}) {
        World other(5);
        run(other, 0, second);
        EXPECT_NE(other.one_line(Code::peer_lost, {0, second}).find("lost in step"), std::string::npos) << second;
    }
}

TEST(JobProtocol, ALossSaysWhatToDo) {
    World missed(4), last(4);
    missed.tolerated = 1;
    missed.simulator->kill(2, 700'000);
    missed.run();
    missed.one_line(Code::ok, {2});
    for (Rank rank : {0u, 1u, 3u}) {
        ASSERT_EQ(missed.ranks[rank].losses.size(), 1u);
        const std::string& loss = missed.ranks[rank].losses[0];
        EXPECT_TRUE(loss.starts_with("without rank 2 (node-c): ")) << loss;
        EXPECT_TRUE(loss.ends_with("; look at the log of gradcastd, the load and the network of node-c")) << loss;
    }
    // It dies after the last step.
    last.steps = last.ranks[0].steps;
    last.ranks[2].steps = 100;
    last.simulator->kill(2, 3'000'000);
    last.run();
    const std::string line = last.one_line(Code::peer_lost, {2});
    EXPECT_TRUE(line.starts_with("rank 2 (node-c) lost in step 20: ")) << line;
    EXPECT_TRUE(
        line.ends_with("; look at the log of gradcastd, the load and the network of node-c "
                       "(survive = true in [job], or coded-rs with s = 1, goes on without a node)"))
        << line;
}

TEST(JobProtocol, ARankThatIsCutOffBlamesNoOther) {
    for (uint32_t tolerated : {0u, 1u})
        for (Rank alone : {0u, 2u}) {
            SCOPED_TRACE(fmt::format("rank {}, {} losses tolerated", alone, tolerated));
            World world(4);
            world.tolerated = tolerated;
            world.simulator->partition({alone}, 600'000, 100 * deadline_us);
            for (Script& each : world.ranks) each.steps = 100;
            world.run();
            const std::string name = fmt::format("rank {} (node-{})", alone, static_cast<char>('a' + alone));
            EXPECT_EQ(world.simulator->result(alone).code, Code::peer_lost);
            EXPECT_EQ(world.simulator->result(alone).what, name + " lost all other ranks: is this node's network up?");
            const std::string line = world.one_line(tolerated ? Code::ok : Code::peer_lost, {alone});
            if (!tolerated) {
                EXPECT_NE(line.find(name), std::string::npos) << line;
            }
        }
}

TEST(JobProtocol, ARankLeavesAndTheOthersGoOn) {
    for (Rank leaver : {0u, 2u}) {
        World world(4);
        world.tolerated = 1;
        world.ranks[leaver].leaves_at = 5;
        world.run();
        world.one_line(Code::ok, {leaver});
        const Status departed = world.simulator->result(leaver);
        EXPECT_EQ(departed.code, Code::cancelled);
        EXPECT_EQ(departed.what, fmt::format("node node-{} leaves; the job goes on without it", static_cast<char>('a' + leaver)));
    }
    // One more than can be missed ends the job for all that remain, and so does one where none can be.
    World two(4), none(4);
    two.tolerated = 1;
    two.ranks[1].leaves_at = 5;
    two.ranks[2].leaves_at = 12;
    two.run();
    EXPECT_EQ(two.one_line(Code::cancelled, {1}), "node node-c leaves");
    none.ranks[2].leaves_at = 5;
    none.run();
    EXPECT_EQ(none.one_line(Code::cancelled), "node node-c leaves");
    // Both at once: each takes itself for the only loss.
    World both(5);
    both.tolerated = 1;
    both.ranks[1].leaves_at = both.ranks[2].leaves_at = 5;
    both.run();
    EXPECT_TRUE(both.one_line(Code::cancelled, {1, 2}).ends_with(" leaves"));
}

TEST(JobProtocol, AllEndTogether) {
    for (uint32_t n : {1u, 2u, 5u, 16u}) {
        World world(n);
        world.ranks[n / 2].step_us = 300'000;   // the others wait for its end
        world.run();
        world.one_line(Code::ok);
        for (const auto& each : world.ending) EXPECT_FALSE(each.load());
    }
}

TEST(JobProtocol, NoSinglePacketMatters) {
    for (uint64_t seed = 1; seed <= 10; ++seed) {
        SimConfig sim;
        sim.seed = seed;
        sim.loss = 0.2;
        sim.duplicate = 0.2;
        sim.jitter_us = 2000;
        World world(6, sim, true);
        world.run();
        world.one_line(Code::ok);
        if (HasFailure()) FAIL() << "seed " << seed;
    }
}

TEST(JobProtocol, MembersThatDifferAreNamed) {
    for (Rank odd : {0u, 2u}) {
        World kernels(4), data(4), start(4), state(4), end(4);
        for (auto& rank : start.ranks) rank.start = std::string(64, '5');
        start.ranks[odd].start[0] = '6';   // follows from the other difference, and is not reported
        start.ranks[odd].kernel_set[0] = 'f';
        kernels.ranks[odd].kernel_set = "0123456789abcdef";
        data.ranks[odd].data[3] = 'x';
        state.ranks[odd].state = 8;
        end.ranks[odd].digest[0] = '0';
        const std::string name = fmt::format("rank {} (node-{})", odd, static_cast<char>('a' + odd));
        for (World* world : {&kernels, &data, &start, &state, &end}) {
            world->run();
            EXPECT_NE(world->one_line(Code::conflict).find(name), std::string::npos) << world->one_line(Code::conflict);
        }
        EXPECT_NE(kernels.one_line(Code::conflict).find("set the same `isa` in gradcastd.toml at all nodes"), std::string::npos);
        World launched(4);
        launched.isa_setting = "--isa";
        launched.ranks[odd].kernel_set = "0123456789abcdef";
        launched.run();
        EXPECT_NE(launched.one_line(Code::conflict).find(": set the same --isa at all nodes"), std::string::npos);
        EXPECT_NE(data.one_line(Code::conflict).find("data"), std::string::npos);
        EXPECT_NE(start.one_line(Code::conflict).find("starts from a file with the digest"), std::string::npos);
        EXPECT_NE(start.one_line(Code::conflict).find(" 65555"), std::string::npos) << start.one_line(Code::conflict);
        EXPECT_NE(end.one_line(Code::conflict).find(" 0cccc"), std::string::npos) << end.one_line(Code::conflict);
    }
}

TEST(JobProtocol, FirstCauseIsEverybodysLine) {
    World world(5);
    world.ranks[2].fails_at = 3;
    world.ranks[2].failure = fail(Code::diverged, "NaN in the gradient of layer conv2, block 3, step 17");
    world.run();
    EXPECT_EQ(world.one_line(Code::diverged), "diverged: rank 2 (node-c): NaN in the gradient of layer conv2, block 3, step 17");
}

TEST(JobProtocol, CrossingCausesAgree) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        SimConfig sim;
        sim.seed = seed;
        sim.latency_us = 5000;   // so that they do cross
        sim.jitter_us = 5000;
        World world(7, sim);
        for (Rank rank : {1u, 3u, 6u}) {
            world.ranks[rank].fails_at = 3;
            world.ranks[rank].failure = fail(Code::diverged, "NaN at {}", rank);
        }
        world.run();
        std::string line = world.one_line(Code::diverged);
        EXPECT_TRUE(line.starts_with("diverged: rank ")) << line;
        if (HasFailure()) FAIL() << "seed " << seed;
    }
}

TEST(JobProtocol, CancelHasNoFinder) {
    World world(3);
    world.ranks[1].fails_at = 5;
    world.ranks[1].failure = fail(Code::cancelled, "cancelled on request at node-b");
    world.run();
    EXPECT_EQ(world.one_line(Code::cancelled), "cancelled on request at node-b");
    for (const auto& each : world.ending) EXPECT_TRUE(each.load());   // at every rank what computes gives up
}

TEST(JobProtocol, ADeadRankIsNamedWithinTheDeadline) {
    for (Rank dead : {0u, 2u}) {
        World world(4);
        for (Script& rank : world.ranks) rank.steps = 100;
        world.simulator->kill(dead, 1'000'000);
        world.run();
        EXPECT_NE(world.one_line(Code::peer_lost, {dead}).find(fmt::format("rank {} (node-{})", dead, static_cast<char>('a' + dead))),
                  std::string::npos);
        EXPECT_LE(world.simulator->now_us(), 1'000'000 + deadline_us);
    }
}

TEST(JobProtocol, AStuckTrainerIsLostAndAWaitingOneIsNot) {
    World stuck(3), slow(3);
    stuck.ranks[1].fails_at = ~0u;
    for (Script& rank : stuck.ranks) rank.steps = 200;
    stuck.ranks[1].step_us = 60 * deadline_us;   // even the first step has only 10 D
    stuck.run();
    std::string line = stuck.one_line(Code::peer_lost, {1});
    EXPECT_TRUE(line.starts_with("rank 1 (node-b) without progress for")) << line;
    EXPECT_TRUE(
        line.ends_with(" s in step 1; look at the log of gradcastd, the load and the network of node-b "
                       "(survive = true in [job], or coded-rs with s = 1, goes on without a node)"))
        << line;

    slow.ranks[0].steps = slow.ranks[2].steps = 4;   // rank 1 goes on for 2.5 D, while the others only wait for it
    slow.ranks[1].steps = 100;
    for (Rank rank : {0u, 2u}) {
        slow.ranks[rank].waits_from = 1;
        slow.ranks[rank].step_us = 2'500'000;
    }
    slow.run();
    slow.one_line(Code::ok);

    World resumed(3);   // the first step of a run has 10 D, whatever its number
    resumed.first = 40;
    for (Script& rank : resumed.ranks) {
        rank.steps = 1;
        rank.step_us = 4 * deadline_us;
    }
    for (Rank rank : {0u, 2u}) resumed.ranks[rank].waits_from = 40;
    resumed.run();
    resumed.one_line(Code::ok);
}

TEST(JobProtocol, OneThatNeverBeginsIsNamed) {
    World world(3);
    world.ranks[2].begins = false;
    world.run();
    EXPECT_NE(world.one_line(Code::deadline).find("rank 2 (node-c) has not started within 4 s"), std::string::npos)
        << world.one_line(Code::deadline);
}

TEST(JobProtocol, ForgedNewsIsDropped) {
    Progress progress;
    View view;
    view.members = {{"node-a"}, {"node-b"}};
    auto protocol = job_protocol({view, 0, deadline_us, std::string(16, 'a'), std::string(64, 'b'), "", &progress}, Log());
    std::array<std::byte, inline_bytes_max> bytes{};
    for (uint32_t length = 0; length < sizeof(JobNews); length += 25)
        for (uint8_t phase : {0, 4, 200}) {
            JobNews news{};
            news.phase = phase;
            news.code = 99;
            std::memcpy(bytes.data(), &news, sizeof news);
            Packet packet;
            packet.type = PacketType::job;
            packet.sender = length % 2 ? 1 : 7;
            packet.body[0] = std::byte{1};
            packet.body[8] = std::byte{9};
            packet.payload = {bytes.data(), nullptr, length};
            const Event event{Event::Received{&packet}};
            Actions actions;
            protocol->on({&event, 1}, actions);
            EXPECT_TRUE(actions.completions.empty() && actions.sends.empty());
            Buffer place;
            EXPECT_EQ(protocol->land(packet, inline_bytes_max + 1, &place), Landing::drop);
        }
}

TEST(JobProtocol, TimeoutsAddUp) {
    Timeouts timeouts = timeouts_of(40'000'000);
    EXPECT_EQ(timeouts.heartbeat_us, 1'000'000u);
    EXPECT_EQ(timeouts.suspicion_us, 10'000'000u);
    EXPECT_LT(timeouts.lost_us + timeouts.settle_us + 2 * timeouts.heartbeat_us,
              timeouts.stall_us);   // so a dead rank ends the job within D
    EXPECT_EQ(timeouts.first_step_us, 400'000'000u);
}

}   // namespace
}   // namespace gradcast
