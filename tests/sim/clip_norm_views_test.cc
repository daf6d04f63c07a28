// Nets in stages and slices whose gradient is clipped by its norm, and whose nodes are lost with `survive`: a node that applies a step late
// may lack the terms of the norm that were at the lost one, and buddies clip the stages that they keep.
#include "tests/sim/views.h"

namespace gradcast::views_test {
namespace {

struct ClippedGrid {
    const char* what;
    uint32_t ranks;
    const char *exchange, *options;
    const char* slices = "";   // of one node too
};

constexpr ClippedGrid clipped_grids[] = {
    {"two replicas of two stages", 4, "ring", "[parallel]\nstages = 2\n"},
    {"a spare", 5, "ring", "[parallel]\nstages = 2\n"},
    {"a replica that is not waited for", 6, "coded-rs", "m = 1\ns = 1\n[parallel]\nstages = 2\n"},
    {"buddies", 4, "ring", "[parallel]\nstages = 4\nbuddy = true\n"},
    {"buddies, of which one stays alone", 3, "ring", "[parallel]\nstages = 3\nbuddy = true\n"},
    {"slice groups", 4, "ring", "[parallel]\nslice_groups = 2\n", "slices = 4\nsliced = [\"fc1\"]\n"},
};

Lossy job_of(const ClippedGrid& grid, uint64_t seed) {
    Lossy job(grid.ranks, seed);
    job.widths = {8, 8, 8, 4};
    job.optimiser = "lr = 0.5\nmomentum = 0.9\nclip_norm = 0.05\n";
    job.exchange = grid.exchange;
    job.options = fmt::format("{}{}", grid.options, grid.slices);
    return job;
}

/// The uncut net on one node.
Quiet alone(const char* slices, bool clips = true) {
    Lossy job = job_of({"", 1, "ring", "[parallel]\n", slices}, 1);
    job.survive = false;
    if (!clips) job.optimiser = "lr = 0.5\nmomentum = 0.9\n";
    job.run();
    EXPECT_TRUE(job.sim->result(0).ok()) << job.sim->result(0).what;
    return {job.engines[0]->status().digest, lines_in(job.own_folder(0)), job.sim->now_us()};
}

TEST(ClippedViews, AnyNodeAtAnyTime) {
    for (const ClippedGrid& grid : clipped_grids) {
        const Quiet whole = alone(grid.slices);
        const Quiet free = alone(grid.slices, false);
        for (size_t step = 0; step < whole.lines.size(); ++step) EXPECT_NE(whole.lines[step].digest, free.lines[step].digest) << step;
        Lossy quiet = job_of(grid, 1);
        quiet.run();
        quiet.expect(whole.digest);
        expect_any_rank_at_any_time(grid.what, quiet.sim->now_us(), whole, [&](uint64_t seed) { return job_of(grid, seed); });
        if (::testing::Test::HasFailure()) return;
    }
}

// `make nightly` takes more seeds.
TEST(ClippedViews, NodesByChance) {
    const Quiet whole = alone("");
    for_seeds(60, [&](uint64_t seed) {
        const ClippedGrid& grid = seed % 2 ? clipped_grids[3] : clipped_grids[1];
        expect_two_lost_by_chance(grid.what, seed, whole, job_of(grid, seed));
    });
}

}   // namespace
}   // namespace gradcast::views_test
