// Event files of TensorBoard, read back by a parser of their own (tests/job/tfevents.py).
#include "runtime/job/report/event_file.h"

#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "runtime/core/clock.h"
#include "tests/job/runs.h"

namespace gradcast {
namespace {

class EventFileTest : public RunsTest {
protected:
    /// By tag: step and value.
    using Read = std::map<std::string, std::map<uint64_t, double>>;
    void SetUp() override {
        RunsTest::SetUp();
        if (std::system("/usr/bin/python3 -c 0 2>/dev/null") != 0 || ::access("tests/job/tfevents.py", R_OK) != 0)
            GTEST_SKIP() << "tests/job/tfevents.py or python3 is missing";
    }
    static std::vector<std::string> files(const std::string& folder) {
        std::vector<std::string> all;
        for (const auto& each : std::filesystem::directory_iterator(folder))
            if (each.path().filename().string().starts_with("events.out.tfevents.")) all.push_back(each.path());
        std::sort(all.begin(), all.end());
        return all;
    }
    static Read read(const std::string& path, int code = 0) {
        FILE* pipe = ::popen(("/usr/bin/python3 tests/job/tfevents.py '" + path + "' 2>&1").c_str(), "r");
        Read all;
        std::string text;
        for (char line[512]; std::fgets(line, sizeof line, pipe);) {
            std::istringstream words(line);
            uint64_t step = 0;
            double value = 0;
            std::string tag;
            words >> step >> tag >> value;
            all[tag][step] = value;
            text += line;
        }
        EXPECT_EQ(WEXITSTATUS(::pclose(pipe)), code) << text;
        return all;
    }
    static std::map<uint64_t, nlohmann::json> lines(const std::string& folder) {
        std::map<uint64_t, nlohmann::json> all;
        std::ifstream file(folder + "/steps.jsonl");
        for (std::string line; std::getline(file, line);) {
            nlohmann::json json = nlohmann::json::parse(line);
            const auto step = json["step"].get<uint64_t>();
            all[step] = std::move(json);
        }
        return all;
    }
};

TEST_F(EventFileTest, HasEveryStepAndWhatAResumedRunAdds) {
    const std::string text = with_job(job_text(), "tensorboard = true\ncheckpoint_every = 7\ncheckpoint_keep = 100\n");
    const Run first = run(text, 2);
    ASSERT_TRUE(first.status.ok()) << first.status.what;
    for (const std::string& folder : first.folders) {
        const auto steps = lines(folder);
        ASSERT_EQ(files(folder).size(), 1u);
        Read all = read(files(folder)[0]);
        ASSERT_EQ(all["train/loss"].size(), steps.size());
        double sent = 0;
        for (const auto& [step, line] : steps) {
            EXPECT_NEAR(all["train/loss"].at(step), line["loss"].get<double>(), 1e-6);
            sent += line["bytes_sent"].get<double>();
            EXPECT_EQ(all["network/bytes_sent"].at(step), static_cast<double>(static_cast<float>(sent)));
            EXPECT_GT(all["speed/samples_per_second"].at(step), 0);
            EXPECT_EQ(all["test/accuracy"].contains(step), line.contains("accuracy"));
            if (line.contains("accuracy")) {
                EXPECT_NEAR(all["test/accuracy"].at(step), line["accuracy"].get<double>(), 1e-6);
            }
        }
        EXPECT_FALSE(all["test/loss"].empty());
        EXPECT_FALSE(all.contains("start"));
    }

    const Run second = run(text, 2, from(checkpoints(first).at(14)), {}, first.folders);
    ASSERT_TRUE(second.status.ok()) << second.status.what;
    EXPECT_EQ(second.digest(), first.digest());
    ASSERT_EQ(files(first.folders[0]).size(), 2u);
    Read more = read(files(first.folders[0])[1]);
    EXPECT_EQ(more["start"].begin()->first, 15u);
    EXPECT_EQ(more["train/loss"].begin()->first, 15u);
}

TEST_F(EventFileTest, IsNotThereUnlessItIsWanted) {
    const Run plain = run(job_text(), 1);
    ASSERT_TRUE(plain.status.ok()) << plain.status.what;
    EXPECT_TRUE(files(plain.folders[0]).empty());
}

// The clock was set back between two runs.
TEST_F(EventFileTest, ALaterFileHasALaterName) {
    for (const double seconds : {1'700'000'000.5, 1'600'000'000.0, 1'600'000'000.0, 1'800'000'000.0}) {
        EventFile file;
        ASSERT_TRUE(file.open(folder_, "a", seconds, false, Log()).ok());
    }
    std::vector<std::string> names;
    for (const auto& each : std::filesystem::directory_iterator(folder_))
        if (each.path().filename().string().starts_with(event_file_prefix)) names.push_back(each.path().filename());
    std::sort(names.begin(), names.end());
    const std::string prefix = event_file_prefix;
    EXPECT_EQ(names, (std::vector{prefix + "1700000000500.a", prefix + "1700000000501.a", prefix + "1700000000502.a",
                                  prefix + "1800000000000.a"}));
}

TEST_F(EventFileTest, ChecksumsAreOfTheBytes) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    {
        EventFile file;
        ASSERT_TRUE(file.open(folder_, "a/b", 1'700'000'000.5, false, Log()).ok());
        const Scalar scalars[] = {{"x", 0.5}, {"not a number", nan}};
        file.scalars(1'700'000'001, uint64_t{1} << 40, scalars);
        file.close();
    }
    const std::string path = folder_ + "/events.out.tfevents.1700000000500.a_b";
    EXPECT_EQ(read(path), (Read{{"x", {{uint64_t{1} << 40, 0.5}}}}));
    std::string bytes;
    ASSERT_TRUE(file_read(path, &bytes).ok());
    bytes[bytes.size() - 6] ^= 1;
    ASSERT_TRUE(file_write(path, bytes).ok());
    (void)read(path, 1);
}

// A line waits for half a second at most; where it is wanted at once, it does not.
TEST_F(EventFileTest, LinesThatAreHurriedDoNotWait) {
    const std::string path = folder_ + "/hurried";
    StepLog log;
    ASSERT_TRUE(log.open(path, true, false, Log()).ok());
    uint64_t least_us = UINT64_MAX;   // of some: the machine may be busy
    for (uint64_t lines = 1; lines <= 8; ++lines) {
        const uint64_t from_us = clock_us();
        log.add("x\n");
        log.hurry();
        while (std::filesystem::file_size(path) < 2 * lines) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        least_us = std::min(least_us, clock_us() - from_us);
    }
    EXPECT_LT(least_us, 250'000u);
}

}   // namespace
}   // namespace gradcast
