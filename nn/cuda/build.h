// How a net on GPUs is built, as on the CPU (nn/cpu/build.h): for each block size every layer appends operations to lists; all memory is at
// fixed places.  A lane's lists are captured as one CUDA graph, so an operation only enqueues: it does not allocate or wait, and it reads
// values that change from block to block on the device.
#pragma once
#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "nn/cuda/kernels.h"
#include "nn/graph/fusions.h"
#include "nn/graph/planner.h"
#include "nn/programs.h"
#include "runtime/core/cuda/device.h"

namespace gradcast::cuda {

/// Parts of one allocation begin at multiples of so many bytes, as kernels and libraries want it.
constexpr uint64_t alignment = 256;
constexpr uint64_t aligned(uint64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

struct Tensor {
    Place place{};
    uint64_t offset = 0;   // bytes
};

/// SumMemory's places.
struct SumPlaces {
    Tensor scratch, tickets;
};

/// What an operation gets: the stream, the library handles and the memory of its lane.
struct Frame {
    uint32_t lane = 0;
    cudaStream_t stream = nullptr;
    cudnnHandle_t cudnn = nullptr;
    cublasLtHandle_t cublas = nullptr;
    void* workspace = nullptr;   // of cublas, cublas_workspace_bytes
    std::array<std::byte*, place_count> base{};
    bool bf16 = false;       // activations are bf16
    bool training = false;   // false: an evaluation
    // The block's input, on the device.
    const BlockHeader* header = nullptr;
    const float *scale = nullptr, *shift = nullptr;
    const uint64_t* seeds = nullptr;
    const int32_t* labels = nullptr;   // [samples, positions], or the targets of a regression
    const uint8_t* images = nullptr;
    const uint32_t* spoiled = nullptr;   // a parameter is not finite
    // Its results.
    LossResult* result = nullptr;
    int32_t* best = nullptr;

    template <typename T = float>
    T* at(const Tensor& tensor) const {
        return reinterpret_cast<T*>(base[static_cast<size_t>(tensor.place)] + tensor.offset);
    }
    SumMemory at(const SumPlaces& sums) const { return {at<double>(sums.scratch), at<uint32_t>(sums.tickets)}; }
    const float* targets() const { return reinterpret_cast<const float*>(labels); }
    Values values(const Tensor& tensor) const { return {at<void>(tensor), bf16}; }
};
using Operation = std::function<Status(const Frame&)>;

/// A layer's operations for one block size.
struct Operations {
    std::vector<Operation> forward;
    std::vector<Operation> before;   // backward: inputs of `weights` and `data`, and dbias
    std::vector<Operation>
        weights;                   // backward: dweight of large layers; in a second stream, beside `data`, with scratch memory of its own
    std::vector<Operation> data;   // backward: dinput
};

/// An activation between two layers, [samples, H, W, C], and its gradient if a layer before it has parameters (`learns`).
struct Activation {
    Tensor value, gradient;
    bool learns = false;
    bool rectified = false;            // the value includes the ReLU layer behind it
    const Layer* unbiased = nullptr;   // a convolution whose bias the max pooling behind it adds
};

/// What crosses a cut of the net, in one program.
struct EdgeTensors {
    Edge edge;
    Tensor value, gradient;
    uint64_t bytes = 0;   // of either
    size_t first = 0;     // the first edge that has this value
};

/// The gradient of a layer that takes weights which a layer before it in the stage takes too.  It lies behind the gradients of all
/// elements, because the codec may still read the other layer's.
struct FurtherGradient {
    uint32_t layer = 0;
    uint64_t at = 0, count = 0;   // elements, from the first one of the stage's gradient on
};

class Build {
public:
    /// fused: by layer, whether the one before it computes a part of it.
    /// The whole net is built, so that kernels are chosen as in one piece and Net::engines() is that of all; other stages' layers get no
    /// memory, and the caller drops their operations.
    Build(const NetConfig& net, std::span<const Layer> all, const Layout& of, const std::vector<bool>& fused, CudaDevice& computer)
        : config(net),
          layers(all),
          layout(of),
          device(computer),
          bf16(net.precision == Precision::bf16),
          copies(all.size()),
          fused_(fused) {
        plan_further();
    }
    const NetConfig& config;   // its stage is that of the net
    const std::span<const Layer> layers;
    const Layout& layout;
    CudaDevice& device;
    const bool bf16;

    // The block size that is being built
    uint32_t samples = 0;
    bool training = false;   // false: forward only
    Activation activation;   // in: the layer's input; out: its output
    Activation other;        // in: the second input of an add layer
    /// The next program: its operations go to `all`, by layer, and what crosses the stage's cuts to `edges`.
    void begin(uint32_t size, bool backward, std::vector<Operations>* all, std::vector<EdgeTensors>* edges);

    // The layer that is being built
    const Layer* layer = nullptr;
    uint32_t number = 0;   // in the list of layers
    /// The place of its seed in Frame::seeds, of a layer that draws: in the order of these layers.
    size_t seed_number() const { return static_cast<size_t>(std::count_if(layers.begin(), layers.begin() + number, layer_draws)); }
    Operations* operations = nullptr;

    // For layers_build() (nn/graph/planner.h)
    bool enter(uint32_t next);
    bool parts(uint32_t from, uint32_t by) const { return layers[from].takers > 1 || config.stage.has(from) != config.stage.has(by); }
    bool part(uint32_t from, uint32_t by, Activation* given);
    void add_up(uint32_t layer, const Activation& output, std::vector<Tensor> parts);
    bool ours(uint32_t of) const { return config.stage.has(of); }
    static Tensor value(const Activation& of) { return of.value; }

    uint64_t value_bytes() const { return bf16 ? 2 : 4; }
    uint64_t rows(const Shape& shape) const { return uint64_t{samples} * shape.H * shape.W; }
    /// Kernels count rows, and libraries pixels, by int32_t.  Error: names the layer.
    Status rows_fit(uint64_t rows) const;
    WindowShape window() const {
        const Layer& l = *layer;
        return {samples, l.in.C, l.in.H, l.in.W, l.out.H, l.out.W, l.window.kernel, l.window.stride, l.window.pad, l.window.dilation};
    }
    /// The next layer is of that kind, and the builder of this one computes a part of it (gpu_fusions()).
    bool before(const LayerKind& kind) const;
    /// This layer's output, with a gradient if `learns`.
    Activation flows(bool learns);
    Tensor kept(uint64_t bytes) { return {Place::kept, plan().append(Place::kept, bytes)}; }
    /// `size` bytes for one operation; all operations share this memory.
    Tensor scratch(uint64_t size) { return reserve(Place::scratch, size, 0); }
    /// `size` bytes at `offset` for one of Operations::weights; all of those share this memory.
    Tensor beside(uint64_t size, uint64_t offset = 0) { return reserve(Place::beside, size, offset); }
    /// Memory of one operation's sum, with scratch memory in `place`: scratch or beside.
    SumPlaces sum(Place place, const SumSize& size);
    /// The layer's weight, and the bias that follows it.
    Tensor weight(Place place) const;
    Tensor bias(Place place, const Layer* of = nullptr) const;
    /// Parameters or their gradient from that element of the whole net's vector on.
    Tensor canonical(Place place, uint64_t element) const;
    /// A part of a copy: to[a,c,b] = from[a,b,c], where `to` begins at element `at` of the copy and `from` are canonical parameters.
    struct CopyPart {
        Tensor from;
        uint64_t at;
        uint64_t A, B, C;
        uint32_t width = 0;   // WeightCopy::width
    };
    /// A copy of the layer's parameters in its kernels' order, `size` bytes of the activations' type, which is made anew after each update
    /// (weight_copies()); all block sizes share it.
    Tensor copy(uint64_t size, std::vector<CopyPart> parts);
    /// Values that never change, at their place on each GPU.  Layers and block sizes with equal values share them.
    Tensor constant(std::vector<float> values);
    /// Appends to `list`: the backward pass of a fused ReLU, in place on y.gradient, and the bias's gradient.
    void bias_backward(const Activation& y, const Layer* biased, std::vector<Operation>& list);

    MemoryPlan memory{alignment}, elsewhere{alignment};   // of this stage; of the others, which is not allocated
    uint64_t columns = 0;                                 // bytes of unfolded windows in Place::beside, of the largest layer and block
    uint64_t engines = 0;                                 // Net::engines()
    std::vector<std::string> engine_list;                 // Net::engine_list()
    /// By layer.
    struct Copy {
        Tensor tensor;
        std::vector<CopyPart> parts;   // none: there is no copy
    };
    std::vector<Copy> copies;
    struct Constant {
        Tensor tensor;
        std::vector<float> values;
    };
    std::vector<Constant> constants;   // of this stage's layers
    std::vector<FurtherGradient> further;
    /// Floats before the parameters and before a gradient in their memory: an element is aligned as in that of the whole net, because
    /// kernels are chosen by that.  A stage's layers lie one behind the other in both.
    static uint64_t lead(const Layout& of) { return of.groups.empty() ? 0 : of.groups[0].place() % 4; }

private:
    void plan_further();
    MemoryPlan& plan() { return inside_ ? memory : elsewhere; }
    Tensor reserve(Place place, uint64_t size, uint64_t offset) { return plan().reserve(place, size, offset), Tensor{place, offset}; }
    const std::vector<bool>& fused_;
    std::vector<Operations>* all_ = nullptr;
    std::vector<EdgeTensors>* edges_ = nullptr;
    bool inside_ = true;   // the stage has the layer under construction
};

/// Layers: each appends to b.operations and replaces b.activation.
#define GC_LAYER(kind) Status kind(Build& b);
GC_LAYER_KINDS(GC_LAYER)
#undef GC_LAYER
/// A convolution of 1 x 1 pixels, or an inner product of one pixel, by products of matrices.
Status dense(Build& b);
bool conv_is_dense(const Layer& layer);
/// A convolution in groups, by kernels of our own.
Status grouped(Build& b);
/// A convolution of few channels that passes no gradient on, by products of unfolded windows: the kernels of cuDNN for few channels take
/// several times as long.
Status unfolded(Build& b);
bool conv_is_unfolded(const Build& b);

}   // namespace gradcast::cuda
