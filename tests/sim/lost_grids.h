// What jobs of s >= 1 do whose replicas have several ranks, over the simulator: the same tests for stages and for slice groups.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "algos/grid/schedule.h"
#include "tests/sim/seeds.h"
#include "tests/sim/stages_job.h"

namespace gradcast {

/// An exchange that misses a replica.
struct Spare {
    const char *exchange, *options;
    uint32_t replicas;
};
inline std::string text(const Spare& spare) { return fmt::format("{} {} {}", spare.exchange, spare.options, spare.replicas); }
inline constexpr Spare three_spares[] = {
    {"coded", "m = 1\ns = 1\n", 2}, {"coded-rs", "m = 1\ns = 1\n", 3}, {"coded-rs", "m = 2\ns = 1\n", 3}};

/// How a replica's ranks share the net.
struct LostGrid {
    uint32_t stages = 1, slice_groups = 1;
    const char* more = "";   // of [parallel]; it has the schedule then
    bool tied = false;       // the net is a small gpt whose head has the embedding's weights
    uint32_t cells() const { return stages * slice_groups; }
    std::string text() const { return fmt::format("{} stages, {} slice groups {}", stages, slice_groups, more); }
};

/// A job of lenet5, or of that gpt, on `spare.replicas` replicas of the grid.  Slices are those of fc1, so all slice groups compute its
/// convolutions.
inline void set(StagesJob& job, const Spare& spare, const LostGrid& grid) {
    job.parallel = grid.stages > 1 ? fmt::format("stages = {}\n", grid.stages) : "";
    if (grid.slice_groups > 1) {
        job.slices = fmt::format("slices = {}\nsliced = [\"fc1\"]\n", grid.slice_groups);
        job.parallel += fmt::format("slice_groups = {}\n", grid.slice_groups);
    }
    job.parallel += grid.more;
    job.exchange = spare.exchange, job.options = spare.options;
    job.sim.ranks = grid.cells() * spare.replicas;
    job.sim.lost_after_us = 300'000;
    job.sim.jitter_us = 200;
    job.steps = 8, job.evaluate = 4;
    job.spend_us = 2'000;
    if (!grid.tied) return;
    job.of_text("");
    job.net += "tied_head = true\n";
}

/// One rank is slow, so the words of its replica are late in every step.  The job takes at most `longest` times as long as a quiet one.
inline void expect_nobody_waits_for_a_slow_replica(std::span<const Spare> spares, const LostGrid& grid, double longest) {
    for (const Spare& spare : spares)
        for (const Rank slow : {0u, 1u}) {
            SCOPED_TRACE(text(spare) + fmt::format("rank {}", slow));
            uint64_t quiet_us = 0;
            for (const double factor : {1.0, 20.0}) {
                StagesJob job;
                set(job, spare, grid);
                job.steps = 24, job.evaluate = 24;
                job.before = [&](Simulator& sim) { sim.slow(slow, factor); };
                const Status status = job.run();
                ASSERT_TRUE(status.ok()) << status.what;
                expect_wanted(job);
                const auto us = static_cast<double>(job.simulator->now_us());
                if (factor == 1) quiet_us = job.simulator->now_us();
                else EXPECT_LT(us, static_cast<double>(quiet_us) * longest + 100e3);   // a pass of the slow rank takes up to 80 ms
            }
        }
}

/// A rank dies at any time, from the barrier before the first step on, which the first few milliseconds take; also while another replica is
/// the slowest.  Every second seed has one stage more than the grid.
inline void expect_the_others_go_on(std::span<const Spare> spares, const LostGrid& least, uint32_t seeds) {
    for_seeds(seeds, [&](uint64_t seed) {
        for (const Spare& spare : spares) {
            const LostGrid grid{least.stages + static_cast<uint32_t>(seed % 2), least.slice_groups, least.more, least.tied};
            const uint32_t ranks = grid.cells() * spare.replicas;
            const Rank dead = splitmix64(seed) % ranks, slow = splitmix64(seed + 99) % ranks;
            uint64_t at_us = 0;
            for (const bool kill : {false, true}) {   // the first run measures the duration
                SCOPED_TRACE(fmt::format("{}, {}, rank {} killed at {} us", text(spare), grid.text(), dead, at_us));
                StagesJob job;
                set(job, spare, grid);
                if (grid.slice_groups == 2 && !*grid.more && seed / 2 % 2 > 0)
                    job.of_text("slices = 2\nsliced = [\"wte\", \"h1_qkv\", \"h2_mlp2\", \"head\"]\n");
                if (grid.stages > 1 && !*grid.more)
                    job.parallel += fmt::format("schedule = \"{}\"\n", pipeline_schedule_names()[seed % pipeline_schedule_names().size()]);
                job.parallel += fmt::format("micro_batch = {}\n", 1 + seed % 4 / 2);
                job.sim.seed = seed;
                job.sim.break_per_packet = seed % 5 == 0 ? 0.01 : 0;
                job.before = [&](Simulator& sim) {
                    if (seed % 2 == 0) sim.slow(slow, 3);
                    if (kill) sim.kill(dead, at_us);
                };
                const Status status = job.run();
                ASSERT_TRUE(status.ok()) << status.what;
                expect_wanted(job, kill ? std::vector{dead} : std::vector<Rank>{});
                at_us = 5'000 + (seed == 1 ? 0 : job.simulator->now_us() * (splitmix64(seed + 7) % 1000) / 1000);
            }
        }
    });
}

/// A process that is stopped goes on before it is given up, or is given up.
inline void expect_a_stopped_rank_goes_on_or_is_missed(std::span<const Spare> spares, const LostGrid& grid) {
    for (const Spare& spare : spares)
        for (const uint64_t stopped_us : {300'000, 3'000'000})
            for (const Rank rank : {0u, 1u, 3u}) {
                SCOPED_TRACE(text(spare) + fmt::format("rank {} stopped for {} us", rank, stopped_us));
                StagesJob job;
                set(job, spare, grid);
                job.before = [&](Simulator& sim) { sim.stall(rank, 90'000, 90'000 + stopped_us); };
                (void)job.run();
                const bool given_up = stopped_us > 1'000'000;   // a quarter of the deadline
                for (Rank each = 0; each < job.sim.ranks; ++each)
                    EXPECT_EQ(job.simulator->result(each).ok(), !(given_up && each == rank)) << job.simulator->result(each).what;
                expect_wanted(job, given_up ? std::vector{rank} : std::vector<Rank>{});
            }
}

/// What is lost is a replica, of two of two ranks: both ranks of one may die, none of the other.  `cell` is how the error names what rank 0
/// had.
inline void expect_one_replica_is_missed_and_no_second_one(const LostGrid& grid, std::string_view cell) {
    ASSERT_EQ(grid.cells(), 2u);
    for (const Rank second : {1u, 2u, 3u}) {
        StagesJob job;
        set(job, {"coded-rs", "m = 1\ns = 1\n", 2}, grid);
        job.before = [&](Simulator& sim) {
            sim.kill(0, 60'000);
            sim.kill(second, 150'000);
        };
        const Status status = job.run();
        EXPECT_EQ(status.ok(), second == 1) << status.what;
        if (second == 1) expect_wanted(job, {0, 1});
        else
            EXPECT_NE(std::string(status.what).find(fmt::format("rank {} (node{}) lost in step", second, second)), std::string::npos)
                << status.what;
        const bool alone = std::string(status.what).find(fmt::format("; {} is lost with it", cell)) != std::string::npos;
        EXPECT_EQ(alone, second == 2) << status.what;
    }
}

}   // namespace gradcast
