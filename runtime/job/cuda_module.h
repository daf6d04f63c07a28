// libgradcast_cuda.so: all that computes on GPUs.  It is opened at run time, so the programs run where no CUDA is; it takes from the
// program that opens it what both need (status, layers, weights), hence the version.
#pragma once
#include "datasets/augment.h"
#include "nn/net.h"
#include "nn/optimiser.h"
#include "runtime/core/device.h"
#include "transport/code/codec.h"

namespace gradcast {

struct CudaModule {
    const char* version;   // version_text
    Status (*open)(const DeviceConfig& config, std::unique_ptr<Device>* device);
    // nn/cuda/cuda.h
    Status (*net_plan)(const NetSpec& spec, const NetConfig& config, Device& device, std::unique_ptr<Net>* net);
    Status (*net_ready)(Net& net);
    Status (*optimiser_plan)(const OptimiserConfig& config, Net& net, std::unique_ptr<Optimiser>* optimiser);
    // transport/code/cuda/codec.h
    std::unique_ptr<Codec> (*codec_plan)(const Layout& layout, const CodecConfig& config, Device& device);
    Status (*codec_ready)(Codec& codec);
    // datasets/cuda/resident.h
    Status (*resident_plan)(const DataInfo& info, const Augment& augment, Device& device, std::unique_ptr<ResidentImages>* resident);
};

/// Opens the library beside this program or in ../lib, once.  Error: "no device: ..." says what lacks.
Status cuda_module(const CudaModule** module);

/// Opens the GPUs of a job: `wanted` is "cpu" (*device stays null), "cuda", or "auto": the CPU where there is no GPU, *why says so then.
Status device_open(const std::string& wanted, const DeviceConfig& config, const CudaModule** module, std::unique_ptr<Device>* device,
                   std::string* why);
/// "cpu", "cuda", "auto".
std::span<const char* const> device_names();

}   // namespace gradcast
