// Whole jobs whose net processes compute: one digest whatever the ranks, the exchange, a failure and a resume.
#include <thread>

#include "runtime/job/audit/audit.h"
#include "runtime/job/model/safetensors.h"
#include "tests/attach/child.h"
#include "tests/job/runs.h"

namespace gradcast {
namespace {

class AttachedJob : public RunsTest {
protected:
    void audited(const std::string& mode);
    static std::string job(const std::string& mode = "good", const std::string& more = "") {
        return "[job]\nsteps = 12\nbatch = 24\nblocks = 5\ndeadline = \"20s\"\nevaluate = 6\n[data]\ntrain = \"train.h5\"\ntest = "
               "\"test.h5\"\n[net]\n" +
               child_toml(mode) + "[optimiser]\nlr = 0.05\nmomentum = 0.9\n" + more;
    }
};

TEST_F(AttachedJob, LearnsAndGivesOneDigest) {
    JobStatus alone;
    ASSERT_TRUE(run_one(job(), 1, &alone).ok());
    EXPECT_EQ(alone.state, JobState::done);
    EXPECT_GT(alone.accuracy, 0.8);
    JobStatus lanes;
    ASSERT_TRUE(run_one(job(), 3, &lanes).ok());
    EXPECT_EQ(lanes.digest, alone.digest);
    EXPECT_EQ(lanes.kernel_set, alone.kernel_set);
    for (const uint32_t n : {1u, 2u, 4u}) {
        const Run ring = run(job(), n);
        EXPECT_EQ(ring.digest(), alone.digest) << n;
        for (const JobStatus& each : ring.ranks) EXPECT_EQ(each.accuracy, alone.accuracy);
    }
    EXPECT_EQ(run(job("good", "[algorithm]\nexchange = \"coded-rs\"\nm = 2\n"), 4).digest(), alone.digest);
    EXPECT_EQ(run(job("good", "[algorithm]\nexchange = \"coded-rs\"\nm = 1\ns = 1\n"), 4).digest(), alone.digest);
}

// Each process has initial values of its own: all ranks begin with those of the first.
TEST_F(AttachedJob, InitialValuesAreThoseOfTheFirstRank) {
    const Run several = run(job("unseeded"), 3);
    ASSERT_TRUE(several.status.ok()) << several.status.what;
    EXPECT_EQ(several.digest().size(), 64u);
    // They are kept, and give the same model.
    const std::string start = several.folders[0] + "/" + start_file;
    const Run again = run(replaced(job("unseeded"), "[net]\n", fmt::format("[net]\nstart = \"{}\"\n", start)), 2);
    EXPECT_EQ(again.digest(), several.digest());
    const auto first = digests(several.folders[0]), second = digests(again.folders[1]);
    EXPECT_EQ(first, second);
}

TEST_F(AttachedJob, GoesOnFromACheckpoint) {
    const Run whole = run(with_job(job("unseeded"), "checkpoint_every = 4\ncheckpoint_keep = 10\n"), 2);
    ASSERT_TRUE(whole.status.ok()) << whole.status.what;
    const auto all = checkpoints(whole);
    ASSERT_TRUE(all.contains(4));
    for (const uint32_t n : {1u, 3u}) EXPECT_EQ(run(job("unseeded"), n, from(all.at(4), n - 1)).digest(), whole.digest());
    // Another program is another training.
    const Run other = run(job("good"), 1, from(all.at(4)));
    EXPECT_NE(std::string_view(other.status.what).find("net.command was"), std::string_view::npos) << other.status.what;
}

// The first parameters come from a file, which has variances.
TEST_F(AttachedJob, IsAudited) { audited("unseeded"); }
TEST_F(AttachedJob, RunningStatisticsAreAudited) { audited("running"); }

void AttachedJob::audited(const std::string& mode) {
    const Run trained = run(with_job(job(mode), "checkpoint_every = 5\n"), 2);
    ASSERT_TRUE(trained.status.ok()) << trained.status.what;
    AuditFolder folder;
    ASSERT_TRUE(audit_read(trained.folders[0], folder_, &folder).ok());
    for (const auto& [first, last] : {std::pair{1u, 12u}, {7u, 9u}}) {
        AuditResult result;
        AuditConfig audit;
        audit.first = first;
        audit.last = last;
        audit.scratch = fmt::format("{}/scratch{}", folder_, first);
        audit.commands = true;
        const Status status = audit_stretch(folder, audit, &result);
        ASSERT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(result.finding, "");
        EXPECT_EQ(result.compared, last - first + 1);
    }
}

TEST_F(AttachedJob, GoesOnWithoutARank) {
    const std::string survives = with_job(job("good"), "survive = true\n");
    const std::string quiet = run(job("good"), 1).digest();
    const Run lost = run(survives, {.ranks = 3}, {.meddle = [](Simulator& simulator) { simulator.kill(2, 3000); }});
    ASSERT_TRUE(lost.status.ok()) << lost.status.what;
    EXPECT_EQ(lost.ranks[0].digest, quiet);
    EXPECT_EQ(lost.ranks[1].digest, quiet);
}

TEST_F(AttachedJob, GoesOnWithoutANodeWhoseProcessHasEnded) {
    const std::string quiet = run(job("good"), 1).digest();
    const std::string dies = job("one dies " + folder_ + "/died");
    const Run lost = run(with_job(replaced(dies, "deadline = \"20s\"", "deadline = \"5s\""), "survive = true\n"), 3);
    uint32_t done = 0;
    for (const JobStatus& each : lost.ranks) {
        if (each.state == JobState::done) {
            ++done;
            EXPECT_EQ(each.digest, quiet);
            continue;
        }
        EXPECT_NE(each.error.find("was ended by signal 9 (SIGKILL); the job goes on without this node"), std::string::npos) << each.error;
    }
    EXPECT_EQ(done, 2u);
    // Without survive it ends everywhere.
    std::filesystem::remove(folder_ + "/died");
    const Run all = run(dies, 3);
    for (const JobStatus& each : all.ranks) EXPECT_NE(each.error.find("SIGKILL"), std::string::npos) << each.error;
}

TEST_F(AttachedJob, WorkersThatLearnAloneUseTheProcesses) {
    for (const char* kind : {"ma", "admm", "diloco"}) {
        const std::string local = job("unseeded", fmt::format("[algorithm]\nkind = \"{}\"\nworkers = 3\nlocal_epochs = 0.2\n", kind));
        const Run several = run(local, 2);
        ASSERT_TRUE(several.status.ok()) << kind << ": " << several.status.what;
        const Run alone = run(replaced(local, "[net]\n", fmt::format("[net]\nstart = \"{}/{}\"\n", several.folders[1], start_file)), 1);
        EXPECT_EQ(several.digest(), alone.digest()) << kind;
    }
}

TEST_F(AttachedJob, BlocksMayBeLargerThanABatchOfAnEvaluation) {
    JobStatus status;
    const Status result = run_one(replaced(job(), "batch = 24\nblocks = 5", "batch = 150\nblocks = 1"), 1, &status);
    EXPECT_TRUE(result.ok()) << result.what;
}

TEST_F(AttachedJob, AProgramMayHaveTheSamples) {
    const auto own = [&](const std::string& mode) {
        return replaced(job(mode), "train = \"train.h5\"\ntest = \"test.h5\"\n", "samples = 480\ntest_samples = 100\n");
    };
    JobStatus alone, said;
    const Status status = run_one(own("good"), 1, &alone);
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_GT(alone.accuracy, 0.8);
    ASSERT_EQ(alone.warnings.size(), 1u);
    EXPECT_NE(alone.warnings[0].find("is not compared"), std::string::npos) << alone.warnings[0];
    EXPECT_EQ(run(own("good"), 3).digest(), alone.digest);
    ASSERT_TRUE(run_one(own("data digest"), 2, &said).ok());
    EXPECT_EQ(said.digest, alone.digest);
    EXPECT_TRUE(said.warnings.empty());
}

TEST_F(AttachedJob, WithoutClassesThereIsNoAccuracy) {
    JobStatus status;
    ASSERT_TRUE(run_one(job("no classes"), 1, &status).ok());
    EXPECT_LT(status.accuracy, 0);
    EXPECT_GT(status.test_loss, 0);
    const Status stops = run_one(with_job(job("no classes"), "stop_at = 0.5\n"), 1, &status);
    EXPECT_NE(std::string_view(stops.what).find("job.stop_at is an accuracy"), std::string_view::npos) << stops.what;
}

TEST_F(AttachedJob, ANaNEndsTheJob) {
    for (const char* mode : {"nan", "nan gradient"}) {
        const Run failed = run(job(mode), 2);
        EXPECT_EQ(failed.status.code, Code::diverged) << mode << ": " << failed.status.what;
    }
}

TEST_F(AttachedJob, AProgramIsStartedOnlyWhereThatIsAllowed) {
    EngineConfig c = config(job());
    c.commands = false;
    std::unique_ptr<Engine> engine;
    const Status status = Engine::open(c, Log(), &engine);
    EXPECT_EQ(status.code, Code::invalid);
    EXPECT_NE(std::string_view(status.what).find("commands = true"), std::string_view::npos) << status.what;
}

}   // namespace
}   // namespace gradcast
