// Optimisers whose state is on a GPU.
#pragma once
#include "nn/cuda/kernels.h"
#include "nn/optimiser.h"
#include "runtime/core/cuda/device.h"

namespace gradcast::cuda {

/// Returns the kernels of the optimiser.
const UpdateKernels& update_kernels_of(const OptimiserKind& kind);

/// digest64 of words on a GPU by their places, as a graph.
class DeviceDigest {
public:
    /// runs: of the words.
    void plan(CudaDevice::Gpu& gpu, std::vector<Layout::Run> runs);
    /// After Device::seal(); `words` must not move afterwards.
    Status ready(const CudaDevice::Gpu& gpu, const Buffer& words);
    /// Enqueues the digest, of places that count from `first`; sum() is valid after a wait for the GPU's stream.
    Status start(uint64_t first);
    uint64_t sum() const {
        uint64_t all = 0;
        for (size_t i = 0; i < runs_.size(); ++i) all += here_.as<DigestNow>()[i].sum;
        return all;
    }

private:
    const CudaDevice::Gpu* gpu_ = nullptr;
    std::vector<Layout::Run> runs_;
    Buffer now_, here_;   // DigestNow [run]
    GraphExec graph_;
};

/// Belongs to one net; its state is on the net's first GPU.
class CudaOptimiser final : public Optimiser {
public:
    /// Plans the state; ready() follows Device::seal().
    CudaOptimiser(const OptimiserConfig& config, const Layout& layout, CudaDevice& device);
    CudaOptimiser(const CudaOptimiser&) = delete;
    ~CudaOptimiser() override { (void)device_.use(gpu_); }   // the thread's current GPU may be another
    Status ready();
    void step(StepId step) override { now_ = {kind_.rates(config_, step), kind_.rates(undecayed_, step), averaged_share(config_, step)}; }
    uint64_t update(uint64_t, std::span<float>, std::span<const float>) override {
        GC_ASSERT(!"parameters are on a GPU: see apply()");
        return 0;
    }
    std::span<float> state() override;   // waits; a copy on the host, made anew only after updates
    void changed() { stale_ = true; }    // an update has been enqueued
    uint64_t state_size() override { return host_.bytes / sizeof(float); }
    void refresh() override;
    uint64_t digest(uint64_t first) override;
    /// digest() in two parts; the caller waits for the first GPU's stream in between.
    Status digest_start(uint64_t first) { return state_.bytes ? digest_.start(first) : Status{}; }
    uint64_t digest_sum() const { return state_.bytes ? digest_.sum() : 0; }
    /// Enqueues the update of a group on the first GPU's stream; may be captured.  w [elements]: parameters; words: those of the group.
    Status apply(float* w, const Group& group, const Words& words);
    /// The parts of a group, which is none of running statistics, ascending.
    std::span<const OptimiserPart> parts(const Group& group) const;
    /// Writes the values that step() changes.
    void rates(UpdateRates* rates) const { *rates = now_; }

    // Whole steps.
    /// Sets the optimiser's part of a task.
    void task(float* w, UpdateTask* task) const { task->at = vectors(w, 0); }
    bool whole_steps() const { return kernels_.all != nullptr; }
    /// Enqueues the update of all groups.
    Status update_all(const UpdateTask& task, uint32_t blocks, cudaStream_t stream) const { return kernels_.all(stream, task, blocks); }

private:
    /// From that element on; null: there is no such vector.
    float* vector(uint32_t number, uint64_t element) const {
        return number < vectors_in_all_ ? static_cast<float*>(state_.device) + number * elements_ + element : nullptr;
    }
    UpdateVectors vectors(float* w, uint64_t element) const {
        return {w + element, vectors_ > 0 ? vector(0, element) : nullptr, vectors_ > 1 ? vector(1, element) : nullptr,
                vector(vectors_, element)};
    }
    const OptimiserConfig config_, undecayed_;   // undecayed_: for what is exempt
    const OptimiserKind& kind_;
    const UpdateKernels& kernels_;
    const uint32_t vectors_, vectors_in_all_;   // of the kind; with the averaged weights
    const uint64_t elements_;
    const std::vector<OptimiserPart> parts_;
    CudaDevice& device_;
    CudaDevice::Gpu& gpu_;
    Buffer state_, host_;
    Buffer norms_, own_;   // of an optimiser that scales the step of each tensor: scratch of UpdateKernels::look, and the tensor's rates
    DeviceDigest digest_;
    bool stale_ = true;   // host_ is older than state_
    UpdateRates now_;
};

}   // namespace gradcast::cuda
