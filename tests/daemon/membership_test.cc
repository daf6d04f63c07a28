// Membership on the simulator: whatever dies, is refused or comes at once, every open ends in one start or abort, every start in one close,
// every submission in one answer.
#include "tests/daemon/membership.h"

#include "runtime/core/rng.h"
#include "transport/wire/packet.h"

namespace gradcast::membership_test {
namespace {

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
    cluster[2].with.kernel_set = "other";
    cluster[0].submit_at(2 * second, {1}, all(4));
    cluster[0].agenda.emplace(10 * second, [&] {
        cluster[2].with.kernel_set = "k";
        cluster[3].with.data_digest = "other";
    });
    cluster[0].submit_at(11 * second, {2}, all(4));
    cluster[0].agenda.emplace(20 * second, [&] {
        cluster[3].with.data_digest = "d";
        cluster[1].with.start_digest = cluster[1].with.kernel_set = "s";
    });
    cluster[0].submit_at(21 * second, {3}, all(4));
    cluster.run();
    EXPECT_EQ(std::string(cluster[0].seen[{3}].submitted_status.what).find("node b starts from another file than node a"), 0u);
    EXPECT_EQ(std::string(cluster[0].seen[{1}].submitted_status.what).find("node c computes other bits than node a"), 0u);
    EXPECT_EQ(std::string(cluster[0].seen[{2}].submitted_status.what).find("node d has other data than node a"), 0u);
}

// What differs is named where the nodes say it.  Versions of libraries alone are no error.
TEST(Membership, UnlikeProgramsAreNamed) {
    const std::string torch = "library\ttorch\t2.1.0\n", source = "source\ttrain.py\t12ab\n";
    Cluster cluster(2);
    for (uint32_t i = 0; i < 2; ++i) cluster[i].with.inventory = torch + source;
    cluster[1].with.inventory = "library\ttorch\t1.13.1\n" + source;
    cluster[0].submit_at(2 * second, {1}, all(2));
    cluster[0].agenda.emplace(20 * second, [&] { cluster[1].with.kernel_set = "other"; });
    cluster[0].submit_at(21 * second, {2}, all(2));
    cluster[0].agenda.emplace(30 * second, [&] {
        cluster[1].with.start_digest = "other";
        cluster[1].with.inventory = torch + "source\ttrain.py\t34cd\n";
    });
    cluster[0].submit_at(31 * second, {3}, all(2));
    cluster.run();
    EXPECT_TRUE(cluster[0].seen[{1}].submitted_status.ok()) << cluster[0].seen[{1}].submitted_status.what;
    EXPECT_EQ(cluster[0].seen[{1}].note,
              "node b has other versions of libraries than node a, and computes the same bits: torch 1.13.1 and 2.1.0");
    EXPECT_EQ(cluster[1].seen[{1}].note, "");
    const std::string bits = cluster[0].seen[{2}].submitted_status.what, program = cluster[0].seen[{3}].submitted_status.what;
    EXPECT_TRUE(bits.ends_with("; other versions of libraries: torch 1.13.1 and 2.1.0")) << bits;
    EXPECT_EQ(program, "node b runs another program than node a: source train.py is 34cd at node b and 12ab at node a: copy it again");
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
            cluster[who].agenda.emplace(at,
                                        [&, who] { cluster[who].membership.opened({1}, fail(Code::cancelled, "cancelled at node z")); });
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
        const Event timer{Event::TimerExpired{}};
        source.on({&timer, 1}, actions);
        std::vector<Event> sent;
        for (Send& send : actions.sends) {
            sent.push_back({Event::Sent{send.ticket}});
            if (send.to.rank != to) continue;
            give(target, from, send, now_us);
        }
        source.on(sent, actions);
    }
    static void give(Membership& target, Rank from, const Send& send, uint64_t now_us) {
        Packet packet{send.type, 0, from, 1, send.body, send.payload};
        const Event event{Event::Received{&packet}};
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
    const Event command = command_event(0);
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
    ASSERT_TRUE(notices[0].is<Notice::Submitted>());
    EXPECT_STREQ(notices[0].is<Notice::Submitted>()->outcome.what,
                 "node b was lost while the job was prepared: it was restarted; look at its gradcastd and submit again");
    EXPECT_TRUE(notices[1].is<Notice::Abort>());
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
    for (const Notice& notice : notices) EXPECT_TRUE(notice.is<Notice::Find>());
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
    plan.stages = 3;
    plan.cuts = {"conv2", "fc1"};
    plan.grid = "3 stages";
    plan.slice_groups = 4;
    std::vector<std::byte> bytes = plan_write(plan);
    JobPlan read;
    ASSERT_TRUE(plan_parse(bytes, &read));
    EXPECT_EQ(plan_write(read), bytes);
    EXPECT_EQ(read.members[2].name, "c");
    EXPECT_EQ(read.stages, 3u);
    EXPECT_EQ(read.cuts, plan.cuts);
    EXPECT_EQ(read.grid, "3 stages");
    EXPECT_EQ(read.slice_groups, 4u);
    for (const uint32_t groups : {0u, ranks_max + 1}) {
        plan.slice_groups = groups;
        EXPECT_FALSE(plan_parse(plan_write(plan), &read)) << groups;
    }
    plan.slice_groups = 1;
    for (const size_t cuts : {0u, 1u, 3u}) {
        plan.cuts.resize(cuts);
        EXPECT_FALSE(plan_parse(plan_write(plan), &read)) << cuts;
    }
    plan.stages = 0, plan.cuts.clear();
    bytes = plan_write(plan);
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
}   // namespace gradcast::membership_test
