// Convolutions as cuDNN plans them, through its graph interface with one operation in each graph: the older interface is deprecated.
#pragma once
#include <mutex>
#include <vector>

#include "nn/cuda/build.h"

namespace gradcast::cuda {

using Descriptor = std::unique_ptr<void, Closer<&cudnnBackendDestroyDescriptor>>;   // of cuDNN

enum class ConvPass : uint8_t { forward, weights, data };

/// One pass of one layer and size of block, planned once for each GPU: its lanes share the plan.
class ConvPlan {
public:
    /// The first engine that cuDNN's heuristics propose and the job's precision and `deterministic` allow.  They look at the GPU and the
    /// shape alone, so every process with the same libraries finds the same one.  Error: why each engine was skipped.
    Status choose(Build& b, ConvPass pass);
    uint64_t workspace() const { return workspace_; }   // bytes
    /// Enqueues it; x, w and y are dx, dw and dy in backward passes.  For gradients of weights all are float, else as activations are.
    Status run(const Frame& f, void* x, void* w, void* y, void* workspace) const;

private:
    std::vector<Descriptor> plans_;   // by GPU
    std::vector<uint32_t> gpu_of_lane_;
    uint64_t workspace_ = 0;         // the most that a GPU's plan wants
    mutable std::mutex executing_;   // no two threads may execute one plan at a time
};

}   // namespace gradcast::cuda
