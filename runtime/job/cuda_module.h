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

/// "cpu", "cuda", "auto".
std::span<const char* const> device_names();

/// What a job computes with: on GPUs where there is a device, else on the CPU.
struct Computer {
    const CudaModule* module = nullptr;
    std::unique_ptr<Device> device;
    std::unique_ptr<Net> net;
    std::unique_ptr<Optimiser> optimiser;
    std::unique_ptr<Codec> codec;

    /// Opens the GPUs: `wanted` is "cpu" (no device), "cuda", or "auto": the CPU where there is no GPU, *why says so then.  The library is
    /// looked for beside this program and in ../lib.  Error: "no device: ..." says what lacks.
    Status open(const std::string& wanted, const DeviceConfig& config, std::string* why);
    Status plan(const NetSpec& spec, const NetConfig& net_config, const OptimiserConfig& optimiser_config, const CodecConfig& codec_config,
                Arena& arena);
    /// When everybody has planned: takes the memory of the arena and of the GPUs.
    Status ready(Arena& arena);
    std::string budget(const Arena& arena) const { return arena.budget() + (device ? "; " + device->budget() : ""); }
};

}   // namespace gradcast
