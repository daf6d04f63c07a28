// Nets in stages in the simulator that lose nodes with `survive`: the others go on where each part of the net has a node, with the digest
// of a quiet run.
#include "tests/sim/lossy_grids.h"

namespace gradcast::views_test {
namespace {

std::string stages(uint32_t count, const std::string& more = "") {
    return fmt::format("{}[parallel]\nstages = {}\nschedule = \"1f1b\"\n", more, count);
}

LossyGrid two() { return {stages(2), quiet}; }

TEST(StagesViews, NobodyIsLost) {
    for (const uint32_t ranks : {2u, 4u, 5u, 7u}) expect_nobody_is_lost(ranks, two());   // with a spare node too
}

TEST(StagesViews, AnyNodeAtAnyTime) { expect_any_node_at_any_time(std::array{two()}); }

// `make nightly` takes 10,000 seeds.
TEST(StagesViews, OneNodeByChance) {
    for_seeds(60, [](uint64_t seed) { expect_one_node_by_chance(seed, two(), 4); });
}

TEST(StagesViews, TwoNodesOfDifferentStages) {
    for_seeds(60, [](uint64_t seed) { expect_two_nodes_of_different_cells(seed, two(), 2, 6); });
}

// The spare has the stage that is lost; it takes the state from the node that still has it.
TEST(StagesViews, ASpareTakesThePlace) {
    for (uint64_t at = 4; at < 28; ++at)
        for (const Rank rank : {0u, 2u}) {
            SCOPED_TRACE(fmt::format("rank {} at {} of 28", rank, at));
            Lossy job(5, at);
            job.options = stages(2);
            job.kills = {{rank, quiet_us(two()) * at / 28}};
            job.run();
            job.expect(quiet().digest);
            expect_one_line(job);
            if (::testing::Test::HasFailure()) return;
        }
}

// cssgd misses no replica, and so a spare does not either.
TEST(StagesViews, ASpareOfCssgdWaitsForAllReplicas) {
    Lossy job(5);
    job.exchange = "cssgd";
    job.options = stages(2, "r = 2\n");
    job.run();
    job.expect(quiet().digest);
    expect_one_line(job);
}

/// How many living nodes hold each part of the checkpoint after so many steps, by cell.
std::map<uint32_t, uint32_t> holders_of(const Lossy& job, uint64_t steps) {
    std::map<uint32_t, uint32_t> found;
    for (Rank rank = 0; rank < job.sim_config.ranks; ++rank)
        for (const CheckpointName& name : checkpoint_files(job.own_folder(rank)))
            if (name.steps == steps && !job.killed(rank)) ++found[name.cell];
    return found;
}

// Wherever the job changes its view, checkpoints are taken after it as before: of the state that each node had written then, the step after
// may have been applied in the change.
TEST(StagesViews, CheckpointsAreTakenAfterAChange) {
    constexpr uint32_t steps = 16;
    const std::string digest = quiet(steps).digest;   // in the same folders
    for (const uint32_t count : {1u, 2u}) {
        const uint32_t ranks = count == 1 ? 3 : 4;
        uint64_t end_us = 0;
        for (uint64_t at = 0; at < 80; ++at) {
            SCOPED_TRACE(fmt::format("{} stages, the last rank killed at {} of 120", count, at));
            Lossy job(ranks, at + 1);
            job.options = count == 1 ? "" : stages(count);
            job.sim_config.jitter_us = 600;
            job.steps = steps;
            job.checkpoint_every = 1;
            if (at > 0) job.kills = {{ranks - 1, end_us * at / 120}};
            job.run();
            if (at == 0) end_us = job.sim->now_us();
            if (at > 0 && !has_begun(job)) continue;
            job.expect(digest);
            std::set<uint64_t> newest;
            for (Rank rank = 0; rank < 2; ++rank) {   // rank 2 of two stages is a spare then
                const auto files = checkpoint_files(job.own_folder(rank));
                ASSERT_FALSE(files.empty());
                // Each rank has written since the change, in its turn.
                EXPECT_GT(files.back().steps, steps - 5) << "rank " << rank;
                newest.insert(job.engines[rank]->status().checkpoint);
            }
            EXPECT_GT(*newest.begin(), steps - 6);
            if (::testing::Test::HasFailure()) return;
        }
    }
}

// One replica and a spare, which is lost while copies are under way.  Those that are not complete go, and later ones come.
TEST(StagesViews, CopiesUnderWayEndWithTheirView) {
    constexpr uint32_t steps = 24;
    const std::string digest = quiet(steps).digest;
    uint64_t end_us = 0;
    uint32_t changed = 0;
    for (uint64_t at = 0; at < 40; ++at) {
        SCOPED_TRACE(fmt::format("the spare killed at {} of 80", at));
        Lossy job(3, at + 1);
        job.options = stages(2);
        job.sim_config.rate_bytes_per_s = 2e6;   // a copy takes a few steps
        job.steps = steps;
        job.checkpoint_every = 1;
        if (at > 0) job.kills = {{2, end_us * at / 80}};
        job.run();
        if (at == 0) end_us = job.sim->now_us();
        if (at > 0 && !has_begun(job)) continue;
        job.expect(digest);
        changed += job.engines[1]->status().views.size() > 1;
        const uint64_t newest = job.engines[1]->status().checkpoint;
        EXPECT_GT(newest, steps / 2);
        EXPECT_EQ(holders_of(job, newest), (std::map<uint32_t, uint32_t>{{0, 2}, {1, 2}}));
        for (const Rank each : {0u, 1u})
            for (const auto& file : std::filesystem::directory_iterator(job.own_folder(each)))
                EXPECT_NE(file.path().extension(), ".part") << file.path();
        if (::testing::Test::HasFailure()) return;
    }
    EXPECT_GT(changed, 20u);
}

// The same where the exchange changes every two steps.
TEST(StagesViews, CopiesUnderWayEndWithTheirExchange) {
    constexpr uint32_t steps = 24;
    const std::string digest = quiet(steps).digest;
    for (const double rate : {1e6, 4e6, 125e6}) {
        SCOPED_TRACE(fmt::format("{} bytes/s", rate));
        Lossy job(2);
        job.survive = false;
        job.options = stages(2);
        job.change_every = 2;
        job.sim_config.rate_bytes_per_s = rate;
        job.steps = steps;
        job.checkpoint_every = 1;
        job.run();
        job.expect(digest);
        std::set<uint64_t> own, copied;
        for (Rank rank = 0; rank < 2; ++rank) {
            for (const CheckpointName& name : checkpoint_files(job.own_folder(rank))) (name.cell == rank ? own : copied).insert(name.steps);
            for (const auto& file : std::filesystem::directory_iterator(job.own_folder(rank)))
                EXPECT_NE(file.path().extension(), ".part") << file.path();
        }
        EXPECT_GT(*own.rbegin(), steps - 4);   // the nodes are not busy for ever with what has ended
        if (rate > 1e8) {
            EXPECT_GT(*copied.rbegin(), steps - 4);
        }
    }
}

TEST(StagesViews, ALostStageEndsTheJobByName) { expect_a_lost_cell_is_named(two(), "stage 2 of 2 ("); }

TEST(StagesViews, AJoinerMakesAReplicaWhole) { expect_a_joiner_makes_a_replica_whole(two()); }

}   // namespace
}   // namespace gradcast::views_test
