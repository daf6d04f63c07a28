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

static const UpdateKernels& kernels_of(const OptimiserKind& kind) {
#define GC_OPTIMISER(which) \
    if (&kind == &which##_optimiser) return which##_kernels;
    GC_OPTIMISERS(GC_OPTIMISER)
#undef GC_OPTIMISER
    GC_ASSERT(false);
    return sgd_kernels;
}

CudaOptimiser::CudaOptimiser(const OptimiserConfig& config, uint64_t elements, CudaDevice& device)
    : config_(config),
      kind_(*optimiser_find(config.kind)),
      kernels_(kernels_of(kind_)),
      vectors_(kind_.vectors(config)),
      elements_(elements),
      device_(device),
      gpu_(*device.gpus()[0]) {
    gpu_.arena.plan("optimiser", vectors_ * elements * sizeof(float), &state_);
    gpu_.arena.plan_pinned("optimiser", vectors_ * elements * sizeof(float), &host_);
    digest_.plan(gpu_);
    step(0);
}

Status CudaOptimiser::ready() {
    if (state_.bytes == 0) return {};
    GC_TRY(device_.use(gpu_));
    GC_CUDA(cudaMemsetAsync(state_.device, 0, state_.bytes, gpu_.stream.get()));
    return digest_.ready(gpu_, state_);
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

}   // namespace gradcast::cuda
