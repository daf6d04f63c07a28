// Shares of eda and bsda.
#include "algos/allocation.h"

#include <fstream>
#include <numeric>
#include <set>
#include <sstream>

#include "tests/algos/runs.h"

namespace gradcast {
namespace {

TEST(Allocation, SharesSumExactlyAndFollowTheSpeeds) {
    for (uint64_t seed = 0; seed < 300; ++seed) {
        const auto drawn = [seed](uint32_t i) { return random4(Purpose::test, 9, seed, i)[0]; };
        const size_t n = 1 + drawn(0) % 9;
        const uint64_t count = n + drawn(1) % 200;
        std::vector<float> speeds(n);
        for (uint32_t k = 0; k < n; ++k) speeds[k] = static_cast<float>(1 + drawn(2 + k) % 1000) * (seed % 5 ? 1.0f : 1e-9f);
        if (seed % 7 == 0) speeds[0] = 1e9f;   // the others are raised to one
        std::vector<uint32_t> shares(n);
        std::vector<double> rest(n);
        allocate(speeds, count, shares, rest);
        EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), uint64_t{0}), count);
        const double sum = std::accumulate(speeds.begin(), speeds.end(), 0.0);
        bool raised = false;
        for (size_t k = 0; k < n; ++k) raised |= static_cast<double>(count) * static_cast<double>(speeds[k]) / sum < 1;
        for (size_t k = 0; k < n; ++k) {
            EXPECT_GE(shares[k], 1u);
            if (!raised) {
                EXPECT_LT(std::abs(shares[k] - static_cast<double>(count) * static_cast<double>(speeds[k]) / sum), 1.0) << seed;
            }
        }
    }
    std::vector<uint32_t> equal(4);
    std::vector<double> rest(4);
    allocate(std::vector<float>{1, 1, 1, 1}, 10, equal, rest);
    EXPECT_EQ(equal, (std::vector<uint32_t>{3, 3, 2, 2}));
    allocate(std::vector<float>{4, 1, 1, 2}, 16, equal, rest);
    EXPECT_EQ(equal, (std::vector<uint32_t>{8, 2, 2, 4}));
}

class AllocationTest : public AlgosTest {
protected:
    static constexpr uint32_t workers = 3;
    std::string job(const char* kind, const std::string& more) {
        return job_text(fmt::format("[algorithm]\nkind = \"{}\"\nworkers = 3\nallocation_batches = 5\n{}{}", kind,
                                    kind == std::string_view("ma") ? "" : "validation = 150\n", more));
    }
    static std::vector<std::vector<uint32_t>> shares(const std::string& path) {
        std::ifstream file(path);
        std::string line;
        while (std::getline(file, line) && !line.empty()) {
        }   // the head
        std::vector<std::vector<uint32_t>> all;
        while (std::getline(file, line)) {
            std::istringstream words(line);
            all.emplace_back();
            for (uint32_t share; words >> share;) all.back().push_back(share);
        }
        return all;
    }
    std::string copy(const std::string& path) {
        const std::string to = fmt::format("{}/log-{}", folder_, copies_++);
        std::filesystem::copy_file(path, to);
        return to;
    }

private:
    uint32_t copies_ = 0;
};

TEST_F(AllocationTest, EdaHasOneDigestAndTrainsEachSampleOnceAnEpoch) {
    for (const char* kind : {"ma", "de", "soup", "rg"}) {
        const std::string text = job(kind, "allocation = \"eda\"\n");
        const Run one = run(text, 1);
        ASSERT_EQ(one.digest().size(), 64u) << kind << ": " << one.digest();
        EXPECT_EQ(one.ranks[0].steps, 10u);   // two epochs of five rounds
        if (kind == std::string_view("ma")) {
            EXPECT_EQ(one.ranks[0].gradients, 2u * 600u);
        }
        EXPECT_EQ(run(text, 2).digest(), one.digest()) << kind;
        EXPECT_EQ(run(text, 4).digest(), one.digest()) << kind;
        const auto all = shares(one.folders[0] + "/replay.log");
        EXPECT_EQ(all.size(), 10u);
        for (const auto& each : all) EXPECT_EQ(each, all[0]);
    }
    JobStatus lanes;
    ASSERT_TRUE(run_one(job("ma", "allocation = \"eda\"\n"), 3, &lanes).ok());
    EXPECT_EQ(lanes.digest, run(job("ma", "allocation = \"eda\"\n"), 2).digest());
}

// The samples of all shares of an epoch, whatever the shares: a net with a weight for each sample would see each once.
TEST_F(AllocationTest, BatchesOfAnEpochHoldEachSampleOnce) {
    std::unique_ptr<DataSet> data;
    ASSERT_TRUE(data_open(folder_ + "/train.h5", &data).ok());
    for (const uint32_t m : {1u, 5u, 7u}) {
        const Local local({.workers = workers, .seed = 3, .batch = 24, .blocks = 5, .validation = 111, .rounds_of_epoch = m}, *data);
        for (const uint64_t epoch : {0u, 1u, 4u}) {
            std::multiset<uint64_t> seen;
            for (uint64_t round = epoch * m; round < (epoch + 1) * m; ++round)
                for (uint64_t batch = 0; batch < local.batches_of_round(round); ++batch)
                    for (const uint64_t sample : local.samples_of_batch(round, batch)) seen.insert(sample);
            EXPECT_EQ(seen.size(), 600u - 111u);
            EXPECT_EQ(std::set<uint64_t>(seen.begin(), seen.end()).size(), seen.size());
        }
    }
}

TEST_F(AllocationTest, BsdaGivesMoreToFastNodesAndReplays) {
    for (const char* kind : {"ma", "de"}) {
        const std::string text = job(kind, "allocation = \"bsda\"\n");
        const Run run = this->run(text, SimConfig{.ranks = 3}, false, [](Simulator& sim) { sim.slow(1, 4); });
        ASSERT_EQ(run.digest().size(), 64u) << run.digest();
        const auto all = shares(run.folders[0] + "/replay.log");
        ASSERT_EQ(all.size(), 10u);
        for (size_t round = 0; round < all.size(); ++round) {
            const uint64_t count = std::accumulate(all[round].begin(), all[round].end(), uint64_t{0});
            EXPECT_EQ(count, kind == std::string_view("ma") ? 5u : 4u);
            if (round > 0) {
                EXPECT_EQ(all[round][1], 1u) << round;   // a ninth of them, and at least one
            }
        }
        for (const std::string& folder : run.folders) EXPECT_EQ(shares(folder + "/replay.log"), all);
        const std::string path = copy(run.folders[0] + "/replay.log");
        for (const uint32_t n : {1u, 2u})
            EXPECT_EQ(this->run(text + fmt::format("replay = \"{}\"\n", path), n).digest(), run.digest()) << kind << n;
    }
}

TEST_F(AllocationTest, BsdaGoesOnFromACheckpoint) {
    for (const char* kind : {"ma", "de"}) {
        const std::string text = with_job(job(kind, "allocation = \"bsda\"\n"), "checkpoint_every = 3\ncheckpoint_keep = 9\n");
        const SimConfig network{.ranks = 3};
        const auto slow = [](Simulator& sim) { sim.slow(1, 4); };
        const Run whole = run(text, network, false, slow);
        ASSERT_EQ(whole.digest().size(), 64u) << whole.digest();
        const auto all = checkpoints(whole);
        EXPECT_EQ(all.size(), 3u);
        // Its first round has the shares that the run before would have taken.
        const Run rest = run(text, network, false, slow, from(all.at(6)));
        EXPECT_EQ(rest.digest().size(), 64u) << rest.digest();
        const std::string path = copy(whole.folders[0] + "/replay.log");
        const std::string replay = text + fmt::format("replay = \"{}\"\n", path);
        const Run again = run(replay, 2);
        EXPECT_EQ(again.digest(), whole.digest());
        EXPECT_EQ(run(replay, SimConfig{.ranks = 1}, false, {}, from(checkpoints(again).at(6))).digest(), whole.digest());
    }
}

TEST_F(AllocationTest, BadLogsAndSettingsAreRefused) {
    const std::string text = job("ma", "allocation = \"bsda\"\n"), path = folder_ + "/bad.log";
    const Run run = this->run(text, 1);
    std::string whole;
    ASSERT_TRUE(file_read(run.folders[0] + "/replay.log", &whole).ok());
    const std::string head = whole.substr(0, whole.find("\n\n") + 2);
    const auto with = [&](const std::string& content) {
        EXPECT_TRUE(file_write(path, content).ok());
        return this->run(text + fmt::format("replay = \"{}\"\n", path), 1).digest();
    };
    EXPECT_EQ(with(whole), run.digest());
    EXPECT_EQ(with(replaced(whole, "workers = 3", "workers = 4")), path + ": of another job: algorithm.workers is 4 there and 3 here");
    EXPECT_EQ(with(head + "2 2 x\n"), path + ": round 1 has no share for worker 2");
    EXPECT_EQ(with(head + "2 2 1\n"), path + ": has the shares of 1 rounds, the job has 10");
    std::string many = head;
    for (int i = 0; i < 10; ++i) many += "3 2 1\n";
    EXPECT_NE(with(many).find("the replay log shares out 6 mini-batches in round 1, which has 5"), std::string::npos) << with(many);
    EXPECT_EQ(this->run(replaced(text, "allocation_batches = 5", "allocation_batches = 20"), 1).digest(),
              "algorithm.allocation_batches: 20 of 600 samples have 2 mini-batches each, fewer than the 3 workers");
    std::vector<JobMistake> mistakes;
    JobConfig parsed;
    const auto mistake = [&](const std::string& more) {
        EXPECT_FALSE(job_parse(AlgosTest::text("ma", more), "job.toml", folder_, &parsed, &mistakes));
        return mistakes.empty() ? "" : mistakes[0].text;
    };
    EXPECT_NE(mistake("allocation = \"eda\"\nlocal_steps = 3\n").find("local_steps: goes with allocation = \"parts\""), std::string::npos);
    EXPECT_NE(mistake("replay = \"a\"\n").find("replay: repeats the shares of allocation = \"bsda\", not \"parts\""), std::string::npos);
    EXPECT_NE(mistake("allocation_batches = 3\n").find("goes with allocation"), std::string::npos);
}

}   // namespace
}   // namespace gradcast
