#include "nn/cuda/optimiser.h"

namespace gradcast::cuda {

Status digest_fetch(const CudaDevice::Gpu& gpu, const Buffer& words, uint64_t first, const Buffer& room, const Buffer& host,
                    uint64_t* sum) {
    GC_CUDA(cudaSetDevice(gpu.number));
    GC_CUDA(cudaMemsetAsync(room.device, 0, room.bytes, gpu.stream.get()));
    GC_TRY(cuda::digest(gpu.stream.get(), static_cast<unsigned long long*>(room.device), words.device, words.bytes / 4, first));
    GC_CUDA(cudaMemcpyAsync(host.host, room.device, room.bytes, cudaMemcpyDeviceToHost, gpu.stream.get()));
    GC_CUDA(cudaStreamSynchronize(gpu.stream.get()));
    *sum = *host.as<uint64_t>();
    return {};
}

CudaOptimiser::CudaOptimiser(const OptimiserConfig& config, uint64_t elements, CudaDevice& device)
    : config_(config), elements_(elements), device_(device), gpu_(*device.gpus()[0]) {
    const uint64_t parts = config.kind == "adam" ? 2 : config.momentum != 0 ? 1 : 0;
    gpu_.arena.plan("optimiser", parts * elements * sizeof(float), &state_);
    gpu_.arena.plan_pinned("optimiser", parts * elements * sizeof(float), &host_);
    gpu_.arena.plan("optimiser", sizeof(uint64_t), &digest_);
    gpu_.arena.plan_pinned("optimiser", sizeof(uint64_t), &digest_host_);
    step(0);
}

Status CudaOptimiser::zero() {
    if (state_.bytes == 0) return {};
    GC_TRY(device_.use(gpu_));
    GC_CUDA(cudaMemsetAsync(state_.device, 0, state_.bytes, gpu_.stream.get()));
    return {};
}

void CudaOptimiser::step(StepId step) {
    lr_ = static_cast<float>(learning_rate(config_, step));
    if (config_.kind == "adam") adam_ = adam_step(config_, step);
}

std::span<float> CudaOptimiser::state() {
    if (state_.bytes == 0) return {};
    auto fetch = [this]() -> Status {
        GC_TRY(device_.use(gpu_));
        GC_CUDA(cudaMemcpyAsync(host_.host, state_.device, state_.bytes, cudaMemcpyDeviceToHost, gpu_.stream.get()));
        return check(cudaStreamSynchronize(gpu_.stream.get()), "cudaStreamSynchronize");
    };
    GC_ASSERT(fetch().ok());   // what fails here has failed before, in apply()
    return {host_.as<float>(), host_.bytes / sizeof(float)};
}

uint64_t CudaOptimiser::digest(uint64_t first) {
    if (state_.bytes == 0) return 0;
    uint64_t sum = 0;
    GC_ASSERT(digest_fetch(gpu_, state_, first, digest_, digest_host_, &sum).ok());
    return sum;
}

Status CudaOptimiser::apply(float* w, uint64_t offset, const Words& words, uint64_t count) {
    auto* state = static_cast<float*>(state_.device);
    if (config_.kind == "adam")
        return apply_adam(gpu_.stream.get(), w + offset, state + offset, state + elements_ + offset, words, count, adam_);
    return apply_sgd(gpu_.stream.get(), w + offset, state_.bytes ? state + offset : nullptr, words, count, lr_,
                     static_cast<float>(config_.momentum), static_cast<float>(config_.weight_decay), config_.nesterov);
}

}   // namespace gradcast::cuda
