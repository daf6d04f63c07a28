// What libgradcast_cuda.so says when it is opened.
#include "datasets/cuda/resident.h"
#include "nn/cuda/cuda.h"
#include "runtime/core/cuda/device.h"
#include "runtime/core/version.h"
#include "runtime/job/run/cuda_module.h"
#include "transport/code/cuda/codec.h"

namespace gradcast {
namespace {

Status open(const DeviceConfig& config, std::unique_ptr<Device>* device) {
    auto made = std::make_unique<cuda::CudaDevice>();
    if (Status status = made->open(config); !status.ok()) return fail(status.code, "no device: {}", status.what);
    *device = std::move(made);
    return {};
}

constexpr CudaModule module = {
    version_text, open, cuda::net_plan, cuda::net_ready, cuda::optimiser_plan, cuda::codec_plan, cuda::codec_ready, cuda::resident_plan};

}   // namespace

extern "C" const CudaModule* gradcast_cuda() { return &module; }

}   // namespace gradcast
