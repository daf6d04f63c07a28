// Who computes and keeps which stage in a view, as tables.
#include "runtime/job/run/stages.h"

#include <gtest/gtest.h>

namespace gradcast {
namespace {

using Ranks = std::vector<Rank>;
using Stages = std::vector<uint32_t>;

ViewStages view(const std::vector<uint32_t>& nodes, uint32_t stages, bool buddy = true) {
    std::vector<NodeId> all;
    for (const uint32_t node : nodes) all.push_back(NodeId{node});
    return {all, stages, buddy};
}

TEST(ViewStages, WithoutBuddiesEachStageIsARunOfItsOwn) {
    const ViewStages whole = view({0, 1, 2, 3, 4}, 2, false);
    EXPECT_EQ(whole.grid.replicas(), 2u);
    EXPECT_EQ(whole.holders(0), (Ranks{0, 2}));
    EXPECT_EQ(whole.holders(1), (Ranks{1, 3}));
    EXPECT_EQ(view({0, 2}, 2, false).missing(), (Cell{1, 0}));
}

TEST(ViewStages, OfFourNodesAfterEachLoss) {
    const ViewStages whole = view({0, 1, 2, 3}, 4);
    EXPECT_EQ(whole.grid.replicas(), 1u);
    for (uint32_t stage = 0; stage < 4; ++stage) EXPECT_EQ(whole.holders(stage), (Ranks{stage, stage ^ 1}));
    for (uint32_t lost = 0; lost < 4; ++lost) {
        Stages nodes = {0, 1, 2, 3};
        std::erase(nodes, lost);
        const ViewStages after = view(nodes, 4);
        EXPECT_EQ(after.missing(), std::nullopt);
        EXPECT_EQ(after.grid.stages(), 3u);
        for (Rank rank = 0; rank < 3; ++rank) {
            const bool buddy = nodes[rank] == (lost ^ 1);
            EXPECT_EQ(after.run_of(rank).stages(), buddy ? 2u : 1u);
            EXPECT_TRUE(after.run_of(rank).has(nodes[rank]));
            EXPECT_EQ(after.kept(rank), buddy ? Stages{} : Stages{nodes[rank] ^ 1});
        }
        EXPECT_EQ(after.holders(lost), after.holders(lost ^ 1));
        for (uint32_t second = 0; second < 4; ++second) {
            if (second == lost) continue;
            Stages two = nodes;
            std::erase(two, second);
            const auto missing = view(two, 4).missing();
            EXPECT_EQ(missing.has_value(), second == (lost ^ 1)) << lost << ", " << second;
            if (missing) {
                EXPECT_EQ(*missing, (Cell{lost & 2, 0}));
            }
        }
    }
}

TEST(ViewStages, ASpareComputesAndKeepsNothing) {
    const ViewStages whole = view({0, 1, 2, 3, 4, 5, 6, 7}, 4);
    EXPECT_EQ(whole.grid.replicas(), 1u);
    EXPECT_EQ(whole.grid.spares(), 4u);
    EXPECT_EQ(whole.kept(4), Stages{});
    EXPECT_EQ(whole.holders(0), (Ranks{0, 1}));
    const ViewStages after = view({1, 2, 3, 4}, 4);   // node 4 has the stage of node 0
    EXPECT_EQ(after.grid.stages(), 4u);
    EXPECT_EQ(after.holders(0), (Ranks{3, 0}));
    EXPECT_EQ(after.kept(3), Stages{1});
}

// Slice group after slice group, in each stage.
TEST(ViewStages, NodesThatShareSlices) {
    const std::vector<NodeId> nodes = {NodeId{0}, NodeId{1}, NodeId{2}, NodeId{3}, NodeId{4}, NodeId{5}, NodeId{6}, NodeId{7}};
    const ViewStages view(nodes, 2, false, 2);
    EXPECT_EQ(view.grid.replicas(), 2u);
    EXPECT_EQ(view.own, (Stages{0, 0, 1, 1, 0, 0, 1, 1}));
    for (uint32_t stage = 0; stage < 2; ++stage)
        for (uint32_t group = 0; group < 2; ++group) {
            const Rank first = 2 * stage + group;
            EXPECT_EQ(view.holders(stage, group), (Ranks{first, first + 4}));
            EXPECT_EQ(view.grid.cell_of(first + 4), (Cell{stage, group}));
        }
    PipelineConfig cut;
    cut.begins = {0, 3};
    cut.slice_groups = 2;
    EXPECT_EQ(view.pipeline(cut, 7).own(), (Cell{1, 1}));
    EXPECT_EQ(view.pipeline(cut, 7).begins, cut.begins);
}

// Of each set of eight nodes in two replicas of two stages in two slice groups: a replica is any one node of each cell.
TEST(ViewStages, NodesThatShareSlicesAreLost) {
    for (uint32_t living = 1; living < 256; ++living) {
        SCOPED_TRACE(living);
        std::vector<NodeId> nodes;
        std::vector<Rank> of_cell[4];
        for (uint32_t node = 0; node < 8; ++node) {
            if (!(living & 1u << node)) continue;
            of_cell[node % 4].push_back(static_cast<Rank>(nodes.size()));
            nodes.push_back(NodeId{node});
        }
        const ViewStages view(nodes, 2, false, 2);
        const auto fewest = std::ranges::min_element(of_cell, {}, [](const auto& each) { return each.size(); });
        EXPECT_EQ(view.grid.replicas(), fewest->size());
        EXPECT_EQ(view.missing().has_value(), fewest->empty());
        if (fewest->empty()) {
            const auto cell = static_cast<uint32_t>(fewest - of_cell);
            EXPECT_EQ(view.missing(), (Cell{cell / 2, cell % 2}));
        }
        for (uint32_t cell = 0; cell < 4; ++cell) {
            std::vector<Rank> computes = of_cell[cell];
            computes.resize(fewest->size());
            EXPECT_EQ(view.holders(cell / 2, cell % 2), computes);
            for (size_t i = computes.size(); i < of_cell[cell].size(); ++i) EXPECT_TRUE(view.grid.is_spare(of_cell[cell][i]));
        }
    }
}

// Stages of a view begin where its runs do.
TEST(ViewStages, CutsOfAView) {
    PipelineConfig cut;
    cut.begins = {0, 3, 5, 8};
    cut.own_stage = 1;
    const PipelineConfig after = view({1, 2, 3}, 4).pipeline(cut, 0);
    EXPECT_EQ(after.begins, (Stages{0, 5, 8}));
    EXPECT_EQ(after.own_stage, 0u);
    EXPECT_EQ(pipeline_of_run(cut, {0, 2}).begins, after.begins);
    EXPECT_EQ(pipeline_of_run(cut, {1, 2}).begins, cut.begins);
    EXPECT_EQ(pipeline_of_run(cut, {1, 2}).own_stage, 1u);
}

}   // namespace
}   // namespace gradcast
