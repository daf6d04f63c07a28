#include "datasets/cuda/resident.h"

#include <vector>

#include "runtime/core/cuda/device.h"

namespace gradcast::cuda {
namespace {

class CudaImages final : public CudaDevice::Resident {
public:
    CudaImages(const DataInfo& info, const Augment& augment, CudaDevice& device)
        : how_{nullptr, info.C, info.H, info.W, augment.crop, augment.flip, augment.seed},
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

    Images images(uint32_t gpu) const override {
        Images of = how_;
        of.all = static_cast<const uint8_t*>(copies_[gpu].device);
        return of;
    }

private:
    uint64_t sample_bytes() const { return uint64_t{how_.C} * how_.H * how_.W; }
    const Images how_;
    const uint64_t count_;
    CudaDevice& device_;
    std::vector<Buffer> copies_;   // by GPU
};

}   // namespace

Status resident_plan(const DataInfo& info, const Augment& augment, Device& device, std::unique_ptr<ResidentImages>* resident) {
    if (info.element != Element::u8 || info.targets > 0 || info.vocabulary > 0) return {};
    auto& gpus = static_cast<CudaDevice&>(device);
    const uint64_t bytes = info.count * info.C * info.H * info.W;
    for (auto& gpu : gpus.gpus()) {
        size_t free = 0, total = 0;
        GC_TRY(gpus.use(*gpu));
        GC_CUDA(cudaMemGetInfo(&free, &total));
        if (gpu->arena.device_bytes() + bytes > free - free / 8) return {};   // an eighth for the libraries
    }
    auto made = std::make_unique<CudaImages>(info, augment, gpus);
    gpus.resident = made.get();
    *resident = std::move(made);
    return {};
}

}   // namespace gradcast::cuda
