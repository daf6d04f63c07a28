// Errors of CUDA calls: each is reported once, by the call that failed.
#include <optional>
#include <string>

#include "nn/cuda/kernels.h"
#include "tests/cuda/fixture.h"

namespace gradcast::cuda {
namespace {

constexpr int no_device = 1000;

struct CudaErrors : OnDevice {
    void SetUp() override {
        OnDevice::SetUp();
        if (IsSkipped()) return;
        ASSERT_TRUE(ok(make(&stream)));
        x.emplace(std::vector<float>{-1, 2, -3, 4});
    }
    Status launch(uint64_t count) const { return relu(stream.get(), {x->get(), false}, {x->get(), false}, count); }
    Stream stream;
    std::optional<DeviceVector<float>> x;
};

TEST_F(CudaErrors, ALaunchReportsItsOwnErrorAlone) {
    EXPECT_EQ(cudaSetDevice(no_device), cudaErrorInvalidDevice);   // handled here: no error of the next launch
    EXPECT_TRUE(ok(launch(4)));
    EXPECT_EQ(x->read(), (std::vector<float>{0, 2, 0, 4}));
    (void)cudaGetLastError();

    const Status empty = launch(0);   // a grid without blocks
    EXPECT_EQ(empty.code, Code::unsupported);
    EXPECT_TRUE(std::string(empty.what).starts_with("each_kernel: cudaError")) << empty.what;
    EXPECT_TRUE(ok(launch(4)));
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(CudaErrors, AReportedErrorIsNotTheLastErrorAnyMore) {
    EXPECT_STREQ(std::string(check(cudaSetDevice(no_device), "cudaSetDevice(no_device)").what).substr(0, 38).c_str(),
                 "cudaSetDevice: cudaErrorInvalidDevice ");
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(CudaErrors, AFailedCaptureLeavesNoError) {
    GraphExec graph;
    const Status failed = capture(
        stream.get(), [] { return check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }, &graph);
    EXPECT_TRUE(std::string(failed.what).starts_with("cudaDeviceSynchronize: cudaErrorStreamCaptureUnsupported")) << failed.what;
    EXPECT_FALSE(graph);
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    EXPECT_TRUE(ok(capture(
        stream.get(), [&] { return launch(4); }, &graph)));
    ASSERT_EQ(cudaGraphLaunch(graph.get(), stream.get()), cudaSuccess);
    EXPECT_EQ(x->read(), (std::vector<float>{0, 2, 0, 4}));
}

}   // namespace
}   // namespace gradcast::cuda
