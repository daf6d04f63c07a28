// Whole jobs: what is refused, warned of or raised before the first step, evaluations, divergence, stalls, cancels.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "runtime/core/fd.h"
#include "runtime/job/model/model_evaluate.h"
#include "runtime/job/run/engine.h"
#include "tests/job/jobs.h"

namespace gradcast {
namespace {

TEST_F(EngineTest, AStopEndsItsOpening) {
    EngineConfig c = config(job_text());
    std::atomic<bool> stop = true;
    c.stop = &stop;
    std::unique_ptr<Engine> engine;
    EXPECT_EQ(Engine::open(c, Log(), &engine).code, Code::cancelled);
    EXPECT_FALSE(engine);
}

TEST_F(EngineTest, ADeadlineBelowEightBlocksIsRaised) {
    EngineConfig c = config(job_text());
    c.lanes = 1;
    c.job.deadline_us = 8;   // no block takes a microsecond
    std::unique_ptr<Engine> engine;
    ASSERT_TRUE(Engine::open(c, Log(), &engine).ok());
    auto longest = [&] {
        uint64_t us = 0;
        for (const auto& [name, value] : engine->status().timeouts_us) us = std::max(us, value);
        return us;
    };
    EXPECT_GT(longest(), 10 * 8u);   // the first step has 10 D
    ASSERT_EQ(engine->status().warnings.size(), 1u);
    EXPECT_NE(engine->status().warnings[0].find("so the deadline of 8e-06 s is to be"), std::string::npos) << engine->status().warnings[0];
    EXPECT_EQ(longest(), 10 * engine->deadline_us());
    engine->deadline(9'000'000);   // as the members have agreed
    EXPECT_EQ(longest(), 10 * 9'000'000u);
    EXPECT_EQ(engine->status().warnings.back(), "the deadline is 9.000 s, as another node needs it");
    c.job.deadline_us = 20'000'000;
    c.folder += "-long";
    ASSERT_TRUE(Engine::open(c, Log(), &engine).ok());
    EXPECT_EQ(longest(), 10 * 20'000'000u);
    EXPECT_TRUE(engine->status().warnings.empty());
}

TEST_F(EngineTest, BatchNormOfOneValueIsRefused) {
    std::unique_ptr<Engine> engine;   // of 24 samples in 13 blocks some have 1
    Status status = Engine::open(config(replaced(job_text_of_all(), "blocks = 6", "blocks = 13")), Log(), &engine);
    EXPECT_EQ(std::string(status.what).find("layer norm1: in a block of 1 sample"), 0u);
    EXPECT_TRUE(Engine::open(config(replaced(job_text_of_all(), "blocks = 6", "blocks = 12")), Log(), &engine).ok());
}

TEST_F(EngineTest, AWarmUpBeyondTheEndIsTold) {
    EngineConfig c = config(job_text());
    std::unique_ptr<Engine> engine;
    for (c.job.epochs = 0, c.job.steps = 8, c.job.optimiser.warm_up = 8; c.job.optimiser.warm_up < 10; ++c.job.optimiser.warm_up) {
        ASSERT_TRUE(Engine::open(c, Log(), &engine).ok());
        EXPECT_EQ(engine->status().warnings.size(), c.job.optimiser.warm_up - 8);
    }
}

TEST_F(EngineTest, AShardInTrainingAndTestIsTold) {
    std::unique_ptr<Engine> engine;
    ASSERT_TRUE(Engine::open(config(replaced(job_text(), "train.h5", "t*.h5")), Log(), &engine).ok());
    ASSERT_EQ(engine->status().warnings.size(), 1u);
    EXPECT_EQ(engine->status().warnings[0],
              folder_ + "/test.h5 is in data.train and in data.test: it tests what was trained on; name other shards in one of them");
    // A copy under another name as well; a pattern's file is shown by its number where names are confidential.
    std::filesystem::copy(folder_ + "/test.h5", folder_ + "/copy.h5");
    EngineConfig c = config(replaced(job_text(), "test = \"test.h5\"", "test = \"c*.h5\""));
    c.job.train = folder_ + "/t*.h5";
    c.confidential = true;
    ASSERT_TRUE(Engine::open(c, Log(), &engine).ok());
    ASSERT_EQ(engine->status().warnings.size(), 1u);
    EXPECT_EQ(engine->status().warnings[0].find(folder_ + "/c*.h5 (file 1) is in data.train and in data.test"), 0u)
        << engine->status().warnings[0];
}

TEST_F(EngineTest, TheFolderOfAJobFileIsNoPattern) {
    std::unique_ptr<Engine> engine;
    for (const char* name : {"p*q", "exp [lr=0.1]", "e\\f"}) {
        const std::string base = folder_ + "/" + name;
        for (const std::string& at : {base, folder_ + "/pOTHERq"}) {
            std::filesystem::create_directories(at);
            for (const char* file : {"/train.h5", "/test.h5"})
                if (!std::filesystem::exists(at + file)) std::filesystem::copy(folder_ + file, at + file);
        }
        ASSERT_TRUE(file_write(base + "/job.toml", replaced(job_text(), "train.h5", "tr*.h5")).ok());
        EngineConfig c = config(job_text());
        Status status = job_read(base + "/job.toml", &c.job);
        if (status.ok()) status = Engine::open(c, Log(), &engine);
        ASSERT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(engine->status().epochs, 2u);
        EXPECT_EQ(engine->status().steps, 50u) << name;   // 600 samples, not those of both folders
    }
}

TEST_F(EngineTest, ToleranceIsKeptOrRefused) {
    auto open = [&](const std::string& algorithm, uint32_t n, std::vector<std::string>* warnings) {
        std::unique_ptr<Engine> engine;
        Status status = Engine::open(config(job_text("[algorithm]\n" + algorithm), n), Log(), &engine);
        *warnings = engine ? engine->status().warnings : std::vector<std::string>{};
        return std::string(status.what);
    };
    std::vector<std::string> warnings;
    for (uint32_t n : {2u, 3u, 4u, 5u}) {
        EXPECT_EQ(open("exchange = \"coded-rs\"\nm = 3\ns = 1\n", n, &warnings), "");
        EXPECT_EQ(warnings.size(), n == 5 ? 0u : n == 4 ? 1u : 2u);
        if (n < 4) {
            EXPECT_EQ(warnings.at(0),
                      fmt::format("{} nodes with s = 1 allow m = {} at most: m = {} is used instead of 3", n, n - 1, n - 1));
        }
    }
    for (const char* exchange : {"coded", "coded-rs", "auto"})
        EXPECT_EQ(open(fmt::format("exchange = \"{}\"\ns = 9\n", exchange), 2, &warnings),
                  "algorithm.s = 9 with 2 nodes: at most 1 can be lost: set s = 1, or take at least 10 nodes");
    const std::string stages = "[parallel]\nstages = 2\n";
    EXPECT_EQ(open("exchange = \"coded\"\ns = 2\n" + stages, 4, &warnings),
              "algorithm.s = 2 with 2 replicas of 2 nodes each: at most 1 can be lost: set s = 1, or take at least 3 replicas (6 nodes)");
    EXPECT_EQ(open("exchange = \"coded\"\nm = 2\ns = 1\n" + stages, 4, &warnings), "");
    ASSERT_EQ(warnings.size(), 2u);
    EXPECT_EQ(warnings[0], "2 replicas with s = 1 allow m = 1 at most: m = 1 is used instead of 2");
    EXPECT_EQ(open("exchange = \"cssgd\"\nr = 3\n" + stages, 4, &warnings),
              "cssgd: r = 3 replicas cannot share a block of 2 replicas: r is 1 to 2");
}

TEST_F(EngineTest, EvaluatesWhenTold) {
    JobStatus status;
    std::string path;
    size_t lines;
    const std::string slow = replaced(job_text(), "lr = 0.05\nmomentum = 0.9", "lr = 0.01");
    ASSERT_TRUE(run_one(slow, 1, &status, &path).ok());   // two epochs of 25 steps
    const std::string digest = status.digest;
    auto found = evaluations(path, &lines);
    ASSERT_EQ(found.size(), 2u);
    EXPECT_EQ(found[0].first, 25u);
    EXPECT_EQ(found[1].first, 50u);

    ASSERT_TRUE(run_one(replaced(slow, "[job]", "[job]\nevaluate = 4"), 1, &status, &path).ok());
    EXPECT_EQ(status.digest, digest);   // evaluations do not change the state
    found = evaluations(path, &lines);
    ASSERT_EQ(found.size(), 13u);   // after 4, 8, … 48 steps and at the end
    for (size_t i = 0; i < 12; ++i) EXPECT_EQ(found[i].first, 4 * i + 4);
    EXPECT_EQ(found[12].first, 50u);
    EXPECT_NEAR(found[12].second, status.accuracy, 1e-6);

    // The first of these that has reached the target ends the job, on any number of ranks.
    const double target = found[6].second - 1e-5;
    auto reached = std::find_if(found.begin(), found.end(), [&](const auto& each) { return each.second >= target; });
    ASSERT_NE(reached, found.begin());
    const std::string text = replaced(slow, "[job]", fmt::format("[job]\nevaluate = 4\nstop_at = {}", target));
    ASSERT_TRUE(run_one(text, 1, &status, &path).ok());
    EXPECT_EQ(status.state, JobState::done);
    EXPECT_EQ(status.step, reached->first);
    EXPECT_GE(status.accuracy, target);
    EXPECT_EQ(evaluations(path, &lines).size(), static_cast<size_t>(reached - found.begin()) + 1);
    EXPECT_EQ(lines, status.step);
    std::vector<JobStatus> many;
    ASSERT_TRUE(run_many(text, 3, &many).ok());
    for (const JobStatus& each : many) {
        EXPECT_EQ(each.step, status.step);
        EXPECT_EQ(each.digest, status.digest);
    }
}

TEST_F(EngineTest, FirstClassesAreAWholeProblem) {
    std::string text = replaced(replaced(job_text(), "[net]", "classes = 3\n[net]"), "outputs = 4\n", "outputs = 3\n");
    JobStatus status;
    std::string path;
    Status result = run_one(text, 1, &status, &path);
    ASSERT_TRUE(result.ok()) << result.what;
    EXPECT_EQ(status.steps, 38u);   // 450 of the 600 samples, twice, by 24
    EXPECT_GT(status.accuracy, 0.9);
    Evaluation evaluation;
    result = model_evaluate(path, folder_ + "/test.h5", 1, &evaluation);
    ASSERT_TRUE(result.ok()) << result.what;
    EXPECT_EQ(evaluation.count, 188u);   // of 250, labels 0 to 2, from sample 600 on
    EXPECT_EQ(evaluation.count_of_class, (std::vector<uint64_t>{63, 63, 62}));
    EXPECT_EQ(static_cast<double>(evaluation.right) / static_cast<double>(evaluation.count), status.accuracy);

    result = run_one(replaced(job_text(), "[net]", "classes = 5\n[net]"), 1, &status);
    EXPECT_NE(std::string_view(result.what).find("classes = 5 is more than the 4 of"), std::string_view::npos) << result.what;
    EXPECT_NE(std::string_view(result.what).find("train.h5"), std::string_view::npos) << result.what;
}

TEST_F(EngineTest, DivergenceNamesLayerBlockAndRank) {
    // Without ReLU weights grow until their products overflow.
    std::string text = replaced(replaced(job_text(), "[[net.layers]]\nkind = \"relu\"\n", ""), "lr = 0.05", "lr = 1e9");
    JobStatus status;
    std::string path;
    Status result = run_one(text, 2, &status, &path);
    EXPECT_EQ(result.code, Code::diverged) << result.what;
    EXPECT_EQ(status.state, JobState::failed);
    EXPECT_EQ(status.error, result.what);
    EXPECT_TRUE(status.error.starts_with("diverged: ")) << status.error;
    for (const char* part : {"layer fc", "block ", "step ", "rank 0 (node-a)"})
        EXPECT_NE(status.error.find(part), std::string::npos) << status.error;
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_FALSE(std::filesystem::exists(path + ".part"));
}

TEST_F(EngineTest, MistakesAreFoundBeforeAnythingStarts) {
    JobStatus status;
    auto error = [&](const std::string& text) {
        Status result = run_one(text, 1, &status);
        EXPECT_FALSE(result.ok());
        return std::string(result.what);
    };
    EXPECT_NE(error(replaced(job_text(), "train.h5", "nothing*.h5")).find("nothing*.h5"), std::string::npos);
    EXPECT_NE(error(replaced(job_text(), "outputs = 4\n", "outputs = 5\n")).find("4"), std::string::npos);
    write("test.h5", 30, 0, 10);
    EXPECT_NE(error(job_text()).find("they must be alike"), std::string::npos);
}

TEST_F(EngineTest, AStallEndsTheJobWithinItsDeadline) {
    EngineConfig c = config(job_text());
    c.job.deadline_us = 300'000;   // far below what a job file may say
    std::unique_ptr<Engine> engine;
    ASSERT_TRUE(Engine::open(c, Log(), &engine).ok());
    OneRank host;
    host.swallow = 5;
    Status result = engine->run(host);
    EXPECT_EQ(result.code, Code::deadline);
    EXPECT_NE(std::string_view(result.what).find("rank 0 (node-a): no sum within 0.3 s: step 6, bucket 0: "), std::string_view::npos)
        << result.what;
    EXPECT_EQ(engine->status().step, 5u);
}

TEST_F(EngineTest, CancelBeforeAndWhileItRuns) {
    EngineConfig c = config(replaced(job_text(), "epochs = 2", "epochs = 1000000"));
    std::unique_ptr<Engine> engine;
    ASSERT_TRUE(Engine::open(c, Log(), &engine).ok());
    OneRank host;
    std::thread other([&] {
        while (engine->status().step < 3) std::this_thread::yield();
        engine->cancel("cancelled on request at node-a");
    });
    Status result = engine->run(host);
    other.join();
    EXPECT_EQ(result.code, Code::cancelled);
    EXPECT_STREQ(result.what, "cancelled on request at node-a");
    EXPECT_EQ(engine->status().state, JobState::cancelled);

    ASSERT_TRUE(Engine::open(c, Log(), &engine).ok());
    OneRank again;
    engine->cancel("too early");
    EXPECT_STREQ(engine->run(again).what, "too early");
}

}   // namespace
}   // namespace gradcast
