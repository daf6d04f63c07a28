// Whole jobs.
#include "runtime/job/engine.h"
#include "runtime/job/model_evaluate.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

#include "datasets/reader.h"
#include "datasets/shard.h"
#include "runtime/core/clock.h"
#include "runtime/core/fd.h"
#include "runtime/core/rng.h"
#include "runtime/job/job_protocol.h"
#include "runtime/job/model_file.h"
#include "runtime/job/safetensors.h"
#include "tests/job/jobs.h"
#include "tests/wrapped_host.h"
#include "transport/code/kernels.h"
#include "transport/link/sim.h"

namespace gradcast {
namespace {

TEST(ModelFile, SaysWhyItCannotBeWritten) {
    std::string path = testing::TempDir() + "gc-model-" + std::to_string(getpid()) + ".h5";
    Model model;
    model.net.C = model.net.H = model.net.W = model.net.classes = 1;
    model.mean = {0};
    model.std = {1};
    std::vector<float> parameters(100'000, 1.0f);
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    rlimit small = before;
    small.rlim_cur = 50'000;
    auto handler = std::signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    Status status = model_write(path, model, {parameters, {}, {}, {}});
    ::setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    EXPECT_EQ(status.what, "cannot write " + path + ": File too large");
    EXPECT_FALSE(std::filesystem::exists(path));
    // The library can still be used, also at exit.
    EXPECT_TRUE(model_write(path, model, {parameters, {}, {}, {}}).ok());
    std::filesystem::remove(path);
}

TEST_F(EngineTest, AModelThatDoesNotFitTheDiskIsRefusedBeforeTheFirstStep) {
    EngineConfig c = config(job_text());
    c.folder = folder_ + "/disk/job";
    SmallDisk disk(folder_ + "/disk", "64k");
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    auto handler = std::signal(SIGXFSZ, SIG_IGN);
    if (!disk.mounted) {
        rlimit small = before;
        small.rlim_cur = 50'000;
        ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    }
    std::unique_ptr<Engine> engine;
    Status status = Engine::open(c, Log(), &engine);
    ::setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    EXPECT_EQ(status.what, fmt::format("cannot reserve 0.1 MB for the model in {}: {}", c.folder,
                                       disk.mounted ? "No space left on device" : "File too large"));
    EXPECT_FALSE(std::filesystem::exists(c.folder + "/final.h5.part"));
}

TEST_F(EngineTest, ADiskThatFillsUpWhileTrainingLosesNoModel) {
    SmallDisk disk(folder_ + "/disk", "1m");
    if (!disk.mounted) GTEST_SKIP() << "no tmpfs: " << std::strerror(errno) << " (needs root)";
    JobStatus undisturbed, status;
    ASSERT_TRUE(run_one(job_text(), 1, &undisturbed).ok());
    EngineConfig c = config(job_text());
    c.folder = folder_ + "/disk/job";
    std::unique_ptr<Engine> engine;
    ASSERT_TRUE(Engine::open(c, Log(), &engine).ok());
    disk.fill();
    OneRank host;
    Status result = engine->run(host);
    ASSERT_TRUE(result.ok()) << result.what;
    status = engine->status();
    EXPECT_EQ(status.digest, undisturbed.digest);
    EXPECT_EQ(status.model, c.folder + "/final.h5");
    Model model;
    std::vector<float> parameters;
    result = model_read(status.model, &model, &parameters);
    EXPECT_TRUE(result.ok()) << result.what;
    EXPECT_EQ(model.digest, undisturbed.digest);
    EXPECT_LT(std::filesystem::file_size(status.model), 60'000u);   // what was not needed of the room is given back
}

// Reports that its rank is at the last barrier and drops its message to the others, as if it died there.
struct DiesAtTheEnd : Protocol {
    DiesAtTheEnd(Protocol* protocol, Simulator& simulator, Rank rank) : inner(*protocol), sim(simulator), self(rank) {}
    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events)
            if (event.kind == Event::Kind::command && event.command == static_cast<uint32_t>(JobCommand::end))
                return sim.kill(self, actions.now_us);
        inner.on(events, actions);
    }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override { return inner.land(packet, bytes, place); }
    Protocol& inner;
    Simulator& sim;
    const Rank self;
};

TEST_F(EngineTest, ADeathAtTheLastBarrierLosesNoModel) {
    JobStatus undisturbed;
    ASSERT_TRUE(run_one(job_text(), 1, &undisturbed).ok());
    constexpr uint32_t n = 3;
    for (Rank victim = 0; victim < n; ++victim) {
        auto simulator = Simulator::create({.ranks = n});
        std::vector<std::unique_ptr<Engine>> engines(n);
        std::vector<std::string> folders;
        std::unique_ptr<DiesAtTheEnd> dies;
        for (Rank rank = 0; rank < n; ++rank) {
            EngineConfig c = config(job_text(), n, rank);
            c.lanes = 0;
            c.loader_threaded = false;
            c.spend_us = 100;
            folders.push_back(c.folder);
            ASSERT_TRUE(Engine::open(c, Log(), &engines[rank]).ok());
            simulator->trainer(rank, [&, rank](Host& host) {
                WrappedHost wrapped(host, [&, rank](uint16_t channel, Protocol* protocol) -> Protocol* {
                    if (rank != victim || channel != static_cast<uint16_t>(Channel::job)) return protocol;
                    dies = std::make_unique<DiesAtTheEnd>(protocol, *simulator, rank);
                    return dies.get();
                });
                return engines[rank]->run(wrapped);
            });
        }
        EXPECT_FALSE(simulator->run().ok());
        for (Rank rank = 0; rank < n; ++rank) {
            if (rank == victim) continue;
            const JobStatus status = engines[rank]->status();
            Model model;
            std::vector<float> parameters;
            EXPECT_EQ(status.state, JobState::failed);
            EXPECT_NE(status.error.find(fmt::format("rank {} ", victim)), std::string::npos) << status.error;
            EXPECT_EQ(status.model, folders[rank] + "/final.h5");
            EXPECT_EQ(status.warnings,
                      std::vector{fmt::format("the model of the last step is in {}; not every rank has confirmed it", status.model)});
            Status read = model_read(folders[rank] + "/final.h5", &model, &parameters);
            EXPECT_TRUE(read.ok()) << read.what;
            EXPECT_EQ(model.digest, undisturbed.digest);
            EXPECT_FALSE(std::filesystem::exists(folders[rank] + "/final.h5.part"));
        }
        simulator.reset();
    }
}

TEST_F(EngineTest, RoomThatIsNotNeededIsGivenBack) {
    EngineConfig c = config(job_text());
    std::unique_ptr<Engine> engine;
    ASSERT_TRUE(Engine::open(c, Log(), &engine).ok());
    EXPECT_TRUE(std::filesystem::exists(c.folder + "/final.h5.part"));
    EXPECT_EQ(model_kept(c.folder), "");   // as a killed daemon leaves it: no model
    EXPECT_FALSE(std::filesystem::exists(c.folder + "/final.h5.part"));
    JobStatus status;
    std::string path;
    ASSERT_TRUE(run_one(job_text(), 1, &status, &path).ok());
    std::filesystem::rename(path, path + ".part");   // its daemon was ended before the last barrier was through
    EXPECT_EQ(model_kept(path.substr(0, path.rfind('/'))), path);
    EXPECT_TRUE(std::filesystem::exists(path));
    EXPECT_EQ(run_one(replaced(job_text(), "lr = 0.05", "lr = 1e30"), 1, &status, &path).code, Code::diverged);
    EXPECT_FALSE(std::filesystem::exists(path) || std::filesystem::exists(path + ".part"));
    EXPECT_EQ(status.model, "");
}

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
    std::vector<std::string> told;
    for (uint32_t n : {2u, 3u, 4u, 5u}) {
        EXPECT_EQ(open("exchange = \"coded-rs\"\nm = 3\ns = 1\n", n, &told), "");
        EXPECT_EQ(told.size(), n == 5 ? 0u : n == 4 ? 1u : 2u);
        if (n < 4) {
            EXPECT_EQ(told.at(0), fmt::format("{} nodes with s = 1 allow m = {} at most: m = {} is used instead of 3", n, n - 1, n - 1));
        }
    }
    for (const char* exchange : {"coded", "coded-rs", "auto"})
        EXPECT_EQ(open(fmt::format("exchange = \"{}\"\ns = 9\n", exchange), 2, &told),
                  "algorithm.s = 9 with 2 nodes: at most 1 can be lost: set s = 1, or take at least 10 nodes");
}

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

TEST_F(EngineTest, FinalModelEvaluatesToTheJobsAccuracy) {
    JobStatus status;
    std::string path;
    ASSERT_TRUE(run_one(job_text(), 2, &status, &path).ok());
    for (uint32_t threads : {1u, 3u}) {
        Evaluation evaluation;
        Status result = model_evaluate(path, folder_ + "/test.h5", threads, &evaluation);
        ASSERT_TRUE(result.ok()) << result.what;
        EXPECT_EQ(evaluation.count, 250u);
        EXPECT_EQ(static_cast<double>(evaluation.right) / 250, status.accuracy);
        EXPECT_EQ(evaluation.digest, status.digest);
        uint64_t right = 0, count = 0;
        for (uint64_t each : evaluation.right_of_class) right += each;
        for (uint64_t each : evaluation.count_of_class) count += each;
        EXPECT_EQ(right, evaluation.right);
        EXPECT_EQ(count, 250u);
    }
    Model model;
    std::vector<float> parameters;
    ASSERT_TRUE(model_read(path, &model, &parameters).ok());
    EXPECT_EQ(model.job, job_text());
    EXPECT_EQ(model.step, 50u);
    EXPECT_EQ(model.accuracy, status.accuracy);
    EXPECT_EQ(model.kernel_set, status.kernel_set);
    EXPECT_EQ(parameters.size(), 64u * 16 + 16 + 16 * 4 + 4);
    EXPECT_FALSE(std::filesystem::exists(path + ".part"));
}

/// Steps of the lines of steps.jsonl that hold an accuracy, and the accuracies.
std::vector<std::pair<uint64_t, double>> evaluations(const std::string& final_path, size_t* lines) {
    std::vector<std::pair<uint64_t, double>> found;
    std::ifstream in(final_path.substr(0, final_path.rfind('/')) + "/steps.jsonl");
    *lines = 0;
    for (std::string line; std::getline(in, line); ++*lines) {
        EXPECT_EQ(line.front(), '{');
        EXPECT_EQ(line.back(), '}');
        size_t at = line.find("\"accuracy\":");
        if (at != std::string::npos) found.emplace_back(std::stoull(line.substr(8)), std::stod(line.substr(at + 11)));
    }
    return found;
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

TEST_F(EngineTest, StartsFromSavedParameters) {
    JobStatus first, status;
    std::string path;
    ASSERT_TRUE(run_one(job_text(), 1, &first, &path).ok());
    Model model;
    std::vector<float> parameters;
    ASSERT_TRUE(model_read(path, &model, &parameters).ok());
    const std::string start = folder_ + "/start.safetensors";
    ASSERT_TRUE(safetensors_write(start, model, parameters).ok());

    // With a tiny learning rate the final parameters are the initial ones.
    auto from = [&](std::string text, const std::string& file) { return replaced(text, "[net]\n", "[net]\nstart = \"" + file + "\"\n"); };
    const std::string still =
        replaced(replaced(from(job_text(), "start.safetensors"), "lr = 0.05", "lr = 1e-30"), "epochs = 2", "steps = 2");
    ASSERT_TRUE(run_one(still, 1, &status).ok());
    EXPECT_EQ(status.digest, first.digest);
    EXPECT_EQ(status.accuracy, first.accuracy);
    ASSERT_TRUE(run_one(replaced(still, "[job]", "[job]\nseed = 9"), 2, &status).ok());
    EXPECT_EQ(status.digest, first.digest);

    // From there on one digest whatever the ranks; with batch norm, dropout and a shortcut too.
    std::string all = folder_ + "/all.safetensors";
    ASSERT_TRUE(run_one(job_text_of_all(), 1, &status, &path).ok());
    ASSERT_TRUE(model_read(path, &model, &parameters).ok());
    ASSERT_TRUE(safetensors_write(all, model, parameters).ok());
    for (const std::string& text : {from(job_text(), start), from(job_text_of_all(), all)}) {
        JobStatus one;
        ASSERT_TRUE(run_one(text, 1, &one).ok());
        EXPECT_GE(one.accuracy, 0.9);
        for (uint32_t n : {2u, 3u}) {
            std::vector<JobStatus> statuses;
            ASSERT_TRUE(run_many(text, n, &statuses).ok());
            for (const JobStatus& each : statuses) EXPECT_EQ(each.digest, one.digest);
        }
    }

    Status result = run_one(replaced(from(job_text(), start), "outputs = 16", "outputs = 17"), 1, &status);
    EXPECT_EQ(std::string(result.what), "cannot start from " + start + ": tensor fc1.weight: its shape is [16,64], the net's is [17,64]");
    result = run_one(from(job_text(), "none.safetensors"), 1, &status);
    EXPECT_EQ(std::string(result.what), "cannot start: cannot open " + folder_ + "/none.safetensors: No such file or directory");
}

TEST_F(EngineTest, BrokenModelsAreNamed) {
    JobStatus status;
    std::string path;
    ASSERT_TRUE(run_one(replaced(job_text(), "epochs = 2", "steps = 3"), 1, &status, &path).ok());
    auto error = [&](const std::string& model, const std::string& data) {
        Evaluation unused;
        Status result = model_evaluate(model, data, 1, &unused);
        EXPECT_FALSE(result.ok());
        EXPECT_EQ(std::string_view(result.what).find('\n'), std::string_view::npos);
        return std::string(result.what);
    };
    const std::string test = folder_ + "/test.h5";
    EXPECT_NE(error(folder_ + "/absent.h5", test).find("absent.h5: No such file"), std::string::npos);
    EXPECT_NE(error(test, test).find("test.h5: not a gradcast model: format is not \"gradcast model\""), std::string::npos)
        << error(test, test);
    ASSERT_TRUE(file_write(folder_ + "/text.h5", "hello").ok());
    EXPECT_NE(error(folder_ + "/text.h5", test).find("text.h5: not a gradcast model: "), std::string::npos);

    // One bit of one parameter.
    Model model;
    std::vector<float> parameters;
    ASSERT_TRUE(model_read(path, &model, &parameters).ok());
    std::string bytes;
    ASSERT_TRUE(file_read(path, &bytes).ok());
    size_t at = bytes.find(std::string_view(reinterpret_cast<const char*>(parameters.data()), 64));
    ASSERT_NE(at, std::string::npos);
    bytes[at + 100] ^= 4;
    ASSERT_TRUE(file_write(path, bytes).ok());
    EXPECT_NE(error(path, test).find("digest of its parameters differs: the file is damaged"), std::string::npos);
    bytes[at + 100] ^= 4;
    for (size_t size = 1; size < bytes.size(); size += bytes.size() / 40) {
        ASSERT_TRUE(file_write(path, bytes.substr(0, size)).ok());
        error(path, test);
    }
    ASSERT_TRUE(file_write(path, bytes).ok());
    write("other.h5", 30, 0, 10);
    EXPECT_NE(error(path, folder_ + "/other.h5").find("takes samples of 1x8x8 in 4 classes"), std::string::npos)
        << error(path, folder_ + "/other.h5");
    EXPECT_NE(error(path, folder_ + "/none*.h5").find("none*.h5"), std::string::npos);
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

// ---- regression ----------------------------------------------------------------------------------------------------------------

constexpr char ridge_job[] =
    "[job]\nsteps = 500\nevaluate = 500\nbatch = 800\nblocks = 4\n[data]\ntrain = \"ridge/train.h5\"\ntest = \"ridge/test.h5\"\n"
    "[net]\npreset = \"ridge\"\n[optimiser]\nlr = 0.2\nmomentum = 0.9\nweight_decay = 0.01\n";

/// Where (1/N) sum (<x, w> - y)^2 + 0.005 ||w||^2 is least: (X'X / N + 0.005) w = X'y / N, by Cholesky's decomposition.
std::vector<double> ridge_solution(const std::string& path) {
    std::unique_ptr<DataSet> data;
    EXPECT_TRUE(data_open(path, &data).ok());
    const size_t N = data->info().count, d = data->sample_bytes();
    std::vector<double> A(d * d), b(d), x(d);
    std::vector<uint8_t> bytes(d);
    for (uint64_t n = 0; n < N; ++n) {
        int32_t label;
        EXPECT_TRUE(data->read(std::span(&n, 1), bytes.data(), &label).ok());
        const double y = (label - 32768) / 256.0;
        for (size_t i = 0; i < d; ++i) x[i] = (bytes[i] - 128) / 32.0;
        for (size_t i = 0; i < d; ++i) {
            b[i] += x[i] * y / static_cast<double>(N);
            for (size_t j = 0; j <= i; ++j) A[i * d + j] += x[i] * x[j] / static_cast<double>(N);
        }
    }
    for (size_t i = 0; i < d; ++i) {
        A[i * d + i] += 0.005;
        for (size_t j = 0; j <= i; ++j) {
            for (size_t k = 0; k < j; ++k) A[i * d + j] -= A[i * d + k] * A[j * d + k];
            A[i * d + j] = i == j ? std::sqrt(A[i * d + i]) : A[i * d + j] / A[j * d + j];
        }
    }
    for (size_t i = 0; i < d; ++i) {
        for (size_t k = 0; k < i; ++k) b[i] -= A[i * d + k] * b[k];
        b[i] /= A[i * d + i];
    }
    for (size_t i = d; i-- > 0;) {
        for (size_t k = i + 1; k < d; ++k) b[i] -= A[k * d + i] * b[k];
        b[i] /= A[i * d + i];
    }
    return b;
}

TEST_F(EngineTest, RidgeComesToTheClosedForm) {
    ImportResult imported;
    Status status = data_import({.kind = "ridge", .from = "", .out = folder_ + "/ridge", .samples = 800}, &imported);
    ASSERT_TRUE(status.ok()) << status.what;
    JobStatus one;
    std::string path;
    status = run_one(ridge_job, 2, &one, &path);
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(one.accuracy, -1);
    EXPECT_GT(one.test_loss, 1.0);   // the variance of the noise
    EXPECT_LT(one.test_loss, 6.0);
    size_t lines;
    EXPECT_TRUE(evaluations(path, &lines).empty());

    Model model;
    std::vector<float> parameters;
    ASSERT_TRUE(model_read(path, &model, &parameters).ok());
    EXPECT_EQ(model.net.target_scale, 1.0f / 256);
    const std::vector<double> best = ridge_solution(folder_ + "/ridge/train.h5");
    ASSERT_EQ(parameters.size(), best.size());
    double off = 0, size = 0;
    for (size_t i = 0; i < best.size(); ++i) {
        off += (static_cast<double>(parameters[i]) - best[i]) * (static_cast<double>(parameters[i]) - best[i]);
        size += best[i] * best[i];
    }
    EXPECT_LT(std::sqrt(off / size), 1e-4);

    Evaluation evaluation;
    ASSERT_TRUE(model_evaluate(path, folder_ + "/ridge/test.h5", 2, &evaluation).ok());
    EXPECT_TRUE(evaluation.regression);
    EXPECT_NEAR(evaluation.loss, one.test_loss, 1e-9);
    EXPECT_TRUE(evaluation.count_of_class.empty() && evaluation.confusion.empty());

    std::vector<JobStatus> two;
    status = run_many(ridge_job, 2, &two);
    ASSERT_TRUE(status.ok()) << status.what;
    for (const JobStatus& each : two) {
        EXPECT_EQ(each.digest, one.digest);
        EXPECT_EQ(each.test_loss, one.test_loss);
    }
}

TEST_F(EngineTest, RegressionAndClassesDoNotMix) {
    ImportResult imported;
    ASSERT_TRUE(data_import({.kind = "ridge", .from = "", .out = folder_ + "/ridge", .samples = 800}, &imported).ok());
    JobStatus status;
    std::string model;
    const std::string short_job = replaced(replaced(ridge_job, "steps = 500", "steps = 1"), "evaluate = 500", "evaluate = 1");
    ASSERT_TRUE(run_one(short_job, 1, &status, &model).ok());
    auto error = [&](const std::string& text) { return std::string(run_one(text, 1, &status).what); };
    auto with_net = [&](const std::string& net) { return replaced(short_job, "preset = \"ridge\"\n", net); };
    EXPECT_EQ(error(with_net("preset = \"mlp\"\n")),
              "layer loss1: softmax_cross_entropy is for classes, but the data are a regression (target_scale): take squared_loss");
    EXPECT_EQ(error(with_net("[[net.layers]]\nkind = \"inner_product\"\noutputs = 10\n[[net.layers]]\nkind = \"squared_loss\"\n")),
              "layer loss1: its input 10x1x1 does not fit a regression, which has one output (1x1x1)");
    EXPECT_EQ(error(replaced(short_job, "[job]\n", "[job]\nstop_at = 0.5\n")),
              "job.stop_at is an accuracy, but " + folder_ + "/ridge/train.h5 is a regression: leave it out");
    EXPECT_EQ(error(replaced(short_job, "[data]\n", "[data]\nclasses = 2\n")),
              "classes = 2: " + folder_ + "/ridge/train.h5 is a regression, which has none");
    EXPECT_EQ(error(replaced(replaced(short_job, "ridge/train", "train"), "ridge/test", "test")),
              "layer loss1: its input 1x1x1 does not fit 4 classes (4x1x1)");

    // The same shapes and classes, once as classes.
    std::vector<uint8_t> images(500 * 10, 128);
    DataInfo info{.count = 10, .C = 1, .H = 1, .W = 500, .classes = 65536, .mean = {0.5f}, .std = {0.1f}, .source = "test"};
    const std::vector<int32_t> labels(10, 7);
    ASSERT_TRUE(shard_write(folder_ + "/ridge/classes.h5", info, images.data(), labels.data()).ok());
    EXPECT_EQ(error(replaced(short_job, "ridge/test.h5", "ridge/classes.h5")),
              folder_ + "/ridge/classes.h5 has the target_scale 0, " + folder_ +
                  "/ridge/train.h5 has 0.00390625 (0: classes): they must be alike");
    Evaluation unused;
    EXPECT_EQ(std::string(model_evaluate(model, folder_ + "/ridge/classes.h5", 1, &unused).what),
              "the model " + model + " has the target_scale 0.00390625, " + folder_ + "/ridge/classes.h5 has 0 (0: classes)");
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
