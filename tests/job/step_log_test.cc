// steps.jsonl: its lines are on the disk before a checkpoint of their steps has its name, and a gap in them is named.
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "runtime/core/clock.h"
#include "runtime/job/audit/audit.h"
#include "runtime/job/report/step_lines.h"
#include "runtime/job/report/step_log.h"
#include "tests/job/runs.h"

namespace {

std::atomic<uint32_t> log_syncs{0}, syncs_before_name{0};   // of steps.jsonl; of these, while no checkpoint had its name
std::atomic<bool> held = false;                             // no file reaches the disk

}   // namespace

/// Takes the place of libc's.
extern "C" int fdatasync(int fd) {
    while (held) ::usleep(1000);
    char path[4096] = "";
    if (::readlink(fmt::format("/proc/self/fd/{}", fd).c_str(), path, sizeof path - 1) > 0) {
        const std::filesystem::path file = path;
        if (file.filename() == "steps.jsonl") {
            ++log_syncs;
            if (gradcast::checkpoints_in(file.parent_path()).empty()) ++syncs_before_name;
        }
    }
    return static_cast<int>(::syscall(SYS_fdatasync, fd));
}

namespace gradcast {
namespace {

struct StepLogTest : RunsTest {
    static std::string text_of(const std::string& path) {
        std::string text;
        EXPECT_TRUE(file_read(path, &text).ok());
        return text;
    }
    /// In a folder that is there.
    std::string log_path() {
        const std::string folder = config(job_text()).folder;
        EXPECT_TRUE(make_directories(folder).ok());
        return folder + "/steps.jsonl";
    }
    /// steps.jsonl keeps so many lines.
    static void cut(const std::string& folder, size_t lines) {
        std::string text = text_of(folder + "/steps.jsonl");
        size_t at = 0;
        while (lines-- > 0) at = text.find('\n', at) + 1;
        ASSERT_TRUE(file_write(folder + "/steps.jsonl", text.substr(0, at)).ok());
    }
};

TEST_F(StepLogTest, LinesAreOnTheDiskBeforeACheckpointHasItsName) {
    EngineConfig c = config(with_job(job_text(), "checkpoint_every = 14\n"));
    c.lanes = 1;
    std::unique_ptr<Engine> engine;
    ASSERT_TRUE(Engine::open(c, Log(), &engine).ok());
    OneRank host;
    host.swallow = 15;
    log_syncs = syncs_before_name = 0;
    std::thread trainer([&] { (void)engine->run(host).ok(); });
    for (const uint64_t end = clock_us() + 15'000'000; clock_us() < end && checkpoints_in(c.folder).empty();) std::this_thread::yield();
    engine->cancel("enough");
    trainer.join();
    EXPECT_EQ(log_syncs, 1u);
    EXPECT_EQ(syncs_before_name, 1u);
}

TEST_F(StepLogTest, SyncEndsAtItsDeadline) {
    const std::string path = log_path();
    StepLog log;
    ASSERT_TRUE(log.open(path, true, false, Log()).ok());
    log.add("{}\n");
    held = true;
    const Status status = log.sync(2'000);
    held = false;
    EXPECT_EQ(status.code, Code::deadline);
    EXPECT_EQ(std::string(status.what), path + " is not on the disk after 2 ms");
    EXPECT_TRUE(log.sync(60'000'000).ok());
    EXPECT_EQ(text_of(path), "{}\n");
}

TEST_F(StepLogTest, ANodeThatTakesAnothersStateNamesTheStepsThatItHasNotRecorded) {
    const Run first = run(with_job(job_text(), "checkpoint_every = 10\ncheckpoint_keep = 100\n"), 2);
    ASSERT_TRUE(first.status.ok()) << first.status.what;
    const std::string taken = checkpoints(first).at(30);
    cut(first.folders[0], 14);   // as after kill -9
    cut(first.folders[1], 40);
    const Rank holder = taken.starts_with(first.folders[1]) ? 1 : 0;
    ASSERT_EQ(holder, 1u);   // its turn is the third checkpoint
    const Run second = run(job_text(), 3, from(taken, holder), {}, {first.folders[0], first.folders[1]});
    ASSERT_TRUE(second.status.ok()) << second.status.what;
    EXPECT_EQ(second.digest(), first.digest());
    const std::string name = config(job_text(), 3, 0).roster[1].name;
    const std::string gap = fmt::format("{{\"gap\":[15,30],\"logged_by\":\"{}\"}}\n", name);
    const std::string lines = text_of(second.folders[0] + "/steps.jsonl");
    EXPECT_NE(lines.find("\n" + gap + "{\"step\":31,"), std::string::npos) << lines;
    EXPECT_EQ(text_of(second.folders[1] + "/steps.jsonl").find("gap"), std::string::npos);
    EXPECT_TRUE(text_of(second.folders[2] + "/steps.jsonl").starts_with(fmt::format("{{\"gap\":[1,30],\"logged_by\":\"{}\"}}\n", name)));
    AuditFolder folder;
    ASSERT_TRUE(audit_read(second.folders[0], "", &folder).ok());
    EXPECT_EQ(folder.notes, std::vector{fmt::format("steps.jsonl has no lines of steps 15..30: node {} logged them", name)});
    // The next run keeps the line, and has it no second time.
    const Run third = run(job_text(), 2, from(taken, holder), {}, {second.folders[0], second.folders[1]});
    ASSERT_TRUE(third.status.ok()) << third.status.what;
    const std::string again = text_of(third.folders[0] + "/steps.jsonl");
    EXPECT_EQ(again.find(gap), lines.find(gap));
    EXPECT_EQ(again.find("gap", again.find(gap) + gap.size()), std::string::npos);
}

TEST_F(StepLogTest, GapLinesAreChecked) {
    StepGap gap;
    ASSERT_TRUE(step_gap_parse(R"({"gap":[3,5],"logged_by":"b"})", &gap));
    EXPECT_EQ(gap.first, 3u);
    EXPECT_EQ(gap.last, 5u);
    EXPECT_EQ(gap.logged_by, "b");
    EXPECT_EQ(step_gap_text(gap), "steps.jsonl has no lines of steps 3..5: node b logged them");
    EXPECT_EQ(step_gap_line({7, 7, ""}), "{\"gap\":[7,7]}\n");
    EXPECT_EQ(step_gap_text({7, 7, ""}), "steps.jsonl has no lines of step 7");
    for (const char* wrong :
         {"", "{\"gap\":", "{\"gap\":[0,5]}", "{\"gap\":[5,3]}", "{\"gap\":[3,5]", "{\"gap\":[-3,5]}", "{\"gap\":[3,99999999999]}"})
        EXPECT_FALSE(step_gap_parse(wrong, &gap)) << wrong;
    const std::string path = log_path();
    const std::string step = R"({"step":6,"epoch":1,"loss":1.5,"digest":"0123456789abcdef"})";
    StepLines lines;
    StepLine line;
    bool got = false;
    ASSERT_TRUE(file_write(path, step_gap_line({1, 5, "b"}) + step + "\n" + step_gap_line({6, 7, "b"})).ok());
    ASSERT_TRUE(lines.open(path).ok());
    ASSERT_TRUE(lines.next(&line, &got).ok() && got);
    EXPECT_EQ(line.step, 6u);
    EXPECT_EQ(lines.gap().last, 5u);
    EXPECT_EQ(lines.next(&line, &got).what, path + ": line 3 is of step 6, the one before of step 6");
}

}   // namespace
}   // namespace gradcast
