#include "runtime/job/run/cuda_module.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <mutex>
#include <string_view>

#include "nn/frozen.h"
#include "runtime/core/program.h"
#include "runtime/core/version.h"
#include "runtime/job/run/cuda_libraries.h"

namespace gradcast {
namespace {

Status load(const CudaModule** module) {
    constexpr const char* name = "libgradcast_cuda.so";
    const std::string path = program_file(name, {".", "../lib"});
    if (path.empty())
        return fail(Code::unsupported, "no device: {} is neither in {} nor in ../lib (make builds it where nvcc and cuDNN are)", name,
                    program_folder());
    void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);   // never closed: what it made may live as long as the program
    if (!library) {
        const std::string why = ::dlerror(), missing = cuda_libraries_missing(cuda_libraries_open(path));
        if (!missing.empty()) return fail(Code::unsupported, "no device: {}", missing);
        library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!library) return fail(Code::unsupported, "no device: {}", why);
    }
    auto* entry = reinterpret_cast<const CudaModule* (*)()>(::dlsym(library, "gradcast_cuda"));
    const CudaModule* found = entry ? entry() : nullptr;
    if (!found || std::string_view(found->version) != version_text)
        return fail(Code::unsupported, "no device: {} is of version {}, this program of {}: install both together", path,
                    found ? found->version : "?", version_text);
    *module = found;
    return {};
}

/// Once.
Status cuda_module(const CudaModule** module) {
    static std::mutex mutex;
    static const CudaModule* loaded = nullptr;
    static Status status;
    std::lock_guard lock(mutex);
    if (!loaded && status.ok()) status = load(&loaded);
    *module = loaded;
    return status;
}

}   // namespace

Status Computer::open(const std::string& wanted, const DeviceConfig& config, std::string* why) {
    if (wanted == "cpu") return {};
    Status status = cuda_module(&module);
    if (status.ok()) status = module->open(config, &device);
    if (status.ok()) return status;
    if (wanted != "auto") return fail(status.code, "{}: take device cpu, or auto", status.what);
    *why = fmt::format("{}, the CPU computes", status.what);
    return {};
}

Status Computer::plan(const NetSpec& spec, const NetConfig& net_config, const OptimiserConfig& optimiser_config,
                      const CodecConfig& codec_config, Arena& arena, uint32_t frozen) {
    if (device) {
        GC_TRY(module->net_plan(spec, net_config, *device, &net));
        GC_TRY(module->optimiser_plan(optimiser_config, *net, &optimiser));
        codec = module->codec_plan(net->layout(), codec_config, *device);
    } else {
        GC_TRY(processes ? processes->plan(net_config, &net) : net_cpu_plan(spec, net_config, arena, &net));
        if (!processes) net_cpu_freeze(*net, frozen);
        GC_TRY(optimiser_plan(optimiser_config, net->layout(), arena, &optimiser));
        codec = codec_cpu(net->layout(), codec_config);
    }
    return {};
}

Status Computer::ready(Arena& arena) {
    GC_TRY(arena.seal());
    if (processes) return processes->ready();
    if (!device) return net_cpu_ready(*net);
    device->share(arena.whole());
    GC_TRY(device->seal());
    GC_TRY(module->codec_ready(*codec));   // before the net, whose graphs take it in
    return module->net_ready(*net);
}

std::vector<MemoryUse> Computer::memory(const Arena& arena) const {
    std::vector<MemoryUse> all = {arena.use("job")};
    if (processes) std::ranges::move(processes->memory(), std::back_inserter(all));
    if (!device) return all;
    for (MemoryUse& each : device->memory()) all.push_back(std::move(each));
    return all;
}

}   // namespace gradcast
