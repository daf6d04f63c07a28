// A job's GPUs, used from any thread.
#include <gtest/gtest.h>

#include <thread>

#include "tests/cuda/nn_rig.h"
#include "tests/nn/nets.h"
#include "transport/code/cuda/codec.h"

namespace gradcast {
namespace {

#ifdef GC_CUDA_HOST
// A thread's current GPU is 0 at first, which is not one of the job's here: neither the trainer nor the lanes nor the destructor may use
// it.
TEST(CudaDevice, LeavesOtherGpusAlone) {
    const uint64_t before = cuda_host_calls(0);
    const NetSpec spec = everything();
    std::vector<std::byte> sums(4096);
    std::unique_ptr<CudaRig> rig;
    auto on_a_thread = [](auto body) { std::thread(body).join(); };
    on_a_thread([&] { rig = std::make_unique<CudaRig>(spec, sizes({3}, 2), OptimiserConfig{.momentum = 0.9}, std::vector<uint32_t>{1}); });
    on_a_thread([&] { rig->device.share({sums.data(), nullptr, sums.size()}); });
    on_a_thread([&] {
        Data data(spec, 3);
        rig->step(0, rig->block(data.samples, 1).gradient, 3);
        rig->loss(data.samples);
        (void)rig->optimiser->state();
        (void)rig->net->digest();
    });
    on_a_thread([&] { rig.reset(); });
    auto device = std::make_unique<cuda::CudaDevice>();   // without a net
    const Layout layout{.elements = 10, .groups = {{0, 10, "fc", false}}, .buckets = {{0, 10, 0, 1}}};
    std::unique_ptr<Codec> codec;
    on_a_thread([&] {
        EXPECT_TRUE(device->open({.lanes_max = 2, .lanes_per_gpu = 2, .numbers = {1}}).ok());
        codec = cuda::codec_plan(layout, {Quantiser::auto32, 64, 2, 99}, *device);
        codec->device()->expect(1);
        EXPECT_TRUE(device->seal().ok() && cuda::codec_ready(*codec).ok());
    });
    on_a_thread([&] { device->share({sums.data(), nullptr, sums.size()}); });
    on_a_thread([&] { codec.reset(); });
    on_a_thread([&] { device.reset(); });
    EXPECT_EQ(cuda_host_calls(0), before);
    EXPECT_EQ(cudaHostUnregister(sums.data()), cudaErrorHostMemoryNotRegistered);   // already unregistered
    (void)cudaGetLastError();
}
#endif

}   // namespace
}   // namespace gradcast
