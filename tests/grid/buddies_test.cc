// Buddies of stages, as tables.
#include "algos/grid/buddies.h"

#include <gtest/gtest.h>

namespace gradcast {
namespace {

using Runs = std::vector<StageRun>;
using Stages = std::vector<uint32_t>;

TEST(Buddies, EachStageIsKeptByANeighbour) {
    const std::pair<uint32_t, Stages> table[] = {
        {2, {1, 0}}, {3, {1, 0, 1}}, {4, {1, 0, 3, 2}}, {5, {1, 0, 3, 2, 3}}, {6, {1, 0, 3, 2, 5, 4}}};
    for (const auto& [stages, buddies] : table)
        for (uint32_t stage = 0; stage < stages; ++stage) EXPECT_EQ(buddy_of(stage, stages), buddies[stage]) << stages << ": " << stage;
    EXPECT_EQ(kept_by(0, 4), Stages{1});
    EXPECT_EQ(kept_by(3, 4), Stages{2});
    EXPECT_EQ(kept_by(3, 5), (Stages{2, 4}));
    EXPECT_EQ(kept_by(4, 5), Stages{});
}

TEST(Buddies, RunsThatARankMayCompute) {
    EXPECT_EQ(runs_possible(2, 4), (Runs{{2, 3}, {2, 4}}));
    EXPECT_EQ(runs_possible(3, 4), (Runs{{3, 4}, {2, 4}}));
    EXPECT_EQ(runs_possible(1, 3), (Runs{{1, 2}, {1, 3}, {0, 2}, {0, 3}}));
    EXPECT_EQ(runs_possible(2, 3), (Runs{{2, 3}}));
}

// All losses of four nodes that leave one: bits of the stages that are there.  Empty: some stage has neither rank nor buddy.
TEST(Buddies, GridOfFourAfterEachLoss) {
    const Runs lost;
    const Runs table[] = {
        lost,                               // nobody
        lost,                               // 0
        lost,                               // 1
        lost,                               // 0 1
        lost,                               // 2
        {{0, 2}, {2, 4}},                   // 0 2
        {{0, 2}, {2, 4}},                   // 1 2
        {{0, 1}, {1, 2}, {2, 4}},           // 0 1 2
        lost,                               // 3
        {{0, 2}, {2, 4}},                   // 0 3
        {{0, 2}, {2, 4}},                   // 1 3
        {{0, 1}, {1, 2}, {2, 4}},           // 0 1 3
        lost,                               // 2 3
        {{0, 2}, {2, 3}, {3, 4}},           // 0 2 3
        {{0, 2}, {2, 3}, {3, 4}},           // 1 2 3
        {{0, 1}, {1, 2}, {2, 3}, {3, 4}},   // all
    };
    for (uint32_t bits = 0; bits < 16; ++bits) {
        std::vector<bool> there;
        for (uint32_t stage = 0; stage < 4; ++stage) there.push_back((bits >> stage & 1) > 0);
        const Runs runs = runs_of_view(there);
        bool whole = true;
        for (const StageRun& run : runs) {
            uint32_t ranks = 0;
            for (uint32_t stage = run.first; stage < run.end; ++stage) ranks += there[stage];
            EXPECT_LE(ranks, 1u) << bits;
            whole = whole && ranks == 1;
        }
        EXPECT_EQ(whole, table[bits] != lost) << bits;
        if (whole) {
            EXPECT_EQ(runs, table[bits]) << bits;
        }
    }
}

TEST(Buddies, OfThreeStagesTheMiddleOneKeepsTwo) {
    EXPECT_EQ(runs_of_view({false, true, true}), (Runs{{0, 2}, {2, 3}}));
    EXPECT_EQ(runs_of_view({true, false, true}), (Runs{{0, 2}, {2, 3}}));
    EXPECT_EQ(runs_of_view({true, true, false}), (Runs{{0, 1}, {1, 3}}));
    EXPECT_EQ(runs_of_view({false, true, false}), (Runs{{0, 3}}));
    EXPECT_EQ(runs_of_view({true, false, false}), (Runs{{0, 2}, {2, 3}}));   // 2 is lost
}

TEST(Buddies, WhatARankKeepsInAView) {
    EXPECT_EQ(kept_in_view(1, {true, true, true, true}), Stages{0});
    EXPECT_EQ(kept_in_view(1, {false, true, true, true}), Stages{});
    EXPECT_EQ(kept_in_view(2, {false, true, true, true}), Stages{3});
    EXPECT_EQ(kept_in_view(1, {true, true, true}), (Stages{0, 2}));
    EXPECT_EQ(kept_in_view(1, {false, true, true}), Stages{2});
    EXPECT_EQ(kept_in_view(0, {true, true, false}), Stages{});   // 1 and 2 are one run, which nobody keeps
    EXPECT_EQ(kept_in_view(0, {true, true, true}), Stages{1});
}

}   // namespace
}   // namespace gradcast
