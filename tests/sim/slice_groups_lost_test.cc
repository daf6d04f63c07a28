// Jobs whose nodes share slices, and whose replicas may be late or lost, over the simulator: a step may end in the middle of a pass.
#include "algos/grid/schedule.h"
#include "tests/sim/seeds.h"
#include "tests/sim/stages_job.h"

namespace gradcast {
namespace {

struct Spare {
    const char *exchange, *options;
    uint32_t replicas;
};
constexpr Spare spares[] = {{"coded", "m = 1\ns = 1\n", 2}, {"coded-rs", "m = 1\ns = 1\n", 3}, {"coded-rs", "m = 2\ns = 1\n", 3}};

void set(StagesJob& job, const Spare& spare, uint32_t stages = 1) {
    job.slices = "slices = 2\nsliced = [\"fc1\"]\n";   // of lenet5: both groups compute its convolutions
    job.parallel = "slice_groups = 2\n";
    if (stages > 1) job.parallel += fmt::format("stages = {}\n", stages);
    job.exchange = spare.exchange, job.options = spare.options;
    job.sim.ranks = 2 * stages * spare.replicas;
    job.sim.lost_after_us = 300'000;
    job.sim.jitter_us = 200;
    job.steps = 8, job.evaluate = 4;
    job.spend_us = 2'000;
}

std::string text(const Spare& spare) { return fmt::format("{} {} {}", spare.exchange, spare.options, spare.replicas); }

TEST(SliceGroupsLost, NobodyIs) {
    for (const Spare& spare : spares)
        for (const uint32_t stages : {1u, 2u}) {
            SCOPED_TRACE(text(spare));
            StagesJob job;
            set(job, spare, stages);
            const Status status = job.run();
            ASSERT_TRUE(status.ok()) << status.what;
            expect_wanted(job);
        }
}

// One rank is slow, so the words of its replica are late in every step; the other group waits for it in the middle of passes.
TEST(SliceGroupsLost, NobodyWaitsForASlowReplica) {
    for (const Spare& spare : spares)
        for (const Rank slow : {0u, 1u}) {
            SCOPED_TRACE(text(spare) + fmt::format("rank {}", slow));
            uint64_t quiet_us = 0;
            for (const double factor : {1.0, 20.0}) {
                StagesJob job;
                set(job, spare);
                job.steps = 24, job.evaluate = 24;
                job.before = [&](Simulator& sim) { sim.slow(slow, factor); };
                const Status status = job.run();
                ASSERT_TRUE(status.ok()) << status.what;
                expect_wanted(job);
                if (factor == 1) quiet_us = job.simulator->now_us();
                else EXPECT_LT(job.simulator->now_us(), quiet_us * 3 / 2 + 100'000);   // a pass of the slow rank takes up to 80 ms
            }
        }
}

TEST(SliceGroupsLost, GoOnWithoutARankThatDies) {
    for_seeds(6, [&](uint64_t seed) {
        for (const Spare& spare : spares) {
            const uint32_t stages = 1 + seed % 2, ranks = 2 * stages * spare.replicas;
            const Rank dead = splitmix64(seed) % ranks, slow = splitmix64(seed + 99) % ranks;
            uint64_t at_us = 0;
            for (const bool kill : {false, true}) {   // the first run measures the duration
                SCOPED_TRACE(fmt::format("{}, {} stages, rank {} killed at {} us", text(spare), stages, dead, at_us));
                StagesJob job;
                set(job, spare, stages);
                if (stages > 1)
                    job.parallel += fmt::format("schedule = \"{}\"\n", pipeline_schedule_names()[seed % pipeline_schedule_names().size()]);
                job.parallel += fmt::format("micro_batch = {}\n", 1 + seed % 4 / 2);
                job.sim.seed = seed;
                job.before = [&](Simulator& sim) {
                    if (seed % 2 == 0) sim.slow(slow, 3);
                    if (kill) sim.kill(dead, at_us);
                };
                const Status status = job.run();
                ASSERT_TRUE(status.ok()) << status.what;
                expect_wanted(job, kill ? std::vector{dead} : std::vector<Rank>{});
                at_us = 5'000 + job.simulator->now_us() * (splitmix64(seed + 7) % 1000) / 1000;
            }
        }
    });
}

// A process that is stopped goes on before it is given up, or is given up.
TEST(SliceGroupsLost, GoOnWithARankThatWasStopped) {
    for (const Spare& spare : spares)
        for (const uint64_t stopped_us : {300'000, 3'000'000})
            for (const Rank rank : {0u, 1u, 3u}) {
                SCOPED_TRACE(text(spare) + fmt::format("rank {} stopped for {} us", rank, stopped_us));
                StagesJob job;
                set(job, spare);
                job.before = [&](Simulator& sim) { sim.stall(rank, 90'000, 90'000 + stopped_us); };
                (void)job.run();
                const bool given_up = stopped_us > 1'000'000;   // a quarter of the deadline
                for (Rank each = 0; each < job.sim.ranks; ++each)
                    EXPECT_EQ(job.simulator->result(each).ok(), !(given_up && each == rank)) << job.simulator->result(each).what;
                expect_wanted(job, given_up ? std::vector{rank} : std::vector<Rank>{});
            }
}

// What is lost is a replica: of the same one both ranks may die, of another one none.
TEST(SliceGroupsLost, OneReplicaIsMissedAndNoSecondOne) {
    for (const Rank second : {1u, 2u, 3u}) {
        StagesJob job;
        set(job, {"coded-rs", "m = 1\ns = 1\n", 2});
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
        const bool alone =
            std::string(status.what).find("; stage 1 of 1 (conv1 .. loss1), slice group 1 of 2 is lost with it") != std::string::npos;
        EXPECT_EQ(alone, second == 2) << status.what;
    }
}

}   // namespace
}   // namespace gradcast
