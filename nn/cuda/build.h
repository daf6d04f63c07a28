// How a net on GPUs is put together, as on the CPU (nn/cpu/build.h): for each size of block every layer appends operations to lists, with
// all memory at fixed places.  Each lane's lists are captured as one CUDA graph, so an operation only enqueues: it neither allocates nor
// waits, and values that change from block to block are read on the device.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "nn/cuda/kernels.h"
#include "nn/layers.h"
#include "runtime/core/cuda/device.h"

namespace gradcast::cuda {

/// Memory by life time.  Of a lane: `kept` from the forward to the backward pass; `even` and `odd` hold the gradients of activations, each
/// of which is read only while its neighbour is written; `scratch` within one operation, `beside` within one that runs
/// beside others; `gradient` in canonical order.  Of all lanes of a
/// GPU: `parameters` in canonical order, and `copies` of weights as kernels want them.
enum class Place : uint8_t { kept, even, odd, scratch, beside, gradient, parameters, copies };
constexpr uint32_t place_count = 8;

struct Tensor {
    Place place{};
    uint64_t offset = 0;   // bytes
};

/// One lane at work.
struct Frame {
    uint32_t lane = 0;
    cudaStream_t stream = nullptr;
    cudnnHandle_t cudnn = nullptr;
    cublasHandle_t cublas = nullptr;
    std::array<std::byte*, place_count> base{};
    bool bf16 = false;       // of activations
    bool training = false;   // a block, not an evaluation
    // The block's input, on the device.
    const BlockHeader* header = nullptr;
    const float *scale = nullptr, *shift = nullptr;
    const uint64_t* seeds = nullptr;
    const int32_t* labels = nullptr;
    const uint8_t* images = nullptr;
    // Its results.
    LossResult* result = nullptr;
    double* losses = nullptr;
    int32_t* best = nullptr;

    template <typename T = float>
    T* at(const Tensor& tensor) const {
        return reinterpret_cast<T*>(base[static_cast<size_t>(tensor.place)] + tensor.offset);
    }
    Values values(const Tensor& tensor) const { return {at<void>(tensor), bf16}; }
};
using Operation = std::function<Status(const Frame&)>;

/// What a layer does for blocks of one size.
struct Operations {
    std::vector<Operation> forward;
    std::vector<Operation> before;    // backward: what `weights` and `data` depend on, and dbias
    std::vector<Operation> weights;   // backward: dweight of large layers; runs beside `data`, on scratch of its own
    std::vector<Operation> data;      // backward: dinput
};

/// What flows between two layers, [samples, H, W, C]: a value and, where somebody before it learns, its gradient.
struct Activation {
    Tensor value, gradient;
    bool learns = false;
    bool rectified = false;            // the ReLU that takes it has been computed with it
    const Layer* unbiased = nullptr;   // the convolution whose bias the max pooling that takes it adds
};

class Build {
public:
    Build(const NetConfig& net, std::span<const Layer> all, CudaDevice& computer)
        : config(net), layers(all), device(computer), bf16(net.precision == Precision::bf16), copies(all.size()) {}
    const NetConfig& config;
    const std::span<const Layer> layers;
    CudaDevice& device;
    const bool bf16;

    // Of the size under construction
    uint32_t samples = 0;
    bool training = false;   // false: forward only
    Activation activation;   // in: the layer's input; out: its output
    Activation other;        // in: what add adds
    void begin(uint32_t size, bool backward);

    // Of the layer under construction
    const Layer* layer = nullptr;
    uint32_t number = 0;   // in the list of layers
    Operations* operations = nullptr;

    uint64_t value_bytes() const { return bf16 ? 2 : 4; }
    uint64_t rows(const Shape& shape) const { return uint64_t{samples} * shape.H * shape.W; }
    /// The only layer that takes this one's output is of that kind, and the next in the list.
    bool before(Kind kind) const;
    /// This layer's output, with a gradient if `learns`.
    Activation flows(bool learns);
    Tensor kept(uint64_t bytes);
    /// For one operation: `size` bytes of memory that all operations share.
    Tensor scratch(uint64_t size) { return allocate(Place::scratch, size, 0); }
    /// For one of Operations::weights: `size` bytes from `offset` on of memory that all of them share.
    Tensor beside(uint64_t size, uint64_t offset = 0) { return allocate(Place::beside, size, offset); }
    /// Of the layer: weight, and the bias behind it.
    Tensor weight(Place place) const { return {place, layer->offset * sizeof(float)}; }
    Tensor bias(Place place, const Layer* of = nullptr) const;
    /// A copy of the layer's weights as its kernels want them, of `size` bytes, made by make(frame, copy); all sizes of blocks share it.
    Tensor copy(uint64_t size, std::function<Status(const Frame&, const Tensor&)> make);
    /// In place on y.gradient: the backward pass of the ReLU that was computed with the layer, and the bias's gradient.
    void bias_backward(const Activation& y, const Layer* biased, std::vector<Operation>& list);

    std::array<uint64_t, place_count> bytes{};   // the most that any size needs
    uint64_t engines = 0;                        // digest of the engines and knobs that cuDNN plans with
    /// By layer: its copy, and what makes it anew when the parameters have changed.
    struct Copy {
        Tensor tensor;
        Operation refresh;
    };
    std::vector<Copy> copies;

private:
    Tensor allocate(Place place, uint64_t size, uint64_t offset);
    uint64_t kept_ = 0, copied_ = 0;
    bool odd_ = false;
};

/// What products of that precision may be made of: float without TF32 or emulation, bf16 with sums in float.
cublasComputeType_t compute_type(Precision precision);
cublasMath_t math_mode(Precision precision);

/// Layers: append to b.operations, replace b.activation.
Status conv(Build& b);
Status inner_product(Build& b);
Status max_pool(Build& b);
Status average_pool(Build& b);
Status relu(Build& b);
Status dropout(Build& b);
Status batch_norm(Build& b);
Status add(Build& b);
Status softmax_cross_entropy(Build& b);
Status squared_loss(Build& b);

}   // namespace gradcast::cuda
