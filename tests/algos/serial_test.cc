// Serial SGD: what rank 0 has trained comes to all ranks, from checkpoints and after its loss too.
#include "tests/algos/runs.h"

namespace gradcast {
namespace {

struct SerialTest : AlgosTest {};

TEST_F(SerialTest, HasOneDigest) {
    const std::string job = text("serial", "local_steps = 4\n");
    const std::string wanted = run(job, 1).digest();
    ASSERT_EQ(wanted.size(), 64u) << wanted;
    for (const uint32_t n : {2u, 3u, 8u})
        EXPECT_EQ(run(job, {.seed = n, .ranks = n, .jitter_us = 300, .break_per_packet = 0.002}).digest(), wanted) << n;
    const SimConfig lossy{.seed = 5, .ranks = 4, .jitter_us = 300, .loss = 0.02};
    EXPECT_EQ(run(text("serial", "local_steps = 4\n", "multicast"), lossy, true).digest(), wanted);
    JobStatus lanes;
    ASSERT_TRUE(run_one(job, 3, &lanes).ok());
    EXPECT_EQ(lanes.digest, wanted);
}

TEST_F(SerialTest, GoesOnFromACheckpointAndWithoutANode) {
    const std::string six = replaced(with_job(text("serial", "local_steps = 4\n"), "checkpoint_every = 2\ncheckpoint_keep = 9\n"),
                                     "steps = 2\n", "steps = 6\n");
    const Run whole = run(six, 3);
    ASSERT_EQ(whole.digest().size(), 64u) << whole.digest();
    const std::map<uint64_t, std::string> all = checkpoints(whole);
    EXPECT_EQ(all.size(), 2u);
    for (const auto& [steps, path] : all) EXPECT_EQ(run(six, {.ranks = 2}, false, {}, from(path)).digest(), whole.digest()) << steps;
    const std::string survives = with_job(replaced(six, "deadline = \"20s\"", "deadline = \"4s\""), "survive = true\n");
    const double us = run(survives, 4).ranks[1].seconds * 1e6;
    for (const Rank dead : {0u, 2u})
        for (const double share : {0.3, 0.7}) {
            const Run run = this->run(survives, {.ranks = 4, .lost_after_us = 2'000'000}, false,
                                      [&](Simulator& sim) { sim.kill(dead, static_cast<uint64_t>(share * us)); });
            for (const Rank rank : {0u, 1u, 2u, 3u})
                if (rank != dead) {
                    EXPECT_EQ(run.ranks[rank].digest, whole.digest()) << dead << " " << share << " " << run.status.what;
                }
        }
}

TEST_F(SerialTest, DivergesByName) {
    const Run run = this->run(replaced(text("serial", "local_steps = 40\n"), "lr = 0.05", "lr = 1e30"), 2);
    EXPECT_EQ(run.status.code, Code::diverged);
    EXPECT_NE(std::string(run.status.what).find("round 1: the loss is NaN or Inf: lower the learning rate"), std::string::npos)
        << run.status.what;
}

}   // namespace
}   // namespace gradcast
