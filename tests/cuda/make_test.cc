// make's checks of CUDA's and cuDNN's versions.
#ifdef GC_CUDA_HOST
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

std::string said(const std::string& cuda, const std::string& cudnn) {
    const std::string home = testing::TempDir() + "gradcast_make_cuda", nvcc = home + "/bin/nvcc";
    std::filesystem::remove_all(home);
    std::filesystem::create_directories(home + "/bin");
    std::filesystem::create_directories(home + "/include");
    std::ofstream(nvcc) << "#!/bin/sh\necho 'Cuda compilation tools, release " << cuda << ", V" << cuda << ".1'\n";
    ::chmod(nvcc.c_str(), 0755);
    std::ofstream(home + "/include/cudnn_version.h") << "#define CUDNN_MAJOR " << cudnn << "\n#define CUDNN_MINOR 4\n";
    const std::string command =
        "env -u MAKEFLAGS -u MAKELEVEL make -s features BUILD=" + home + "/build NVCC=" + nvcc + " CUDA_HOME=" + home;
    std::string text;
    FILE* made = ::popen(command.c_str(), "r");
    for (int each = std::fgetc(made); each != EOF; each = std::fgetc(made)) text.push_back(static_cast<char>(each));
    EXPECT_EQ(::pclose(made), 0);
    for (size_t at; (at = text.find(home)) != std::string::npos;) text.replace(at, home.size(), "HOME");
    std::filesystem::remove_all(home);
    return text.substr(0, text.find('\n') + 1);   // RDMA's line follows
}

TEST(CudaMake, TellsWhichVersionsAreTooOld) {
    EXPECT_EQ(said("11.8", "9"), "cuda: no (CUDA 11.8 in HOME: 12 or newer is needed)\n");
    EXPECT_EQ(said("12.0", "8"), "cuda: no (cuDNN 8.4 in HOME/include/cudnn_version.h: 9 or newer is needed)\n");
    EXPECT_EQ(said("12.0", "9"), "cuda: yes (nvcc 12.0, cuDNN 9.4)\n");
    EXPECT_EQ(said("13.1", "10"), "cuda: yes (nvcc 13.1, cuDNN 10.4)\n");
}

}   // namespace
#endif
