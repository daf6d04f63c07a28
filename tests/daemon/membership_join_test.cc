// Membership on the simulator: nodes that come while a job runs, and that come back.
#include "tests/daemon/membership.h"

namespace gradcast::membership_test {
namespace {

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
    plan->survive = plan->elastic = true;
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
                   EXPECT_EQ(cluster[0].seen[id].warnings, "");
               });
}

// The members have ended while c was still to join: nothing remains that c could join.
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
        EXPECT_EQ(cluster[2].seen[id].ended_elsewhere, !member) << "it need not wait for the deadline";
    }
}

// The others go on without c three times, though its daemon lives.
TEST(Membership, ANodeThatIsLeftBehindAsksToBeInAgain) {
    join_later(
        [](Cluster& cluster) {
            for (uint32_t i : {0, 1}) cluster[i].run_us = 30 * second;
            cluster[2].run_us = second;
            cluster[2].leaves = cluster[2].rejoins = true;
            cluster[2].opens_max = 100;
        },
        [](Cluster& cluster, const JobId& id) {
            const Seen& job = cluster[2].seen[id];
            ASSERT_GE(job.incarnations.size(), 4u);
            for (size_t run = 0; run < job.incarnations.size(); ++run)
                EXPECT_EQ(job.incarnations[run], identity_of(2).incarnation + run) << "each run is a later incarnation";
            const auto gap = [&](size_t run) { return job.opened_us[run] - job.opened_us[run - 1] - second; };
            EXPECT_LT(gap(1), 5 * second) << "at once: 4 s, and what its packets take";
            EXPECT_GE(gap(2), 4 * second) << "after D";
            EXPECT_GE(gap(3), 8 * second);
            EXPECT_EQ(job.start, job.incarnations.size());
        });
}

// No INVITE has reached c when the others end.  Only who has done the last step knows that nobody goes on.
TEST(Membership, WhoAsksHearsThatTheJobIsDone) {
    for (const bool done : {true, false})
        join_later(
            [&](Cluster& cluster) {
                cluster[1].done = done;
                cluster[2].run_us = second;
                cluster[2].leaves = cluster[2].rejoins = true;
                cluster[2].agenda.emplace(5 * second, [&] { cluster[2].invites_lost = 100; });
                cluster[2].agenda.emplace(19 * second, [&] { EXPECT_FALSE(cluster[2].seen[{1}].ended_elsewhere) << "they still run it"; });
            },
            [&](Cluster& cluster, const JobId& id) {
                EXPECT_EQ(cluster[2].seen[id].ended_elsewhere, done);
                EXPECT_FALSE(cluster[0].seen[id].ended_elsewhere);
                EXPECT_EQ(cluster[0].membership.peers()[2].rejoin_requests.empty(), done) << "it asks no more";
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
            cluster[2].leaves = cluster[2].rejoins = true;
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
            cluster[2].leaves = cluster[2].rejoins = true;
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
            EXPECT_FALSE(cluster[2].seen[id].ended_elsewhere);
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
    EXPECT_FALSE(cluster[3].seen[id].ended_elsewhere) << "c runs it";
}

TEST(Membership, ARefusalOfAnotherDoesNotHinderWhoeverJoins) {
    Cluster cluster(3);
    const JobId id{1};
    for (Node* each : {&cluster[0], &cluster[1]}) each->run_us = (each->self == 0 ? 2 : 30) * second;
    cluster[0].opens_max = 100;
    cluster[0].leaves = cluster[0].rejoins = true;
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
    cluster[1].leaves = cluster[1].rejoins = true;
    cluster[1].agenda.emplace(9 * second, [&] { cluster[1].run_us = 30 * second; });
    cluster[2].run_us = 18 * second;
    cluster[2].leaves = cluster[2].rejoins = true;
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
                cluster[2].leaves = cluster[2].rejoins = true;
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
    cluster[2].leaves = cluster[2].rejoins = cluster[2].trains = true;
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

// c has departed from the first job, and may remember one job alone.  b has never invited c to it.
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

// Nobody stops for it: the members' engines never learn of it.
TEST(Membership, AJoinerThatComputesOtherBitsIsRefused) {
    const auto refused = [](const char* why) {
        return [why](Cluster& cluster, const JobId& id) {
            EXPECT_EQ(cluster[2].seen[id].open, 1u) << "once";
            EXPECT_EQ(cluster[2].seen[id].start, 0u);
            EXPECT_NE(std::string(cluster[2].seen[id].abort_status.what).find(why), std::string::npos)
                << cluster[2].seen[id].abort_status.what;
            EXPECT_EQ(cluster[0].seen[id].warnings.find("node c does not join: it cannot join job "), 0u) << cluster[0].seen[id].warnings;
            EXPECT_NE(cluster[0].seen[id].warnings.find(why), std::string::npos) << cluster[0].seen[id].warnings;
        };
    };
    join_later(
        [](Cluster& cluster) { cluster[2].with.kernel_set = "avx"; },
        refused("the kernel set is avx here, k at the other nodes: set `isa` in gradcastd.toml as at the others, and start it again"));
    join_later([](Cluster& cluster) { cluster[2].with.data_digest = "e"; },
               refused("the digest of the data is e here, d at the other nodes"));
    join_later([](Cluster& cluster) { cluster[2].with.start_digest = "s"; },
               refused("the digest of net.start is s here, none at the other nodes"));
    const auto inventories = [](Cluster& cluster, const char* here) {
        for (uint32_t i = 0; i < 3; ++i) cluster[i].with.inventory = i == 2 ? here : "library\tnumpy\t1.26\n";
    };
    join_later(
        [&](Cluster& cluster) {
            inventories(cluster, "library\tnumpy\t1.24\n");
            cluster[2].with.kernel_set = "avx";
        },
        refused("the kernel set is avx here, k at the other nodes: other versions of libraries here and there: numpy 1.24 and 1.26"));
    join_later(
        [&](Cluster& cluster) {
            inventories(cluster, "source\tx.py\t12\n");
            cluster[2].with.start_digest = "s";
        },
        refused("the digest of the program is s here, none at the other nodes: this node has source x.py, which the job has not"));
    join_later([](Cluster& cluster) { cluster[2].open_status = fail(Code::data, "no such file"); },
               [](Cluster& cluster, const JobId& id) {
                   EXPECT_EQ(cluster[2].seen[id].start, 0u);
                   EXPECT_NE(cluster[0].seen[id].warnings.find("node c does not join: no such file"), std::string::npos)
                       << cluster[0].seen[id].warnings;
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
    plan.survive = plan.rdma = true;
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
            EXPECT_EQ(cluster[1].seen[id].warnings, "");
        });
}

}   // namespace
}   // namespace gradcast::membership_test
