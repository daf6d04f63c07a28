// The folder of an archive of make dist (BUILD/dist/gradcast-VERSION-x86_64), copied to a path with a space, and its programs run as a user
// of another machine would: another user, an empty environment.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "datasets/shard.h"
#include "runtime/core/version.h"
#include "tests/daemon/processes.h"

namespace gradcast {

namespace fs = std::filesystem;

struct Outcome {
    int exit = -1;
    std::string out, err;
    bool says(const std::string& text) const { return err.find(text) != std::string::npos; }
    /// Of the line "digest …"; empty: there is none.
    std::string digest() const {
        const size_t at = out.find("digest ");
        return at == std::string::npos ? "" : out.substr(at + 7, 64);
    }
};

/// From now on io_uring_setup(2) fails with `error` in this process and what it starts.  May be called between fork and exec.
inline bool io_uring_refuse(int error) {
    sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter{std::size(code), code};
    return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

struct Options {
    std::vector<std::string> environment = {};
    std::function<bool()> before = nullptr;   // in the new process
};

struct SystemDist : testing::Test {
    static constexpr uid_t nobody = 54'321;   // no entry in /etc/passwd
    static inline std::string base, root;     // a folder of these tests, and the archive's in it
    std::string work;                         // where the programs may write

    static void SetUpTestSuite() {
        const fs::path made = fmt::format("{}/dist/gradcast-{}-x86_64", program(""), version_text);
        ASSERT_TRUE(fs::exists(made / "bin/gradcastctl")) << made << ": make build/dist.made";
        base = testing::TempDir() + "gc-dist-XXXXXX";
        ASSERT_NE(::mkdtemp(base.data()), nullptr);
        ::chmod(base.c_str(), 0755);
        root = base + "/a folder/gradcast";
        fs::create_directories(root);
        fs::copy(made, root, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
        root = fs::canonical(root);
    }
    static void TearDownTestSuite() {
        if (!base.empty()) fs::remove_all(base);
    }
    void SetUp() override {
        ASSERT_FALSE(root.empty()) << "no archive to test";
        work = base + "/work-XXXXXX";
        ASSERT_NE(::mkdtemp(work.data()), nullptr);
        if (::getuid() == 0 && ::chown(work.c_str(), nobody, nobody) != 0) FAIL() << work;
    }

    /// Starts the program with `work` as its working folder, as another user where this one is root.  Its output is in work/out and
    /// work/err.
    pid_t start(const std::string& path, const std::vector<std::string>& arguments, const Options& options = {}) const {
        std::vector<std::string> words = {path};
        words.insert(words.end(), arguments.begin(), arguments.end());
        std::vector<char*> argv, envp;
        for (std::string& word : words) argv.push_back(word.data());
        for (const std::string& each : options.environment) envp.push_back(const_cast<char*>(each.c_str()));
        argv.push_back(nullptr), envp.push_back(nullptr);
        const std::string out = work + "/out", err = work + "/err";
        const pid_t pid = ::fork();
        if (pid != 0) return pid;
        if (::chdir(work.c_str()) != 0) ::_exit(126);
        ::dup2(::open("/dev/null", O_RDONLY), 0);
        ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 1);
        ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 2);
        if (::getuid() == 0 && (::setgid(nobody) != 0 || ::setuid(nobody) != 0)) ::_exit(126);
        if (options.before && !options.before()) ::_exit(125);
        ::execve(argv[0], argv.data(), envp.data());
        ::_exit(127);
    }
    Outcome wait(pid_t pid) const {
        int how = 0;
        for (uint64_t end = clock_us() + 120'000'000; ::waitpid(pid, &how, WNOHANG) == 0; ::usleep(5000)) {
            if (clock_us() < end) continue;
            ADD_FAILURE() << "did not end within 120 s";
            ::kill(pid, SIGKILL);
            ::waitpid(pid, &how, 0);
            break;
        }
        Outcome outcome{WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how), {}, {}};
        (void)file_read(work + "/out", &outcome.out).ok();
        (void)file_read(work + "/err", &outcome.err).ok();
        return outcome;
    }
    Outcome run(const std::string& path, const std::vector<std::string>& arguments, const Options& options = {}) const {
        return wait(start(path, arguments, options));
    }

    /// Writes a job of `steps` steps over images of noise to work/job.toml.
    void job(uint32_t steps = 6) const {
        constexpr uint32_t count = 64, pixels = 28 * 28;
        std::vector<uint8_t> images(count * pixels);
        std::vector<int32_t> labels(count);
        for (uint32_t i = 0; i < count * pixels; ++i) images[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
        for (uint32_t i = 0; i < count; ++i) labels[i] = static_cast<int32_t>(i % 10);
        const std::vector<float> mean(1, 0.4f), std(1, 0.3f);
        ASSERT_TRUE(shard_write(work + "/train.h5", {count, 1, 28, 28, 10, mean, std, "noise"}, images.data(), labels.data()).ok());
        ASSERT_TRUE(file_write(work + "/job.toml", fmt::format("[job]\nseed = 3\nsteps = {}\nbatch = 16\nblocks = 4\n[data]\ntrain = "
                                                               "\"train.h5\"\ntest = \"train.h5\"\n[net]\npreset = \"lenet5\"\n"
                                                               "[optimiser]\nlr = 0.01\n",
                                                               steps))
                        .ok());
        for (const char* name : {"/train.h5", "/job.toml"}) ::chmod((work + name).c_str(), 0644);
    }
    /// The digest of that job with the programs of the build.
    std::string digest_of_the_build() const {
        const Outcome outcome = run(fs::absolute(program("gradcastctl")), {"run", "job.toml", "--local", "1"});
        EXPECT_EQ(outcome.exit, 0) << outcome.err;
        EXPECT_EQ(outcome.digest().size(), 64u);
        return outcome.digest();
    }
    /// A file of /proc.
    static std::string proc(pid_t pid, const char* name) {
        std::string text;
        (void)file_read(fmt::format("/proc/{}/{}", pid, name), &text).ok();
        return text;
    }
    static std::string bin(const char* name) { return root + "/bin/" + name; }
};

}   // namespace gradcast
