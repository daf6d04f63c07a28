// Nodes that share slices and are lost in the simulator, with `survive`: the others go on where each slice group of each stage has a node,
// with the digest of a quiet run of the same slices.
#include "tests/sim/lossy_grids.h"

namespace gradcast::views_test {
namespace {

/// The last layer is not sliced: both slice groups compute it.
constexpr const char* shared_last = "[parallel]\nslices = 4\nsliced = [\"fc1\"]\n";
/// Both layers are, and the softmax is computed apart.
constexpr const char* all_sliced = "[parallel]\nslices = 4\nsliced = [\"fc1\", \"fc2\"]\n";

std::string grid(const char* slices, uint32_t groups, uint32_t stages = 1) {
    return slices + fmt::format("slice_groups = {}\n", groups) +
           (stages > 1 ? fmt::format("stages = {}\nschedule = \"1f1b\"\n", stages) : "");
}

const Quiet& whole(const char* slices, uint32_t steps = steps_few) {
    static std::map<std::string, Quiet> known;
    Quiet& found = known[fmt::format("{} {}", slices, steps)];
    if (!found.digest.empty()) return found;
    Lossy alone(1);
    alone.survive = false;
    alone.options = slices;
    alone.steps = steps;
    alone.run();
    EXPECT_TRUE(alone.sim->result(0).ok()) << alone.sim->result(0).what;
    return found = {alone.engines[0]->status().digest, lines_in(alone.own_folder(0)), alone.sim->now_us()};
}

LossyGrid lossy(const char* slices, uint32_t stages = 1, uint32_t groups = 2) {
    return {grid(slices, groups, stages), [slices](uint32_t steps) -> const Quiet& { return whole(slices, steps); }};
}

TEST(SliceGroupsViews, NobodyIsLost) {
    for (const char* slices : {shared_last, all_sliced})
        for (const auto& [ranks, groups, stages] :
             {std::array{2u, 2u, 1u}, {4u, 2u, 1u}, {7u, 2u, 1u}, {8u, 4u, 1u}, {8u, 2u, 2u}, {9u, 2u, 2u}})
            expect_nobody_is_lost(ranks, lossy(slices, stages, groups));
}

// The nodes that wait for it in the middle of a pass stop, too.
TEST(SliceGroupsViews, AnyNodeAtAnyTime) { expect_any_node_at_any_time(std::array{lossy(all_sliced), lossy(shared_last)}); }

// The first stage has several blocks in flight and computes its sliced layer again.  A pass that ends early leaves what its slot has kept.
TEST(SliceGroupsViews, StagesThatRecomputeGoOn) {
    LossyGrid recomputes = lossy(all_sliced, 2);
    recomputes.options += "recompute = true\n";
    uint32_t changed = 0;
    for (uint64_t at = 3; at < 27; ++at) {
        const Rank rank = static_cast<Rank>(at % 8);
        SCOPED_TRACE(fmt::format("rank {} at {} of 60", rank, at));
        Lossy job(8, at);
        job.options = recomputes.options;
        job.kills = {{rank, quiet_us(recomputes) * at / 60}};
        job.run();
        if (!has_begun(job)) continue;
        job.expect(recomputes.whole(steps_few).digest);
        expect_one_line(job, recomputes.whole(steps_few));
        changed += !job.engines[rank == 0 ? 1 : 0]->status().losses.empty();
        if (::testing::Test::HasFailure()) return;
    }
    EXPECT_GT(changed, 6u);
}

TEST(SliceGroupsViews, TwoNodesOfDifferentCells) {
    for_seeds(40, [](uint64_t seed) {
        const uint32_t stages = seed % 2 ? 1 : 2;
        expect_two_nodes_of_different_cells(seed, lossy(shared_last, stages), 2 * stages, stages == 1 ? 6 : 8);
    });
}

// A spare takes the slices of the first group, or of the second one: layers that are not sliced come from the first group.
TEST(SliceGroupsViews, ASpareTakesThePlace) {
    uint32_t taken = 0;
    for (const char* slices : {shared_last, all_sliced})
        for (uint64_t at = 4; at < 28; at += 2)
            for (const uint32_t ranks : {5u, 6u}) {
                SCOPED_TRACE(fmt::format("{} ranks at {} of 28", ranks, at));
                Lossy job(ranks, at);
                job.options = grid(slices, 2);
                const uint64_t at_us = quiet_us(lossy(all_sliced)) * at / 28;
                if (ranks == 5) job.kills = {{2, at_us}};
                else job.kills = {{0, at_us}, {1, at_us + D}};   // node 5 is a spare between them
                job.run();
                if (!has_begun(job)) continue;
                job.expect(whole(slices).digest);
                expect_one_line(job, whole(slices));
                taken += ranks == 5 && job.engines[4]->status().gradients > 0;
                if (::testing::Test::HasFailure()) return;
            }
    EXPECT_GT(taken, 12u);   // of 24
}

// Checkpoints are taken after a change as before.
TEST(SliceGroupsViews, CheckpointsAreTakenAfterAChange) {
    constexpr uint32_t steps = 16;
    const Quiet& quiet = whole(shared_last, steps);
    uint64_t end_us = 0;
    for (uint64_t at = 0; at < 40; ++at) {
        SCOPED_TRACE(fmt::format("the last rank killed at {} of 60", at));
        Lossy job(4, at + 1);
        job.options = grid(shared_last, 2);
        job.sim_config.jitter_us = 600;
        job.steps = steps;
        job.checkpoint_every = 1;
        if (at > 0) job.kills = {{3, end_us * at / 60}};
        job.run();
        if (at == 0) end_us = job.sim->now_us();
        if (at > 0 && !has_begun(job)) continue;
        job.expect(quiet.digest);
        for (Rank rank = 0; rank < 2; ++rank) {   // rank 2 is a spare then
            const auto files = checkpoint_files(job.own_folder(rank));
            ASSERT_FALSE(files.empty());
            EXPECT_GT(files.back().steps, steps - 5) << "rank " << rank;
            EXPECT_GT(job.engines[rank]->status().checkpoint, steps - 6);
        }
        if (::testing::Test::HasFailure()) return;
    }
}

TEST(SliceGroupsViews, ALostSliceGroupEndsTheJobByName) {
    expect_a_lost_cell_is_named(lossy(all_sliced), "stage 1 of 1 (fc1 .. loss1), slice group 2 of 2 any more");
}

TEST(SliceGroupsViews, AJoinerMakesAReplicaWhole) {
    for (const char* slices : {shared_last, all_sliced}) expect_a_joiner_makes_a_replica_whole(lossy(slices));
}

}   // namespace
}   // namespace gradcast::views_test
