// The probe block: block 0 of step 0, whose gradient gives the first scales.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "algos/pipeline.h"
#include "runtime/job/run/parts.h"

namespace gradcast {

/// Engine::kernel_set() of a net on GPUs: 8 hex digits of what the libraries have chosen and of the device, then 8 of the digest of a
/// gradient.  They are 0 where no node has a gradient of all layers: in stages.
std::string gpu_kernel_set(const Net& net, uint64_t gradient);
/// A kernel set that depends on something else, too, as on a decoder: the first 8 digits are replaced.
std::string kernel_set_with(std::string_view kernel_set, std::string_view other);
/// Returns whether a training with one set can go on, or be repeated, with the bits of the other.  An unknown gradient is not compared.
bool kernel_sets_agree(std::string_view a, std::string_view b);

/// Its samples.
class ProbeSamples final : public BlockSource {
public:
    /// Error: no memory, or the data cannot be read.
    Status read(const JobParts& parts);
    const Samples& samples() const { return samples_; }
    Status get(BlockId, Samples* samples) override { return *samples = samples_, Status{}; }
    void done(BlockId) override {}

private:
    std::vector<uint8_t> images_;
    std::vector<int32_t> labels_;
    std::vector<std::byte> targets_;
    std::vector<SamplePlace> places_;   // where a program has the samples
    Samples samples_;
};

/// Collects what a job takes from its gradient, which is never kept as a whole.
struct ProbeSink final : GradientSink {
    ProbeSink(const Layout& l, const EngineConfig& c) : layout(l), config(c), maxima(l.groups.size()), bounds(l.groups.size()) {}
    Status bucket(uint32_t lane, BlockId block, uint32_t bucket, Buffer from) override;
    void loss(uint32_t, BlockId, double) override {}
    bool row_bounds() const override { return true; }
    void row_bound(uint64_t place, uint64_t count, float largest) override;
    /// Sets the first scales of a codec of this layout, or of one whose first groups are these: step 0 expects 4 times the maxima, or the
    /// bounds where the maximum is 0.  Error: the gradient holds NaN or Inf.
    Status scale(Codec& codec, const Layout& of_codec) const;
    Status finite() const;   // error: as scale()

    const Layout& layout;
    const EngineConfig& config;
    std::vector<float> maxima;   // by group: the largest |x|; NaN and Inf count as Inf
    std::vector<float> bounds;   // by group: GradientSink::row_bound(); 0: it has none
    uint64_t digest = 0;
};

}   // namespace gradcast
