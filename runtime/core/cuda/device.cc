#include "runtime/core/cuda/device.h"

#include <algorithm>
#include <numeric>

namespace gradcast::cuda {
namespace {

// Not planned: kernels that cuDNN and cuBLAS load on first use, and graphs.
constexpr uint64_t libraries_bytes_max = uint64_t{512} << 20;

std::string triple(uint64_t major, uint64_t minor, uint64_t patch) { return fmt::format("{}.{}.{}", major, minor, patch); }

}   // namespace

Status CudaDevice::make(Worker* worker) {
    GC_TRY(cuda::make(&worker->stream));
    cudnnHandle_t cudnn = nullptr;
    GC_CUDA(cudnnCreate(&cudnn));
    worker->cudnn.reset(cudnn);
    GC_CUDA(cudnnSetStream(cudnn, worker->stream.get()));
    cublasLtHandle_t cublas = nullptr;
    GC_CUDA(cublasLtCreate(&cublas));
    worker->cublas.reset(cublas);
    return {};
}

Status CudaDevice::open(const DeviceConfig& config) {
    GC_ASSERT(config.lanes_max > 0 && config.lanes_per_gpu > 0);
    int count = 0;
    if (cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0)
        return fail(Code::unsupported, "{}", count == 0 && error == cudaSuccess ? "CUDA finds none" : cudaGetErrorString(error));
    std::vector<uint32_t> numbers = config.numbers;
    if (numbers.empty()) {
        numbers.resize(static_cast<size_t>(count));
        std::iota(numbers.begin(), numbers.end(), 0u);
    }
    for (const uint32_t number : numbers)   // also of those that have no lane
        if (number >= static_cast<uint32_t>(count))
            return fail(Code::unsupported, "there is no GPU {}: this machine has {}, counted from 0", number, count);
    if (numbers.size() > config.lanes_max) numbers.resize(config.lanes_max);
    std::string names;
    for (uint32_t number : numbers) {
        auto gpu = std::make_unique<Gpu>();
        gpu->number = static_cast<int>(number);
        GC_TRY(use(*gpu));
        cudaDeviceProp properties;
        GC_CUDA(cudaGetDeviceProperties(&properties, gpu->number));
        if (properties.major < 8)
            return fail(Code::unsupported, "GPU {} ({}) has compute capability {}.{}: 8.0 is the least", number, properties.name,
                        properties.major, properties.minor);
        if (names.empty()) names = properties.name;
        else if (names != properties.name)   // a block's bits must not depend on the lane that computes it
            return fail(Code::unsupported, "GPU {} is a {}, the others are {}: GPUs of one node must be alike", number, properties.name,
                        names);
        GC_TRY(cuda::make(&gpu->stream));
        GC_TRY(cuda::make(&gpu->changed));
        gpus_.push_back(std::move(gpu));
    }
    for (const auto& gpu : gpus_)   // peer access: copies between GPUs bypass the host
        for (const auto& other : gpus_) {
            int can = 0;
            if (gpu->number == other->number) continue;
            GC_TRY(use(*gpu));
            GC_CUDA(cudaDeviceCanAccessPeer(&can, gpu->number, other->number));
            if (can && cudaDeviceEnablePeerAccess(other->number, 0) != cudaSuccess) (void)cudaGetLastError();   // already enabled
        }
    const auto lanes = std::min(config.lanes_max, config.lanes_per_gpu * static_cast<uint32_t>(gpus_.size()));
    for (uint32_t number = 0; number < lanes; ++number) {
        Lane& lane = lanes_.emplace_back();
        lane.gpu = number % static_cast<uint32_t>(gpus_.size());
        GC_TRY(use(*gpus_[lane.gpu]));
        GC_TRY(make(&lane));
        GC_TRY(make(&lane.beside));
        GC_TRY(cuda::make(&lane.codec));
    }
    // lanes_ does not grow from here on: its buffers do not move.
    for (Lane& lane : lanes_)
        for (Worker* worker : {static_cast<Worker*>(&lane), &lane.beside})
            gpus_[lane.gpu]->arena.plan("cuBLAS", cublas_workspace_bytes, &worker->workspace);
    int runtime = 0;
    GC_CUDA(cudaRuntimeGetVersion(&runtime));
    const uint64_t v = cublasLtGetVersion();
    const uint64_t cudnn = cudnnGetVersion();
    name_ = fmt::format("{}, CUDA {}.{}, cuDNN {}, cuBLAS {}", names, runtime / 1000, runtime % 1000 / 10,
                        triple(cudnn / 10000, cudnn % 10000 / 100, cudnn % 100), triple(v / 10000, v % 10000 / 100, v % 100));
    return {};
}

Status CudaDevice::seal() {
    for (auto& gpu : gpus_) {
        GC_TRY(use(*gpu));
        size_t free = 0, total = 0;
        GC_CUDA(cudaMemGetInfo(&free, &total));
        const uint64_t kept = std::min(free / 16, libraries_bytes_max), ours = free - kept;
        if (const uint64_t bytes = gpu->arena.device_bytes(); bytes > ours && growing_bytes_ > 0) {
            const uint64_t fixed = bytes - std::min(bytes, growing_bytes_), remaining = ours - std::min(ours, fixed);
            // In double: the product of bytes and samples exceeds 64 bits on large GPUs.
            const auto samples = static_cast<uint64_t>(static_cast<double>(remaining) / static_cast<double>(growing_bytes_) *
                                                       static_cast<double>(growing_samples_));
            return fail(Code::node_memory,
                        "GPU {} has {} MiB free of {}, {} of them for libraries' kernels, but blocks of {} samples need {}; {}",
                        gpu->number, free >> 20, total >> 20, kept >> 20, growing_samples_,
                        memory_text(gpu->arena.memory(fmt::format("gpu {}", gpu->number))),
                        samples ? fmt::format("blocks of {} would fit", samples) : "not even blocks of one sample would fit");
        }
        GC_TRY(gpu->arena.seal());
    }
    return {};
}

// The calling thread may have another current GPU.  A library handle needs its own GPU, and a context on another GPU takes memory there.
CudaDevice::~CudaDevice() {
    if (!shared_.empty()) (void)use(*gpus_[0]);
    for (const Buffer& each : shared_) cudaHostUnregister(each.host);
    for (; !lanes_.empty(); lanes_.pop_back()) (void)use(*gpus_[lanes_.back().gpu]);
    for (; !gpus_.empty(); gpus_.pop_back()) (void)use(*gpus_.back());
}

void CudaDevice::share(Buffer host) {
    if (!use(*gpus_[0]).ok()) return;
    if (host.bytes > 0 && cudaHostRegister(host.host, host.bytes, cudaHostRegisterPortable) == cudaSuccess) shared_.push_back(host);
    else (void)cudaGetLastError();   // clears the error, which the next launch would report
}

void CudaDevice::unshare(Buffer host) {
    const auto at = std::find_if(shared_.begin(), shared_.end(), [&](const Buffer& each) { return each.host == host.host; });
    if (at == shared_.end()) return;
    if (use(*gpus_[0]).ok()) cudaHostUnregister(at->host);
    shared_.erase(at);
}

Status CudaDevice::copy_in(void* to, const void* from, uint64_t bytes, cudaStream_t stream) {
    const auto* at = static_cast<const std::byte*>(from);
    const bool shared = std::any_of(shared_.begin(), shared_.end(),
                                    [&](const Buffer& each) { return at >= each.host && at + bytes <= each.host + each.bytes; });
    if (shared) return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
    GC_CUDA(cudaStreamSynchronize(stream));
    GC_CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
    return check(cudaStreamSynchronize(nullptr),
                 "cudaStreamSynchronize");   // `stream` does not wait for the copy
}

std::vector<MemoryUse> CudaDevice::memory() const {
    std::vector<MemoryUse> all;
    for (const auto& gpu : gpus_)
        for (MemoryUse& each : gpu->arena.memory(fmt::format("gpu {}", gpu->number))) all.push_back(std::move(each));
    return all;
}

}   // namespace gradcast::cuda
