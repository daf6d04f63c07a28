// What jobs with `survive` do whose replicas have several nodes, in the simulator: the same tests for stages and for slice groups.
#pragma once
#include <array>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/sim/views.h"

namespace gradcast::views_test {

struct LossyGrid {
    std::string options;                           // of the job file, [parallel] and its keys
    std::function<const Quiet&(uint32_t)> whole;   // what one replica on one node gives, by steps
};

/// Of a quiet run on four nodes.
inline uint64_t quiet_us(const LossyGrid& grid) {
    static std::map<std::string, uint64_t> known;
    uint64_t& us = known[grid.options];
    if (us > 0) return us;
    Lossy job(4);
    job.options = grid.options;
    job.run();
    job.expect(grid.whole(steps_few).digest);
    return us = job.sim->now_us();
}

/// A quiet job on that many ranks, with changes of its view and without.
inline void expect_nobody_is_lost(uint32_t ranks, const LossyGrid& grid) {
    for (const uint32_t change_every : {0u, 2u}) {
        SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, grid.options));
        Lossy job(ranks);
        job.options = grid.options;
        job.change_every = change_every;
        job.run();
        job.expect(grid.whole(steps_few).digest);
        expect_one_line(job, grid.whole(steps_few));
    }
}

/// Every node of two replicas of two nodes, at any time; the grids take turns.
inline void expect_any_node_at_any_time(std::span<const LossyGrid> grids) {
    uint32_t changed = 0, tried = 0;
    for (Rank rank = 0; rank < 4; ++rank)
        for (uint64_t at = 1; at < 30; ++at) {
            SCOPED_TRACE(fmt::format("rank {} at {} of 30", rank, at));
            const LossyGrid& grid = grids[at % grids.size()];
            Lossy job(4, at);
            job.options = grid.options;
            job.kills = {{rank, quiet_us(grids[0]) * at / 30}};
            job.run();
            if (!has_begun(job)) continue;
            job.expect(grid.whole(steps_few).digest);
            expect_one_line(job, grid.whole(steps_few));
            ++tried;
            changed += !job.engines[rank == 0 ? 1 : 0]->status().losses.empty();
            if (::testing::Test::HasFailure()) return;
        }
    EXPECT_GT(changed, tried / 2);
}

/// Two nodes of different cells, the second one while the others agree or later; a replica is any one node of each cell.
inline void expect_two_nodes_of_different_cells(uint64_t seed, const LossyGrid& grid, uint32_t cells, uint32_t ranks) {
    const uint64_t random = splitmix64(seed);
    const Rank first = static_cast<Rank>(random % ranks);
    Rank second = static_cast<Rank>((random >> 8) % ranks);
    if (first % cells == second % cells) second = (second + 1) % ranks;
    const uint64_t at_us = 2'000 + (random >> 16) % quiet_us(grid), later_us = (random >> 40) % (3 * D / 2);
    SCOPED_TRACE(fmt::format("seed {}, {} at {}, {} {} us later", seed, first, at_us, second, later_us));
    Lossy job(ranks, seed);
    job.options = grid.options;
    job.sim_config.jitter_us = 100;
    job.kills = {{first, at_us}, {second, at_us + later_us}};
    job.run();
    if (!has_begun(job)) return;
    job.expect(grid.whole(steps_few).digest);
    expect_one_line(job, grid.whole(steps_few));
}

/// Any node of two replicas is lost at any moment.
inline void expect_one_node_by_chance(uint64_t seed, const LossyGrid& grid, uint32_t ranks) {
    const uint64_t random = splitmix64(seed);
    const Rank lost = static_cast<Rank>(random % ranks);
    const uint64_t at_us = 2'000 + (random >> 16) % quiet_us(grid);
    SCOPED_TRACE(fmt::format("seed {}, {} at {}", seed, lost, at_us));
    Lossy job(ranks, seed);
    job.options = grid.options;
    job.sim_config.jitter_us = (random >> 8) % 4 * 50;
    job.kills = {{lost, at_us}};
    job.run();
    if (!has_begun(job)) return;
    job.expect(grid.whole(steps_few).digest);
    expect_one_line(job, grid.whole(steps_few));
}

/// The second cell of two is lost at all three nodes that have it: the others end with the line that names it, and keep what they have.
/// `cell` is how the line begins to name it.
inline void expect_a_lost_cell_is_named(const LossyGrid& grid, std::string_view cell) {
    uint32_t named = 0;
    for (uint64_t at = 3; at < 20; ++at) {
        SCOPED_TRACE(fmt::format("at {} of 20", at));
        Lossy job(6, at);
        job.options = grid.options;
        const uint64_t at_us = quiet_us(grid) * at / 20;
        job.kills = {{1, at_us}, {3, at_us + 100}, {5, at_us + 200}};
        job.run();
        std::set<uint64_t> steps;   // of checkpoints of the first cell
        for (const Rank rank : {0u, 2u, 4u}) {
            const std::string what = job.sim->result(rank).what;
            if (job.sim->result(rank).ok()) continue;   // the last step was done
            const bool minority = what.find("minority") != what.npos;
            named += !minority;
            EXPECT_TRUE(minority || what.find(fmt::format("no node has {}", cell)) != what.npos) << what;
            EXPECT_TRUE(minority || what.find("which node1, node3, node5 had: `gradcastctl resume`") != what.npos) << what;
            for (const CheckpointName& name : checkpoint_files(job.own_folder(rank)))
                if (name.cell == 0) steps.insert(name.steps);
        }
        EXPECT_LE(steps.size(), 4u);
    }
    EXPECT_GT(named, 0u);
}

/// A node that comes computes what it had: node 3, of three that begin with a spare.
inline void expect_a_joiner_makes_a_replica_whole(const LossyGrid& grid) {
    constexpr uint32_t steps = 40;
    for (const uint64_t at : {5u, 9u, 14u}) {
        Lossy job(4, at);
        job.options = grid.options;
        job.steps = steps;
        job.joins = {quiet_us(grid) * at / 10};
        job.run();
        job.expect(grid.whole(steps).digest);
        const std::vector<ViewRecord> views = job.engines[0]->status().views;
        ASSERT_GE(views.size(), 2u);
        EXPECT_EQ(views.back().members.size(), 4u);
        EXPECT_GT(job.engines[2]->status().gradients, 0u) << "the spare of the beginning computes with the joiner";
        if (::testing::Test::HasFailure()) return;
    }
}

}   // namespace gradcast::views_test
