// libgradcast_cuda.so: all that computes on GPUs.  It is opened at run time, so the programs run without CUDA.  It uses symbols of the
// program that opens it (status, layers, weights), so both must have one version.
#pragma once
#include "datasets/augment.h"
#include "nn/net.h"
#include "nn/optimiser.h"
#include "runtime/attach/attach.h"
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

/// Net, optimiser and codec of a job: on GPUs if there is a device, else on the CPU, where processes of net.command may compute the net.
struct Computer {
    NetProcesses* processes = nullptr;   // its processes compute the net; not with a device
    const CudaModule* module = nullptr;
    std::unique_ptr<Device> device;
    std::unique_ptr<Net> net;
    std::unique_ptr<Optimiser> optimiser;
    std::unique_ptr<Codec> codec;

    /// Opens the GPUs: `wanted` is "cpu" (no device), "cuda", or "auto": the CPU if there is no GPU, and *why has the reason.  The
    /// library is searched beside this program and in ../lib.  Error: "no device: ..." with what is missing.
    Status open(const std::string& wanted, const DeviceConfig& config, std::string* why);
    /// frozen: so many of the first layers do not learn (layers_frozen()), which saves passes on CPUs.
    Status plan(const NetSpec& spec, const NetConfig& net_config, const OptimiserConfig& optimiser_config, const CodecConfig& codec_config,
                Arena& arena, uint32_t frozen = 0);
    /// After all planning: allocates the memory of the arena and of the GPUs.
    Status ready(Arena& arena);
    std::vector<MemoryUse> memory(const Arena& arena) const;
};

}   // namespace gradcast
