// Convolution plans of cuDNN, through its graph API: one operation a graph, or a convolution with bias and ReLU.
#pragma once
#include <mutex>
#include <vector>

#include "nn/cuda/build.h"

namespace gradcast::cuda {

using Descriptor = std::unique_ptr<void, Closer<&cudnnBackendDestroyDescriptor>>;   // a cuDNN backend descriptor

enum class ConvPass : uint8_t { forward, weights, data };

/// A convolution from x to y: that of a layer, or of conv_transposed the one whose gradient it computes.
struct ConvShape {
    Shape x, y;
    uint32_t kernel, stride, pad, dilation = 1;
    WindowShape windows(uint32_t samples) const { return {samples, x.C, x.H, x.W, y.H, y.W, kernel, stride, pad, dilation}; }
};

/// One pass of one layer and block size, planned once a GPU; the GPU's lanes share the plan.
class ConvPlan {
public:
    /// Takes the first engine of cuDNN's heuristics that the job's precision and `deterministic` allow.  The heuristics depend on GPU and
    /// shape alone, so every process with the same libraries takes the same engine.  Error: why each engine was skipped.
    Status choose(Build& b, const ConvShape& shape, ConvPass pass);
    /// The forward pass with bias and ReLU in the same kernel.  *offered: false if cuDNN has none that the job allows, and a pass of its
    /// own computes them.
    Status choose_fused(Build& b, const ConvShape& shape, bool* offered);
    uint64_t workspace() const { return workspace_; }   // bytes
    /// Enqueues the pass; x, w and y are dx, dw and dy in backward passes.  Gradients of weights: all float; else the activations' type, of
    /// which the bias is, too (fused alone).  All are aligned to 16 bytes.
    Status run(const Frame& f, void* x, void* w, void* y, void* workspace, void* bias = nullptr) const;

private:
    Status choose(Build& b, const ConvShape& shape, ConvPass pass, bool fused);
    std::vector<Descriptor> plans_;   // by GPU
    std::vector<uint32_t> gpu_of_lane_;
    uint64_t workspace_ = 0;         // the largest need of a GPU's plan
    mutable std::mutex executing_;   // cuDNN: one thread at a time may execute a plan
};

}   // namespace gradcast::cuda
