// The Python package: its tests, those of client_test.py against two daemons and those of attach_test.py and attach_torch_test.py against
// one that is written in Python; and the wheel that make wheel builds.
#include "datasets/shard.h"
#include "runtime/core/digest.h"
#include "runtime/core/version.h"
#include "tests/daemon/processes.h"

namespace gradcast {
namespace {

namespace fs = std::filesystem;

constexpr const char* python = "/usr/bin/python3";

/// Runs a shell command; its output is in `log`.
bool shell(const std::string& command, const std::string& log) {
    return std::system(fmt::format("{} >'{}' 2>&1", command, log).c_str()) == 0;
}

std::string text(const std::string& path) {
    std::string found;
    EXPECT_TRUE(file_read(path, &found).ok()) << path;
    return found;
}

struct SystemPython : testing::Test {
    Cluster cluster{2};
    void SetUp() override {
        if (::access(python, X_OK) != 0) GTEST_SKIP() << "python3 is missing";
        ASSERT_TRUE(fs::exists("tests/python/client_test.py")) << "run it in the folder of the sources";
    }
    std::string log() const { return cluster.folder + "/log"; }
    bool has(const char* module) { return shell(fmt::format("{} -c 'import {}'", python, module), log()); }
    /// The classes of client_test.py that have these names.
    void run(const std::string& classes) {
        constexpr uint32_t count = 60, pixels = 28 * 28;
        std::vector<uint8_t> images(count * pixels);
        std::vector<int32_t> labels(count);
        for (uint32_t i = 0; i < count * pixels; ++i) images[i] = static_cast<uint8_t>(splitmix64(i));
        for (uint32_t i = 0; i < count; ++i) labels[i] = static_cast<int32_t>(i % 10);
        const std::vector<float> mean(1, 0.4f), std(1, 0.3f);
        ASSERT_TRUE(
            shard_write(cluster.folder + "/data.h5", {count, 1, 28, 28, 10, mean, std, "noise"}, images.data(), labels.data()).ok());
        ASSERT_NO_FATAL_FAILURE(cluster.up());
        EXPECT_TRUE(shell(fmt::format("GC_SOCKET='{}' GC_FOLDER='{}' timeout 200 {} tests/python/client_test.py {}", cluster[0].socket,
                                      cluster.folder, python, classes),
                          log()))
            << text(log());
    }
    /// Classes of a file of tests of gradcast.attach, which starts processes but no daemon.
    void run_attach(const char* file, const std::string& classes) {
        EXPECT_TRUE(shell(fmt::format("timeout 900 {} -B tests/python/{} {}", python, file, classes), log())) << text(log());
    }
};

TEST_F(SystemPython, ClientAndFiles) { run("Daemon Answers Files"); }

TEST_F(SystemPython, Arrays) {
    if (!has("numpy")) GTEST_SKIP() << "python3-numpy is missing";
    run("Arrays");
}

TEST_F(SystemPython, AttachesNetsInNumpy) {
    if (!has("numpy")) GTEST_SKIP() << "python3-numpy is missing";
    run_attach("attach_test.py", "Nets Outside TheFakeDaemon");
}

TEST_F(SystemPython, AttachedProcessesEnd) {
    if (!has("numpy")) GTEST_SKIP() << "python3-numpy is missing";
    run_attach("attach_test.py", "Ends");
}

TEST_F(SystemPython, AttachesNetsInTorch) {
    if (!has("torch")) GTEST_SKIP() << "python3-torch is missing";
    run_attach("attach_torch_test.py", "Torch Refused");
}

TEST_F(SystemPython, ExamplesInTorch) {
    for (const char* module : {"torch", "h5py"})
        if (!has(module)) GTEST_SKIP() << "python3-" << module << " is missing";
    run_attach("attach_torch_test.py", "Examples");
}

TEST_F(SystemPython, TheWheelHasThePackage) {
    for (const char* module : {"pip", "setuptools", "wheel"})
        if (!has(module)) GTEST_SKIP() << "python3-" << module << " is missing (make deps-python)";
    const std::string build = cluster.folder + "/build";
    ASSERT_TRUE(shell(fmt::format("env -u MAKEFLAGS -u MAKELEVEL make --no-print-directory BUILD='{}' wheel-built", build), log()))
        << text(log());
    const std::string wheel = fmt::format("{}/gradcast-{}-py3-none-any.whl", build, version_text);
    ASSERT_TRUE(fs::exists(wheel)) << text(log());
    // As a user would: into a folder of its own, without the network.
    ASSERT_TRUE(shell(fmt::format("{0} -m pip install -q --no-index --no-deps --target '{1}/at' '{2}'", python, build, wheel), log()))
        << text(log());
    EXPECT_TRUE(shell(
        fmt::format("cd / && PYTHONPATH='{}/at' {} -c 'import gradcast; print(gradcast.__version__, gradcast.Client)'", build, python),
        log()));
    EXPECT_NE(text(log()).find(version_text), std::string::npos) << text(log());
    EXPECT_TRUE(fs::exists(build + "/at/gradcast/py.typed"));
}

}   // namespace
}   // namespace gradcast
