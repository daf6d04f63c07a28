// One digest, whatever the ranks, lanes and layout of the shards.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "runtime/core/fd.h"
#include "runtime/job/model/model_evaluate.h"
#include "runtime/job/run/engine.h"
#include "tests/job/jobs.h"
#include "transport/sim/sim.h"

namespace gradcast {
namespace {

TEST_F(EngineTest, LearnsAndGivesOneDigestWhateverTheLanes) {
    std::string digest;
    uint64_t step_digest = 0;
    for (uint32_t lanes : {0u, 1u, 2u, 3u, 1u}) {
        JobStatus status;
        std::string path;
        Status result = run_one(job_text(), lanes, &status, &path);
        ASSERT_TRUE(result.ok()) << result.what;
        EXPECT_EQ(status.state, JobState::done);
        EXPECT_EQ(status.step, 50u);
        EXPECT_EQ(status.steps, 50u);
        EXPECT_EQ(status.epochs, 2u);
        EXPECT_LT(status.loss, 0.7);   // ln 4 = 1.39 before
        EXPECT_GT(status.accuracy, 0.9);
        EXPECT_EQ(status.digest.size(), 64u);
        if (digest.empty()) {
            digest = status.digest;
            step_digest = status.step_digest;
        }
        EXPECT_EQ(status.digest, digest) << lanes;
        EXPECT_EQ(status.step_digest, step_digest);

        std::ifstream lines(path.substr(0, path.rfind('/')) + "/steps.jsonl");
        std::string line, last;
        uint32_t count = 0;
        for (; std::getline(lines, line); ++count) last = line;
        EXPECT_EQ(count, 50u);
        EXPECT_NE(last.find(fmt::format("{{\"step\":50,\"epoch\":2,\"loss\":{:.6f},\"digest\":\"{:016x}\"", status.loss, step_digest)),
                  std::string::npos)
            << last;
        EXPECT_NE(last.find(fmt::format("\"kernels\":\"{}\"", isa_name(std::min(isa_best(), Isa::avx512)))), std::string::npos) << last;
        EXPECT_NE(last.find(fmt::format("\"kernel_set\":\"{}\"", status.kernel_set)), std::string::npos) << last;
    }
    // What must change the digest does.
    JobStatus other;
    ASSERT_TRUE(run_one(replaced(job_text(), "blocks = 6", "blocks = 5"), 1, &other).ok());
    EXPECT_NE(other.digest, digest);
    ASSERT_TRUE(run_one(replaced(job_text(), "[job]", "[job]\nseed = 2"), 1, &other).ok());
    EXPECT_NE(other.digest, digest);
}

// A new seed or another data set does not change the kernels of synchronous SGD.
TEST_F(EngineTest, KernelSetIsThatOfTheKernelsAlone) {
    JobStatus first, seed, data, blocks, local;
    ASSERT_TRUE(run_one(job_text(), 2, &first).ok());
    EXPECT_EQ(first.kernel_set.size(), 16u);
    ASSERT_TRUE(run_one(replaced(job_text(), "[job]", "[job]\nseed = 2"), 1, &seed).ok());
    EXPECT_EQ(seed.kernel_set, first.kernel_set);
    ASSERT_TRUE(run_one(replaced(job_text(), "train = \"train.h5\"", "train = \"test.h5\""), 1, &data).ok());
    EXPECT_EQ(data.kernel_set, first.kernel_set);
    ASSERT_TRUE(run_one(replaced(job_text(), "blocks = 6", "blocks = 5"), 1, &blocks).ok());
    EXPECT_NE(blocks.kernel_set, first.kernel_set);
    // Workers still have theirs from the probe block.
    const std::string averaging = job_text("[algorithm]\nkind = \"ma\"\nworkers = 2\n");
    ASSERT_TRUE(run_one(averaging, 1, &local).ok());
    ASSERT_TRUE(run_one(replaced(averaging, "[job]", "[job]\nseed = 2"), 1, &seed).ok());
    EXPECT_NE(seed.kernel_set, local.kernel_set);
}

TEST_F(EngineTest, CompressedShardsTrainTheSameModel) {
    JobStatus plain, compressed;
    ASSERT_TRUE(run_one(job_text(), 2, &plain).ok());
    write("train.h5", 600, 0, 8, 4, 6);
    write("test.h5", 250, 600, 8, 4, 6);
    Status status = run_one(job_text(), 2, &compressed);
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(compressed.digest, plain.digest);
    EXPECT_EQ(compressed.accuracy, plain.accuracy);
    std::vector<JobStatus> many;
    status = run_many(job_text(), 2, &many);
    ASSERT_TRUE(status.ok()) << status.what;
    for (const JobStatus& each : many) EXPECT_EQ(each.digest, plain.digest);
}

TEST_F(EngineTest, OneDigestAndOneAccuracyWhateverTheRanks) {
    JobStatus one;
    ASSERT_TRUE(run_one(job_text(), 2, &one).ok());
    for (const char* exchange : {"unicast", "ring"})
        for (uint32_t n : {2u, 3u, 7u}) {   // 7 ranks, 6 blocks, 3 evaluation batches: some have nothing to do
            std::vector<JobStatus> many;
            Status result = run_many(job_text(fmt::format("[algorithm]\nexchange = \"{}\"\n", exchange)), n, &many);
            ASSERT_TRUE(result.ok()) << result.what;
            for (const JobStatus& each : many) {
                EXPECT_EQ(each.state, JobState::done);
                EXPECT_EQ(each.digest, one.digest) << exchange << " " << n;
                EXPECT_EQ(each.step_digest, one.step_digest);
                EXPECT_EQ(each.accuracy, one.accuracy);
                EXPECT_EQ(each.loss, one.loss);
            }
        }
}

TEST_F(EngineTest, BatchNormAndDropoutGiveOneDigestWhateverTheRanks) {
    for (std::string quantiser : {"auto32", "auto16", "fixed"}) {
        const char* exchange = quantiser == "fixed" ? "unicast" : "ring";
        std::string text = job_text_of_all(fmt::format("[algorithm]\nquantiser = \"{}\"\nexchange = \"{}\"\n", quantiser, exchange));
        JobStatus one, again;
        std::string path;
        ASSERT_TRUE(run_one(text, 2, &one, &path).ok());
        ASSERT_TRUE(run_one(text, 1, &again).ok());
        EXPECT_EQ(one.digest, again.digest);
        EXPECT_GT(one.accuracy, 0.9);
        Evaluation evaluation;   // the file holds the statistics and the list of layers
        Status evaluated = model_evaluate(path, folder_ + "/test.h5", 2, &evaluation);
        ASSERT_TRUE(evaluated.ok()) << evaluated.what;
        EXPECT_EQ(static_cast<double>(evaluation.right) / 250, one.accuracy);
        for (uint32_t n : {2u, 3u, 7u}) {
            std::vector<JobStatus> many;
            Status result = run_many(text, n, &many);
            ASSERT_TRUE(result.ok()) << result.what;
            for (const JobStatus& each : many) {
                EXPECT_EQ(each.digest, one.digest) << quantiser << " " << n;
                EXPECT_EQ(each.accuracy, one.accuracy);
            }
        }
    }
}

TEST_F(EngineTest, Bf16GivesOneDigestWhateverTheRanks) {
    const std::string text = replaced(job_text_of_all(""), "[net]\n", "[net]\nprecision = \"bf16\"\n");
    JobStatus one, again, exact;
    std::string path;
    if (isa_best() < Isa::avx512_bf16) {
        EXPECT_STREQ(run_one(text, 1, &one).what,
                     "precision bf16 needs AVX512-BF16 or AMX, and this CPU has neither: take f32, or nodes that have it");
        GTEST_SKIP() << "this CPU has neither AVX512-BF16 nor AMX";
    }
    Status status = run_one(text, 2, &one, &path);
    ASSERT_TRUE(status.ok()) << status.what;
    ASSERT_TRUE(run_one(text, 1, &again).ok());
    ASSERT_TRUE(run_one(job_text_of_all(""), 1, &exact).ok());
    EXPECT_EQ(one.digest, again.digest);
    EXPECT_NE(one.digest, exact.digest);
    EXPECT_NE(one.kernel_set, exact.kernel_set);
    EXPECT_GT(one.accuracy, 0.9);
    for (uint32_t n : {2u, 3u}) {
        std::vector<JobStatus> many;
        status = run_many(text, n, &many);
        ASSERT_TRUE(status.ok()) << status.what;
        for (const JobStatus& each : many) EXPECT_EQ(each.digest, one.digest) << n;
    }
    std::string steps;
    ASSERT_TRUE(file_read(path.substr(0, path.rfind('/')) + "/steps.jsonl", &steps).ok());
    EXPECT_NE(steps.find("\"kernels\":\"bf16-"), std::string::npos) << steps;
    // What is saved is float, and float kernels measure nearly the same of it.
    Evaluation evaluation;
    status = model_evaluate(path, folder_ + "/test.h5", 2, &evaluation);
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_NEAR(static_cast<double>(evaluation.right) / 250, one.accuracy, 0.03);
}

using SlowEngineTest = EngineTest;
TEST_F(SlowEngineTest, OneDigestOnManyRanks) {
    const std::string text = replaced(job_text(), "epochs = 2", "steps = 3");
    JobStatus one;
    ASSERT_TRUE(run_one(text, 1, &one).ok());
    for (const char* exchange : {"unicast", "ring"})
        for (uint32_t n : {12u, 31u, 64u}) {   // 6 blocks: most ranks only apply
            std::vector<JobStatus> many;
            Status result = run_many(text + fmt::format("[algorithm]\nexchange = \"{}\"\n", exchange), n, &many);
            ASSERT_TRUE(result.ok()) << result.what;
            for (const JobStatus& each : many) EXPECT_EQ(each.digest, one.digest) << exchange << " " << n;
        }
}

TEST_F(EngineTest, AllRanksEndWithOneLine) {
    std::string text = replaced(replaced(job_text(), "[[net.layers]]\nkind = \"relu\"\n", ""), "lr = 0.05", "lr = 1e9");
    std::vector<JobStatus> many;
    EXPECT_EQ(run_many(text, 4, &many).code, Code::diverged);
    for (const JobStatus& each : many) {
        EXPECT_EQ(each.state, JobState::failed);
        EXPECT_EQ(each.error, many[0].error);
    }
    EXPECT_TRUE(many[0].error.starts_with("diverged: ")) << many[0].error;

    run_many(job_text(), 3, &many, [](auto& engines) { engines[1]->cancel("cancelled on request at node-b"); }).ok();
    for (const JobStatus& each : many) {
        EXPECT_EQ(each.state, JobState::cancelled);
        EXPECT_EQ(each.error, "cancelled on request at node-b");
    }

    // One of them has other data.
    std::vector<std::unique_ptr<Engine>> engines;
    auto simulator = Simulator::create({.ranks = 2});
    for (Rank rank : {0u, 1u}) {
        if (rank == 1) write("train.h5", 600, 1);
        EngineConfig c = config(job_text(), 2, rank);
        c.lanes = 0;
        c.loader_threaded = false;
        engines.emplace_back();
        ASSERT_TRUE(Engine::open(c, Log(), &engines[rank]).ok());
        simulator->trainer(rank, [&engine = *engines[rank]](Host& host) { return engine.run(host); });
    }
    EXPECT_EQ(simulator->run().code, Code::conflict);
    EXPECT_EQ(engines[0]->status().error, engines[1]->status().error);
    EXPECT_NE(engines[0]->status().error.find("rank 1 (node-b)"), std::string::npos) << engines[0]->status().error;
    simulator.reset();
}

}   // namespace
}   // namespace gradcast
