// Nets in stages and slices whose gradient is clipped by its norm, and whose nodes are lost with `survive`: a node that applies a step late
// may lack the terms of the norm that were at the lost one, and buddies clip the stages that they keep.
#include "tests/sim/views.h"

namespace gradcast::views_test {
namespace {

struct Grid {
    const char* what;
    uint32_t ranks;
    const char *exchange, *options;
    const char* slices = "";   // of one node too
};

constexpr Grid grids[] = {
    {"two replicas of two stages", 4, "ring", "[parallel]\nstages = 2\n"},
    {"a spare", 5, "ring", "[parallel]\nstages = 2\n"},
    {"a replica that is not waited for", 6, "coded-rs", "m = 1\ns = 1\n[parallel]\nstages = 2\n"},
    {"buddies", 4, "ring", "[parallel]\nstages = 4\nbuddy = true\n"},
    {"buddies, of which one stays alone", 3, "ring", "[parallel]\nstages = 3\nbuddy = true\n"},
    {"slice groups", 4, "ring", "[parallel]\nslice_groups = 2\n", "slices = 4\nsliced = [\"fc1\"]\n"},
};

Lossy job_of(const Grid& grid, uint64_t seed) {
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

bool began(const Lossy& job) {
    return std::ranges::any_of(job.engines, [](const auto& each) { return each->status().step > 0 || each->status().views.size() > 1; });
}

TEST(ClippedViews, AnyNodeAtAnyTime) {
    for (const Grid& grid : grids) {
        const Quiet whole = alone(grid.slices);
        const Quiet free = alone(grid.slices, false);
        for (size_t step = 0; step < whole.lines.size(); ++step) EXPECT_NE(whole.lines[step].digest, free.lines[step].digest) << step;
        Lossy quiet = job_of(grid, 1);
        quiet.run();
        quiet.expect(whole.digest);
        uint32_t changed = 0, tried = 0;
        for (Rank rank = 0; rank < grid.ranks; ++rank)
            for (uint64_t at = 1; at < 16; ++at) {
                SCOPED_TRACE(fmt::format("{}, rank {} at {} of 16", grid.what, rank, at));
                Lossy job = job_of(grid, at);
                job.kills = {{rank, quiet.sim->now_us() * at / 16}};
                job.run();
                if (!began(job)) continue;
                job.expect(whole.digest);
                expect_one_line(job, whole);
                ++tried;
                changed += !job.engines[rank == 0 ? 1 : 0]->status().losses.empty();
                if (::testing::Test::HasFailure()) return;
            }
        EXPECT_GT(changed, tried / 2) << grid.what;
    }
}

// The second node is lost while the others agree, or soon after, or a later view has one more loss.  `make nightly` takes more seeds.
TEST(ClippedViews, NodesByChance) {
    const Quiet whole = alone("");
    for_seeds(60, [&](uint64_t seed) {
        const uint64_t random = splitmix64(seed);
        const Grid& grid = seed % 2 ? grids[3] : grids[1];
        Lossy job = job_of(grid, seed);
        job.sim_config.jitter_us = random % 4 * 100;
        const Rank first = random >> 8 & 3, second = grid.ranks == 4 ? first ^ 2 : first ^ 1;
        const uint64_t at_us = 2'000 + (random >> 16) % whole.us;
        job.kills = {{first, at_us}, {second, at_us + (random >> 40) % (3 * D / 2)}};
        SCOPED_TRACE(fmt::format("{}: {} at {}, {} at {}", grid.what, first, at_us, second, job.kills.back().second));
        job.run();
        if (began(job)) expect_one_line(job, whole);
    });
}

}   // namespace
}   // namespace gradcast::views_test
