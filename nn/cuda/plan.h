// Convolution plans of cuDNN, through its graph API with one operation a graph: the older API is deprecated.
#pragma once
#include <mutex>
#include <vector>

#include "nn/cuda/build.h"

namespace gradcast::cuda {

using Descriptor = std::unique_ptr<void, Closer<&cudnnBackendDestroyDescriptor>>;   // a cuDNN backend descriptor

enum class ConvPass : uint8_t { forward, weights, data };

/// One pass of one layer and block size, planned once a GPU; the GPU's lanes share the plan.
class ConvPlan {
public:
    /// Takes the first engine of cuDNN's heuristics that the job's precision and `deterministic` allow.  The heuristics depend on GPU and
    /// shape alone, so every process with the same libraries takes the same engine.  Error: why each engine was skipped.
    Status choose(Build& b, ConvPass pass);
    uint64_t workspace() const { return workspace_; }   // bytes
    /// Enqueues the pass; x, w and y are dx, dw and dy in backward passes.  Gradients of weights: all float; else the activations' type.
    Status run(const Frame& f, void* x, void* w, void* y, void* workspace) const;

private:
    std::vector<Descriptor> plans_;   // by GPU
    std::vector<uint32_t> gpu_of_lane_;
    uint64_t workspace_ = 0;         // the largest need of a GPU's plan
    mutable std::mutex executing_;   // cuDNN: one thread at a time may execute a plan
};

}   // namespace gradcast::cuda
