#include "nn/cuda/optimiser.h"

#include <algorithm>
#include <utility>

namespace gradcast::cuda {

void DeviceDigest::plan(CudaDevice::Gpu& gpu, std::vector<Layout::Run> runs) {
    runs_ = std::move(runs);
    gpu.arena.plan("sums", runs_.size() * sizeof(DigestNow), &now_);
    gpu.arena.plan_pinned("sums", runs_.size() * sizeof(DigestNow), &here_);
}

Status DeviceDigest::ready(const CudaDevice::Gpu& gpu, const Buffer& words) {
    gpu_ = &gpu;
    if (runs_.empty()) return {};
    const cudaStream_t stream = gpu.stream.get();
    auto all = [&]() -> Status {
        auto* now = static_cast<DigestNow*>(now_.device);
        GC_CUDA(cudaMemcpyAsync(now, here_.host, now_.bytes, cudaMemcpyHostToDevice, stream));
        for (size_t i = 0; i < runs_.size(); ++i)
            GC_TRY(cuda::digest(stream, now + i, static_cast<const float*>(words.device) + runs_[i].offset, runs_[i].count));
        return check(cudaMemcpyAsync(here_.host, now, now_.bytes, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
    };
    GC_CUDA(cudaSetDevice(gpu.number));
    std::fill_n(here_.as<DigestNow>(), runs_.size(), DigestNow{});
    GC_TRY(all());   // once before the capture, as in CudaNet
    GC_CUDA(cudaStreamSynchronize(stream));
    return capture(stream, all, &graph_);
}

Status DeviceDigest::start(uint64_t first) {
    if (runs_.empty()) return {};
    GC_CUDA(cudaSetDevice(gpu_->number));
    for (size_t i = 0; i < runs_.size(); ++i) here_.as<DigestNow>()[i] = {0, first + runs_[i].place};
    return check(cudaGraphLaunch(graph_.get(), gpu_->stream.get()), "cudaGraphLaunch");
}

const UpdateKernels& update_kernels_of(const OptimiserKind& kind) {
#define GC_OPTIMISER(which) \
    if (&kind == &which##_optimiser) return which##_kernels;
    GC_OPTIMISERS(GC_OPTIMISER)
#undef GC_OPTIMISER
    GC_ASSERT(false);
    return sgd_kernels;
}

/// Of the optimiser's state [vector, element].
static std::vector<Layout::Run> runs_of_state(const Layout& layout, uint32_t vectors) {
    std::vector<Layout::Run> all;
    for (uint32_t i = 0; i < vectors; ++i)
        for (const Layout::Run& run : layout.runs())
            all.push_back({i * layout.elements + run.offset, run.count, i * layout.whole() + run.place});
    return all;
}

CudaOptimiser::CudaOptimiser(const OptimiserConfig& config, const Layout& layout, CudaDevice& device)
    : config_(config),
      undecayed_(optimiser_without_decay(config)),
      kind_(*optimiser_find(config.kind)),
      kernels_(update_kernels_of(kind_)),
      vectors_(kind_.vectors(config)),
      vectors_in_all_(optimiser_vectors(config)),
      elements_(layout.elements),
      parts_(optimiser_parts(config.ranges, layout, true)),
      device_(device),
      gpu_(*device.gpus()[0]) {
    gpu_.arena.plan("optimiser", vectors_in_all_ * elements_ * sizeof(float), &state_);
    gpu_.arena.plan_pinned("optimiser", vectors_in_all_ * elements_ * sizeof(float), &host_);
    digest_.plan(gpu_, runs_of_state(layout, vectors_in_all_));
    if (kernels_.look) {
        uint64_t most = 0;
        for (const OptimiserPart& part : parts_) most = std::max(most, part.count);
        gpu_.arena.plan("optimiser", blocks_of(most, norm_piece) * sizeof(TensorNorms), &norms_);
        gpu_.arena.plan("optimiser", sizeof(StepRates), &own_);
    }
    step(0);
}

std::span<const OptimiserPart> CudaOptimiser::parts(const Group& group) const {
    const auto first = std::ranges::lower_bound(parts_, group.offset, {}, &OptimiserPart::offset);
    const auto end = std::ranges::lower_bound(first, parts_.end(), group.offset + group.count, {}, &OptimiserPart::offset);
    return {first, end};
}

Status CudaOptimiser::apply(float* w, const Group& group, const Words& words) {
    for (const OptimiserPart& part : parts(group)) {
        const UpdateVectors at = vectors(w, part.offset);
        if (part.how == Treatment::frozen && !at.mean) continue;
        Words of = words;
        of.first += part.offset - group.offset;
        const bool scaled = kernels_.look && part.how == Treatment::plain;
        auto* const own = scaled ? static_cast<StepRates*>(own_.device) : nullptr;
        if (scaled) GC_TRY(kernels_.look(gpu_.stream.get(), at, of, part.count, static_cast<TensorNorms*>(norms_.device), own));
        GC_TRY(kernels_.apply(gpu_.stream.get(), at, update_rule(part.how), of, part.count, own));
    }
    return {};
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
    if (std::exchange(stale_, false)) must(fetch());
    return {host_.as<float>(), host_.bytes / sizeof(float)};
}

void CudaOptimiser::refresh() {
    if (state_.bytes == 0 || stale_) return;   // stale: nobody has written to the copy
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
