// Membership on the simulator: whatever dies, is refused or comes at once, every open ends in one start or abort, every start in one close,
// every submission in one answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "runtime/core/rng.h"
#include "runtime/job/membership.h"
#include "transport/link/sim.h"
#include "transport/wire/packet.h"

namespace gradcast {
namespace {

using Kind = Notice::Kind;
constexpr uint64_t second = 1'000'000;

std::string name_of(uint32_t i) { return std::string(1, static_cast<char>('a' + i % 26)) + (i < 26 ? "" : std::to_string(i / 26)); }
Identity identity_of(uint32_t i, uint64_t incarnation = 1) {
    Identity identity{name_of(i), {}, incarnation << 32};
    identity.uuid[0] = static_cast<uint8_t>(i + 1);
    return identity;
}
MembershipConfig config_of(uint32_t self, uint32_t n, size_t left_max = 1024) {
    MembershipConfig config{.self = self, .names = {}, .identity = identity_of(self), .version = "test"};
    for (uint32_t i = 0; i < n; ++i) config.names.push_back(name_of(i));
    config.left_max = left_max;
    return config;
}

struct Seen {   // of one job at one daemon
    uint32_t open = 0, start = 0, abort = 0, close = 0, submitted = 0;
    Status abort_status, submitted_status;
    Rank self = 99;
    uint64_t deadline_us = 0;   // D, of start
    uint64_t submitted_us = 0, closed_us = 0;
    std::string told;
    bool over = false;
    std::vector<uint64_t> incarnations, opened_us;   // of its runs
    std::vector<uint64_t> started;                   // incarnations likewise
};

/// One daemon: does what notices ask, after the times below, on the simulator's trainer.
struct Node final : Protocol {
    Node(uint32_t index, uint32_t nodes, size_t left_max) : self(index), n(nodes), membership(config_of(index, nodes, left_max)) {}
    const uint32_t self, n;
    Membership membership;
    uint64_t open_us = 50'000, run_us = 3 * second, end_us = 60 * second;
    bool leaves = false, returns = false;
    bool trains = false;               // where it joins, it becomes a member at once
    uint32_t opens_max = 1;            // of a job
    uint32_t invites_lost = 0;         // so many INVITEs do not come
    std::vector<std::string> orders;   // to be drained, or not any more
    Status open_status;
    std::string kernel_set = "k", data_digest = "d", start_digest;
    uint64_t needs_us = 0;   // as D
    std::multimap<uint64_t, std::function<void()>> agenda;
    std::map<JobId, Seen> seen;
    Host* host = nullptr;

    void submit_at(uint64_t at_us, JobId id, std::vector<uint32_t> members, uint64_t deadline_us = 4 * second, std::string text = "x") {
        agenda.emplace(at_us, [this, id, members, deadline_us, text] {
            auto plan = std::make_shared<JobPlan>();
            plan->id = id;
            plan->name = "job";
            plan->text = text;
            plan->deadline_us = deadline_us;
            for (uint32_t member : members) {
                Identity identity = identity_of(member);
                plan->members.push_back({identity.name, identity.uuid, identity.incarnation});
            }
            Seen& job = seen[id];
            if (job.submitted_status = membership.submit(plan); !job.submitted_status.ok()) {
                ++job.submitted;
                job.submitted_us = host->now_us();
            }
        });
    }
    void act(const Notice& notice) {
        if (notice.kind == Kind::drain) {
            orders.push_back(fmt::format("{}{}", notice.on ? "drain" : "undrain", notice.cancel ? " cancel" : ""));
            return membership.draining(notice.on, notice.on ? "job 1" : "");
        }
        Seen& job = seen[notice.id];
        uint64_t now = host->now_us();
        switch (notice.kind) {
            case Kind::open:
                ++job.open;
                job.self = notice.self;
                job.incarnations.push_back(notice.plan->members[notice.self].incarnation);
                job.opened_us.push_back(now);
                agenda.emplace(now + open_us, [this, id = notice.id] {
                    membership.opened(id, open_status, kernel_set, data_digest, start_digest, needs_us);
                });
                break;
            case Kind::start:
                ++job.start;
                job.started.push_back(job.incarnations.back());
                if (trains) membership.trains(notice.id);
                job.deadline_us = notice.deadline_us;
                agenda.emplace(now + run_us, [this, id = notice.id] { membership.ended(id, leaves, returns); });
                break;
            case Kind::abort:
                ++job.abort;
                job.abort_status = notice.status;
                break;
            case Kind::close:
                ++job.close;
                job.closed_us = now;
                break;
            case Kind::told: job.told += notice.status.what; break;
            case Kind::over: job.over = true; break;
            case Kind::drain:
            case Kind::find:
            case Kind::found: break;
            case Kind::submitted:
                ++job.submitted;
                job.submitted_status = notice.status;
                job.submitted_us = now;
                break;
        }
    }
    void on(std::span<const Event> events, Actions& actions) override {
        constexpr uint32_t invite = 11;
        std::vector<Event> left;
        for (const Event& event : events) {
            const bool invited = event.kind == Event::Kind::packet && body_of<JobBody>(*event.packet).kind.get() == invite;
            if (invited && invites_lost > 0) --invites_lost;
            else left.push_back(event);
        }
        membership.on(left, actions);
    }
    Status run(Host& its) {
        host = &its;
        std::vector<Completion> completions;
        while (its.now_us() < end_us) {
            completions.clear();
            uint64_t until = std::min(end_us, agenda.empty() ? end_us : agenda.begin()->first);
            if (until > its.now_us() && its.wait(&completions, until).code == Code::cancelled) return {};   // killed
            for (const Notice& notice : membership.notices()) act(notice);
            while (!agenda.empty() && agenda.begin()->first <= its.now_us()) {
                auto what = std::move(agenda.begin()->second);
                agenda.erase(agenda.begin());
                what();
            }
        }
        return {};
    }
};

struct Cluster {
    std::unique_ptr<Simulator> simulator;
    std::vector<std::unique_ptr<Node>> nodes;
    std::vector<bool> dead;
    explicit Cluster(uint32_t n, SimConfig config = {}, size_t left_max = 1024) {
        config.ranks = n;
        config.lost_after_us = 4 * second;
        simulator = Simulator::create(config);
        for (uint32_t i = 0; i < n; ++i) {
            nodes.push_back(std::make_unique<Node>(i, n, left_max));
            simulator->attach(i, 0, nodes[i].get());
            nodes[i]->membership.start(simulator->host(i), 0);
            simulator->trainer(i, [node = nodes[i].get()](Host& host) { return node->run(host); });
        }
        dead.resize(n);
    }
    Node& operator[](uint32_t i) { return *nodes[i]; }
    void kill(Rank rank, uint64_t at_us) {
        simulator->kill(rank, at_us);
        dead[rank] = true;
    }
    void run() {
        Status status = simulator->run();
        ASSERT_TRUE(status.ok()) << status.what;
        for (auto& node : nodes) {
            if (dead[node->self]) continue;
            for (auto& [id, job] : node->seen) {
                EXPECT_LE(job.open, node->opens_max);
                EXPECT_EQ(job.open, job.start + job.abort) << "node " << node->self;
                EXPECT_EQ(job.start, job.close) << "node " << node->self;
                EXPECT_EQ(job.submitted, job.self == 0 || job.self == 99 ? 1u : 0u) << "node " << node->self;
            }
            EXPECT_EQ(node->membership.peers()[node->self].jobs, 0u) << "node " << node->self;
        }
    }
};

std::vector<uint32_t> all(uint32_t n, uint32_t first = 0) {
    std::vector<uint32_t> members{first};
    for (uint32_t i = 0; i < n; ++i)
        if (i != first) members.push_back(i);
    return members;
}

TEST(Membership, StartsEverywhereAndCloses) {
    for (uint32_t n : {1, 2, 3, 4, 8, 16}) {
        for (uint64_t seed = 1; seed <= 3; ++seed) {
            Cluster cluster(n, {.seed = seed, .jitter_us = 2000});
            cluster[n / 2].submit_at(2 * second, {1}, all(n, n / 2));
            cluster.run();
            for (uint32_t i = 0; i < n; ++i) EXPECT_EQ(cluster[i].seen[{1}].close, 1u) << n << " node " << i;
            EXPECT_EQ(cluster[n / 2].seen[{1}].self, 0u);
            EXPECT_TRUE(cluster[n / 2].seen[{1}].submitted_status.ok());
        }
    }
}

TEST(Membership, AllHaveTheDeadlineThatTheSlowestNeeds) {
    for (uint32_t slow : {0, 1, 2}) {
        Cluster cluster(3);
        cluster[slow].needs_us = 7 * second;
        cluster[0].submit_at(2 * second, {1}, all(3));
        cluster.run();
        for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(cluster[i].seen[{1}].deadline_us, 7 * second) << slow << " node " << i;
    }
    Cluster cluster(2);
    cluster[1].needs_us = 3 * second;   // less than the job file says
    cluster[0].submit_at(2 * second, {1}, all(2));
    cluster.run();
    for (uint32_t i = 0; i < 2; ++i) EXPECT_EQ(cluster[i].seen[{1}].deadline_us, 4 * second);
}

TEST(Membership, ANodeThatLeavesWaitsForNoOther) {
    for (uint32_t leaver : {0, 2}) {
        Cluster cluster(3);
        for (uint32_t i = 0; i < 3; ++i) cluster[i].run_us = (i == leaver ? 1 : 20) * second;
        cluster[leaver].leaves = true;
        cluster[0].submit_at(2 * second, {1}, all(3));
        cluster.run();
        for (uint32_t i = 0; i < 3; ++i) {
            const uint64_t closed_us = cluster[i].seen[{1}].closed_us;
            if (i == leaver) {
                EXPECT_LT(closed_us, 6 * second);
            } else {
                EXPECT_GT(closed_us, 22 * second);
            }
        }
    }
}

TEST(Membership, SeesWhoIsAlive) {
    Cluster cluster(3);
    cluster.kill(2, 10 * second);
    cluster.run();
    std::vector<PeerState> peers = cluster[0].membership.peers();
    EXPECT_TRUE(peers[0].alive && peers[1].alive);
    EXPECT_FALSE(peers[2].alive);
    EXPECT_NE(peers[2].why, "");
    EXPECT_EQ(peers[1].version, "test");
    EXPECT_EQ(peers[1].member.incarnation, identity_of(1).incarnation);
}

TEST(Membership, ANodeThatWasAwayIsAliveAgain) {
    Cluster cluster(3);
    bool away = false;
    cluster.simulator->partition({2}, 10 * second, 13 * second);   // too short to notice
    cluster.simulator->partition({2}, 20 * second, 23'900'000);
    cluster[0].agenda.emplace(12 * second, [&] { EXPECT_TRUE(cluster[0].membership.peers()[2].alive); });
    cluster[0].agenda.emplace(40 * second, [&] { away = !cluster[0].membership.peers()[2].alive; });
    cluster[0].submit_at(41 * second, {1}, all(3));
    cluster.run();
    EXPECT_FALSE(away);
    EXPECT_EQ(cluster[0].seen[{1}].close, 1u);
}

TEST(Membership, ADrainedNodeTakesNoNewJobs) {
    Cluster cluster(3);
    cluster[0].agenda.emplace(2 * second, [&] { cluster[0].membership.drain(1, true, true); });
    cluster[0].agenda.emplace(5 * second, [&] {
        const PeerState seen = cluster[0].membership.peers()[1];
        EXPECT_TRUE(seen.alive && seen.draining);
        EXPECT_EQ(seen.hinders, "job 1");
    });
    cluster[0].submit_at(6 * second, {1}, all(3));
    cluster[0].agenda.emplace(8 * second, [&] { cluster[0].membership.drain(1, false, false); });
    cluster[0].submit_at(12 * second, {2}, all(3));
    cluster.run();
    EXPECT_EQ(cluster[1].orders, (std::vector<std::string>{"drain cancel", "undrain"}));
    EXPECT_NE(std::string(cluster[0].seen[{1}].submitted_status.what).find("it is drained"), std::string::npos);
    EXPECT_TRUE(cluster[0].seen[{2}].submitted_status.ok()) << cluster[0].seen[{2}].submitted_status.what;
}

TEST(Membership, ARefusalEndsItEverywhereByName) {
    for (uint32_t who : {0, 1, 2}) {
        Cluster cluster(3);
        cluster[who].open_status = fail(Code::data, "data.train: no file matches /x/y*.h5");
        cluster[0].submit_at(2 * second, {1}, all(3));
        cluster[0].submit_at(
            9 * second, {2},
            who == 0 ? std::vector<uint32_t>{0} : std::vector<uint32_t>{0, 3 - who});   // and the next one is not disturbed
        if (who == 0) cluster[0].agenda.emplace(8 * second, [&] { cluster[0].open_status = {}; });
        cluster.run();
        EXPECT_EQ(cluster[0].seen[{1}].submitted_status.what, "node " + name_of(who) + ": data.train: no file matches /x/y*.h5");
        EXPECT_TRUE(cluster[0].seen[{2}].submitted_status.ok());
        EXPECT_EQ(cluster[0].seen[{1}].submitted_status.code, who == 0 ? Code::data : Code::peer_refused);
        for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(cluster[i].seen[{1}].abort, 1u);
    }
}

TEST(Membership, AMistakeOfTheJobIsOneWhoeverFindsItFirst) {
    for (uint32_t who : {0, 1}) {
        Cluster cluster(2);
        cluster[who].open_status = fail(Code::invalid, "layer conv1: too large");
        cluster[0].submit_at(2 * second, {1}, all(2));
        cluster.run();
        EXPECT_EQ(cluster[0].seen[{1}].submitted_status.code, Code::invalid);
        EXPECT_EQ(cluster[0].seen[{1}].submitted_status.what, "node " + name_of(who) + ": layer conv1: too large");
    }
}

TEST(Membership, UnlikeBitsAreRefusedByName) {
    Cluster cluster(4);
    cluster[2].kernel_set = "other";
    cluster[0].submit_at(2 * second, {1}, all(4));
    cluster[0].agenda.emplace(10 * second, [&] {
        cluster[2].kernel_set = "k";
        cluster[3].data_digest = "other";
    });
    cluster[0].submit_at(11 * second, {2}, all(4));
    cluster[0].agenda.emplace(20 * second, [&] {
        cluster[3].data_digest = "d";
        cluster[1].start_digest = cluster[1].kernel_set = "s";
    });
    cluster[0].submit_at(21 * second, {3}, all(4));
    cluster.run();
    EXPECT_EQ(std::string(cluster[0].seen[{3}].submitted_status.what).find("node b starts from another file than node a"), 0u);
    EXPECT_EQ(std::string(cluster[0].seen[{1}].submitted_status.what).find("node c computes other bits than node a"), 0u);
    EXPECT_EQ(std::string(cluster[0].seen[{2}].submitted_status.what).find("node d has other data than node a"), 0u);
}

/// A job that a and b begin and the others of `nodes` may join by themselves.
std::shared_ptr<JobPlan> elastic(const JobId& id, uint32_t nodes) {
    auto plan = std::make_shared<JobPlan>();
    plan->id = id;
    plan->name = "job";
    plan->text = "x";
    plan->deadline_us = 4 * second;
    for (uint32_t i = 0; i < nodes; ++i) {
        const Identity identity = identity_of(i);
        plan->members.push_back({identity.name, identity.uuid, i < 2 ? identity.incarnation : 0});
    }
    plan->first = 2;
    plan->returns = plan->elastic = true;
    return plan;
}

/// a and b run a job that c may join by itself; `change` comes before.
void join_later(const std::function<void(Cluster&)>& change, const std::function<void(Cluster&, const JobId&)>& expect) {
    Cluster cluster(3);
    const JobId id{1};
    for (uint32_t i : {0, 1}) cluster[i].run_us = 20 * second;
    cluster[2].run_us = 5 * second;
    change(cluster);
    cluster[0].agenda.emplace(2 * second, [&] {
        Seen& job = cluster[0].seen[id];
        job.submitted_status = cluster[0].membership.submit(elastic(id, 3));
        EXPECT_TRUE(job.submitted_status.ok()) << job.submitted_status.what;
    });
    cluster.run();
    for (uint32_t i : {0, 1}) {   // whatever becomes of c
        if (cluster.dead[i]) continue;
        EXPECT_EQ(cluster[i].seen[id].start, 1u);
        EXPECT_EQ(cluster[i].seen[id].abort, 0u);
        EXPECT_GE(cluster[i].seen[id].closed_us, 20 * second);
    }
    expect(cluster, id);
}

TEST(Membership, AJoinerIsToldWithWhatItMustCompute) {
    join_later([](Cluster&) {},
               [](Cluster& cluster, const JobId& id) {
                   EXPECT_EQ(cluster[2].seen[id].start, 1u);
                   EXPECT_EQ(cluster[2].seen[id].deadline_us, 4 * second);
                   EXPECT_EQ(cluster[0].seen[id].told, "");
               });
}

// The members have ended while c was still to join: what is left for others to join?
TEST(Membership, WhoIsStillToJoinInvitesNobody) {
    for (const bool member : {false, true}) {
        Cluster cluster(4);
        const JobId id{1};
        for (uint32_t i : {0, 1}) cluster[i].run_us = 6 * second;
        cluster[2].run_us = 30 * second;
        cluster[3].agenda.emplace(0, [&] { cluster[3].membership.draining(true, ""); });
        cluster[3].agenda.emplace(20 * second, [&] { cluster[3].membership.draining(false, ""); });
        if (member) cluster[2].agenda.emplace(8 * second, [&] { cluster[2].membership.trains(id); });
        cluster[0].agenda.emplace(2 * second, [&] { EXPECT_TRUE(cluster[0].membership.submit(elastic(id, 4)).ok()); });
        cluster.run();
        EXPECT_EQ(cluster[2].seen[id].start, 1u);
        EXPECT_EQ(cluster[3].seen[id].open, member ? 1u : 0u);
        EXPECT_EQ(cluster[2].seen[id].over, !member) << "it is told, not left to wait";
    }
}

// The others go on without c three times, though its daemon lives.
TEST(Membership, ANodeThatIsLeftBehindAsksToBeInAgain) {
    join_later(
        [](Cluster& cluster) {
            for (uint32_t i : {0, 1}) cluster[i].run_us = 30 * second;
            cluster[2].run_us = second;
            cluster[2].leaves = cluster[2].returns = true;
            cluster[2].opens_max = 100;
        },
        [](Cluster& cluster, const JobId& id) {
            const Seen& job = cluster[2].seen[id];
            ASSERT_GE(job.incarnations.size(), 4u);
            for (size_t run = 0; run < job.incarnations.size(); ++run)
                EXPECT_EQ(job.incarnations[run], identity_of(2).incarnation + run) << "each run is a later incarnation";
            const auto gap = [&](size_t run) { return job.opened_us[run] - job.opened_us[run - 1] - second; };
            EXPECT_LT(gap(1), 4 * second) << "at once";
            EXPECT_GE(gap(2), 4 * second) << "after D";
            EXPECT_GE(gap(3), 8 * second);
            EXPECT_EQ(job.start, job.incarnations.size());
        });
}

// b has never invited c, which was a member and has forgotten what it promised.
TEST(Membership, NoIncarnationIsAMemberTwice) {
    join_later(
        [](Cluster& cluster) {
            cluster[2].run_us = 2 * second;
            cluster.kill(0, 10 * second);
        },
        [](Cluster& cluster, const JobId& id) {
            EXPECT_EQ(cluster[2].seen[id].start, 1u);
            EXPECT_EQ(cluster[2].seen[id].open, 1u);
        });
}

// b has never invited c: neither what c was nor what it could not become is invited by b and taken.
TEST(Membership, AJoinThatFailsMakesNoFormerMemberAgain) {
    join_later(
        [](Cluster& cluster) {
            for (uint32_t i : {0, 1}) cluster[i].run_us = 30 * second;
            cluster[2].run_us = 2 * second;
            cluster[2].leaves = cluster[2].returns = true;
            cluster[2].opens_max = 100;
            cluster[2].agenda.emplace(6 * second, [&] { cluster[2].open_status = fail(Code::node_memory, "no memory"); });
            cluster[2].agenda.emplace(14 * second, [&] { cluster[2].open_status = {}; });
            cluster.kill(0, 12 * second);
        },
        [](Cluster& cluster, const JobId& id) {
            const std::vector<uint64_t>& started = cluster[2].seen[id].started;
            EXPECT_GE(cluster[2].seen[id].abort, 1u);
            ASSERT_GE(started.size(), 2u) << "it asks again";
            for (size_t i = 0; i < started.size(); ++i) EXPECT_EQ(started[i], identity_of(2).incarnation + i);
        });
}

// Whatever it is lost by: the stream breaks, or c has no room.
TEST(Membership, AnInvitationThatIsLostIsRepeated) {
    join_later(
        [&](Cluster& cluster) {
            for (uint32_t i : {0, 1}) cluster[i].run_us = 30 * second;
            cluster[2].run_us = 2 * second;
            cluster[2].leaves = cluster[2].returns = true;
            cluster[2].opens_max = 100;
            cluster[2].agenda.emplace(5 * second, [&] { cluster[2].invites_lost = 1; });
        },
        [&](Cluster& cluster, const JobId& id) {
            EXPECT_EQ(cluster[2].invites_lost, 0u);
            EXPECT_GE(cluster[2].seen[id].started.size(), 2u);
        });
}

// c is cut off while it is still to join; and d where the only one that says its end is b, though c has become a member.
TEST(Membership, ThatNobodyIsHeardIsNoEndOfTheJob) {
    join_later(
        [](Cluster& cluster) {
            cluster[2].run_us = 15 * second;
            cluster.simulator->partition({2}, 6 * second, 14 * second);
        },
        [](Cluster& cluster, const JobId& id) {
            EXPECT_EQ(cluster[2].seen[id].start, 1u);
            EXPECT_FALSE(cluster[2].seen[id].over);
        });
    Cluster cluster(4);
    const JobId id{1};
    cluster[1].run_us = 13 * second;
    cluster[1].leaves = cluster[2].trains = true;
    cluster[2].run_us = 30 * second;
    cluster[3].run_us = 12 * second;
    cluster[3].agenda.emplace(0, [&] { cluster[3].membership.draining(true, ""); });
    cluster[3].agenda.emplace(10 * second, [&] { cluster[3].membership.draining(false, ""); });
    cluster.kill(0, 8 * second);
    cluster[0].agenda.emplace(2 * second, [&] { EXPECT_TRUE(cluster[0].membership.submit(elastic(id, 4)).ok()); });
    cluster.run();
    EXPECT_EQ(cluster[3].seen[id].start, 1u);
    EXPECT_FALSE(cluster[3].seen[id].over) << "c runs it";
}

TEST(Membership, ARefusalOfAnotherDoesNotHinderWhoeverJoins) {
    Cluster cluster(3);
    const JobId id{1};
    for (Node* each : {&cluster[0], &cluster[1]}) each->run_us = (each->self == 0 ? 2 : 30) * second;
    cluster[0].opens_max = 100;
    cluster[0].leaves = cluster[0].returns = true;
    cluster[0].agenda.emplace(3 * second, [&] { cluster[0].open_us = 6 * second, cluster[0].run_us = 20 * second; });
    cluster[2].open_status = fail(Code::data, "no such file");
    cluster[2].open_us = second;
    cluster[2].agenda.emplace(0, [&] { cluster[2].membership.draining(true, ""); });
    cluster[2].agenda.emplace(8 * second, [&] { cluster[2].membership.draining(false, ""); });
    cluster[0].agenda.emplace(2 * second, [&] {
        Seen& job = cluster[0].seen[id];
        job.submitted_status = cluster[0].membership.submit(elastic(id, 3));
    });
    cluster.run();
    EXPECT_EQ(cluster[0].seen[id].started.size(), 2u) << cluster[0].seen[id].abort_status.what;
    EXPECT_EQ(cluster[2].seen[id].abort, 1u);
}

// a leaves for good but lives, b comes back after that, then c goes and asks: b knows that a is no member.
TEST(Membership, WhoComesBackKnowsWhoRunsTheJob) {
    Cluster cluster(3);
    const JobId id{1};
    for (auto& node : cluster.nodes) node->opens_max = 100, node->trains = true;
    cluster[0].run_us = 6 * second;
    cluster[0].leaves = true;
    cluster[0].agenda.emplace(6 * second, [&] { cluster[0].membership.draining(true, "job 1"); });
    cluster[1].run_us = 8 * second;
    cluster[1].leaves = cluster[1].returns = true;
    cluster[1].agenda.emplace(9 * second, [&] { cluster[1].run_us = 30 * second; });
    cluster[2].run_us = 18 * second;
    cluster[2].leaves = cluster[2].returns = true;
    cluster[2].agenda.emplace(12 * second, [&] { cluster[2].run_us = 5 * second; });
    cluster[0].agenda.emplace(2 * second, [&] { EXPECT_TRUE(cluster[0].membership.submit(elastic(id, 3)).ok()); });
    cluster.run();
    EXPECT_EQ(cluster[1].seen[id].started.size(), 2u);
    EXPECT_GE(cluster[2].seen[id].started.size(), 2u);
}

// Its user has deleted the job there; an operator takes it in later.
TEST(Membership, WhoStaysOutComesWhereAnOperatorAddsIt) {
    for (const bool added : {false, true})
        join_later(
            [added](Cluster& cluster) {
                for (uint32_t i : {0, 1}) cluster[i].run_us = 40 * second;
                cluster[2].run_us = 4 * second;
                cluster[2].leaves = cluster[2].returns = true;
                cluster[2].opens_max = 9;
                cluster[2].agenda.emplace(8 * second, [&] { cluster[2].membership.stays_out({1}); });
                if (added) cluster[0].agenda.emplace(30 * second, [&] { cluster[0].membership.add({1}, "c"); });
            },
            [added](Cluster& cluster, const JobId& id) {
                const uint64_t at_us = cluster[2].seen[id].opened_us.back();
                if (added) EXPECT_GT(at_us, 30 * second);
                else EXPECT_LT(at_us, 8 * second);
            });
}

TEST(Membership, WhoWasDrainedComesBackWhenItTakesJobsAgain) {
    join_later(
        [](Cluster& cluster) {
            for (uint32_t i : {0, 1}) cluster[i].run_us = 40 * second;
            cluster[2].run_us = 4 * second;
            cluster[2].leaves = true;
            cluster[2].opens_max = 2;
            cluster[2].agenda.emplace(6 * second, [&] { cluster[2].membership.draining(true, "job 1"); });
            cluster[2].agenda.emplace(12 * second, [&] { cluster[2].membership.draining(false, ""); });
            cluster[0].agenda.emplace(15 * second, [&] {
                EXPECT_EQ(cluster[2].seen[{1}].open, 1u);
                cluster[0].membership.add({1}, "c");
            });
        },
        [](Cluster& cluster, const JobId& id) {
            const uint64_t first = identity_of(2).incarnation;
            EXPECT_EQ(cluster[2].seen[id].started, (std::vector<uint64_t>{first, first + 1}));
        });
}

// a has invited c, which an operator wants in, and dies; then c asks, and b knows that it was in the job.
TEST(Membership, ANodeThatAnOperatorTookInIsInvitedByOthersToo) {
    Cluster cluster(3);
    const JobId id{1};
    for (uint32_t i : {0, 1}) cluster[i].run_us = 30 * second;
    cluster[2].run_us = 12 * second;
    cluster[2].leaves = cluster[2].returns = cluster[2].trains = true;
    cluster[2].opens_max = 100;
    cluster[0].agenda.emplace(2 * second, [&] {
        auto plan = std::make_shared<JobPlan>(*elastic(id, 3));
        plan->elastic = false;
        EXPECT_TRUE(cluster[0].membership.submit(plan).ok());
    });
    cluster[0].agenda.emplace(4 * second, [&] {
        EXPECT_EQ(cluster[2].seen[id].open, 0u);
        cluster[0].membership.add(id, "c");
    });
    cluster.kill(0, 8 * second);
    cluster.run();
    const uint64_t first = identity_of(2).incarnation;
    EXPECT_EQ(cluster[2].seen[id].started, (std::vector<uint64_t>{first, first + 1}));
}

// c has left the first job, and may remember one job alone.  b has never invited c to it.
TEST(Membership, AJobThatIsForgottenIsNotJoinedAgain) {
    Cluster cluster(3, {}, 1);
    const JobId id{1}, later{2};
    for (uint32_t i : {0, 1}) cluster[i].run_us = 30 * second;
    cluster[2].run_us = 2 * second;
    cluster[2].leaves = true;
    const auto submit = [&](const JobId& job, uint32_t node, uint64_t unix) {
        auto plan = std::make_shared<JobPlan>(*elastic(job, 3));
        plan->submitted_unix = unix;
        if (node == 2) plan->members.erase(plan->members.begin(), plan->members.begin() + 2), plan->first = 1;
        if (node == 2) plan->members[0].incarnation = identity_of(2).incarnation, plan->elastic = false;
        Seen& seen = cluster[node].seen[job];
        seen.submitted_status = cluster[node].membership.submit(plan);
        EXPECT_TRUE(seen.submitted_status.ok()) << seen.submitted_status.what;
    };
    cluster[0].agenda.emplace(2 * second, [&] { submit(id, 0, 100); });
    cluster[2].agenda.emplace(9 * second, [&] { submit(later, 2, 200); });
    cluster.kill(0, 15 * second);
    cluster.run();
    EXPECT_EQ(cluster[2].seen[later].start, 1u);
    EXPECT_EQ(cluster[2].seen[id].open, 1u);
}

// Nobody stops for it: the members' engines never hear of it.
TEST(Membership, AJoinerThatComputesOtherBitsIsRefused) {
    const auto refused = [](const char* why) {
        return [why](Cluster& cluster, const JobId& id) {
            EXPECT_EQ(cluster[2].seen[id].open, 1u) << "once";
            EXPECT_EQ(cluster[2].seen[id].start, 0u);
            EXPECT_NE(std::string(cluster[2].seen[id].abort_status.what).find(why), std::string::npos)
                << cluster[2].seen[id].abort_status.what;
            EXPECT_EQ(cluster[0].seen[id].told.find("node c does not join: it cannot join job "), 0u) << cluster[0].seen[id].told;
            EXPECT_NE(cluster[0].seen[id].told.find(why), std::string::npos) << cluster[0].seen[id].told;
        };
    };
    join_later([](Cluster& cluster) { cluster[2].kernel_set = "avx"; },
               refused("the kernel set is avx here, k at the other nodes: set isa in gradcastd.toml as at the others, and restart it"));
    join_later([](Cluster& cluster) { cluster[2].data_digest = "e"; }, refused("the digest of the data is e here, d at the other nodes"));
    join_later([](Cluster& cluster) { cluster[2].start_digest = "s"; },
               refused("the digest of net.start is s here, none at the other nodes"));
    join_later([](Cluster& cluster) { cluster[2].open_status = fail(Code::data, "no such file"); },
               [](Cluster& cluster, const JobId& id) {
                   EXPECT_EQ(cluster[2].seen[id].start, 0u);
                   EXPECT_NE(cluster[0].seen[id].told.find("node c does not join: no such file"), std::string::npos)
                       << cluster[0].seen[id].told;
               });
}

// Whoever extends it, and when: the same numbers.
TEST(Membership, APlanThatGrowsNumbersItsNodesAlikeEverywhere) {
    JobPlan plan;
    for (const char* name : {"c", "a"}) plan.members.push_back({name, {}, 1});
    plan.addresses = {"10.0.0.3:1,10.1.0.3:1", "10.0.0.1:1,10.1.0.1:1"};
    const auto names = [&] {
        std::string text;
        for (const Member& each : plan.members) text += each.name;
        return text;
    };
    const std::vector<std::string> three = {"a", "b", "c"}, four = {"a", "b", "c", "d"};
    plan.extend(four);
    EXPECT_EQ(names(), "ca") << "it takes nobody in";
    plan.returns = plan.rdma = true;
    plan.extend(four);
    EXPECT_EQ(names(), "ca") << "nor over RDMA";
    plan.rdma = false;
    plan.extend(three);
    EXPECT_EQ(names(), "cab");
    plan.extend(four);
    EXPECT_EQ(names(), "cabd");
    plan.extend(three);
    EXPECT_EQ(names(), "cabd");
    EXPECT_EQ(plan.first_nodes(), 2u);
    EXPECT_EQ(plan.addresses.size(), 4u);
}

TEST(Membership, ANodeThatMayJoinIsNotNeededToBegin) {
    join_later(
        [](Cluster& cluster) {
            cluster[1].open_us = 8 * second;   // the loss of c is noticed meanwhile
            cluster.kill(2, 3 * second);
        },
        [](Cluster& cluster, const JobId& id) { EXPECT_TRUE(cluster[0].seen[id].submitted_status.ok()); });
}

TEST(Membership, AMemberThatDiesWhileAnotherNodeJoinsDoesNotHinderIt) {
    join_later(
        [](Cluster& cluster) {
            cluster[2].open_us = 8 * second;
            cluster.kill(0, 4 * second);
        },
        [](Cluster& cluster, const JobId& id) {
            EXPECT_EQ(cluster[2].seen[id].start, 1u) << cluster[2].seen[id].abort_status.what;
            EXPECT_EQ(cluster[1].seen[id].told, "");
        });
}

TEST(Membership, AMemberThatDiesWhileItPreparesIsNamed) {
    uint32_t refused = 0, started = 0;
    for (uint64_t seed = 1; seed <= 60; ++seed) {
        Cluster cluster(4, {.seed = seed, .jitter_us = 5000});
        for (uint32_t i = 0; i < 4; ++i) cluster[i].open_us = 10'000 + random4(Purpose::test, seed, i, 0)[0] % 100'000;
        cluster.kill(3, 2 * second + random4(Purpose::test, seed, 9, 0)[0] % 150'000);
        cluster[0].submit_at(2 * second, {1}, all(4));
        cluster[1].submit_at(20 * second, {2}, {1, 0, 2});   // they live on
        cluster.run();
        const Seen& first = cluster[0].seen[{1}];
        if (first.submitted_status.ok()) {
            ++started;   // it died just after; the job's own link finds out
        } else {
            ++refused;
            EXPECT_NE(std::string(first.submitted_status.what).find("node d"), std::string::npos) << first.submitted_status.what;
            EXPECT_LE(first.submitted_us, 10 * second);
        }
        EXPECT_TRUE(cluster[1].seen[{2}].submitted_status.ok()) << cluster[1].seen[{2}].submitted_status.what;
    }
    EXPECT_GT(refused, 5u);
    EXPECT_GT(started, 5u);
}

TEST(Membership, ACoordinatorThatDiesLeavesNothingOpen) {
    uint32_t aborted = 0, started = 0;
    for (uint64_t seed = 1; seed <= 60; ++seed) {
        Cluster cluster(4, {.seed = seed, .jitter_us = 5000});
        cluster.kill(0, 2 * second + random4(Purpose::test, seed, 0, 0)[0] % 150'000);
        cluster[0].submit_at(2 * second, {1}, all(4));
        cluster.run();   // looks that every open was followed by a start and its close, or by an abort
        for (uint32_t i = 1; i < 4; ++i) {
            aborted += cluster[i].seen[{1}].abort;
            started += cluster[i].seen[{1}].close;
        }
    }
    EXPECT_GT(aborted, 5u);
    EXPECT_GT(started, 5u);
}

TEST(Membership, AMemberThatDiesWhileItRunsDoesNotHoldUpTheEnd) {
    Cluster cluster(3);
    cluster.kill(1, 4 * second);
    cluster[0].submit_at(2 * second, {1}, all(3));
    cluster.run();
    EXPECT_EQ(cluster[0].seen[{1}].close, 1u);
    EXPECT_EQ(cluster[2].seen[{1}].close, 1u);
}

TEST(Membership, OneThatNeverEndsHoldsTheOthersForTheDeadlineOnly) {
    Cluster cluster(2);
    cluster[1].run_us = 30 * second;
    cluster[0].submit_at(2 * second, {1}, all(2), 4 * second);
    bool closed = false;
    cluster[0].agenda.emplace(11 * second, [&] { closed = cluster[0].seen[{1}].close == 1; });
    cluster.run();
    EXPECT_TRUE(closed);
}

TEST(Membership, OneThatIsNeverReadyIsNamed) {
    Cluster cluster(3);
    cluster[2].open_us = 1000 * second;
    for (auto& node : cluster.nodes) node->end_us = 100 * second;
    cluster[0].submit_at(2 * second, {1}, all(3), 4 * second);
    cluster.run();
    EXPECT_STREQ(cluster[0].seen[{1}].submitted_status.what, "not ready within 40 s (10 times the job's deadline): c");
    EXPECT_EQ(cluster[1].seen[{1}].abort, 1u);
}

TEST(Membership, ManySubmissionsAtOnce) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        Cluster cluster(4, {.seed = seed, .jitter_us = 3000});
        for (uint32_t i = 0; i < 4; ++i)
            for (uint8_t k = 0; k < 3; ++k) cluster[i].submit_at(2 * second + k * 1000, {static_cast<uint8_t>(i + 1), k}, all(4, i));
        cluster.run();
        for (uint32_t i = 0; i < 4; ++i) {
            ASSERT_EQ(cluster[i].seen.size(), 12u);
            for (auto& [id, job] : cluster[i].seen) EXPECT_EQ(job.close, 1u);
        }
    }
}

TEST(Membership, NoMoreJobsThanAreAllowed) {
    Cluster cluster(2);
    cluster[0].run_us = cluster[1].run_us = 20 * second;
    for (uint8_t k = 1; k <= 20; ++k)
        cluster[0].submit_at(2 * second + k * 10'000, {k}, k % 2 ? std::vector<uint32_t>{0} : std::vector<uint32_t>{0, 1});
    for (uint8_t k = 21; k <= 24; ++k) cluster[1].submit_at(3 * second, {k}, {1, 0});
    cluster.run();
    for (uint8_t k = 1; k <= 16; ++k) EXPECT_TRUE(cluster[0].seen[{k}].submitted_status.ok());
    for (uint8_t k = 17; k <= 20; ++k)
        EXPECT_STREQ(cluster[0].seen[{k}].submitted_status.what, "node a: it has 16 jobs already: wait for one to end");
    for (uint8_t k = 21; k <= 24; ++k)
        EXPECT_STREQ(cluster[1].seen[{k}].submitted_status.what, "node a: it has 16 jobs already: wait for one to end");
}

TEST(Membership, CancelledWhileItPrepares) {
    for (uint32_t who : {0, 2}) {
        Cluster cluster(3);
        for (uint32_t i = 0; i < 3; ++i) cluster[i].open_us = i == 1 ? 5 * second : second;
        for (uint64_t at : {2'500'000, 4'000'000})   // while its engine opens, and while it waits for another's
            cluster[who].agenda.emplace(
                at, [&, who] { cluster[who].membership.opened({1}, fail(Code::cancelled, "cancelled at node z"), "", "", ""); });
        cluster[0].submit_at(2 * second, {1}, all(3));
        cluster.run();
        EXPECT_EQ(cluster[0].seen[{1}].submitted_status.what, "node " + name_of(who) + ": cancelled at node z");
    }
}

TEST(Membership, AFullJobFilePassesOverBrokenStreams) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
        Cluster cluster(3, {.seed = seed, .break_per_packet = 0.02});
        std::string text(job_text_max, 'x');
        text[12345] = static_cast<char>('0' + seed);
        cluster[0].submit_at(2 * second, {1}, all(3), 4 * second, text);
        cluster.run();
        for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(cluster[i].seen[{1}].close, 1u);
    }
}

// ---- by hand: what the simulator cannot do ------------------------------------------------------------------------------------

struct Wire {   // carries what one Membership sends to another, which takes it for peer `from`
    static void carry(Membership& source, Membership& target, Rank from, Rank to, uint64_t now_us) {
        Actions actions;
        actions.now_us = now_us;
        Event timer;
        timer.kind = Event::Kind::timer;
        source.on({&timer, 1}, actions);
        std::vector<Event> sent;
        for (Send& send : actions.sends) {
            Event event;
            event.kind = Event::Kind::sent;
            event.id = send.ticket;
            sent.push_back(event);
            if (send.to.rank != to) continue;
            give(target, from, send, now_us);
        }
        source.on(sent, actions);
    }
    static void give(Membership& target, Rank from, const Send& send, uint64_t now_us) {
        Packet packet{send.type, 0, from, 1, send.body, send.payload};
        Event event;
        event.kind = Event::Kind::packet;
        event.packet = &packet;
        Actions answer;
        answer.now_us = now_us;
        target.on({&event, 1}, answer);
    }
};

TEST(Membership, TellsIncarnationsAndCopiedIdentitiesApart) {
    Membership a(config_of(0, 3)), b(config_of(1, 3));
    Wire::carry(b, a, 1, 0, second);
    EXPECT_TRUE(a.peers()[1].alive);
    MembershipConfig again = config_of(1, 3);
    again.identity = identity_of(1, 2);
    Membership restarted(again);
    Wire::carry(restarted, a, 1, 0, 2 * second);
    EXPECT_TRUE(a.peers()[1].alive);
    EXPECT_EQ(a.peers()[1].member.incarnation, uint64_t{2} << 32);
    MembershipConfig copy = config_of(2, 3);
    copy.identity.uuid = identity_of(1).uuid;
    Membership copied(copy);
    Wire::carry(copied, a, 2, 0, 2 * second);
    EXPECT_FALSE(a.peers()[2].alive);
    EXPECT_NE(a.peers()[2].why.find("the same identity as node b"), std::string::npos) << a.peers()[2].why;
}

TEST(Membership, ARestartWhileItPreparesIsNamed) {
    struct Idle final : Host {   // posts are given by hand
        uint64_t now_us() override { return 0; }
        void post(uint16_t, const Event&) override {}
        Status wait(std::vector<Completion>*, uint64_t) override { return {}; }
        void open_view(uint32_t, std::span<const Attachment>) override {}
        Status close_view(uint64_t) override { return {}; }
    } host;
    Membership a(config_of(0, 2)), b(config_of(1, 2));
    a.start(host, 0);
    Wire::carry(b, a, 1, 0, second);
    auto plan = std::make_shared<JobPlan>();
    plan->id = {1};
    plan->deadline_us = 4 * second;
    for (uint32_t i = 0; i < 2; ++i) plan->members.push_back({name_of(i), identity_of(i).uuid, identity_of(i).incarnation});
    ASSERT_TRUE(a.submit(plan).ok());
    Event command;
    command.kind = Event::Kind::command;
    Actions actions;
    actions.now_us = second;
    a.on({&command, 1}, actions);
    ASSERT_EQ(a.notices().size(), 1u);   // open
    MembershipConfig again = config_of(1, 2);
    again.identity = identity_of(1, 2);
    Membership restarted(again);
    Wire::carry(restarted, a, 1, 0, 2 * second);
    std::vector<Notice> notices = a.notices();
    ASSERT_EQ(notices.size(), 2u);
    EXPECT_EQ(notices[0].kind, Kind::submitted);
    EXPECT_STREQ(notices[0].status.what,
                 "node b was lost while the job was prepared: it was restarted; look at its gradcastd and submit again");
    EXPECT_EQ(notices[1].kind, Kind::abort);
    // PREPARE of the old incarnation reaches the new one: it refuses.
    for (const Send& send : actions.sends)
        if (body_of<JobBody>({send.type, 0, 0, 1, send.body, {}}).kind.get() == 2) Wire::give(restarted, 0, send, 2 * second);
    EXPECT_TRUE(restarted.notices().empty());
}

TEST(Membership, SilenceIsNotLife) {
    Membership a(config_of(0, 2)), b(config_of(1, 2));
    Wire::carry(b, a, 1, 0, second);
    Wire::carry(a, b, 0, 1, 6 * second);
    EXPECT_TRUE(a.peers()[1].alive);
    Wire::carry(a, b, 0, 1, 8 * second);
    EXPECT_EQ(a.peers()[1].why, "silent for 6 s");
}

TEST(Membership, ForgedMessagesDoNothing) {
    Membership a(config_of(0, 3));
    std::vector<std::byte> bytes(300);
    for (uint64_t i = 0; i < 20'000; ++i) {
        Philox random = random4(Purpose::test, 1, i, 0), more = random4(Purpose::test, 2, i, 0);
        JobBody body{};
        uint64_t size = random[0] % bytes.size(), total = random[1] % 3 ? size : more[0] % (4 << 20);
        body.kind.set(random[2] % 11);
        body.value.set((random[1] % 5 ? 0 : uint64_t{more[1] % 300}) << 32 | total);
        for (uint64_t k = 0; k < size; ++k)
            bytes[k] = static_cast<std::byte>(random4(Purpose::test, 3, i, static_cast<uint32_t>(k / 16))[k % 4] >> (k % 16));
        Send send{.to = {0}, .type = PacketType::job, .body = body_bytes(body), .payload = {bytes.data(), nullptr, size}};
        Wire::give(a, random[3] % 4, send, second);
    }
    // An answer that nobody has asked for: an id, five numbers, four empty texts.
    JobBody found{};
    found.kind.set(9);
    found.value.set(16 + 5 * 8 + 4 * 8);
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    for (uint32_t i = 0; i < 100; ++i)
        Wire::give(a, 1, {.to = {0}, .type = PacketType::job, .body = body_bytes(found), .payload = {bytes.data(), nullptr, 88}}, second);
    // A search is answered whoever asks; there are never many.
    const std::vector<Notice> notices = a.notices();
    EXPECT_LE(notices.size(), 64u);
    for (const Notice& notice : notices) EXPECT_EQ(notice.kind, Notice::Kind::find);
    EXPECT_FALSE(a.peers()[1].alive);
}

TEST(JobPlan, RoundTripsAndRefusesAllElse) {
    JobPlan plan;
    plan.id = {1, 2, 3};
    plan.name = "j";
    plan.text = "[job]\n";
    plan.path = "job.toml";
    plan.base = "/data";
    plan.deadline_us = 30 * second;
    plan.submitted_unix = 7;
    for (uint32_t i = 0; i < 3; ++i) plan.members.push_back({name_of(i), identity_of(i).uuid, i});
    std::vector<std::byte> bytes = plan_write(plan);
    JobPlan read;
    ASSERT_TRUE(plan_parse(bytes, &read));
    EXPECT_EQ(plan_write(read), bytes);
    EXPECT_EQ(read.members[2].name, "c");
    EXPECT_EQ(read.base, "/data");
    for (auto [datagram_bytes, good] :
         {std::pair{384u, true}, {32760u, true}, {8u, false}, {376u, false}, {388u, false}, {32768u, false}}) {
        plan.datagram_bytes = datagram_bytes;   // bulk asserts what it can use
        EXPECT_EQ(plan_parse(plan_write(plan), &read), good) << datagram_bytes;
    }
    for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(plan_parse(std::span(bytes).first(size), &read)) << size;
    bytes.push_back(std::byte{0});
    EXPECT_FALSE(plan_parse(bytes, &read));
    bytes.pop_back();
    for (size_t i = 0; i < bytes.size(); ++i) {   // whatever is flipped, it is read whole or not at all
        bytes[i] ^= std::byte{0xff};
        if (plan_parse(bytes, &read)) {
            EXPECT_EQ(plan_write(read), bytes);
        }
        bytes[i] ^= std::byte{0xff};
    }
}

}   // namespace
}   // namespace gradcast
