// What a step costs on a grid, and which grid `auto` takes, as tables.
#include "algos/grid/grid_cost.h"

#include <gtest/gtest.h>

namespace gradcast {
namespace {

TEST(GridCost, StagesFillTheNodes) {
    struct {
        uint32_t nodes, most;
        std::vector<uint32_t> counts;
    } cases[] = {{1, 5, {1}}, {2, 5, {1, 2}}, {4, 3, {1, 2}}, {6, 9, {1, 2, 3, 6}}, {6, 1, {1}}, {7, 9, {1, 7}}, {12, 5, {1, 2, 3, 4}}};
    for (const auto& each : cases) EXPECT_EQ(stage_counts(each.nodes, each.most), each.counts) << each.nodes;
}

TEST(GridCost, SliceGroupsDivideTheSlices) {
    struct {
        uint32_t slices;
        std::vector<uint32_t> counts;
    } cases[] = {{1, {1}}, {2, {1, 2}}, {8, {1, 2, 4, 8}}, {12, {1, 2, 4}}};
    for (const auto& each : cases) EXPECT_EQ(slice_group_counts(each.slices), each.counts) << each.slices;
}

TEST(GridCost, TokensNameRows) {
    struct {
        uint64_t all, own, tokens;
        double rows;
    } cases[] = {{10, 10, 0, 0}, {10, 10, 1, 1}, {10, 5, 1, 0.5}, {10, 5, 2, 0.95}, {1, 1, 7, 1}, {4, 2, 3, 2 * (1 - 27.0 / 64)}};
    for (const auto& each : cases) EXPECT_NEAR(rows_named(each.all, each.own, each.tokens), each.rows, 1e-12) << each.tokens;
    EXPECT_NEAR(rows_named(50257, 25129, 1), 0.5, 1e-4);
    EXPECT_NEAR(rows_named(65, 33, 10'000), 33, 1e-9);   // all of them
}

constexpr StageTimes one{1, 1, 1};

GridLoad equal(uint32_t stages, uint32_t blocks, Schedule schedule = Schedule::one_forward_one_backward) {
    GridLoad load{.schedule = schedule, .blocks = blocks, .stages = {}};
    load.stages.assign(stages, {.block = one});
    return load;
}
constexpr GridWire fast{1e15, 0};

TEST(GridCost, AnUncutNetTakesItsBlocksInWavesOfLanes) {
    struct {
        uint32_t lanes, blocks;
        double step;
    } cases[] = {{1, 8, 24}, {2, 8, 12}, {3, 8, 9}, {8, 8, 3}, {16, 8, 3}};
    for (const auto& each : cases) {
        GridLoad load = equal(1, each.blocks);
        load.lanes = each.lanes;
        const GridCost cost = grid_cost(load, fast);
        EXPECT_DOUBLE_EQ(cost.step, each.step) << each.lanes;
        EXPECT_DOUBLE_EQ(cost.idle, 0);
    }
}

TEST(GridCost, StagesIdleAsTheScheduleSays) {
    struct {
        Schedule schedule;
        uint32_t stages, blocks;
        double step;
    } cases[] = {{Schedule::gpipe, 2, 4, 15},
                 {Schedule::one_forward_one_backward, 2, 4, 15},
                 {Schedule::one_forward_one_backward, 4, 8, 33},
                 {Schedule::zero_bubble, 2, 4, 13},
                 {Schedule::zero_bubble, 4, 8, 27}};
    for (const auto& each : cases) {
        const GridCost cost = grid_cost(equal(each.stages, each.blocks, each.schedule), fast);
        EXPECT_NEAR(cost.step, each.step, 1e-9);
        EXPECT_NEAR(cost.idle, 1 - 3.0 * each.blocks / each.step, 1e-9);
    }
}

// Lanes share the blocks of a micro-batch: one block at a time leaves them idle.
TEST(GridCost, LanesNeedMicroBatches) {
    GridLoad load = equal(2, 8);
    load.lanes = 2;
    EXPECT_DOUBLE_EQ(grid_cost(load, fast).step, 27);   // 9 times one block at a time
    load.micro_batch = 2;
    EXPECT_DOUBLE_EQ(grid_cost(load, fast).step, 15);   // 5 times two at a time
    load.micro_batch = 3;
    EXPECT_DOUBLE_EQ(grid_cost(load, fast).step, 24);   // 4 times two waves of three
}

TEST(GridCost, WordsComeAfterTheLastPassOfTheirStage) {
    GridLoad load = equal(1, 2);
    load.stages[0].words_sent = 1e6, load.stages[0].words_received = 2e6, load.stages[0].words_rounds = 3;
    EXPECT_DOUBLE_EQ(grid_cost(load, {8e6, 0.5}).step, 6 + 2 + 1.5);
    load = equal(2, 2);   // the second stage ends while the first one is still at its last backward pass
    load.stages[1].words_sent = 1e6;
    EXPECT_DOUBLE_EQ(grid_cost(load, {8e6, 0}).step, 9);
    load.stages[1].words_sent = 5e6;
    EXPECT_DOUBLE_EQ(grid_cost(load, {8e6, 0}).step, 7 + 5);
}

// The schedule hides an edge behind passes, but a link carries one after the other.
TEST(GridCost, AStepIsNoShorterThanItsBytes) {
    GridLoad load = equal(2, 100, Schedule::gpipe);
    load.stages[0].values_sent = load.stages[1].edges_received = 10e6;
    const GridCost slow = grid_cost(load, {8e6, 0});
    EXPECT_DOUBLE_EQ(slow.step, 1000);
    EXPECT_DOUBLE_EQ(slow.edges, 1000e6);
    load.stages[1].gradients_sent = 11e6;
    EXPECT_DOUBLE_EQ(grid_cost(load, {8e6, 0}).step, 1100);
    EXPECT_DOUBLE_EQ(grid_cost(load, {8e6, 0}).edges, 1100e6);         // of the node that sends most
    EXPECT_NEAR(grid_cost(load, {8e15, 1}).step, 303 + 2 + 2, 1e-6);   // two edges on the way, then two messages of all
}

TEST(GridCost, TheFullestNodeCounts) {
    GridLoad load = equal(3, 4);
    load.stages[0].memory = 5, load.stages[1].memory = 9, load.stages[2].memory = 9;
    EXPECT_EQ(grid_cost(load, fast).memory, 9u);
    EXPECT_EQ(grid_cost(load, fast).fullest, 1u);
}

TEST(GridCost, AutoTakesTheShortestStepThatFits) {
    const auto cost = [](double step, uint64_t memory) { return GridCost{.step = step, .memory = memory}; };
    struct {
        std::vector<GridCost> costs;
        uint64_t memory;
        size_t best;
    } cases[] = {{{cost(3, 100), cost(2, 60), cost(1, 40)}, 0, 2},
                 {{cost(1, 100), cost(2, 60), cost(3, 40)}, 0, 0},
                 {{cost(1, 100), cost(2, 60), cost(3, 40)}, 99, 1},
                 {{cost(1, 100), cost(2, 60), cost(3, 40)}, 60, 1},
                 {{cost(1, 100), cost(2, 60), cost(3, 40)}, 59, 2},
                 {{cost(1, 100), cost(2, 60), cost(3, 40)}, 39, 3},
                 {{cost(0, 100), cost(0, 60), cost(0, 40)}, 70, 1},   // not predicted: the fewest stages that fit
                 {{cost(2, 10), cost(2, 10)}, 0, 0},
                 {{}, 0, 0}};
    for (const auto& each : cases) EXPECT_EQ(grid_choose(each.costs, each.memory), each.best);
}

// A grid of one replica is taken only where no other one fits.
TEST(GridCost, SurviveTakesTwoReplicasWhereTheyFit) {
    const auto cost = [](uint32_t replicas, double step, uint64_t memory) {
        return GridCost{.step = step, .memory = memory, .replicas = replicas};
    };
    const std::vector<GridCost> costs = {cost(4, 3, 100), cost(2, 2, 60), cost(1, 1, 40)};
    struct {
        uint64_t memory;
        size_t best, survives;
    } cases[] = {{0, 2, 1}, {100, 2, 1}, {60, 2, 1}, {59, 2, 2}, {39, 3, 3}};
    for (const auto& each : cases) {
        EXPECT_EQ(grid_choose(costs, each.memory), each.best) << each.memory;
        EXPECT_EQ(grid_choose(costs, each.memory, true), each.survives) << each.memory;
    }
    EXPECT_EQ(grid_choose(std::vector{cost(4, 2, 1), cost(2, 2, 1)}, 0, true), 0u);   // two replicas are enough: the first of equal ones
}

}   // namespace
}   // namespace gradcast
