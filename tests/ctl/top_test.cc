// gradcastctl top on a pseudo-terminal, and where there is none; the line of progress on a terminal.
#include <poll.h>
#include <pty.h>
#include <termios.h>

#include "tests/ctl/ctl.h"

namespace gradcast {
namespace {

struct Top : Ctl {
    int terminal = -1;
    pid_t pid = -1;
    std::string seen;

    void TearDown() override {
        if (pid > 0) ::kill(pid, SIGKILL), ::waitpid(pid, nullptr, 0);
        if (terminal >= 0) ::close(terminal);
        Ctl::TearDown();
    }
    void begin(const char* command = "top", const char* job = nullptr) {
        winsize size{.ws_row = 24, .ws_col = 120, .ws_xpixel = 0, .ws_ypixel = 0};
        const char* const arguments[] = {program.c_str(), "--socket", socket.c_str(), command, job, nullptr};
        pid = ::forkpty(&terminal, nullptr, nullptr, &size);
        ASSERT_GE(pid, 0);
        if (pid == 0) {
            ::execv(program.c_str(), const_cast<char* const*>(arguments));
            ::_exit(126);
        }
    }
    /// Whether the terminal shows `text`, from here on.
    bool shows(const std::string& text) {
        for (const uint64_t end = clock_us() + 20'000'000; clock_us() < end;) {
            if (seen.find(text) != std::string::npos) return seen.clear(), true;
            pollfd each{terminal, POLLIN, 0};
            if (::poll(&each, 1, 1000) <= 0) continue;
            char piece[4096];
            const ssize_t got = ::read(terminal, piece, sizeof piece);
            if (got <= 0) break;   // it has ended
            seen.append(piece, static_cast<size_t>(got));
        }
        ADD_FAILURE() << "not shown: " << text << "\n" << seen;
        return false;
    }
    int ended() {
        while (shows("\x1b[?1049l")) {   // the screen is as before
            int how = 0;
            ::waitpid(std::exchange(pid, -1), &how, 0);
            return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
        }
        return -1;
    }
    void press(const char* keys) const { ASSERT_EQ(::write(terminal, keys, std::strlen(keys)), static_cast<ssize_t>(std::strlen(keys))); }
};

TEST_F(Top, IsRefreshedUntilQ) {
    JobDetail* job = backend.add(id_a, "evil\x1b[2Jname");
    job->summary.status.stragglers = {{"node-2", "compute", 9000, 1000, "look"}};
    job->summary.status.resumed = 0;
    backend.members = {{.name = "node-1", .self = true, .alive = true}, {.name = "node-2", .why = "connection refused"}};
    serve();
    begin();
    ASSERT_TRUE(shows("\x1b[?1049h"));
    EXPECT_TRUE(shows("evil?[2Jname"));
    {
        std::lock_guard lock(backend.mutex);
        job->summary.status.step = 5;
    }
    EXPECT_TRUE(shows("5/10 50%"));
    EXPECT_TRUE(shows("waits for node-2"));
    EXPECT_TRUE(shows("connection refused"));
    winsize size{.ws_row = 8, .ws_col = 40, .ws_xpixel = 0, .ws_ypixel = 0};
    ASSERT_EQ(::ioctl(terminal, TIOCSWINSZ, &size), 0);
    EXPECT_TRUE(shows("more lines"));
    server.reset();
    EXPECT_TRUE(shows("no gradcastd answers"));
    serve();
    EXPECT_TRUE(shows("q leaves"));
    press("xq");
    EXPECT_EQ(ended(), 0);
}

TEST_F(Top, EndsWithCtrlCAndTurnsPages) {
    for (int i = 0; i < 12; ++i) backend.add(fmt::format("{:032x}", i), fmt::format("job-{}", i));
    {
        std::lock_guard lock(backend.mutex);
        for (int i = 12; i < 30; ++i) {
            JobDetail job = backend.all[0];
            job.summary.name = fmt::format("job-{}", i);
            backend.all.push_back(job);
        }
    }
    serve();
    begin();
    ASSERT_TRUE(shows("job-29"));
    press("n");
    EXPECT_TRUE(shows("job-4 "));
    EXPECT_TRUE(shows("page 2 of 2"));
    press("p");
    EXPECT_TRUE(shows("job-29"));
    press("\x03");
    EXPECT_EQ(ended(), 0);
}

TEST_F(Top, PrintsOnceWhereThereIsNoTerminal) {
    EXPECT_EQ(ask("top").exit, 3);
    backend.finish(backend.add(id_a, "first"), JobState::failed, "node b went away");
    serve();
    Outcome outcome = ask("top");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    for (const char* word : {"aaaa0000", "first", "failed", "1/10 10%", "node b went away", "jobs: 1 failed"})
        EXPECT_NE(outcome.out.find(word), std::string::npos) << outcome.out;
    EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos);
    outcome = ask("top -o json");
    EXPECT_EQ(outcome.json()["jobs"][0]["error"], "node b went away");
    EXPECT_EQ(ask("top --state done -o json").json()["jobs"].size(), 0u);
    EXPECT_EQ(ask("top --state lost").exit, 2);
}

TEST_F(Top, ALongEvaluationIsSeen) {
    JobStatus& status = backend.add(id_a, "first")->summary.status;
    serve();
    begin("watch", "first");
    EXPECT_TRUE(shows("step "));
    for (const double share : {0.3, 0.6}) {
        {
            std::lock_guard lock(backend.mutex);
            status.evaluating = share;
        }
        EXPECT_TRUE(shows(fmt::format("evaluating {:.0f}%", share * 100)));
    }
    {
        std::lock_guard lock(backend.mutex);
        status.evaluating = -1;
    }
    EXPECT_TRUE(shows("] step "));
}

}   // namespace
}   // namespace gradcast
