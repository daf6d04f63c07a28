// Nodes that share slices and are lost in the simulator, with `survive`: the others go on where each slice group of each stage has a node,
// with the digest of a quiet run of the same slices.
#include <set>

#include "tests/sim/views.h"

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

/// The time of a quiet run of two replicas of two slice groups.
uint64_t quiet_us() {
    static const uint64_t us = [] {
        Lossy job(4);
        job.options = grid(all_sliced, 2);
        job.run();
        job.expect(whole(all_sliced).digest);
        return job.sim->now_us();
    }();
    return us;
}

/// Before the first step, also while the first scales are computed, nobody may be missing.
bool began(const Lossy& job) {
    return std::ranges::any_of(job.engines, [](const auto& each) { return each->status().step > 0 || each->status().views.size() > 1; });
}

TEST(SliceGroupsViews, NobodyIsLost) {
    for (const char* slices : {shared_last, all_sliced})
        for (const auto& [ranks, groups, stages] :
             {std::array{2u, 2u, 1u}, {4u, 2u, 1u}, {7u, 2u, 1u}, {8u, 4u, 1u}, {8u, 2u, 2u}, {9u, 2u, 2u}})
            for (const uint32_t change_every : {0u, 2u}) {
                SCOPED_TRACE(fmt::format("{} ranks, {} groups, {} stages", ranks, groups, stages));
                Lossy job(ranks);
                job.options = grid(slices, groups, stages);
                job.change_every = change_every;
                job.run();
                job.expect(whole(slices).digest);
                expect_one_line(job, whole(slices));
            }
}

// Every node of two replicas, at any time: the nodes that wait for it in the middle of a pass stop, too.
TEST(SliceGroupsViews, AnyNodeAtAnyTime) {
    uint32_t changed = 0, tried = 0;
    for (Rank rank = 0; rank < 4; ++rank)
        for (uint64_t at = 1; at < 30; ++at) {
            const char* slices = at % 2 ? shared_last : all_sliced;
            SCOPED_TRACE(fmt::format("rank {} at {} of 30", rank, at));
            Lossy job(4, at);
            job.options = grid(slices, 2);
            job.kills = {{rank, quiet_us() * at / 30}};
            job.run();
            if (!began(job)) continue;
            job.expect(whole(slices).digest);
            expect_one_line(job, whole(slices));
            ++tried;
            changed += !job.engines[rank == 0 ? 1 : 0]->status().losses.empty();
            if (::testing::Test::HasFailure()) return;
        }
    EXPECT_GT(changed, tried / 2);
}

// Two nodes of different cells, the second one while the others agree or later; a replica is any one node of each cell.
TEST(SliceGroupsViews, TwoNodesOfDifferentCells) {
    for_seeds(40, [](uint64_t seed) {
        const uint64_t random = splitmix64(seed);
        const uint32_t stages = seed % 2 ? 1 : 2, cells = 2 * stages, ranks = stages == 1 ? 6 : 8;
        const Rank first = static_cast<Rank>(random % ranks);
        Rank second = static_cast<Rank>((random >> 8) % ranks);
        if (first % cells == second % cells) second = (second + 1) % ranks;
        const uint64_t at_us = 2'000 + (random >> 16) % quiet_us(), later_us = (random >> 40) % (3 * D / 2);
        SCOPED_TRACE(fmt::format("seed {}, {} at {}, {} {} us later", seed, first, at_us, second, later_us));
        Lossy job(ranks, seed);
        job.options = grid(shared_last, 2, stages);
        job.sim_config.jitter_us = 100;
        job.kills = {{first, at_us}, {second, at_us + later_us}};
        job.run();
        if (!began(job)) return;
        job.expect(whole(shared_last).digest);
        expect_one_line(job, whole(shared_last));
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
                const uint64_t at_us = quiet_us() * at / 28;
                if (ranks == 5) job.kills = {{2, at_us}};
                else job.kills = {{0, at_us}, {1, at_us + D}};   // node 5 is a spare between them
                job.run();
                if (!began(job)) continue;
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
        if (at > 0 && !began(job)) continue;
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

// No node has the slices any more: all others end with the line that names them, and keep what they have.
TEST(SliceGroupsViews, ALostSliceGroupEndsTheJobByName) {
    uint32_t named = 0;
    for (uint64_t at = 3; at < 20; ++at) {
        SCOPED_TRACE(fmt::format("at {} of 20", at));
        Lossy job(6, at);
        job.options = grid(all_sliced, 2);
        const uint64_t at_us = quiet_us() * at / 20;
        job.kills = {{1, at_us}, {3, at_us + 100}, {5, at_us + 200}};
        job.run();
        for (const Rank rank : {0u, 2u, 4u}) {
            const std::string what = job.sim->result(rank).what;
            if (job.sim->result(rank).ok()) continue;   // the last step was done
            const bool minority = what.find("minority") != what.npos;
            named += !minority;
            EXPECT_TRUE(minority || what.find("no node has stage 1 of 1 (fc1 .. loss1), slice group 2 of 2 any more") != what.npos) << what;
            EXPECT_TRUE(minority || what.find("which node1, node3, node5 had: `gradcastctl resume`") != what.npos) << what;
        }
    }
    EXPECT_GT(named, 0u);
}

// A node that comes back computes the slices that it had.
TEST(SliceGroupsViews, AJoinerMakesAReplicaWhole) {
    for (const char* slices : {shared_last, all_sliced})
        for (const uint64_t at : {5u, 9u, 14u}) {
            Lossy job(4, at);
            job.options = grid(slices, 2);
            job.steps = 40;
            job.joins = {quiet_us() * at / 10};   // node 3, of three that begin with a spare
            job.run();
            job.expect(whole(slices, 40).digest);
            const std::vector<ViewRecord> views = job.engines[0]->status().views;
            ASSERT_GE(views.size(), 2u);
            EXPECT_EQ(views.back().members.size(), 4u);
            EXPECT_GT(job.engines[2]->status().gradients, 0u) << "the spare of the beginning computes with the joiner";
            if (::testing::Test::HasFailure()) return;
        }
}

}   // namespace
}   // namespace gradcast::views_test
