// Grids and schedules as tables; what a step costs beside the formulas.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "algos/grid/grid.h"
#include "algos/grid/schedule.h"

namespace gradcast {
namespace {

TEST(Grid, GivesEachRankItsCell) {
    Grid grid;
    ASSERT_TRUE(Grid::make(14, 3, 2, &grid).ok());
    EXPECT_EQ(grid.replicas(), 2u);
    EXPECT_EQ(grid.cells(), 6u);
    EXPECT_EQ(grid.spares(), 2u);
    std::set<Rank> seen;
    for (uint32_t replica = 0; replica < 2; ++replica)
        for (uint32_t stage = 0; stage < 3; ++stage)
            for (uint32_t slice = 0; slice < 2; ++slice) {
                const Cell cell{stage, slice};
                const Rank rank = grid.rank_of(replica, cell);
                EXPECT_TRUE(seen.insert(rank).second);
                EXPECT_EQ(grid.replica_of(rank), replica);
                EXPECT_EQ(grid.cell_of(rank), cell);
                EXPECT_EQ(grid.number_of(cell), stage * 2 + slice);
                EXPECT_EQ(grid.cell(grid.number_of(cell)), cell);
                EXPECT_FALSE(grid.is_spare(rank));
            }
    EXPECT_EQ(*seen.rbegin(), 11);
    EXPECT_TRUE(grid.is_spare(12));
    EXPECT_TRUE(grid.is_spare(13));
    EXPECT_EQ(grid.replica_group({1, 0}), (std::vector<Rank>{2, 8}));
    EXPECT_EQ(grid.slice_group(1, 2), (std::vector<Rank>{10, 11}));
}

TEST(Grid, OneNodeHasAll) {
    Grid grid;
    ASSERT_TRUE(Grid::make(1, 1, 1, &grid).ok());
    EXPECT_EQ(grid.replica_group({}), (std::vector<Rank>{0}));
    EXPECT_EQ(grid.spares(), 0u);
}

/// The grid of nodes of which some are lost, where node k has the cell k % cells: "0 1 | 2", the ranks of each replica by cell, then
/// spares.
std::string without(uint32_t n, uint32_t stages, const std::set<uint32_t>& lost) {
    std::vector<uint32_t> cells, nodes;
    for (uint32_t node = 0; node < n; ++node)
        if (!lost.contains(node)) cells.push_back(node % stages), nodes.push_back(node);
    const Grid grid = Grid::of(cells, stages, 1);
    std::string text;
    for (uint32_t replica = 0; replica < grid.replicas(); ++replica)
        for (uint32_t stage = 0; stage < stages; ++stage) {
            const Rank rank = grid.rank_of(replica, {stage, 0});
            EXPECT_EQ(grid.replica_of(rank), replica);
            EXPECT_EQ(grid.cell_of(rank).stage, stage);
            text += fmt::format("{}{}", stage > 0 ? " " : replica > 0 ? ", " : "", nodes[rank]);
        }
    for (Rank rank = 0; rank < nodes.size(); ++rank)
        if (grid.is_spare(rank)) text += fmt::format("{} spare", nodes[rank]).insert(0, text.empty() ? "" : "; ");
    for (const Cell& cell : grid.missing()) text += fmt::format("{}no {}", text.empty() ? "" : "; ", cell.stage);
    return text;
}

// All losses of 2 replicas of 2 stages, and of 1 of 4.
TEST(Grid, GoesOnWhereEachCellHasARank) {
    const std::pair<std::set<uint32_t>, const char*> two_by_two[] = {
        {{}, "0 1, 2 3"},
        {{0}, "2 1; 3 spare"},
        {{1}, "0 3; 2 spare"},
        {{2}, "0 1; 3 spare"},
        {{3}, "0 1; 2 spare"},
        {{0, 1}, "2 3"},
        {{0, 2}, "1 spare; 3 spare; no 0"},
        {{0, 3}, "2 1"},
        {{1, 2}, "0 3"},
        {{1, 3}, "0 spare; 2 spare; no 1"},
        {{2, 3}, "0 1"},
        {{0, 1, 2}, "3 spare; no 0"},
        {{0, 1, 3}, "2 spare; no 1"},
        {{0, 2, 3}, "1 spare; no 0"},
        {{1, 2, 3}, "0 spare; no 1"},
    };
    for (const auto& [lost, text] : two_by_two) EXPECT_EQ(without(4, 2, lost), text);
    for (uint32_t bits = 1; bits < 15; ++bits) {
        std::set<uint32_t> lost;
        for (uint32_t node = 0; node < 4; ++node)
            if (bits >> node & 1) lost.insert(node);
        EXPECT_EQ(without(4, 4, lost).find("no " + std::to_string(*lost.begin())), without(4, 4, lost).find("no ")) << bits;
        EXPECT_NE(without(4, 4, lost).find("no "), std::string::npos);
    }
    EXPECT_EQ(without(5, 2, {}), "0 1, 2 3; 4 spare");
    EXPECT_EQ(without(5, 2, {2}), "0 1, 4 3");   // the spare has the cell that was lost
}

TEST(Grid, NeedsAWholeReplica) {
    Grid grid;
    EXPECT_STREQ(Grid::make(5, 3, 2, &grid).what,
                 "3 stages x 2 slice groups need 6 nodes, and there are 5: take fewer stages, or more nodes");
    EXPECT_STREQ(Grid::make(1, 2, 1, &grid).what, "2 stages need 2 nodes, and there is 1: take fewer stages, or more nodes");
    EXPECT_EQ(Grid::make(8, 1u << 31, 1u << 31, &grid).code, Code::invalid);
}

/// "F0 F1 B0 ...": forward, backward, data, weights.
std::string text(const std::vector<StageTask>& tasks) {
    std::string all;
    for (const auto& [pass, micro_batch] : tasks)
        all += std::string(all.empty() ? "" : " ") + "FBDW"[static_cast<size_t>(pass)] + std::to_string(micro_batch);
    return all;
}

TEST(Schedule, IsATable) {
    EXPECT_EQ(text(stage_tasks(Schedule::gpipe, 3, 1, 3)), "F0 F1 F2 B0 B1 B2");
    EXPECT_EQ(text(stage_tasks(Schedule::one_forward_one_backward, 3, 0, 4)), "F0 F1 F2 B0 F3 B1 B2 B3");
    EXPECT_EQ(text(stage_tasks(Schedule::one_forward_one_backward, 3, 2, 4)), "F0 B0 F1 B1 F2 B2 F3 B3");
    EXPECT_EQ(text(stage_tasks(Schedule::one_forward_one_backward, 4, 0, 2)), "F0 F1 B0 B1");
    EXPECT_EQ(text(stage_tasks(Schedule::zero_bubble, 3, 0, 4)), "F0 F1 F2 D0 W0 F3 D1 W1 D2 W2 D3 W3");
    EXPECT_EQ(text(stage_tasks(Schedule::zero_bubble, 3, 2, 4)), "F0 D0 F1 D1 F2 D2 W0 F3 D3 W1 W2 W3");
    EXPECT_EQ(text(stage_tasks(Schedule::zero_bubble, 1, 0, 2)), "F0 D0 W0 F1 D1 W1");
    EXPECT_EQ(text(stage_tasks(Schedule::eager_one_forward_one_backward, 2, 0, 5)), "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4");
    EXPECT_EQ(text(stage_tasks(Schedule::eager_one_forward_one_backward, 2, 1, 2)), "F0 B0 F1 B1");
    EXPECT_EQ(text(stage_tasks(Schedule::eager_zero_bubble, 2, 0, 4)), "F0 F1 F2 D0 W0 F3 D1 W1 D2 W2 D3 W3");
    EXPECT_EQ(text(stage_tasks(Schedule::eager_zero_bubble, 2, 1, 4)), "F0 D0 F1 D1 F2 D2 W0 F3 D3 W1 W2 W3");
}

TEST(Schedule, KeepsAsManyMicroBatchesAsItSays) {
    for (uint32_t stages : {1u, 2u, 3u, 5u, 8u})
        for (uint32_t micro_batches : {1u, 2u, 3u, 8u, 21u})
            for (uint32_t stage = 0; stage < stages; ++stage) {
                auto slots = [&](Schedule schedule) { return slots_of(stage_tasks(schedule, stages, stage, micro_batches)); };
                EXPECT_EQ(slots(Schedule::gpipe), micro_batches);
                EXPECT_EQ(slots(Schedule::one_forward_one_backward), std::min(stages - stage, micro_batches));
                EXPECT_LE(slots(Schedule::zero_bubble), std::min(stages, micro_batches));
                EXPECT_EQ(slots(Schedule::eager_one_forward_one_backward), std::min(2 * (stages - stage) - 1, micro_batches));
                EXPECT_LE(slots(Schedule::eager_zero_bubble), std::min(2 * stages - 1, micro_batches));
            }
}

// Every pass comes once, in an order in which no stage waits for ever, whatever the numbers.
TEST(Schedule, EndsAndComputesAll) {
    for (Schedule schedule : all_schedules)
        for (uint32_t stages = 1; stages <= 7; ++stages)
            for (uint32_t micro_batches = 1; micro_batches <= 9; ++micro_batches) {
                for (uint32_t stage = 0; stage < stages; ++stage) {
                    std::set<std::pair<uint8_t, uint32_t>> seen;
                    const std::vector<StageTask> tasks = stage_tasks(schedule, stages, stage, micro_batches);
                    for (const auto& [pass, micro_batch] : tasks) {
                        EXPECT_LT(micro_batch, micro_batches);
                        EXPECT_TRUE(seen.emplace(static_cast<uint8_t>(pass), micro_batch).second);
                    }
                    EXPECT_EQ(tasks.size(), micro_batches * (passes_apart(schedule) ? 3 : 2));
                }
                const PipelineCost cost = pipeline_cost(schedule, std::vector<StageTimes>(stages, {1, 1, 1}), micro_batches);
                EXPECT_LT(cost.step, 3.0 * (micro_batches + stages));
            }
}

// Idle share of equal stages, F = B = W: (p - 1) / (m + p - 1), and (p - 1) / (3 m + p - 1) of zero-bubble from p micro-batches on.
TEST(Schedule, IdleSharesAreThoseOfTheFormulas) {
    for (uint32_t p : {1u, 2u, 4u, 8u})
        for (uint32_t m : {p, 2 * p, 4 * p + 1, 64u}) {
            const std::vector<StageTimes> equal(p, {1, 1, 1});
            auto idle = [&](Schedule schedule) {
                const std::vector<double> all = pipeline_cost(schedule, equal, m).idle;
                return *std::ranges::max_element(all);
            };
            EXPECT_NEAR(idle(Schedule::gpipe), (p - 1.0) / (m + p - 1), 1e-12);
            EXPECT_NEAR(idle(Schedule::one_forward_one_backward), (p - 1.0) / (m + p - 1), 1e-12);
            EXPECT_NEAR(idle(Schedule::zero_bubble), (p - 1.0) / (3.0 * m + p - 1), 1e-12);
            for (const Schedule schedule : all_schedules) EXPECT_NEAR(idle(schedule), idle_share(schedule, p, m), 1e-12);
        }
}

// A stage of an eager schedule waits for an edge once as a step begins and once as it ends, if the edge takes half of the passes' time.
TEST(Schedule, EagerStagesDoNotWaitForEdges) {
    constexpr double edge = 1.5, there_and_back = 2 * edge;
    for (const uint32_t stages : {2u, 4u, 8u}) {
        const std::vector<StageTimes> times(stages, {1, 1, 1});
        const auto waits = [&](Schedule schedule) {
            return pipeline_cost(schedule, times, 4 * stages, edge).step - pipeline_cost(schedule, times, 4 * stages).step;
        };
        EXPECT_LE(waits(Schedule::eager_one_forward_one_backward), there_and_back * (stages - 1));
        EXPECT_LE(waits(Schedule::eager_zero_bubble), there_and_back * (stages - 1));
        EXPECT_GT(waits(Schedule::one_forward_one_backward), 2 * there_and_back * (stages - 1));
    }
}

TEST(Schedule, TheSlowestStageBoundsAStep) {
    const std::vector<StageTimes> times = {{1, 1, 1}, {4, 4, 2}, {1, 2, 1}};
    for (Schedule schedule : all_schedules) {
        const PipelineCost cost = pipeline_cost(schedule, times, 12);
        EXPECT_GE(cost.step, 120);
        EXPECT_LT(cost.step, 120 + 10);
        EXPECT_LT(cost.idle[1], 0.08);
        EXPECT_GT(cost.idle[0], 0.7);
    }
}

TEST(Schedule, EdgesDelayAStepByTheirTime) {
    const std::vector<StageTimes> times(3, {1, 1, 1});
    const double without = pipeline_cost(Schedule::gpipe, times, 5).step;
    EXPECT_NEAR(pipeline_cost(Schedule::gpipe, times, 5, 0.25).step, without + 4 * 0.25, 1e-12);   // two cuts, there and back
}

// Stages that do not learn pass values on, and wait for nobody behind them.
TEST(Schedule, FrozenStagesDoNotWait) {
    const std::vector<StageTimes> times = {{1, 0, 0, false}, {1, 0, 0, false}, {1, 1, 1}};
    for (const Schedule schedule : all_schedules) {
        const PipelineCost cost = pipeline_cost(schedule, times, 6, 0.25);
        EXPECT_DOUBLE_EQ(cost.ends[0], 6);
        EXPECT_DOUBLE_EQ(cost.ends[1], 7.25);
        EXPECT_DOUBLE_EQ(cost.step, 2.5 + 18);
    }
}

}   // namespace
}   // namespace gradcast
