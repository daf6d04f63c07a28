// The probe block: block 0 of step 0, whose gradient gives the first scales.
#pragma once
#include <vector>

#include "algos/pipeline.h"
#include "runtime/job/run/parts.h"

namespace gradcast {

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
    Samples samples_;
};

/// Its gradient, float32 of all elements that the node owns.
struct ProbeSink final : GradientSink {
    ProbeSink(const Layout& l, const EngineConfig& c) : layout(l), config(c), gradient(l.elements) {}
    Status bucket(uint32_t lane, BlockId block, uint32_t bucket, Buffer from) override;
    void loss(uint32_t, BlockId, double) override {}
    /// Error: it holds NaN or Inf.
    Status finite() const;

    const Layout& layout;
    const EngineConfig& config;
    std::vector<float> gradient;
};

}   // namespace gradcast
