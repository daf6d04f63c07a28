// The stand-in itself: its checks beyond a GPU's.
#ifdef GC_CUDA_HOST
#include <chrono>
#include <thread>

#include "runtime/core/cuda.h"
#include "tests/cuda/fixture.h"

namespace gradcast::cuda {
namespace {

__global__ void add_one(int* x) { x[blockIdx.x * blockDim.x + threadIdx.x] += 1; }
__global__ void rotate(int* x, bool waits) {   // moves each element to the next thread's place
    __shared__ int all[64];
    all[threadIdx.x] = x[threadIdx.x];
    if (waits) __syncthreads();
    x[threadIdx.x] = all[(threadIdx.x + 1) % blockDim.x];
}
__global__ void reduce(int* x) {   // the first three of each warp: the sum, the sum again, the maximum
    const auto value = static_cast<unsigned>(x[threadIdx.x]);
    unsigned sum = value;
    for (unsigned half = 16; half > 0; half /= 2) sum += __shfl_down_sync(~0u, sum, half);
    const unsigned again = __reduce_add_sync(~0u, value), most = __reduce_max_sync(~0u, value), lane = threadIdx.x % 32;
    if (lane < 3) x[threadIdx.x] = static_cast<int>(lane == 0 ? sum : lane == 1 ? again : most);
}
__global__ void half_wait(uint32_t half) {
    if (threadIdx.x < half) __syncthreads();
}
__global__ void touch(int* x) { x[0] = 1; }

struct StandIn : testing::Test {
    Stream a, b;
    Event event;
    int *device = nullptr, *host = nullptr;   // [64] each
    void SetUp() override {
        EXPECT_TRUE(ok(make(&a)));
        EXPECT_TRUE(ok(make(&b)));
        EXPECT_TRUE(ok(make(&event)));
        ASSERT_EQ(cudaMalloc(&device, 64 * sizeof(int)), cudaSuccess);
        ASSERT_EQ(cudaMallocHost(&host, 64 * sizeof(int)), cudaSuccess);
        for (int i = 0; i < 64; ++i) host[i] = i;
    }
    void TearDown() override {
        EXPECT_EQ(cudaFree(device), cudaSuccess);
        EXPECT_EQ(cudaFreeHost(host), cudaSuccess);
    }
    Status up() { return check(cudaMemcpyAsync(device, host, 64 * sizeof(int), cudaMemcpyHostToDevice, a.get()), "up"); }
    Status down(cudaStream_t stream) {
        return check(cudaMemcpyAsync(host, device, 64 * sizeof(int), cudaMemcpyDeviceToHost, stream), "down");
    }
};

TEST_F(StandIn, RunsWhenSomebodyWaits) {
    EXPECT_TRUE(ok(up()));
    EXPECT_TRUE(ok(GC_LAUNCH(add_one, 2, 32, a.get(), device)));
    host[5] = 100;   // the stream has not run yet
    EXPECT_TRUE(ok(down(a.get())));
    EXPECT_EQ(host[6], 6);
    ASSERT_EQ(cudaStreamSynchronize(a.get()), cudaSuccess);
    EXPECT_EQ(host[6], 7);
    EXPECT_EQ(host[5], 101);
}

TEST_F(StandIn, WhoWaitsForAStreamWaitsForItsLastEvent) {
    EXPECT_TRUE(ok(up()));
    EXPECT_TRUE(ok(GC_LAUNCH(add_one, 2, 32, a.get(), device)));
    EXPECT_TRUE(ok(down(a.get())));
    ASSERT_EQ(cudaEventRecord(event.get(), a.get()), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(b.get(), event.get(), 0), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(b.get()), cudaSuccess);
    EXPECT_EQ(host[6], 7);
}

TEST_F(StandIn, AStreamThatDoesNotWaitForAnotherIsAhead) {
    ASSERT_EQ(cudaMemset(device, 0, 64 * sizeof(int)), cudaSuccess);
    for (bool waits : {false, true}) {
        EXPECT_TRUE(ok(GC_LAUNCH(add_one, 2, 32, a.get(), device)));
        ASSERT_EQ(cudaEventRecord(event.get(), a.get()), cudaSuccess);
        if (waits) {
            ASSERT_EQ(cudaStreamWaitEvent(b.get(), event.get(), 0), cudaSuccess);
        }
        EXPECT_TRUE(ok(down(b.get())));
        ASSERT_EQ(cudaStreamSynchronize(b.get()), cudaSuccess);
        EXPECT_EQ(host[3], waits ? 2 : 0);
    }
}

TEST_F(StandIn, ABarrierThatLacksShows) {
    for (bool waits : {false, true}) {
        for (int i = 0; i < 64; ++i) host[i] = i;
        EXPECT_TRUE(ok(up()));
        EXPECT_TRUE(ok(GC_LAUNCH(rotate, 1, 64, a.get(), device, waits)));
        EXPECT_TRUE(ok(down(a.get())));
        ASSERT_EQ(cudaStreamSynchronize(a.get()), cudaSuccess);
        bool right = true;
        for (int i = 0; i < 64; ++i) right = right && host[i] == (i + 1) % 64;
        EXPECT_EQ(right, waits);
    }
}

TEST_F(StandIn, WarpsReduce) {
    EXPECT_TRUE(ok(up()));
    EXPECT_TRUE(ok(GC_LAUNCH(reduce, 1, 64, a.get(), device)));
    EXPECT_TRUE(ok(down(a.get())));
    ASSERT_EQ(cudaStreamSynchronize(a.get()), cudaSuccess);
    EXPECT_EQ(std::vector<int>(host, host + 4), (std::vector<int>{496, 496, 31, 3}));
    EXPECT_EQ(std::vector<int>(host + 32, host + 36), (std::vector<int>{1520, 1520, 63, 35}));
}

TEST_F(StandIn, GraphsReplayWithWhatIsInMemoryThen) {
    ASSERT_EQ(cudaStreamBeginCapture(a.get(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_TRUE(ok(up()));
    ASSERT_EQ(cudaEventRecord(event.get(), a.get()), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(b.get(), event.get(), 0), cudaSuccess);   // a branch
    EXPECT_TRUE(ok(GC_LAUNCH(add_one, 2, 32, b.get(), device)));
    ASSERT_EQ(cudaEventRecord(event.get(), b.get()), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(a.get(), event.get(), 0), cudaSuccess);   // joined
    EXPECT_TRUE(ok(down(a.get())));
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(a.get(), &graph), cudaSuccess);
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    EXPECT_EQ(host[9], 9);
    for (int i = 0; i < 2; ++i) ASSERT_EQ(cudaGraphLaunch(exec, a.get()), cudaSuccess);
    host[9] = 40;
    ASSERT_EQ(cudaStreamSynchronize(a.get()), cudaSuccess);
    EXPECT_EQ(host[9], 42);
    EXPECT_EQ(host[8], 10);
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(StandIn, RefusesInACaptureWhatCudaRefuses) {
    cudaGraph_t graph = nullptr;
    void* memory = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(a.get(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&memory, 64), cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(cudaStreamEndCapture(a.get(), &graph), cudaErrorStreamCaptureInvalidated);
    ASSERT_EQ(cudaStreamBeginCapture(a.get(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(cudaStreamEndCapture(a.get(), &graph), cudaErrorStreamCaptureInvalidated);
    (void)cudaGetLastError();   // clears the error
    ASSERT_EQ(cudaStreamBeginCapture(a.get(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_TRUE(ok(up()));
    ASSERT_EQ(cudaEventRecord(event.get(), a.get()), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(b.get(), event.get(), 0), cudaSuccess);
    EXPECT_TRUE(ok(GC_LAUNCH(add_one, 2, 32, b.get(), device)));   // nobody waits for b
    EXPECT_EQ(cudaStreamEndCapture(a.get(), &graph), cudaErrorStreamCaptureUnjoined);
    (void)cudaGetLastError();
}

TEST_F(StandIn, RefusesCopiesThatCudaWouldNotOverlap) {
    int pageable[64];
    EXPECT_EQ(cudaMemcpyAsync(pageable, device, sizeof pageable, cudaMemcpyDeviceToHost, a.get()), cudaErrorInvalidValue);
    EXPECT_EQ(cudaMemcpyAsync(host, device, sizeof pageable, cudaMemcpyHostToDevice, a.get()), cudaErrorInvalidValue);   // wrong direction
    (void)cudaGetLastError();
}

// wait() sleeps no sooner than 200 us after the time of the last wait, and spins for 2 ms at most.  The kernel may stop this thread at any
// moment: a wait that should sleep is tried until one does, and a wait that sleeps too early is never right.
TEST_F(StandIn, WaitsOfAsLongAsTheLastDoNotSleep) {
    using std::chrono::microseconds;
    auto sleeps = [&](uint32_t operations) {   // each takes 100 us or more
        for (uint32_t i = 0; i < operations; ++i)
            EXPECT_EQ(cuda_host_run("slow", a.get(), [] { std::this_thread::sleep_for(microseconds(100)); }), cudaSuccess);
        EXPECT_EQ(cudaEventRecord(event.get(), a.get()), cudaSuccess);
        const uint64_t before = cuda_host_counts().sleeps;
        EXPECT_TRUE(ok(gradcast::cuda::wait(event)));
        return cuda_host_counts().sleeps > before;
    };
    auto sleeps_after = [&](microseconds last, uint32_t operations) {
        bool slept = false;
        for (uint32_t tries = 0; tries < 100 && !slept; ++tries) event.waited = last, slept = sleeps(operations);
        return slept;
    };
    EXPECT_TRUE(sleeps_after(microseconds(0), 6));
    EXPECT_TRUE(sleeps_after(microseconds(1800), 30));
    for (uint32_t tries = 0; tries < 100; ++tries) {
        event.waited = microseconds(1800);
        if (sleeps(6)) {
            EXPECT_GE(event.waited, microseconds(2000));
        }
    }
}

using StandInDeathTest = StandIn;
TEST_F(StandInDeathTest, NamesWhatIsWrong) {
    GTEST_FLAG_SET(death_test_style, "fast");
    auto wait = [&] { (void)cudaDeviceSynchronize(); };
    EXPECT_DEATH((void)GC_LAUNCH(half_wait, 1, 64, a.get(), 32);
                 wait(), "kernel half_wait, block .0, 0, 0.: 32 threads ended while 32 wait");
    EXPECT_DEATH(device[3] = 1, "memory of device 0 .byte 12 of an allocation of 256. was touched by the host");
    EXPECT_DEATH((void)GC_LAUNCH(touch, 1, 1, a.get(), device + 64); wait();
                 (void)cudaFree(device), "byte 256 was written of an allocation of 256");
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);   // no peer access
    Stream other;
    EXPECT_TRUE(ok(make(&other)));
    EXPECT_DEATH((void)GC_LAUNCH(touch, 1, 1, other.get(), device);
                 wait(), "memory of device 0 .byte 0 of an allocation of 256. was touched");
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

}   // namespace
}   // namespace gradcast::cuda
#endif
