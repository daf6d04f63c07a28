// The model's file of a net in stages, where its writer is lost at the end of the job: another rank that lives writes it.
#include "tests/sim/stages_job.h"
#include "tests/sim/views.h"

namespace gradcast {
namespace {

void set(StagesJob& job, uint64_t seed, bool cut) {
    if (cut) job.parallel = "stages = 2\n";
    job.exchange = "coded-rs", job.options = "m = 1\ns = 1\n";
    job.sim.ranks = cut ? 4 + 2 * (seed % 2) : 3;
    job.sim.seed = seed;
    job.sim.lost_after_us = 300'000;
    job.sim.jitter_us = 400;
    job.steps = 3, job.tested = false;
    job.spend_us = 500;
}

/// Rank 0 is killed at any time from the last steps on: while it collects the parts, while it tells the digest, while all end.
void the_next_rank_writes_it(bool cut) {
    uint32_t elsewhere = 0, tried = 0;
    for (uint64_t seed = 1; seed <= (cut ? 2 : 1); ++seed) {
        StagesJob quiet;
        set(quiet, seed, cut);
        const Status status = quiet.run();
        ASSERT_TRUE(status.ok()) << status.what;
        const uint64_t end_us = quiet.simulator->now_us();
        for (uint64_t before_us = 100; before_us < 9'000; before_us += before_us < 1'500 ? 97 : 1'201) {
            SCOPED_TRACE(fmt::format("seed {}, rank 0 killed {} us before the end of a quiet run", seed, before_us));
            StagesJob job;
            set(job, seed, cut);
            job.before = [&](Simulator& sim) { sim.kill(0, end_us - before_us); };
            const Status ended = job.run();
            ASSERT_TRUE(ended.ok()) << ended.what;
            expect_wanted(job, {0});
            ++tried;
            elsewhere += !job.engines[1]->status().model.empty();
            if (::testing::Test::HasFailure()) return;
        }
    }
    EXPECT_GT(elsewhere, tried / 3);
}

TEST(StagesModel, TheNextRankWritesItWhereReplicasMayBeLost) { the_next_rank_writes_it(true); }
TEST(StagesModel, TheNextRankWritesItWhereRanksMayBeLost) { the_next_rank_writes_it(false); }

}   // namespace
}   // namespace gradcast

namespace gradcast::views_test {
namespace {

// The job goes on in another view, where the lowest rank begins anew.
TEST(StagesModel, TheNextRankWritesItInTheNextView) {
    uint64_t end_us = 0;
    uint32_t elsewhere = 0;
    const uint32_t ranks = 4;
    for (uint64_t before_us = 0; before_us < 6'000; before_us += 113) {
        SCOPED_TRACE(fmt::format("rank 0 killed {} us before the end of a quiet run", before_us));
        Lossy job(ranks);
        job.options = "[parallel]\nstages = 2\n";
        job.sim_config.jitter_us = 300;
        if (before_us > 0) job.kills = {{0, end_us - before_us}};
        job.run();
        if (before_us == 0) end_us = job.sim->now_us();
        job.expect(quiet().digest);
        uint32_t models = 0;
        for (Rank rank = 0; rank < ranks; ++rank) {
            const std::string path = job.own_folder(rank) + "/final.h5";
            Model model;
            if (!std::filesystem::exists(path)) continue;
            const Status status = checkpoint_check(path, &model);
            EXPECT_TRUE(status.ok()) << status.what;
            EXPECT_EQ(model.digest, quiet().digest);
            ++models;
            elsewhere += rank == 1;
        }
        EXPECT_GE(models, 1u);
        if (::testing::Test::HasFailure()) return;
    }
    EXPECT_GT(elsewhere, 10u);
}

}   // namespace
}   // namespace gradcast::views_test
