// Jobs of stages by chance: any blocks, micro-batches, lanes, schedule, exchange, checkpoints and delays give the digest of the uncut net.
#include <array>

#include "algos/grid/schedule.h"
#include "tests/sim/seeds.h"
#include "tests/sim/stages_job.h"

namespace gradcast {
namespace {

void any_shape(uint64_t seed) {
    uint64_t draws = 0;
    const auto draw = [&](uint64_t least, uint64_t most) { return least + splitmix64(seed << 8 | draws++) % (most - least + 1); };
    StagesJob job;
    job.preset = draw(0, 1) ? "lenet5" : "mlp";
    job.blocks = static_cast<uint32_t>(draw(2, 8));
    job.batch = static_cast<uint32_t>(draw(job.blocks, 3 * job.blocks));
    job.steps = 2;
    const auto stages = static_cast<uint32_t>(draw(2, 4)), replicas = static_cast<uint32_t>(draw(1, 2));
    const std::string schedule = pipeline_schedule_names()[draw(0, pipeline_schedule_names().size() - 1)];
    job.parallel = fmt::format("stages = {}\nschedule = \"{}\"\nmicro_batch = {}\n", stages, schedule, draw(1, std::min(job.blocks, 4u)));
    if (!passes_apart(*pipeline_schedule_find(schedule)) && draw(0, 3) == 0) job.parallel += "recompute = true\n";
    job.lanes = static_cast<uint32_t>(draw(1, 3));
    if (replicas > 1) job.exchange = std::array{"ring", "unicast", "coded", "ps"}[draw(0, 3)];
    if (job.preset == "mlp" && draw(0, 3) == 0) job.slices = "slices = 2\n";
    if (draw(0, 1)) job.checkpoints = "checkpoint_every = 1\n";
    job.sim.ranks = stages * replicas;
    job.sim.seed = seed;
    job.sim.latency_us = draw(0, 1) ? 20 : 20'000;   // passes take no time, so what is sent stays long
    job.sim.jitter_us = job.sim.latency_us;
    SCOPED_TRACE(fmt::format("{}, {} samples in {} blocks, {} replicas by {}, {} lanes, {}{}{}", job.preset, job.batch, job.blocks,
                             replicas, job.exchange, job.lanes, job.checkpoints, job.parallel, job.slices));
    const Status status = job.run();
    ASSERT_TRUE(status.ok()) << status.what;
    expect_wanted(job);
}

// The simulator also says when memory changes that has not been sent yet.
TEST(StagesShapes, ByChance) { for_seeds(24, any_shape); }

}   // namespace
}   // namespace gradcast
