// augment() (datasets/augment.cc) as a gather, byte for byte: new[y][x] = old[y + down][x' + right] with x' = W-1-x if mirrored, else x;
// 0 outside the plane.
#include "datasets/cuda/resident.h"

#include <vector>

#include "runtime/core/cuda/device.h"
#include "runtime/core/cuda/philox.h"

namespace gradcast::cuda {
namespace {

constexpr uint32_t threads = 256;

struct How {
    uint32_t C, H, W, crop, flip;
    uint64_t seed;
};

// One thread block a sample.
__global__ void take_images(uint8_t* to, const uint8_t* all, const SamplePlace* places, const How how) {
    __shared__ SamplePlace place;   // places is host memory: read it once
    if (threadIdx.x == 0) place = places[blockIdx.x];
    __syncthreads();
    const uint32_t bytes = how.C * how.H * how.W;
    const Draw random = draw4(Purpose::augment, how.seed, place.index, place.epoch);
    const auto crop = static_cast<int32_t>(how.crop);
    const int32_t down = static_cast<int32_t>(uint64_t{random.word[0]} * (2 * how.crop + 1) >> 32) - crop;
    const int32_t right = static_cast<int32_t>(uint64_t{random.word[1]} * (2 * how.crop + 1) >> 32) - crop;
    const bool mirrored = how.flip && random.word[2] >> 31;
    const uint8_t* from = all + place.index * bytes;
    uint8_t* out = to + uint64_t{blockIdx.x} * bytes;
    for (uint32_t i = threadIdx.x; i < bytes; i += threads) {
        const uint32_t column = i % how.W, row = i / how.W % how.H, first = i - column - row * how.W;   // first: of the channel
        const int32_t x = static_cast<int32_t>(mirrored ? how.W - 1 - column : column) + right, y = static_cast<int32_t>(row) + down;
        const bool inside = x >= 0 && y >= 0 && x < static_cast<int32_t>(how.W) && y < static_cast<int32_t>(how.H);
        out[i] = inside ? from[first + static_cast<uint32_t>(y) * how.W + static_cast<uint32_t>(x)] : 0;
    }
}

class CudaImages final : public ResidentImages {
public:
    CudaImages(const DataInfo& info, const Augment& augment, CudaDevice& device)
        : how_{info.C, info.H, info.W, augment.crop, augment.flip, augment.seed},
          count_(info.count),
          device_(device),
          copies_(device.gpus().size()) {
        for (size_t g = 0; g < copies_.size(); ++g) device.gpus()[g]->arena.plan("data set", count_ * sample_bytes(), &copies_[g]);
    }

    Status put(uint64_t first, const uint8_t* images, uint64_t count) override {
        GC_ASSERT(first + count <= count_);
        for (size_t g = 0; g < copies_.size(); ++g) {
            GC_TRY(device_.use(*device_.gpus()[g]));
            GC_CUDA(cudaMemcpy(static_cast<uint8_t*>(copies_[g].device) + first * sample_bytes(), images, count * sample_bytes(),
                               cudaMemcpyHostToDevice));
            GC_CUDA(cudaStreamSynchronize(nullptr));   // a copy from pageable memory may still be in flight
        }
        return {};
    }

    Status take(uint32_t lane, void* stream, const SamplePlace* places, uint32_t count, uint8_t* to) override {
        const Buffer& copy = copies_[device_.lanes()[lane].gpu];
        return GC_LAUNCH(take_images, count, threads, static_cast<cudaStream_t>(stream), to, static_cast<const uint8_t*>(copy.device),
                         places, how_);
    }

private:
    uint64_t sample_bytes() const { return uint64_t{how_.C} * how_.H * how_.W; }
    const How how_;
    const uint64_t count_;
    CudaDevice& device_;
    std::vector<Buffer> copies_;   // by GPU
};

}   // namespace

Status resident_plan(const DataInfo& info, const Augment& augment, Device& device, std::unique_ptr<ResidentImages>* resident) {
    auto& gpus = static_cast<CudaDevice&>(device);
    const uint64_t bytes = info.count * info.C * info.H * info.W;
    for (auto& gpu : gpus.gpus()) {
        size_t free = 0, total = 0;
        GC_TRY(gpus.use(*gpu));
        GC_CUDA(cudaMemGetInfo(&free, &total));
        if (gpu->arena.device_bytes() + bytes > free - free / 8) return {};   // an eighth for the libraries
    }
    *resident = std::make_unique<CudaImages>(info, augment, gpus);
    gpus.resident = resident->get();
    return {};
}

}   // namespace gradcast::cuda
