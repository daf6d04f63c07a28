// The net of processes.
#pragma once
#include <atomic>

#include "nn/optimiser.h"
#include "nn/sums.h"
#include "runtime/attach/lane.h"

namespace gradcast {

/// Parameters are memory that the processes of all lanes read.  A block waits for its lane's process.
class AttachedNet final : public Net {
public:
    /// All of them outlive the net.
    struct Parts {
        const NetSpec& spec;
        std::vector<AttachLane>& lanes;
        const SharedMemory& parameters;
        const std::atomic<uint64_t>& deadline_us;
        const std::atomic<bool>*ending, *stop;   // as AttachConfig's
    };
    AttachedNet(const Parts& parts, Layout layout, const NetConfig& config);

    const Layout& layout() const override { return layout_; }
    const NetSpec& spec() const override { return parts_.spec; }
    const char* kernels() const override { return "process"; }
    std::span<float> parameters() override { return {parts_.parameters.all().as<float>(), layout_.elements}; }
    uint64_t digest() override { return digest64(parameters()); }
    void refresh() override {}
    Status block(uint32_t lane, BlockId id, const Samples& samples, GradientSink& sink) override;
    void cancel(StepId step) override { cancelled_.store(step, std::memory_order_relaxed); }   // a flag: it orders nothing
    void trace(NetTrace*) override {}                                                          // the passes of layers are the process's own
    Status evaluate(uint32_t lane, const Samples& samples, uint32_t* right, double* loss, int32_t* predicted, float* outputs) override;
    Status apply(Lanes& lanes, Optimiser& optimiser, std::span<const BucketSum> sums, uint64_t* digest) override;

private:
    bool ending() const {
        const auto set = [](const std::atomic<bool>* flag) { return flag && flag->load(std::memory_order_relaxed); };
        return set(parts_.ending) || set(parts_.stop);
    }

    const Parts parts_;
    const Layout layout_;
    const uint64_t seed_;
    const uint32_t samples_max_;
    uint32_t block_max_ = 1;   // samples of the largest block
    std::vector<SumPiece> pieces_;
    std::atomic<StepId> cancelled_{no_step};
};

}   // namespace gradcast
