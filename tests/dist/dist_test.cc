// The archive runs where it is: by any path, as any user, with any environment, with io_uring or without.  `run` does the same on other
// systems.
#include <csignal>
#include <fstream>
#include <regex>
#include <set>

#include "runtime/job/run/cuda_libraries.h"
#include "tests/dist/archive.h"

namespace gradcast {
namespace {

constexpr const char* programs[] = {"gradcastctl", "gradcastd", "gradcast-bench"};

size_t lines(const std::string& text) { return static_cast<size_t>(std::count(text.begin(), text.end(), '\n')); }

TEST_F(SystemDist, AnswersWithAnEmptyEnvironment) {
    for (const char* name : programs) {
        const Outcome outcome = run(bin(name), {"--version"});
        EXPECT_EQ(outcome.exit, 0) << name << ": " << outcome.err;
        EXPECT_NE(outcome.out.find(version_text), std::string::npos) << outcome.out;
        EXPECT_EQ(outcome.err, "");
    }
    const Outcome wrong = run(bin("gradcastctl"), {"no-such-command"});
    EXPECT_EQ(wrong.exit, 2) << "the exit code is the program's";
}

TEST_F(SystemDist, TrainsToTheDigestOfTheBuild) {
    job();
    const std::string expected = digest_of_the_build();
    const Outcome outcome = run(bin("gradcastctl"), {"run", "job.toml", "--local", "2"});
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.digest(), expected);
}

TEST_F(SystemDist, TrainsWhereIoUringIsRefused) {
    job();
    const std::string expected = digest_of_the_build();
    for (const int error : {ENOSYS, EPERM}) {   // of an old kernel, and of the filters of containers
        const Outcome outcome =
            run(bin("gradcastctl"), {"run", "job.toml", "--local", "2"},
                {.before = [error] { return io_uring_refuse(error) && ::syscall(SYS_io_uring_setup, 1, nullptr) < 0 && errno == error; }});
        EXPECT_EQ(outcome.exit, 0) << outcome.err;
        EXPECT_EQ(outcome.digest(), expected) << std::strerror(error);
    }
}

TEST_F(SystemDist, TrainsWithAnyLocaleAndTimeZone) {
    job();
    const std::string expected = digest_of_the_build();
    const Outcome outcome = run(bin("gradcastctl"), {"run", "job.toml", "--local", "1"},
                                {.environment = {"LC_ALL=tr_TR.UTF-8", "LANG=de_DE", "LANGUAGE=xx", "TZ=:/no/such/zone", "PATH="}});
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.digest(), expected);
}

TEST_F(SystemDist, IsFoundThroughLinks) {
    fs::create_symlink(bin("gradcastctl"), work + "/gc");
    fs::create_directory_symlink(root, work + "/current");
    const Outcome renamed = run(work + "/gc", {"--version"}), linked = run(work + "/current/bin/gradcastd", {"--config", "/none"});
    EXPECT_EQ(renamed.exit, 0) << renamed.err;
    EXPECT_EQ(linked.exit, 1);
    EXPECT_TRUE(linked.says(root + "/share/doc/gradcast/gradcastd.toml")) << "its own pages: " << linked.err;
}

// The loader would search folders that are none, and might load what lies there.
TEST_F(SystemDist, APathThatTheLoaderSplitsIsRefused) {
    for (const char* name : {"a:b", "a;b", "a$ORIGIN"}) {
        const std::string moved = base + "/" + name;
        fs::rename(root, moved);
        const Outcome outcome = run(moved + "/bin/gradcastctl", {"--version"});
        fs::rename(moved, root);
        EXPECT_EQ(outcome.exit, 1);
        EXPECT_EQ(lines(outcome.err), 1u) << outcome.err;
        EXPECT_TRUE(outcome.says(moved) && outcome.says("move the archive")) << outcome.err;
    }
    EXPECT_EQ(run(bin("gradcastctl"), {"--version"}).exit, 0) << "moved back";
}

TEST_F(SystemDist, WhatIsMissingIsNamed) {
    fs::copy(bin("gradcastd"), work + "/gradcastd");
    const Outcome alone = run(work + "/gradcastd", {"--version"});
    EXPECT_EQ(alone.exit, 1);
    EXPECT_TRUE(alone.says("unpack the archive whole")) << alone.err;
    for (const char* name : {"/lib/ld-linux-x86-64.so.2", "/libexec/gradcastd"}) {
        fs::rename(root + name, root + "/aside");
        const Outcome outcome = run(bin("gradcastd"), {"--version"});
        fs::rename(root + "/aside", root + name);
        EXPECT_NE(outcome.exit, 0) << name;
        EXPECT_EQ(lines(outcome.err), 1u) << outcome.err;
        EXPECT_TRUE(outcome.says(fs::path(name).filename().string())) << outcome.err;
    }
}

TEST_F(SystemDist, TheUsersLibrariesComeBehindItsOwn) {
    std::ofstream(work + "/libfmt.so.9") << "of the user, and broken";
    const Outcome outcome = run(bin("gradcastctl"), {"--version"}, {.environment = {"LD_LIBRARY_PATH=" + work, "LD_DEBUG=libs"}});
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    const std::regex order("search path=([^\n]*:)?" + root + "/lib:([^\n]*:)?" + work + "[:/ \t]");
    EXPECT_TRUE(std::regex_search(outcome.err, order)) << outcome.err.substr(0, 2000);
}

// Of the two daemons that a client starts: who they are for ps, what they inherit, what they have loaded.
TEST_F(SystemDist, DaemonsAreThoseOfTheArchive) {
    job(1'000'000);
    const std::string users = "LD_LIBRARY_PATH=/users/own";
    const pid_t client = start(bin("gradcastctl"), {"run", "job.toml", "--local", "2"}, {.environment = {users}});
    std::set<pid_t> daemons;
    EXPECT_TRUE(eventually([&] {
        daemons.clear();
        std::istringstream children(proc(client, fmt::format("task/{}/children", client).c_str()));
        for (pid_t each; children >> each;) daemons.insert(each);
        std::string progress;
        return daemons.size() == 2 && file_read(work + "/err", &progress).ok() && progress.find("step") != std::string::npos;
    }));
    EXPECT_EQ(proc(client, "comm"), "gradcastctl\n");
    for (const pid_t each : daemons) {
        EXPECT_EQ(proc(each, "comm"), "gradcastd\n");
        EXPECT_EQ(proc(each, "cmdline").c_str(), bin("gradcastd"));
        std::string environment = proc(each, "environ"), with_ld;
        for (size_t at = 0; at < environment.size(); at = environment.find('\0', at) + 1)
            if (std::string(environment.c_str() + at).starts_with("LD_")) with_ld += environment.c_str() + at;
        EXPECT_EQ(with_ld, users);
        std::istringstream maps(proc(each, "maps"));
        size_t libraries = 0;
        for (std::string line; std::getline(maps, line);) {
            if (line.find(".so") == std::string::npos) continue;
            ++libraries;
            EXPECT_NE(line.find(root + "/lib/"), std::string::npos) << line;
        }
        EXPECT_GT(libraries, 20u);
    }
    ::kill(client, SIGINT);
    EXPECT_EQ(wait(client).exit, 1);
}

/// While it lives, tests/daemon takes the archive's programs.
struct ProgramsOfTheArchive {
    std::string before = std::getenv("GRADCAST_BUILD") ? std::getenv("GRADCAST_BUILD") : "build";
    explicit ProgramsOfTheArchive(const std::string& bin) { ::setenv("GRADCAST_BUILD", bin.c_str(), 1); }
    ~ProgramsOfTheArchive() { ::setenv("GRADCAST_BUILD", before.c_str(), 1); }
};

// gradcastd finds gradcast-bench.
TEST_F(SystemDist, DaemonsStartTheBenchmark) {
    const ProgramsOfTheArchive programs_of_it(root + "/bin");
    Cluster cluster(2);
    cluster.up();
    Submission submission;
    submission.bench = true;
    submission.base = "/";
    submission.text = "allreduce\n--size\n4K\n--repeat\n2";
    submission.nodes = {"a", "b"};
    Json answer;
    EXPECT_TRUE(eventually([&] { return (answer = cluster[0].post("/v1/jobs", Json(submission))).contains("id"); })) << answer;
    const JobStatus status = cluster[0].ended(answer.value("id", ""));
    EXPECT_EQ(status.state, JobState::done) << status.error;
}

// libgradcast_cuda.so is in the archive, cuDNN and cuBLAS are the user's: here a module and libraries without content.
TEST_F(SystemDist, TheUsersCudaIsFoundOrNamed) {
    const fs::path named = fs::absolute(program("tests/cuda-named")), module = root + "/lib/libgradcast_cuda.so";
    const bool built = fs::exists(module);
    if (built) fs::rename(module, root + "/aside");
    fs::copy(named / "libgradcast_cuda.so", module);
    job();
    const std::vector<std::string> on_gpu = {"run", "job.toml", "--local", "1", "--set", "net.device=cuda"};
    const Outcome without = run(bin("gradcastctl"), on_gpu);
    const Outcome with = run(bin("gradcastctl"), on_gpu, {.environment = {"LD_LIBRARY_PATH=" + (named / "host").string()}});
    Json doctor;
    {
        const ProgramsOfTheArchive programs_of_it(root + "/bin");
        Cluster cluster(1);
        cluster.up();
        doctor = cluster[0].get("/v1/doctor");
    }
    fs::remove(module);
    if (built) fs::rename(root + "/aside", module);
    EXPECT_EQ(without.exit, 1);
    EXPECT_TRUE(without.says("libcudnn-named.so.9 and libcublas-named.so.13 are neither in LD_LIBRARY_PATH")) << without.err;
    EXPECT_EQ(with.exit, 1);
    EXPECT_TRUE(with.says("libgradcast_cuda.so is of version ?")) << "all libraries were found: " << with.err;
    const std::string text = doctor.dump();
    EXPECT_EQ(text.find("libcuda.so.1 is not found: install the driver") == std::string::npos, !cuda_driver_open().empty()) << text;
    EXPECT_NE(text.find("libcublas-named.so.13 are neither"), std::string::npos) << text;
}

TEST_F(SystemDist, HasWhatItsFirstPageSays) {
    std::string page;
    ASSERT_TRUE(file_read(root + "/README.md", &page).ok());
    EXPECT_NE(page.find(version_text), std::string::npos);
    static const std::regex link(R"(\]\(([^)]+)\))"), folder(R"(\n\| ([a-z]+)/)");
    size_t found = 0;
    for (const std::regex& each : {link, folder})
        for (std::sregex_iterator at(page.begin(), page.end(), each), end; at != end; ++at, ++found)
            EXPECT_TRUE(fs::exists(root + "/" + (*at)[1].str())) << (*at)[1];
    EXPECT_GT(found, 5u);
    for (const char* name : {"jobs/ssgd.toml", "share/man/man1/gradcastctl.1", "share/man/man8/gradcastd.8", "LICENSE",
                             "share/bash-completion/completions/gradcastctl", "bin/gradcast-lab"})
        EXPECT_TRUE(fs::exists(root + "/" + name)) << name;
}

TEST_F(SystemDist, EachLibraryHasItsLicence) {
    std::string list;
    ASSERT_TRUE(file_read(root + "/share/doc/gradcast/libraries/README", &list).ok());
    size_t count = 0;
    for (const auto& entry : fs::directory_iterator(root + "/lib")) {
        const std::string name = entry.path().filename();
        if (!entry.is_regular_file() || name.starts_with("libgradcast_")) continue;
        ++count;
        EXPECT_NE(list.find("\n" + name + " "), std::string::npos) << name;
    }
    EXPECT_GT(count, 20u);
    EXPECT_TRUE(fs::exists(root + "/share/doc/gradcast/libraries/libc6.copyright"));
}

TEST_F(SystemDist, ThePackageForPythonIsInIt) {
    if (::access("/usr/bin/python3", X_OK) != 0) GTEST_SKIP() << "python3 is missing";
    const Outcome outcome = run("/usr/bin/python3", {"-c", "import gradcast; print(gradcast.__version__, gradcast.__file__)"},
                                {.environment = {"PYTHONPATH=" + root + "/python"}});
    EXPECT_EQ(outcome.out, fmt::format("{} {}/python/gradcast/__init__.py\n", version_text, root)) << outcome.err;
}

// What the quick start of the first page says.
TEST_F(SystemDist, TheFirstPagesCommandsWork) {
    EXPECT_EQ(run(bin("gradcastctl"), {"import", "ridge", "--samples", "600", "--out", "ridge"}).exit, 0);
    fs::copy(root + "/jobs/dane-ridge.toml", work);
    const Outcome outcome = run(bin("gradcastctl"), {"run", "dane-ridge.toml", "--local", "2", "--set", "job.steps=3"});
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.digest().size(), 64u);
}

}   // namespace
}   // namespace gradcast
