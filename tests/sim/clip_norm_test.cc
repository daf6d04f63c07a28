// Jobs whose gradient is clipped by its norm and whose nodes compute stages or slices, over the simulator: the norm is that of the uncut
// net on one rank, so the digests are.
#include "tests/sim/stages_job.h"
#include "tests/sim/stages_protocols.h"

namespace gradcast {
namespace {

// Gradients of these nets have norms above 0.1 in their first steps, so each step is scaled.
constexpr const char* tight = "lr = 0.5\nmomentum = 0.9\nclip_norm = 0.02\n";

struct ClippedCase {
    const char *what, *preset, *parallel;
    uint32_t ranks;
    const char *exchange = "ring", *options = "", *optimiser = tight, *slices = "", *quantiser = "auto32";
};

StagesJob job_of(const ClippedCase& each) {
    StagesJob job;
    job.preset = each.preset, job.parallel = each.parallel, job.slices = each.slices;
    job.exchange = each.exchange, job.options = each.options, job.optimiser = each.optimiser, job.quantiser = each.quantiser;
    job.sim.ranks = each.ranks;
    job.sim.jitter_us = 200;
    if (job.preset == "resnet9" || job.preset == "cnn-norm") job.steps = 2, job.blocks = 4, job.batch = 8;
    return job;
}

constexpr ClippedCase clipped_cases[] = {
    {"two stages", "lenet5", "stages = 2\n", 2},
    {"four stages", "lenet5", "stages = 4\nschedule = \"zero-bubble\"\n", 4},
    {"replicas by ring", "lenet5", "stages = 2\n", 4},
    {"replicas by multicast", "lenet5", "stages = 2\n", 6, "multicast"},
    {"a replica that is not waited for", "lenet5", "stages = 2\n", 6, "coded-rs", "m = 2\ns = 1\n"},
    {"replicas that all compute each block", "lenet5", "stages = 2\n", 4, "coded-rs", "m = 1\ns = 1\n"},
    {"words of 16 bits, and statistics", "resnet9", "stages = 4\n", 4, "ring", "", tight, "", "auto16"},
    {"words of 64 bits", "lenet5", "stages = 2\n", 4, "unicast", "", tight, "", "fixed"},
    {"frozen layers, and statistics", "cnn-norm", "stages = 3\n", 3, "ring", "",
     "lr = 0.5\nclip_norm = 0.02\nfreeze = [\"conv1\", \"norm2\", \"fc1.bias\"]\n"},
    {"adam", "mlp", "stages = 2\nmicro_batch = 3\n", 2, "ring", "", "kind = \"adam\"\nlr = 0.01\nepsilon = 0.01\nclip_norm = 0.02\n"},
    {"slice groups", "mlp", "slice_groups = 2\n", 2, "ring", "", tight, "slices = 4\n"},
    {"slice groups that both have layers", "lenet5", "slice_groups = 2\n", 4, "ring", "", tight, "slices = 2\nsliced = [\"fc1\"]\n"},
    {"slice groups in stages", "mlp", "stages = 2\nslice_groups = 2\n", 4, "ring", "", tight, "slices = 4\n"},
    {"slice groups, and a replica that is not waited for", "mlp", "slice_groups = 2\n", 6, "coded-rs", "m = 2\ns = 1\n", tight,
     "slices = 4\n"},
};

TEST(ClippedGrids, GiveTheBitsOfTheWholeNet) {
    for (const ClippedCase& each : clipped_cases) {
        SCOPED_TRACE(each.what);
        StagesJob job = job_of(each);
        const Status status = job.run();
        ASSERT_TRUE(status.ok()) << status.what;
        expect_wanted(job);
        job.optimiser.erase(job.optimiser.find("clip_norm"), std::string_view("clip_norm = 0.02\n").size());
        const Outcome &clipped = job.outcome(0), &free = wanted(job);
        ASSERT_EQ(clipped.digests.size(), free.digests.size());
        for (size_t step = 0; step < free.digests.size(); ++step) EXPECT_NE(clipped.digests[step], free.digests[step]) << step;
    }
}

// A rank of a late replica reports while its passes run, and the others do without it.
TEST(ClippedGrids, DoWithoutASlowReplica) {
    for (const Rank slow : {0u, 3u}) {
        SCOPED_TRACE(slow);
        StagesJob job = job_of(clipped_cases[4]);
        job.steps = 8, job.evaluate = 8, job.spend_us = 2'000;
        job.before = [&](Simulator& sim) { sim.slow(slow, 20); };
        const Status status = job.run();
        ASSERT_TRUE(status.ok()) << status.what;
        expect_wanted(job);
    }
}

// Nodes with the same stage report the same terms, or the job ends.
TEST(ClippedGrids, TermsThatDifferEndTheJob) {
    StagesJob job = job_of(clipped_cases[2]);
    std::unique_ptr<LyingProtocol> lying;
    job.wrap = [&](Rank rank, uint16_t channel, Protocol* protocol) -> Protocol* {
        if (rank != 2 || channel != mail_channel) return protocol;
        lying = std::make_unique<LyingProtocol>(*protocol, cells_tags | 2, 80);   // the lowest bits of the second step's first term
        return lying.get();
    };
    EXPECT_EQ(job.run().code, Code::conflict);
    const Status status = job.simulator->result(0);
    EXPECT_TRUE(std::string_view(status.what).ends_with("step 2: node0 and node2 compute the same stage and differ in its sums"))
        << status.what;
    job.simulator.reset();
}

}   // namespace
}   // namespace gradcast
