#include "nn/cuda/optimiser.h"

namespace gradcast::cuda {

void DeviceDigest::plan(CudaDevice::Gpu& gpu) {
    gpu.arena.plan("sums", sizeof(DigestNow), &now_);
    gpu.arena.plan_pinned("sums", sizeof(DigestNow), &here_);
}

Status DeviceDigest::ready(const CudaDevice::Gpu& gpu, const Buffer& words) {
    gpu_ = &gpu;
    const cudaStream_t stream = gpu.stream.get();
    auto all = [&]() -> Status {
        auto* now = static_cast<DigestNow*>(now_.device);
        GC_CUDA(cudaMemcpyAsync(now, here_.host, sizeof(DigestNow), cudaMemcpyHostToDevice, stream));
        GC_TRY(cuda::digest(stream, now, words.device, words.bytes / 4));
        return check(cudaMemcpyAsync(here_.host, now, sizeof(DigestNow), cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
    };
    GC_CUDA(cudaSetDevice(gpu.number));
    *here_.as<DigestNow>() = {};
    GC_TRY(all());   // once before the capture, as in CudaNet
    GC_CUDA(cudaStreamSynchronize(stream));
    return capture(stream, all, &graph_);
}

Status DeviceDigest::start(uint64_t first) {
    GC_CUDA(cudaSetDevice(gpu_->number));
    *here_.as<DigestNow>() = {0, first};
    return check(cudaGraphLaunch(graph_.get(), gpu_->stream.get()), "cudaGraphLaunch");
}

CudaOptimiser::CudaOptimiser(const OptimiserConfig& config, uint64_t elements, CudaDevice& device)
    : config_(config), elements_(elements), device_(device), gpu_(*device.gpus()[0]) {
    const uint64_t parts = config.kind == "adam" ? 2 : config.momentum != 0 ? 1 : 0;
    gpu_.arena.plan("optimiser", parts * elements * sizeof(float), &state_);
    gpu_.arena.plan_pinned("optimiser", parts * elements * sizeof(float), &host_);
    digest_.plan(gpu_);
    step(0);
}

Status CudaOptimiser::ready() {
    if (state_.bytes == 0) return {};
    GC_TRY(device_.use(gpu_));
    GC_CUDA(cudaMemsetAsync(state_.device, 0, state_.bytes, gpu_.stream.get()));
    return digest_.ready(gpu_, state_);
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
    must(fetch());
    return {host_.as<float>(), host_.bytes / sizeof(float)};
}

void CudaOptimiser::refresh() {
    if (state_.bytes == 0) return;
    auto store = [this]() -> Status {
        GC_TRY(device_.use(gpu_));
        GC_CUDA(cudaMemcpyAsync(state_.device, host_.host, state_.bytes, cudaMemcpyHostToDevice, gpu_.stream.get()));
        return check(cudaStreamSynchronize(gpu_.stream.get()), "cudaStreamSynchronize");
    };
    must(store());
}

uint64_t CudaOptimiser::digest(uint64_t first) {
    if (state_.bytes == 0) return 0;
    must(digest_.start(first));
    must(check(cudaStreamSynchronize(gpu_.stream.get()), "cudaStreamSynchronize"));
    return digest_.sum();
}

Status CudaOptimiser::apply(float* w, uint64_t offset, const Words& words, uint64_t count) {
    auto* state = static_cast<float*>(state_.device);
    if (config_.kind == "adam") return apply_adam(gpu_.stream.get(), w + offset, state + offset, state + elements_ + offset, words, count);
    return apply_sgd(gpu_.stream.get(), w + offset, state_.bytes ? state + offset : nullptr, words, count,
                     static_cast<float>(config_.momentum), static_cast<float>(config_.weight_decay), config_.nesterov);
}

void CudaOptimiser::group(UpdateGroup* group, uint64_t element) const {
    auto* state = static_cast<float*>(state_.device);
    group->first = state_.bytes ? state + element : nullptr;
    group->second = config_.kind == "adam" ? state + elements_ + element : nullptr;
}

void CudaOptimiser::constants(UpdateTask* task) const {
    task->elements = elements_;
    task->momentum = static_cast<float>(config_.momentum);
    task->weight_decay = static_cast<float>(config_.weight_decay);
    task->nesterov = config_.nesterov;
}

Status CudaOptimiser::update_all(UpdateTask* task, uint32_t blocks, cudaStream_t stream) const {
    return config_.kind == "adam" ? update_adam(stream, task, blocks) : update_sgd(stream, task, blocks);
}

}   // namespace gradcast::cuda
