// Runs the real gradcastctl and looks at exit codes, texts and JSON.  Where the client is tested, the daemon is a FakeBackend.
#pragma once
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "runtime/control/json.h"
#include "runtime/core/clock.h"
#include "runtime/core/fd.h"
#include "tests/control/fake_backend.h"

namespace gradcast {

namespace fs = std::filesystem;

struct Outcome {
    int exit = -1;
    std::string out, err;
    Json json() const { return Json::parse(out, nullptr, false); }
    bool says(const std::string& text) const { return err.find(text) != std::string::npos; }
};

struct Ctl : testing::Test {
    std::string folder, program, socket;
    FakeBackend backend;
    std::unique_ptr<ControlServer> server;

    void SetUp() override {
        ::signal(SIGPIPE, SIG_IGN);
        const char* build = std::getenv("GRADCAST_BUILD");
        program = fs::absolute(std::string(build ? build : "build") + "/gradcastctl");
        if (::access(program.c_str(), X_OK) != 0) GTEST_SKIP() << "not built: " << program;
        folder = testing::TempDir() + "gc-ctl-XXXXXX";
        ASSERT_NE(::mkdtemp(folder.data()), nullptr);
        socket = folder + "/control.sock";
    }
    void TearDown() override {
        server.reset();
        if (!folder.empty()) fs::remove_all(folder);
    }
    void serve() {
        Status status = control_open({.socket = socket}, backend, Log(), &server);
        ASSERT_TRUE(status.ok()) << status.what;
    }
    void write(const std::string& name, const std::string& text) const { ASSERT_TRUE(file_write(folder + "/" + name, text).ok()); }
    std::string read(const std::string& name) const {
        std::string text;
        (void)file_read(folder + "/" + name, &text).ok();
        return text;
    }
    /// Starts `gradcastctl arguments` with folder as its working, state, cache and temporary folder.
    pid_t start(const std::string& arguments) const {
        // Nothing is allocated between fork and exec: another thread may hold the allocator's lock.
        const std::string command = "cd '" + folder + "' && XDG_STATE_HOME='" + folder + "/state' XDG_CACHE_HOME='" + folder +
                                    "/cache' TMPDIR='" + folder + "' exec '" + program + "' " + arguments + " >out 2>err </dev/null";
        pid_t pid = ::fork();
        if (pid != 0) return pid;
        ::signal(SIGPIPE, SIG_DFL);
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);   // with the thread that started it
        ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
        ::_exit(126);
    }
    Outcome wait(pid_t pid, uint64_t seconds = 120) const {
        int how = 0;
        for (uint64_t end = clock_us() + seconds * 1'000'000; ::waitpid(pid, &how, WNOHANG) == 0;) {
            if (clock_us() > end) {
                ADD_FAILURE() << "did not end in " << seconds << " s:\n" << read("out") << read("err");
                ::kill(pid, SIGKILL);
                ::waitpid(pid, &how, 0);
                break;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        return {WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how), read("out"), read("err")};
    }
    /// Waits until the command that runs has said `text` on stderr.
    bool shown(const std::string& text, uint64_t seconds = 60) const {
        for (const uint64_t end = clock_us() + seconds * 1'000'000; clock_us() < end;
             std::this_thread::sleep_for(std::chrono::milliseconds(5)))
            if (read("err").find(text) != std::string::npos) return true;
        return false;
    }
    Outcome run(const std::string& arguments) const { return wait(start(arguments)); }
    Outcome ask(const std::string& arguments) const { return run("--socket " + socket + " " + arguments); }
};

inline const std::string id_a = "aaaa0000000000000000000000000000";
inline const std::string good_job =
    "[job]\nname = \"tiny\"\nseed = 1\nsteps = 6\nbatch = 16\nblocks = 4\n[data]\ntrain = \"train.h5\"\ntest = \"test.h5\"\n"
    "[net]\npreset = \"lenet5\"\n[optimiser]\nkind = \"sgd\"\nlr = 0.05\n[algorithm]\nkind = \"ssgd\"\nexchange = \"ring\"\n";

inline std::string big_endian(uint32_t value) {
    return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8), static_cast<char>(value)};
}

struct CtlData : Ctl {
    /// Synthetic IDX files: class k is a bright band at rows 2k and 2k + 1.
    void idx(const std::string& prefix, uint32_t count) const {
        std::string images = big_endian(0x803) + big_endian(count) + big_endian(28) + big_endian(28),
                    labels = big_endian(0x801) + big_endian(count);
        for (uint32_t i = 0; i < count; ++i) {
            uint32_t k = i % 10;
            labels += static_cast<char>(k);
            for (uint32_t at = 0; at < 28 * 28; ++at)
                images += static_cast<char>(at / 56 == k ? 200 + (i * 31 + at * 7) % 50 : (i * 13 + at * 5) % 40);
        }
        write(prefix + "-images-idx3-ubyte", images);
        write(prefix + "-labels-idx1-ubyte", labels);
    }
    void import() const {
        idx("train", 320);
        idx("t10k", 80);
        Outcome outcome = run("import idx --from . --out .");
        ASSERT_EQ(outcome.exit, 0) << outcome.err;
        EXPECT_NE(outcome.out.find("320 samples to train on, 80 to test on"), std::string::npos) << outcome.out;
    }
    /// Neither a folder nor a process of a private cluster remains.
    void expect_nothing_remains() const {
        for (const auto& entry : fs::directory_iterator(folder))
            EXPECT_FALSE(entry.path().filename().string().starts_with("gradcast-")) << entry.path();
        for (const auto& entry : fs::directory_iterator("/proc")) {
            std::string line;
            if (!std::isdigit(entry.path().filename().string()[0]) || !file_read(entry.path() / "cmdline", &line).ok()) continue;
            EXPECT_EQ(line.find(folder), std::string::npos) << entry.path();
        }
    }
};

}   // namespace gradcast
