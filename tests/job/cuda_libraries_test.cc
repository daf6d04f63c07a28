// Where the libraries of CUDA are searched, by libraries without content with names like theirs (tools/mk/tests.mk).
#include "runtime/job/run/cuda_libraries.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

namespace gradcast {
namespace {

namespace fs = std::filesystem;

struct CudaLibraries : testing::Test {
    fs::path parts = fs::path(std::getenv("GRADCAST_BUILD") ? std::getenv("GRADCAST_BUILD") : "build") / "tests/cuda-named";
    std::string module = parts / "libgradcast_cuda.so", folder = testing::TempDir() + "gc-cuda-XXXXXX";
    void SetUp() override {
        ASSERT_TRUE(fs::exists(module)) << "make " << module;
        ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    }
    void TearDown() override { fs::remove_all(folder); }
    /// A library that is opened stays so: each check has a process of its own, whose text is returned.
    static std::string apart(const std::function<std::string()>& check) {
        int ends[2];
        EXPECT_EQ(::pipe(ends), 0);
        const pid_t pid = ::fork();
        if (pid == 0) {
            const std::string text = check();
            (void)!::write(ends[1], text.data(), text.size());
            ::_exit(0);
        }
        ::close(ends[1]);
        std::string text(4096, ' ');
        text.resize(static_cast<size_t>(std::max<ssize_t>(::read(ends[0], text.data(), text.size()), 0)));
        ::close(ends[0]);
        ::waitpid(pid, nullptr, 0);
        return text;
    }
    std::string found() const {
        return apart([&] {
            std::string text;
            for (const CudaLibrary& each : cuda_libraries_open(module)) text += each.name + "=" + each.path + "\n";
            return text;
        });
    }
    void put(const std::string& to, const std::string& name) const {
        fs::create_directories(folder + "/" + to);
        fs::copy(parts / "host" / name, folder + "/" + to);
    }
};

TEST_F(CudaLibraries, EachThatIsMissingIsNamed) {
    ::setenv("HOME", folder.c_str(), 1);
    for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) ::unsetenv(name);
    const std::string text = apart([&] { return cuda_libraries_missing(cuda_libraries_open(module)); });
    EXPECT_TRUE(text.starts_with("libcudnn-named.so.9 and libcublas-named.so.13")) << text;
    EXPECT_NE(text.find("LD_LIBRARY_PATH"), std::string::npos) << text;
    EXPECT_EQ(cuda_libraries_missing({{"libcudnn.so.9", "/a"}}), "");
    EXPECT_TRUE(cuda_libraries_missing({{"libcudnn.so.9", ""}, {"b", "/b"}}).starts_with("libcudnn.so.9 is neither"));
}

TEST_F(CudaLibraries, FoldersOfPipAreSearched) {
    put("env/lib/python3.11/site-packages/nvidia/cudnn/lib", "libcudnn-named.so.9");
    put("home/.local/lib/python3.9/site-packages/nvidia/cu13/lib", "libcublas-named.so.13");
    put("home/.local/lib/python3.9/site-packages/nvidia/cudnn/lib", "libcudnn-named.so.9");
    ::setenv("VIRTUAL_ENV", (folder + "/env").c_str(), 1);
    ::setenv("HOME", (folder + "/home").c_str(), 1);
    const std::string text = found();
    EXPECT_NE(text.find("libcudnn-named.so.9=" + folder + "/env/lib/python3.11/site-packages/nvidia/cudnn/lib/libcudnn-named.so.9\n"),
              std::string::npos)
        << "the environment before the home: " << text;
    EXPECT_NE(
        text.find("libcublas-named.so.13=" + folder + "/home/.local/lib/python3.9/site-packages/nvidia/cu13/lib/libcublas-named.so.13\n"),
        std::string::npos)
        << text;
}

TEST_F(CudaLibraries, AFileThatIsNoModuleNamesNone) {
    EXPECT_EQ(cuda_libraries_open(folder + "/none").size(), 0u);
    std::string whole;
    {
        std::ifstream file(module, std::ios::binary);
        whole.assign(std::istreambuf_iterator<char>(file), {});
    }
    // Truncated anywhere, and with any byte of its headers changed: no crash.
    for (size_t size = 0; size < whole.size(); size += size < 4096 ? 7 : 509) {
        std::ofstream(folder + "/part", std::ios::binary | std::ios::trunc) << whole.substr(0, size);
        EXPECT_LE(cuda_libraries_open(folder + "/part").size(), 3u) << size;
    }
    for (size_t at = 0; at < 64 + 56 * 12; at += 3) {
        std::string changed = whole;
        changed[at] = static_cast<char>(changed[at] ^ 0xff);
        std::ofstream(folder + "/part", std::ios::binary | std::ios::trunc) << changed;
        (void)cuda_libraries_open(folder + "/part");
    }
}

}   // namespace
}   // namespace gradcast
