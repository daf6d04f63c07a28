// Jobs that begin with data which this machine has verified before.
#include <cinttypes>

#include "datasets/reader.h"
#include "datasets/verified.h"
#include "runtime/job/model/model_evaluate.h"
#include "runtime/job/run/job_check.h"
#include "tests/job/jobs.h"

namespace gradcast {
namespace {

class VerifiedData : public EngineTest {
protected:
    static constexpr uint64_t bytes = 40'000 * 64;   // of train.h5
    void SetUp() override {
        EngineTest::SetUp();
        write("train.h5", 40'000, 0);
    }
    /// Records the data as verified.  A job of now may leave them out, because their files are too young.
    void verify_later() const {
        for (const char* name : {"/train.h5", "/test.h5"}) {
            std::unique_ptr<DataSet> data;
            ASSERT_TRUE(data_open(folder_ + name, &data).ok());
            ASSERT_TRUE(data_verify_once(*data, record(), nullptr, [] { return unix_ns() + 60 * uint64_t{1'000'000'000}; }).ok());
        }
    }
    std::string record() const { return folder_ + "/verified"; }
    size_t recorded() const {
        std::ifstream in(record());
        size_t lines = 0;
        for (std::string line; std::getline(in, line);) ++lines;
        return lines;
    }
    /// Bytes that `work` reads.
    template <typename Work>
    static uint64_t read_by(Work work) {
        auto now = [] {
            std::string text;
            uint64_t count = 0;
            EXPECT_TRUE(file_read("/proc/self/io", &text).ok());
            EXPECT_EQ(std::sscanf(text.c_str(), "rchar: %" SCNu64, &count), 1) << text;
            return count;
        };
        const uint64_t before = now();
        const Status status = work();
        EXPECT_TRUE(status.ok()) << status.what;
        return now() - before;
    }
    Status open(const std::string& path) {
        EngineConfig c = config(job_text());
        c.verified = path;
        std::unique_ptr<Engine> engine;
        return Engine::open(c, Log(), &engine);
    }
    void damage() {
        std::fstream file(folder_ + "/train.h5", std::ios::binary | std::ios::in | std::ios::out);
        file.seekp(bytes / 2);
        file.put('\x7f');
        file.put('\x7e');
        ASSERT_TRUE(file.good());
    }
};

TEST_F(VerifiedData, IsReadForTheFirstJobAlone) {
    EXPECT_GE(read_by([&] { return open(record()); }), bytes);
    verify_later();
    EXPECT_EQ(recorded(), 3u);   // a first line, train.h5, test.h5
    EXPECT_LT(read_by([&] { return open(record()); }), bytes / 2);
    EXPECT_GE(read_by([&] { return open(""); }), bytes);   // as `verify` does
    damage();
    const Status status = open(record());
    EXPECT_NE(std::string(status.what).find("train.h5: data set images"), std::string::npos) << status.what;
}

TEST_F(VerifiedData, IsNotReadForACheck) {
    JobConfig job;
    std::vector<JobMistake> mistakes;
    ASSERT_TRUE(job_parse(job_text(), "job.toml", folder_, &job, &mistakes));
    JobCheck check;
    auto checked = [&] { return job_check(job, "job.toml", {.verified = record()}, &check); };
    EXPECT_GE(read_by(checked), bytes);
    verify_later();
    EXPECT_LT(read_by(checked), bytes / 2);
    damage();
    EXPECT_NE(std::string(checked().what).find("train.h5: data set images"), std::string::npos);
}

TEST_F(VerifiedData, IsReadOnceByAnEvaluation) {
    JobStatus status;
    std::string path;
    ASSERT_TRUE(run_one(replaced(job_text(), "epochs = 2", "steps = 2"), 1, &status, &path).ok());
    Evaluation evaluation;
    auto evaluate = [&](const std::string& to) { return model_evaluate(path, folder_ + "/train.h5", 1, &evaluation, 0, to); };
    EXPECT_GE(read_by([&] { return evaluate(record()); }), 2 * bytes);   // once to verify, once to compute
    verify_later();
    EXPECT_LT(read_by([&] { return evaluate(record()); }), 2 * bytes);
    EXPECT_EQ(evaluation.count, 40'000u);
    damage();
    EXPECT_NE(std::string(evaluate(record()).what).find("train.h5: data set images"), std::string::npos);
}

}   // namespace
}   // namespace gradcast
