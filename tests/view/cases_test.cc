// The hard cases of a change of view, one by one.
#include <gtest/gtest.h>

#include "tests/view/world.h"

namespace gradcast {
namespace {

using Why = ViewNotice::Ended::Why;
using Nodes = std::vector<uint32_t>;

Nodes members_of(const AgreedView& view) {
    Nodes nodes;
    for (const ViewMember& each : view.members) nodes.push_back(index_of(each.node));
    return nodes;
}

/// Runs until these are in one view of their own and complete a step.
testing::AssertionResult go_on(World& world, const Nodes& members, uint64_t within_us = 2 * D) {
    const uint64_t until_us = world.now_us() + within_us;
    StepId step = 0;
    auto steps = [&] { return world.settled(members) && (step == 0 ? step = world.highest() : step) < world.highest(); };
    if (world.run(until_us, steps)) return testing::AssertionSuccess();
    return testing::AssertionFailure() << world.violation() << "\n" << world.describe();
}

TEST(View, ThreeTrainTogether) {
    World world({.members = 3});
    EXPECT_TRUE(go_on(world, {0, 1, 2}));
    EXPECT_EQ(world.machine(0).view().number, 1u);
}

TEST(View, OneOfThreeDies) {
    for (const uint32_t dead : {0u, 1u, 2u}) {
        World world({.members = 3, .m = 2, .s = 1});
        world.run(D / 2);
        world.crash(dead);
        Nodes rest{0, 1, 2};
        rest.erase(rest.begin() + dead);
        EXPECT_TRUE(go_on(world, rest, D));
        EXPECT_EQ(world.machine(rest[0]).view().fitted(), (ViewExchange{"coded-rs", 2, 1, 1})) << "m falls first";
    }
}

/// Three or more of which 0 has died in a step that takes node 2 longer than D/4.
void lose_one_in_a_long_step(World& world) {
    world.run(D / 2);
    world.slow(2, 30);
    world.run(world.now_us() + D / 20);
    world.slow(2, 1);
    world.crash(0), world.suspect(1, 0), world.suspect(2, 0);
}

TEST(View, AllWaitForASlowNodeThatTheyNeed) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        World world({.seed = seed, .members = 3, .members_min = 2});
        lose_one_in_a_long_step(world);
        EXPECT_TRUE(go_on(world, {1, 2}));
    }
}

TEST(View, ASlowNodeThatNobodyNeedsIsLeftOut) {
    World world({.members = 4, .members_min = 2});
    lose_one_in_a_long_step(world);
    EXPECT_TRUE(go_on(world, {1, 3}, D));
}

TEST(View, AJoinerStopsNobodyBeforeItHearsAllMembers) {
    World world({.members = 4});
    world.run(D / 2);
    world.crash(3);
    ASSERT_TRUE(go_on(world, {0, 1, 2}));
    const uint32_t before = world.machine(0).view().number;
    world.cut(3, 1, true), world.cut(1, 3, true);
    world.restart(3, true);
    world.run(world.now_us() + D);
    EXPECT_EQ(world.machine(0).view().number, before);
    EXPECT_TRUE(world.settled({0, 1, 2})) << world.describe();
    world.cut(3, 1, false), world.cut(1, 3, false);
    EXPECT_TRUE(go_on(world, {0, 1, 2, 3}));
    EXPECT_EQ(world.machine(0).view().parent, before) << "one view for it";
}

/// The number of views of 4 nodes in 60 D, on a network that loses so many packets that each stream stands again and again for up to D/3.
uint64_t train_with_loss(uint64_t seed, bool patient) {
    World world({.seed = seed, .members = 4, .rejoin_chance = 1, .patient = patient});
    std::mt19937_64 random(seed);
    std::function<void(uint32_t, uint32_t)> lose = [&](uint32_t from, uint32_t to) {
        const uint64_t begin_us = world.now_us() + random() % (D / 4), end_us = begin_us + random() % (D / 3);
        world.at(begin_us, [&world, from, to, end_us] { world.hold(from, to, end_us); });
        world.at(end_us, [&lose, from, to] { lose(from, to); });
    };
    for (uint32_t from = 0; from < 4; ++from)
        for (uint32_t to = 0; to < 4; ++to)
            if (from != to) lose(from, to);
    world.run(60 * D);
    EXPECT_EQ(world.violation(), "") << world.describe();
    return world.seen().views;
}

TEST(View, ANodeThatCameBackIsGivenUpLater) {
    uint64_t views = 0, views_without = 0;
    for (uint64_t seed = 1; seed <= 10; ++seed) {
        views += train_with_loss(seed, true);
        views_without += train_with_loss(seed, false);
    }
    EXPECT_LT(5 * views, views_without) << views;
}

/// Of 4 members node 3 is given up once, and joins again.
void node_3_comes_back(World& world) {
    world.run(D / 2);
    world.stall(3, D / 2);
    ASSERT_TRUE(go_on(world, {0, 1, 2}));
    ASSERT_TRUE(go_on(world, {0, 1, 2, 3}));
}

TEST(View, AnotherNodeThatDiesIsGivenUpAsSoonAsEver) {
    World world({.members = 4, .rejoin_chance = 1});
    ASSERT_NO_FATAL_FAILURE(node_3_comes_back(world));
    world.crash(2);
    EXPECT_TRUE(go_on(world, {0, 1, 3}, D / 2));
}

TEST(View, WhoCameBackAndDiesIsGivenUpAfterTwiceTheTime) {
    World world({.members = 4, .rejoin_chance = 1});
    ASSERT_NO_FATAL_FAILURE(node_3_comes_back(world));
    world.crash(3);
    EXPECT_FALSE(go_on(world, {0, 1, 2}, D * 2 / 5));
    EXPECT_TRUE(go_on(world, {0, 1, 2}, D / 2));
}

TEST(View, TwoProposersAgree) {
    World world({.members = 5});
    world.run(D / 2);
    // Neither learns of the other.  One alone accepts what the first proposes, then the second one proposes.
    world.cut(0, 1, true), world.cut(1, 0, true);
    world.passes = [&](uint32_t from, uint32_t to, const ViewMessage& message) {
        if (from != 0 || !message.is<ViewMessage::Accept>()) return true;
        world.at(world.now_us() + D / 100, [&world] { world.suspect(1, 0); });
        return to == 2;
    };
    world.suspect(0, 4);
    EXPECT_TRUE(world.run(2 * D, [&] { return world.going(0) && world.machine(0).view().number == ballot_of(1, NodeId{0}); }))
        << world.describe();
    EXPECT_EQ(members_of(world.machine(0).view()), (Nodes{0, 2, 3, 4}));
    EXPECT_EQ(world.seen().adopted, 1u);
    EXPECT_EQ(world.violation(), "");
}

TEST(View, ProposerDiesBetweenAcceptAndView) {
    World world({.members = 5});
    world.run(D / 2);
    world.crash(4);
    Nodes accepted;
    world.passes = [&](uint32_t from, uint32_t, const ViewMessage& message) {
        if (message.is<ViewMessage::Accepted>()) accepted.push_back(from);
        // All have accepted; nobody learns of it.
        if (from != 0 || !message.is<ViewMessage::View>()) return true;
        world.at(world.now_us(), [&world] { world.crash(0); });
        return false;
    };
    ASSERT_TRUE(world.run(2 * D, [&] { return !world.up(0); }));
    ASSERT_GE(accepted.size(), 2u);
    ASSERT_TRUE(world.run(world.now_us() + D / 2, [&] { return world.seen().adopted > 0; })) << world.describe();
    // What was chosen is chosen again, with the dead one in it; the next view is without it.
    EXPECT_TRUE(go_on(world, {1, 2, 3}));
}

TEST(View, HalfWithTheLowestRankGoesOn) {
    World world({.members = 4});
    world.run(D / 2);
    world.split({0, 3}, true);
    EXPECT_TRUE(world.run(3 * D, [&] {
        return world.settled({0, 3}) || (world.going(0) && world.machine(0).view().n() == 2 && world.going(3));
    }));
    EXPECT_TRUE(world.run(4 * D, [&] { return world.ended(1) == Why::minority && world.ended(2) == Why::minority; }));
    EXPECT_EQ(world.machine(0).view().n(), 2u);
    EXPECT_EQ(world.violation(), "");
}

TEST(View, HalfWithoutTheLowestRankStops) {
    World world({.members = 4});
    world.run(D / 2);
    world.crash(0), world.crash(1);
    EXPECT_FALSE(world.run(4 * D, [&] { return world.seen().views > 0; }));
    EXPECT_EQ(world.ended(2), Why::minority);
    EXPECT_EQ(world.ended(3), Why::minority);
}

TEST(View, HalfWithoutTheLowestRankGoesOnWithProofOfDeath) {
    World world({.members = 4});
    world.run(D / 2);
    world.crash(0), world.crash(1);
    world.run(D);
    world.restart(0, false), world.prove(1);
    EXPECT_TRUE(world.run(2 * D, [&] { return world.going(2) && world.machine(2).view().n() == 2; })) << world.describe();
    EXPECT_EQ(world.seen().by_proof, 1u);
    EXPECT_EQ(world.violation(), "");
}

// Nobody knows what a node that answers nothing knows.
TEST(View, ProofOfDeathNeedsAnAnswerOfAllOthers) {
    World world({.members = 4, .others = 1});
    world.run(D / 2);
    world.crash(0), world.crash(1), world.crash(4);
    world.run(D);
    world.restart(0, false), world.prove(1);
    EXPECT_FALSE(world.run(4 * D, [&] { return world.seen().views > 0; }));
    EXPECT_EQ(world.ended(2), Why::minority);
}

TEST(View, TwoNodesWhereRankOneDies) {
    World world({.members = 2});
    world.run(D / 2);
    world.crash(1);
    EXPECT_TRUE(go_on(world, {0}, D));
}

TEST(View, TwoNodesWhereRankZeroDies) {
    for (const bool proven : {false, true}) {
        World world({.members = 2});
        world.run(D / 2);
        world.crash(0);
        if (proven) world.at(D, [&] { world.restart(0, false); });
        EXPECT_EQ(world.run(4 * D, [&] { return world.going(1) && world.machine(1).view().n() == 1; }), proven) << world.describe();
        EXPECT_EQ(world.ended(1), proven ? std::nullopt : std::optional(Why::minority));
        EXPECT_EQ(world.violation(), "");
    }
}

TEST(View, ChainOfMinorityFailures) {
    World world({.members = 8, .m = 2, .s = 2});
    world.run(D / 2);
    for (const Nodes& rest : {Nodes{0, 1, 2, 5, 6}, Nodes{1, 2, 6}, Nodes{1, 6}}) {
        for (uint32_t each = 0; each < 8; ++each)
            if (world.up(each) && std::find(rest.begin(), rest.end(), each) == rest.end()) world.crash(each);
        ASSERT_TRUE(go_on(world, rest)) << rest.size();
    }
    EXPECT_EQ(world.machine(1).view().fitted(), (ViewExchange{"coded-rs", 2, 1, 1})) << "m falls first, then s";
}

TEST(View, ReadyJoinerComesLast) {
    World world({.members = 2, .others = 2});
    world.run(D / 2);
    world.join(3);
    EXPECT_TRUE(go_on(world, {0, 1, 3}));
    EXPECT_EQ(members_of(world.machine(3).view()), (Nodes{0, 1, 3}));
    EXPECT_EQ(world.seen().states, 1u);
}

TEST(View, RestartedNodeJoinsAgain) {
    World world({.members = 3});
    world.run(D / 2);
    world.crash(0);
    world.at(D / 2 + D / 50, [&] { world.restart(0, true); });
    EXPECT_TRUE(world.run(3 * D, [&] {
        return world.settled({0, 1, 2}) && world.machine(0).view().members.back().node == NodeId{0};
    })) << world.describe();
}

TEST(View, JoinersAreAtMostAsManyAsMembers) {
    World world({.members = 1, .others = 3});
    world.run(D / 2);
    for (const uint32_t each : {1u, 2u, 3u}) world.join(each);
    std::vector<size_t> sizes;
    world.run(4 * D, [&] {
        if (const size_t n = world.machine(0).view().n(); sizes.empty() || n != sizes.back()) sizes.push_back(n);
        return world.settled({0, 1, 2, 3});
    });
    EXPECT_EQ(sizes, (std::vector<size_t>{1, 2, 4}));
}

TEST(View, NodeThatMissedViewIsTold) {
    World world({.members = 4});
    world.run(D / 2);
    world.crash(3);
    world.passes = [&](uint32_t from, uint32_t to, const ViewMessage& message) {
        return !(message.is<ViewMessage::View>() && from == 0 && to == 2 && message.view != 1) || world.seen().views > 1 ||
               world.now_us() > 3 * D / 2;
    };
    EXPECT_TRUE(go_on(world, {0, 1, 2}));
}

TEST(View, ExcludedNodeLearnsIt) {
    World world({.members = 3});
    world.run(D / 2);
    world.split({2}, true);
    ASSERT_TRUE(world.run(2 * D, [&] { return world.going(0) && world.machine(0).view().n() == 2; }));
    world.split({2}, false);
    EXPECT_TRUE(world.run(world.now_us() + D / 4, [&] { return world.ended(2) == Why::excluded; })) << world.describe();
}

TEST(View, OneWayCutParts) {
    World world({.members = 3});
    world.run(D / 2);
    world.cut(2, 1, true);   // nothing of 2 reaches 1, but 2 is reached by it
    EXPECT_TRUE(world.run(3 * D, [&] {
        return world.settled({0, 1}) || (world.going(0) && world.machine(0).view().n() == 2);
    })) << world.describe();
    EXPECT_EQ(world.violation(), "");
}

TEST(View, CoveredLossFreezesNobodyWithoutAQuorum) {
    World world({.members = 4, .m = 1, .s = 2});
    world.run(D / 2);
    world.split({2, 3}, true);
    world.run(D);
    EXPECT_TRUE(world.run(3 * D, [&] { return world.going(0) && world.machine(0).view().n() == 2; }));
    EXPECT_EQ(members_of(world.machine(0).view()), (Nodes{0, 1}));
    // The other half neither promised anything nor went on.
    EXPECT_EQ(world.machine(2).view().number, 1u);
    EXPECT_LT(world.applied(2), world.applied(0));
    EXPECT_EQ(world.violation(), "");
    EXPECT_TRUE(world.run(4 * D, [&] { return world.ended(2) == Why::minority; }));
}

TEST(View, OneNodesAlarmAboutACoveredLossIsNoReason) {
    World world({.members = 3, .m = 1, .s = 1});
    world.run(D / 2);
    world.cut(2, 1, true);
    const StepId before = world.applied(0);
    world.run(3 * D);
    EXPECT_EQ(world.seen().views, 0u);
    EXPECT_GT(world.applied(0), before + 10);
}

TEST(View, UnconfirmedLossHoldsUpNoJoiner) {
    World world({.members = 4, .others = 1, .m = 1, .s = 1});
    world.run(D / 2);
    for (uint32_t each = 0; each < 4; ++each) world.cut((each + 1) % 4, each, true);   // each misses another one
    world.run(D);
    EXPECT_EQ(world.seen().views, 0u);
    world.join(4);
    EXPECT_TRUE(world.run(2 * D, [&] { return world.going(4); })) << world.describe();
}

// Parameter servers vote alone: they need no worker's node, and no worker goes on without most of them.
TEST(View, OnlyVotersCount) {
    for (const auto& [voters, dead, rest] : std::vector<std::tuple<uint32_t, Nodes, Nodes>>{
             {1, {1, 2, 3, 4}, {0}}, {2, {1, 3, 4}, {0, 2}}, {3, {0, 3, 4}, {1, 2}}, {3, {2, 3, 4}, {0, 1}}}) {
        World world({.members = 5, .voters = voters});
        world.run(D / 2);
        for (const uint32_t each : dead) world.crash(each);
        EXPECT_TRUE(go_on(world, rest));
        // Who is next in rank votes in the next view.
        if (rest.size() == 2 && voters == 3) {
            world.crash(rest[1]);
            EXPECT_TRUE(go_on(world, {rest[0]}));
        }
    }
    for (const auto& [voters, dead] : std::vector<std::pair<uint32_t, Nodes>>{{1, {0}}, {2, {0}}, {3, {0, 1}}}) {
        World world({.members = 5, .voters = voters});
        world.run(D / 2);
        for (const uint32_t each : dead) world.crash(each);
        EXPECT_TRUE(world.run(4 * D, [&] { return world.seen().minority == 5 - dead.size(); })) << world.describe();
        EXPECT_EQ(world.seen().views, 0u);
    }
    // A server that comes back proves the death of what it was.
    World world({.members = 5, .voters = 1});
    world.run(D / 2);
    world.crash(0);
    world.restart(0, true);
    EXPECT_TRUE(world.run(3 * D, [&] { return world.going(0) && world.machine(0).view().n() == 5; })) << world.describe();
    EXPECT_GT(world.seen().by_proof, 0u);
}

TEST(View, ForceViewIsRefusedWhileTheNodeAnswers) {
    World world({.members = 2});
    world.run(D / 2);
    EXPECT_FALSE(world.machine(1).force_dead(NodeId{0}, world.now_us()));
    world.crash(0);
    world.run(D);
    EXPECT_TRUE(world.machine(1).force_dead(NodeId{0}, world.now_us()));
    EXPECT_TRUE(go_on(world, {1}, D));
    EXPECT_EQ(world.seen().by_proof, 1u);
}

TEST(View, StatesAndInitialValues) {
    const ViewState knows{.known = true, .digest = 5}, one{.digest = 7, .initial = true}, other{.digest = 8, .initial = true}, joiner{};
    CommonStep common = view_common_step(std::vector{one, other, knows, joiner});
    EXPECT_TRUE(common.found && !common.tied);
    EXPECT_EQ(common.digest, 5u);
    EXPECT_EQ(common.source, 2u);
    common = view_common_step(std::vector{one, other, joiner});
    EXPECT_TRUE(common.found && !common.tied);
    EXPECT_EQ(common.digest, 7u);
    EXPECT_EQ(common.source, 0u);
    EXPECT_EQ(common.wrong, (std::vector<bool>{false, false, false}));
    EXPECT_FALSE(view_common_step(std::vector{joiner, joiner}).found);   // joiners begin no job
}

// Node 0 dies before all have its initial values: where a member has them, they count.
TEST(View, ANodeDiesWhileInitialValuesAreSent) {
    for (const uint32_t dead : {0u, 1u, 2u}) {
        uint64_t own = 0, sent = 0;
        for (uint64_t seed = 1; seed <= 40; ++seed) {
            World world({.seed = seed, .members = 3, .initial_us = D});
            world.run(D / 2);
            world.crash(dead);
            Nodes rest{0, 1, 2};
            rest.erase(rest.begin() + dead);
            ASSERT_TRUE(go_on(world, rest)) << dead << " of seed " << seed;
            (world.seen().own_initial > 0 ? own : sent) += 1;
        }
        EXPECT_EQ(own > 0, dead == 0);
        EXPECT_GT(sent, 0u);
    }
}

// Node 0 has the state of a resumed job.  Without it, and without a node that has got the state, the job ends.
TEST(View, ANodeDiesWhileAResumedStateIsSent) {
    for (const uint32_t dead : {0u, 1u, 2u}) {
        uint64_t on = 0, ended = 0;
        for (uint64_t seed = 1; seed <= 40; ++seed) {
            World world({.seed = seed, .members = 3, .initial_us = D, .resumed = true});
            world.run(D / 2);
            world.crash(dead);
            Nodes rest{0, 1, 2};
            rest.erase(rest.begin() + dead);
            const auto all = [&](auto is) { return is(rest[0]) && is(rest[1]); };
            const auto goes_on = [&] {
                return all([&](uint32_t each) { return world.going(each) && world.machine(each).view().n() == 2; });
            };
            const auto ends = [&] { return all([&](uint32_t each) { return world.ended(each) == Why::tied; }); };
            ASSERT_TRUE(world.run(2 * D, [&] { return goes_on() || ends(); })) << dead << " of seed " << seed << world.describe();
            (ends() ? ended : on) += 1;
        }
        EXPECT_EQ(ended > 0, dead == 0);
        EXPECT_GT(on, 0u);
    }
}

TEST(View, MajorityOfDigestsWins) {
    World world({.members = 3});
    world.run(D / 2);
    world.expect_wrong();
    world.digest(1, 13);
    world.machine(0).ask({ViewAction::Kind::exchange, {}, {"ring", 2, 1, 0}}, world.now_us());
    world.wake(0);
    EXPECT_TRUE(world.run(2 * D, [&] {
        return world.ended(1) == Why::wrong && world.going(0) && world.going(2) && world.machine(0).view().n() == 2;
    })) << world.describe();
}

TEST(View, TieOfDigestsEndsTheJob) {
    World world({.members = 2});
    world.run(D / 2);
    world.expect_wrong();
    world.digest(1, 13);
    world.machine(0).ask({ViewAction::Kind::exchange, {}, {"ring", 2, 1, 0}}, world.now_us());
    world.wake(0);
    EXPECT_TRUE(world.run(2 * D, [&] { return world.ended(0) == Why::tied && world.ended(1) == Why::tied; })) << world.describe();
}

TEST(View, DrainLeavesOneOut) {
    World world({.members = 3});
    world.run(D / 2);
    world.machine(1).ask({ViewAction::Kind::drain, NodeId{0}, {}}, world.now_us());
    world.wake(1);
    EXPECT_TRUE(world.run(D, [&] { return world.ended(0) == Why::excluded && world.going(1) && world.going(2); })) << world.describe();
    EXPECT_EQ(members_of(world.machine(1).view()), (Nodes{1, 2}));
    const uint32_t number = world.machine(1).view().number;
    world.run(3 * D);
    EXPECT_EQ(world.machine(1).view().number, number);
}

// Of two that want to leave one stays, and who leaves never takes the job below members_min.
TEST(View, DrainStopsNoJob) {
    World both({.members = 2});
    both.run(D / 2);
    for (const uint32_t node : {0u, 1u}) {
        both.machine(node).ask({ViewAction::Kind::drain, NodeId{node}, {}}, both.now_us());
        both.wake(node);
    }
    EXPECT_TRUE(both.run(2 * D, [&] { return both.going(0) != both.going(1) && both.seen().excluded == 1; })) << both.describe();
    const uint32_t stays = both.going(0) ? 0 : 1;
    EXPECT_TRUE(go_on(both, {stays}, D));

    World least({.members = 3, .members_min = 3});
    least.run(D / 2);
    least.machine(1).ask({ViewAction::Kind::drain, NodeId{0}, {}}, least.now_us());
    least.wake(1);
    EXPECT_FALSE(least.run(2 * D, [&] { return least.seen().views > 0; }));
    EXPECT_TRUE(go_on(least, {0, 1, 2}));

    // One dies while another leaves: two are needed.
    World dies({.members = 3, .members_min = 2});
    dies.run(D / 2);
    dies.crash(2);
    dies.machine(1).ask({ViewAction::Kind::drain, NodeId{1}, {}}, dies.now_us());
    dies.wake(1);
    EXPECT_TRUE(go_on(dies, {0, 1}, 2 * D));
}

/// Each of these nodes asks to be drained.
void drain(World& world, const Nodes& nodes) {
    for (const uint32_t node : nodes) world.machine(node).ask({ViewAction::Kind::drain, NodeId{node}, {}}, world.now_us());
    for (const uint32_t node : nodes) world.wake(node);
}

// A node whose drain is dropped is told, whoever drops it.
TEST(View, ANodeThatMustStayIsTold) {
    World none({.members = 2, .members_min = 2});
    none.run(D / 2);
    drain(none, {1});
    EXPECT_EQ(none.seen().stays, 1u);
    EXPECT_TRUE(go_on(none, {0, 1}));
    EXPECT_EQ(none.seen().views, 0u);

    for (uint64_t seed = 1; seed <= 20; ++seed) {   // all leave at once, and two are needed
        World all({.seed = seed, .members = 5, .members_min = 2, .jitter_us = D / 50});
        all.run(D / 2);
        drain(all, {0, 1, 2, 3, 4});
        EXPECT_TRUE(all.run(8 * D, [&] { return all.seen().excluded == 3 && all.seen().stays == 2 && all.newest().n() == 2; }))
            << all.describe();
        EXPECT_TRUE(go_on(all, members_of(all.newest())));
    }

    World dies({.members = 3, .members_min = 2});
    dies.run(D / 2);
    dies.crash(2);
    drain(dies, {1});
    EXPECT_TRUE(go_on(dies, {0, 1}, 2 * D));
    EXPECT_EQ(dies.seen().stays, 1u);
}

// As of two replicas of two stages: a node stays where no other one has its stage.
TEST(View, DrainLeavesTheJobWhatItNeeds) {
    const auto has_both = [](std::span<const NodeId> nodes) {
        const auto some = [&](uint32_t stage) {
            return std::any_of(nodes.begin(), nodes.end(), [&](NodeId node) { return index_of(node) % 2 == stage; });
        };
        return some(0) && some(1);
    };
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        World world({.seed = seed, .members = 4, .jitter_us = D / 50, .goes_on_with = has_both});
        world.run(D / 2);
        drain(world, {1, 3});
        EXPECT_TRUE(world.run(4 * D, [&] { return world.seen().excluded == 1 && world.seen().stays == 1; })) << world.describe();
        EXPECT_TRUE(go_on(world, world.ended(1) == Why::excluded ? Nodes{0, 2, 3} : Nodes{0, 1, 2}));
        drain(world, {0, 2});
        EXPECT_TRUE(world.run(world.now_us() + 4 * D, [&] { return world.seen().excluded == 2 && world.seen().stays == 2; }))
            << world.describe();
        EXPECT_TRUE(has_both(std::vector{world.newest().members[0].node, world.newest().members[1].node}));
    }
}

TEST(View, ChangeOfExchangeKeepsTheMembers) {
    World world({.members = 3});
    world.run(D / 2);
    const ViewExchange ring{"ring", 2, 1, 0};
    world.machine(2).ask({ViewAction::Kind::exchange, {}, ring}, world.now_us());
    world.wake(2);
    EXPECT_TRUE(world.run(D, [&] { return world.settled({0, 1, 2}) && world.machine(0).view().exchange == ring; })) << world.describe();
    EXPECT_EQ(world.machine(0).view().action.kind, ViewAction::Kind::exchange);
}

AgreedView view_of(uint32_t number, uint32_t parent, const Nodes& nodes) {
    AgreedView view{.number = number, .parent = parent, .deadline_us = D, .exchange = {"ring", 2, 1, 0}, .action = {}, .members = {}};
    for (const uint32_t each : nodes) view.members.push_back({NodeId{each}, 1, 1});
    return view;
}
ViewMessage from(uint32_t node, uint32_t view, ViewMessage::What what) {
    return {.from = NodeId{node}, .incarnation = 1, .view = view, .what = std::move(what)};
}

// Its sender is dead by then, or it would not have been chosen against: with proof of death those who live are a quorum.
TEST(View, OldViewIsNotInstalledAfterALaterBallotWasAccepted) {
    const AgreedView first = view_of(1, 0, {0, 1, 2, 3});
    const Ballot earlier = ballot_of(1, NodeId{0}), later = ballot_of(2, NodeId{3});
    const AgreedView old = view_of(earlier, 1, {0, 1, 4}), next = view_of(later, 1, {3, 4});
    for (const bool accepts : {false, true}) {
        ViewChange joiner({.self = NodeId{4}, .incarnation = 1, .nodes = 5, .deadline_us = D});
        joiner.join(0);
        joiner.receive(from(3, 1, ViewMessage::View{1, first}), 1);
        joiner.receive(from(0, 1, ViewMessage::Prepare{earlier}), 2);
        joiner.receive(from(3, 1, ViewMessage::Prepare{later}), 3);
        if (accepts) joiner.receive(from(3, 1, ViewMessage::Accept{later, next}), 4);
        joiner.receive(from(0, earlier, ViewMessage::View{earlier, old}), 5);
        EXPECT_EQ(joiner.view(), accepts ? first : old);
        if (!accepts) continue;
        joiner.receive(from(3, later, ViewMessage::View{later, next}), 6);
        EXPECT_EQ(joiner.view(), next);
    }
}

// A member that knows the view may announce its state before another member has the VIEW, and need not come through again.
TEST(View, AStateBeforeItsViewCounts) {
    const Ballot ballot = ballot_of(1, NodeId{0});
    const AgreedView next = view_of(ballot, 1, {0, 1});
    ViewChange member({.self = NodeId{1}, .incarnation = 1, .nodes = 3, .deadline_us = D});
    member.begin(view_of(1, 0, {0, 1, 2}), 0);
    member.receive(from(0, 1, ViewMessage::Prepare{ballot}), 1);
    member.receive(from(0, ballot, ViewMessage::State{ViewStage::reported, {true, 3, 17}}), 2);
    member.receive(from(0, ballot, ViewMessage::View{ballot, next}), 3);
    ASSERT_EQ(member.view(), next);
    member.notices().clear();
    member.trainer_stopped({true, 3, 17}, 4);
    ASSERT_EQ(member.notices().size(), 1u);
    const auto* step = std::get_if<ViewNotice::Step>(&member.notices()[0].what);
    ASSERT_TRUE(step && step->has);
    EXPECT_EQ(step->step, 3u);
}

TEST(View, NobodyIsMadeAMemberWithoutItsPromise) {
    ViewChange joiner({.self = NodeId{2}, .incarnation = 1, .nodes = 3, .deadline_us = D});
    joiner.join(0);
    joiner.receive(from(0, 1, ViewMessage::View{1, view_of(1, 0, {0, 1})}), 1);
    const AgreedView skipped = view_of(ballot_of(2, NodeId{0}), ballot_of(1, NodeId{0}), {0, 1, 2});
    joiner.receive(from(0, skipped.number, ViewMessage::View{skipped.number, skipped}), 2);
    EXPECT_FALSE(joiner.member());
    EXPECT_EQ(joiner.view().number, 1u);
}

TEST(View, WithProofOfDeathAllWhoHavePromisedMustAccept) {
    const AgreedView first = view_of(1, 0, {0, 1});
    const Ballot ballot = ballot_of(1, NodeId{1});
    std::vector<ViewNode> nodes(3);
    for (ViewNode& each : nodes) each.newest = 1;
    nodes[0].dead = 1;
    ViewProposal proposal(first, ballot, 3, 0, 0, ViewMutant::none);
    proposal.promised(NodeId{1}, 1, {.ballot = ballot, .has_state = true, .reach = {7}});
    EXPECT_FALSE(proposal.propose(nodes, {}, 1, D)) << "node 2 may know more";
    proposal.promised(NodeId{2}, 1, {.ballot = ballot});
    ASSERT_TRUE(proposal.propose(nodes, {}, 1, D));
    proposal.accepted(NodeId{1}, 1);
    EXPECT_FALSE(proposal.chosen());
    nodes[2].dead = 1;
    EXPECT_FALSE(proposal.chosen()) << "who lived when it was proposed is still needed";
    proposal.accepted(NodeId{2}, 1);
    EXPECT_TRUE(proposal.chosen());
}

TEST(View, WithProofOfDeathANodeOutsideIsAskedIfItWasHeardOf) {
    const AgreedView first = view_of(1, 0, {0, 1});
    const Ballot ballot = ballot_of(1, NodeId{1});
    for (const uint64_t newest : {0, 1}) {
        std::vector<ViewNode> nodes(3);
        nodes[0].newest = nodes[0].dead = nodes[1].newest = 1;
        nodes[2].newest = newest;
        ViewProposal proposal(first, ballot, 3, 2, 0, ViewMutant::none);
        proposal.promised(NodeId{1}, 1, {.ballot = ballot, .has_state = true, .reach = {7}});
        EXPECT_EQ(proposal.propose(nodes, {}, 1, D), newest == 0);
    }
}

TEST(View, ANodeThatIsNotKnownYetIsInNoView) {
    const Ballot ballot = ballot_of(1, NodeId{0});
    const AgreedView first = view_of(1, 0, {0, 1}), next = view_of(ballot, 1, {0, 1, 2});
    ViewChange member({.self = NodeId{1}, .incarnation = 1, .nodes = 2, .deadline_us = D});
    member.begin(first, 0);
    member.receive(from(2, 0, ViewMessage::Join{}), 1);
    member.receive(from(0, 1, ViewMessage::Prepare{ballot}), 2);
    member.receive(from(0, 1, ViewMessage::Accept{ballot, next}), 3);
    member.receive(from(0, ballot, ViewMessage::View{ballot, next}), 4);
    EXPECT_EQ(member.view(), first);
    member.grow(3);
    member.receive(from(2, 0, ViewMessage::Join{}), 5);
    member.sends().clear();
    member.receive(from(0, 1, ViewMessage::Accept{ballot, next}), 6);
    ASSERT_EQ(member.sends().size(), 1u);
    EXPECT_TRUE(member.sends()[0].message.is<ViewMessage::Accepted>());
    member.receive(from(0, ballot, ViewMessage::View{ballot, next}), 7);
    EXPECT_EQ(member.view(), next);
}

TEST(View, OldIncarnationIsNotHeard) {
    ViewChange member({.self = NodeId{0}, .incarnation = 1, .nodes = 3, .deadline_us = D});
    member.begin(view_of(1, 0, {0, 1, 2}), 0);
    ViewMessage later = from(1, 0, ViewMessage::Join{});
    later.incarnation = 2;
    member.receive(later, 1);
    member.sends().clear();
    member.receive(from(1, 1, ViewMessage::Prepare{ballot_of(1, NodeId{1})}), 2);
    EXPECT_TRUE(member.sends().empty());
    EXPECT_EQ(member.stage(), ViewStage::going);
}

}   // namespace
}   // namespace gradcast
