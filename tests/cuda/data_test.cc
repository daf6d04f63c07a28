// Samples from the device's copy of a data set equal those that the CPU reads and augments.
#include <cstring>

#include "datasets/cuda/resident.h"
#include "datasets/resident.h"
#include "nn/cuda/kernels.h"
#include "runtime/core/rng.h"
#include "tests/cuda/fixture.h"

namespace gradcast::cuda {
namespace {

using Resident = OnDevice;

/// The input of a block of `count` samples at these places, not normalised.
std::vector<float> input_of(CudaDevice& device, uint32_t lane, const SamplePlace* places, const DataInfo& info, uint32_t count) {
    constexpr uint32_t scale = 256, shift = 512, head_bytes = 768;
    void* memory = nullptr;
    EXPECT_EQ(cudaMallocHost(&memory, head_bytes + count * sizeof(SamplePlace)), cudaSuccess);
    auto* staged = static_cast<std::byte*>(memory);
    std::memset(staged, 0, head_bytes);
    *reinterpret_cast<BlockHeader*>(staged) = {.count = count, .resident = 1};
    std::fill_n(reinterpret_cast<float*>(staged + scale), info.C, 1.0f);
    std::copy_n(places, count, reinterpret_cast<SamplePlace*>(staged + head_bytes));
    DeviceVector<std::byte> head(head_bytes);
    DeviceVector<float> y(uint64_t{count} * info.C * info.H * info.W);
    const BlockInput in{staged, head.get(), scale, shift, head_bytes, nullptr, device.resident->images(device.lanes()[lane].gpu)};
    EXPECT_TRUE(ok(input(device.lanes()[lane].stream.get(), {y.get(), false}, in, {count, info.C, info.H, info.W, 0})));
    std::vector<float> values = y.read();
    EXPECT_EQ(std::memcmp(head.read().data(), staged, head_bytes), 0);
    EXPECT_EQ(cudaFreeHost(memory), cudaSuccess);
    return values;
}
std::vector<float> in_channels_last(const std::vector<uint8_t>& images, const DataInfo& info) {
    std::vector<float> values(images.size());
    const size_t pixels = size_t{info.H} * info.W;
    for (size_t i = 0; i < images.size(); ++i) {
        const size_t n = i / pixels / info.C, c = i / pixels % info.C;
        values[(n * pixels + i % pixels) * info.C + c] = images[i];
    }
    return values;
}

TEST_F(Resident, GivesTheCpusSamples) {
    for (auto [C, H, W] : {std::array{1u, 28u, 28u}, {3u, 9u, 13u}})
        for (const Augment& augment : {Augment{}, Augment{2, false, 7}, Augment{0, true, 7}, Augment{8, true, 8}}) {
            const DataInfo info{.count = 100, .C = C, .H = H, .W = W, .classes = 10, .mean = {}, .std = {}, .source = {}};
            const uint64_t bytes = uint64_t{C} * H * W;
            std::vector<uint8_t> all(info.count * bytes);
            for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint8_t>(random4(Purpose::test, 3, i / 4, 0)[i % 4]);
            const auto device = open(3, 2);
            std::unique_ptr<ResidentImages> resident;
            EXPECT_TRUE(ok(resident_plan(info, augment, *device, &resident)));
            ASSERT_TRUE(resident);
            EXPECT_TRUE(ok(device->seal()));
            EXPECT_TRUE(ok(resident->put(0, all.data(), 60)));
            EXPECT_TRUE(ok(resident->put(60, all.data() + 60 * bytes, 40)));
            void* memory = nullptr;
            constexpr uint32_t count = 50;
            ASSERT_EQ(cudaMallocHost(&memory, count * sizeof(SamplePlace)), cudaSuccess);
            auto* places = static_cast<SamplePlace*>(memory);
            for (uint32_t i = 0; i < count; ++i) places[i] = {(i * 37 + 5) % info.count, i % 3};
            std::vector<uint8_t> want(count * bytes);
            for (uint32_t i = 0; i < count; ++i) {
                std::memcpy(want.data() + i * bytes, all.data() + places[i].index * bytes, bytes);
                if (augment.any()) gradcast::augment(augment, info, places[i].epoch, places[i].index, want.data() + i * bytes);
            }
            for (uint32_t lane = 0; lane < 3; ++lane) {
                EXPECT_TRUE(ok(device->use(device->gpu_of(lane))));
                EXPECT_EQ(input_of(*device, lane, places, info, count), in_channels_last(want, info)) << augment.crop << augment.flip;
            }
            EXPECT_EQ(cudaFreeHost(memory), cudaSuccess);
        }
}

TEST_F(Resident, IsNotPlannedWhereItDoesNotFit) {
    const auto device = open(1);
    size_t free = 0, total = 0;
    ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    const DataInfo info{.count = total / 1024, .C = 1, .H = 32, .W = 32, .classes = 10, .mean = {}, .std = {}, .source = {}};
    std::unique_ptr<ResidentImages> resident;
    EXPECT_TRUE(ok(resident_plan(info, {}, *device, &resident)));
    EXPECT_FALSE(resident);
}

}   // namespace
}   // namespace gradcast::cuda
