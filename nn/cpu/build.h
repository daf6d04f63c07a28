// How a net on the CPU is put together, all before the first step: for each size of block every layer appends operations to lists, with all
// memory at fixed places; a step walks the lists.  A tensor is a oneDNN descriptor and a place; an operation is a oneDNN primitive or an
// own function.
#pragma once
#include <dnnl.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "nn/graph/planner.h"
#include "nn/kernels.h"
#include "nn/programs.h"
#include "runtime/core/arena.h"
#include "runtime/core/isa.h"

namespace gradcast::cpu {

template <auto destroy>
struct Closer {
    template <typename T>
    void operator()(T* handle) const {
        destroy(handle);
    }
};
using Pd = std::unique_ptr<dnnl_primitive_desc, Closer<&dnnl_primitive_desc_destroy>>;
using Primitive = std::unique_ptr<dnnl_primitive, Closer<&dnnl_primitive_destroy>>;
using Memory = std::unique_ptr<dnnl_memory, Closer<&dnnl_memory_destroy>>;
using Engine = std::unique_ptr<dnnl_engine, Closer<&dnnl_engine_destroy>>;
using Stream = std::unique_ptr<dnnl_stream, Closer<&dnnl_stream_destroy>>;

struct Tensor {
    dnnl_memory_desc_t desc{};
    Place place{};
    uint64_t offset = 0;   // bytes
    uint64_t bytes() const { return dnnl_memory_desc_get_size(&desc); }
};

struct Program;   // nn/cpu/net.h

/// A slot of a lane, and what it is at.
struct Frame {
    uint32_t lane = 0;
    uint32_t number = 0;   // of all frames
    const Program* program = nullptr;
    dnnl_stream_t stream = nullptr;
    std::array<std::byte*, place_count> base{};
    std::span<const Block> blocks;   // whose samples lie one behind the other; in `own`
    std::array<Block, together_most> own{};
    uint32_t samples = 0;                           // of the blocks; without blocks together, the program's size
    bool training = false;                          // blocks, not an evaluation
    int32_t* predicted = nullptr;                   // results of the loss layer
    float* outputs = nullptr;                       // the same, of an evaluation
    double loss_before = 0;                         // of an evaluation: the sum over the samples before these
    std::array<double, together_most> loss{};       // by block
    std::array<uint32_t, together_most> begins{};   // by block: its first sample
    uint32_t right = 0;
    SliceLink* link = nullptr;   // of a net that has some slice group's slices alone
    // The block whose gradients of weights are computed: its number in `blocks`, first sample and number of samples.
    uint32_t block = 0, first = 0, count = 0;
    std::array<uint64_t, together_most> valid{};   // by block: positions whose label counts, a result of the loss layer

    float* at(const Tensor& tensor) const { return reinterpret_cast<float*>(base[static_cast<size_t>(tensor.place)] + tensor.offset); }
    uint16_t* bf16_at(const Tensor& tensor) const { return reinterpret_cast<uint16_t*>(at(tensor)); }
    /// Elements of `samples` samples, where `most` samples have `all`.
    uint64_t part(uint64_t all, uint32_t most) const { return samples == most ? all : all / most * samples; }
};
using Operation = std::function<Status(Frame&)>;
/// What a slice group sends at a point, for so many samples.
using SliceBytes = std::function<uint64_t(uint32_t group, uint32_t samples)>;

/// What a layer does for blocks of one size.
struct Operations {
    /// Blocks of multiples of so many samples can be computed together: a sample's bits do not depend on the others, and `weights` takes
    /// the samples of one block alone.  0: blocks cannot.
    uint32_t unit = 0;
    std::vector<Operation> forward;
    // Backward: `gradient` first, which both others read; those in any order, also with other layers' passes in between.
    std::vector<Operation> gradient;                              // of this layer's output: complete, in the orders that kernels take
    std::vector<Operation> data;                                  // dinput
    std::vector<Operation> weights;                               // dweight and dbias of one block, of layers that have them
    std::function<GradientPart(Frame&, uint64_t first)> pieces;   // `weights` in pieces: that from element `first` on
    std::function<float(const Frame&)> row_bound;                 // GradientSink::row_bound() of the block whose gradients are computed
};

/// What flows between two layers: a value and, where somebody before it learns, its gradient in the same order.
struct Activation {
    Tensor value, gradient;
    bool learns = false;
    bool shared = false;   // other layers read the value later, so none works in place; the gradient is this layer's alone
};

/// A oneDNN primitive with its arguments, bound once to the memory of every frame.
struct Call {
    Primitive primitive;
    std::vector<std::pair<int, Tensor>> tensors;
    std::vector<Memory> memories;
    std::vector<dnnl_exec_arg_t> arguments;   // tensors.size() for each frame
    Status bind(std::span<const Frame> frames, dnnl_engine_t engine);
    Status run(const Frame& frame) const;
};

/// What crosses a cut of the net, in one program.
struct EdgeTensors {
    Edge edge;
    Tensor value, gradient;
    Tensor sent;   // the value, or its copy that is not computed again while it is sent
};

/// Copies of one layer's weights, shared by all sizes.
struct WeightCopies {
    std::vector<Tensor> tensors;
    std::optional<Tensor> packed[2];    // for own kernels: forward, backward
    std::vector<Operation> refresh;     // from the parameters
    std::vector<WeightCopies> slices;   // of a sliced layer: theirs, which it refreshes
};

class Build {
public:
    /// merged: by layer, whether it is computed with the one before it.
    /// The whole net is built, so that kernels and orders are chosen as in one piece; other stages' layers get no memory, and the caller
    /// drops their operations.
    Build(dnnl_engine_t engine, const NetSpec& net, const NetConfig& config, std::span<const Layer> all, const Layout& of,
          const std::vector<bool>& merged)
        : spec(net),
          seed(config.seed),
          stage(config.stage),
          type(config.precision == Precision::bf16 ? dnnl_bf16 : dnnl_f32),
          passes_apart(config.passes_apart),
          recompute(config.recompute),
          layers(all),
          layout(of),
          weight_copies(all.size()),
          engine_(engine),
          merged_(merged) {}
    const NetSpec& spec;
    const uint64_t seed;
    const Stage stage;
    const dnnl_data_type_t type;   // what convolutions and inner products multiply
    const bool passes_apart;       // gradients of activations live until the weights pass
    const bool recompute;          // programs of training share `kept` memory among slots
    const std::span<const Layer> layers;
    const Layout& layout;

    // Of the size under construction
    uint32_t samples = 0;
    bool training = false;   // false: forward only
    Activation activation;   // in: the layer's input; out: its output
    Activation other;        // in: the second input
    /// The next program: its operations go to `all`, by layer, what crosses the stage's cuts to `edges`, and the sizes of what slice groups
    /// send to `slices`, by point.
    void begin(uint32_t size, bool backward, std::vector<Operations>* all, std::vector<EdgeTensors>* edges,
               std::vector<SliceBytes>* slices);

    uint32_t least = 0, most = 0;   // samples of the net's smallest block and of its largest
    uint32_t together = 1;          // blocks that are computed together
    bool tiled = false;             // some layer multiplies floats on AMX
    /// The level of a layer's float kernels: amx where there is AMX and `tiles`.
    Isa level(bool tiles) {
        tiles = tiles && nn_isa() == Isa::amx;
        tiled |= tiles;
        return tiles ? Isa::amx : std::min(nn_isa(), Isa::avx512);
    }

    // Of the layer under construction
    const Layer* layer = nullptr;
    uint32_t number = 0;   // in the list of layers
    Operations* operations = nullptr;
    WeightCopies* copies = nullptr;
    const Layer* pool = nullptr;   // of a convolution (conv_few): the max pooling that is computed with it, and the ReLU behind that
    bool in_slice = false;         // the layer is a slice (slices.cc): others that read the input follow
    struct Reordered {
        const std::vector<Operation>* list;
        Tensor from, to;
    };
    std::vector<Reordered> reordered;   // by the slices before it

    // Of one of several slice groups, which builds all slices and keeps its own.
    std::vector<SlicePoint> slice_points;   // of all programs
    /// The number of that point of the layer under construction.
    size_t slice_point(SliceTraffic what, uint32_t with, SliceBytes bytes);
    /// Called before each of this layer's slices, and before the layer as a whole: what is built next gets memory if it is own.
    void own_slice(bool own);
    /// Each group has its own columns of that layer's output alone, because softmax_cross_entropy is the only reader.
    bool columns_apart(uint32_t of) const;

    // For layers_build() (nn/graph/planner.h)
    bool enter(uint32_t next);
    /// A layer that is not the next one: the layers in between write over the gradient of flows().
    bool parts(uint32_t from, uint32_t by) const { return alone(from, by) || stage.has(from) != stage.has(by); }
    bool part(uint32_t from, uint32_t by, Activation* given);
    void add_up(uint32_t layer, const Activation& output, std::vector<Tensor> parts);
    bool ours(uint32_t of) const { return stage.has(of); }
    static const Tensor& value(const Activation& of) { return of.value; }

    /// Descriptors: canonical order (the last dimension moves fastest), and the order that oneDNN chooses.
    static dnnl_memory_desc_t plain(std::initializer_list<uint64_t> dims, dnnl_data_type_t type = dnnl_f32);
    static dnnl_memory_desc_t any(const dnnl_memory_desc_t& like, dnnl_data_type_t type);
    /// Returns the type of this layer's output: bf16 only where oneDNN's convolutions alone read it, perhaps behind a ReLU.
    dnnl_data_type_t output_type() const;
    /// 8 or 16 channels together, for own kernels; input_width(): 8 where the input comes so, else 16.
    dnnl_memory_desc_t blocked(const Shape& shape, uint32_t width) const { return tagged(shape, width == 8 ? dnnl_nChw8c : dnnl_nChw16c); }
    dnnl_memory_desc_t channels_last(const Shape& shape, dnnl_data_type_t of = dnnl_f32) const { return tagged(shape, dnnl_nhwc, of); }
    dnnl_memory_desc_t tagged(const Shape& shape, dnnl_format_tag_t tag, dnnl_data_type_t of = dnnl_f32) const;
    /// The channels of a position together; of one position the canonical order.
    dnnl_memory_desc_t position_rows(const Shape& shape) const {
        return shape.H * shape.W == 1 ? plain({samples, shape.C, 1, 1}) : channels_last(shape);
    }
    uint32_t input_width() const;
    /// [N/16, C, H, W, 16]; reorders fill up with zeros.
    static dnnl_memory_desc_t side_by_side(uint32_t samples, const Shape& shape);

    /// `what` is for the error: "forward".
    Status describe(const char* what, const void* op, const_dnnl_primitive_desc_t hint, Pd* pd);
    static dnnl_memory_desc_t query(const Pd& pd, dnnl_query_t what) { return *dnnl_primitive_desc_query_md(pd.get(), what, 0); }
    /// Appends an operation that runs the primitive, with its scratch memory.
    Status primitive(const Pd& pd, std::vector<std::pair<int, Tensor>> tensors, std::vector<Operation>& list);
    Status reorder(const Tensor& from, const Tensor& to, std::vector<Operation>& list);

    /// Memory that lives until the backward pass; in a program that is forward only, a layer's output until its last reader, and all else
    /// until the layer ends.
    Tensor kept(const dnnl_memory_desc_t& desc) { return append(Place::kept, desc); }
    /// The same where passes of other slots may come in between.
    Tensor kept_by_slot(const dnnl_memory_desc_t& desc) { return append(shares() ? Place::slot : Place::kept, desc); }
    /// The same of what another stage sends: it may come before the program begins.
    Tensor received(const dnnl_memory_desc_t& desc) {
        return shares() ? kept_by_slot(desc) : Tensor{desc, Place::kept, plan().append_own(Tensor{desc}.bytes())};
    }
    /// A layer's output, with a gradient if `learns`.
    Activation flows(const dnnl_memory_desc_t& desc, bool learns);
    /// For a layer that works in place: its input, if that has the order `desc` and no other reader; else a copy, whose gradient `after`
    /// reorders back.
    Status in_place(const dnnl_memory_desc_t& desc, std::vector<Operation>& after, Activation* activation);
    /// This layer's parameters and their gradient in canonical order.
    Tensor weight(Place place, const dnnl_memory_desc_t& desc) const { return canonical(place, desc, layer->offset); }
    Tensor bias(Place place) const { return canonical(place, plain({layer->biases}), layer->bias_offset); }
    /// Parameters or their gradient from that element of the flat vector on; a lane's memory has the gradient of one bucket.
    Tensor canonical(Place place, const dnnl_memory_desc_t& desc, uint64_t element) const;
    /// The layer's weights in that order: the parameters themselves, or a copy that is refreshed once a step.
    Status weights_as(const dnnl_memory_desc_t& canonical, const dnnl_memory_desc_t& desc, Tensor* tensor);
    /// The same for own kernels: `pack` writes that many floats.
    Tensor packed(bool backward, uint64_t floats, std::function<void(float*, Frame&)> pack);
    /// For one operation.
    Tensor scratch(uint64_t floats) { return reserve(Place::scratch, plain({floats})); }
    /// A tensor in order `desc`: one of `have`, or a copy of have[0] that `list` makes.
    Status consume(std::initializer_list<Tensor> have, const dnnl_memory_desc_t& desc, std::vector<Operation>& list, Tensor* tensor);
    /// Where a primitive writes `wanted` in order `desc`: `wanted` itself, or memory that `after` reorders to it.  place: kept, or
    /// beside, which one such tensor may have at a time: `after` follows the primitive at once.
    Status produce(const Tensor& wanted, const dnnl_memory_desc_t& desc, std::vector<Operation>& after, Tensor* tensor,
                   Place place = Place::kept);

    MemoryPlan memory{64}, elsewhere{64};      // of this stage; of the others, which is not allocated
    std::vector<WeightCopies> weight_copies;   // by layer
    std::vector<std::unique_ptr<Call>> calls;

private:
    bool shares() const { return recompute && training; }
    bool alone(uint32_t from, uint32_t by) const { return layers[from].takers > 1 || from + 1 != by; }
    MemoryPlan& plan() { return inside_ ? memory : elsewhere; }
    using Attributes = std::unique_ptr<dnnl_primitive_attr, Closer<&dnnl_primitive_attr_destroy>>;
    static Attributes attributes();
    Tensor append(Place place, const dnnl_memory_desc_t& desc) { return {desc, place, plan().append(place, Tensor{desc}.bytes())}; }
    Tensor reserve(Place place, const dnnl_memory_desc_t& desc) { return plan().reserve(place, Tensor{desc}.bytes()), Tensor{desc, place}; }
    dnnl_engine_t engine_;
    const std::vector<bool>& merged_;
    std::vector<Operations>* all_ = nullptr;
    std::vector<EdgeTensors>* edges_ = nullptr;
    std::vector<SliceBytes>* slice_bytes_ = nullptr;
    bool inside_ = true;   // the stage has the layer, or slice, under construction
};

/// Layers, each in a file of its own: append to b.operations, replace b.activation.
#define GC_LAYER(kind) Status kind(Build& b);
GC_LAYER_KINDS(GC_LAYER)
#undef GC_LAYER
/// A layer with slices, each of which `build` makes.
Status sliced(Build& b, Status (*build)(Build&));
/// The net's input; appends what fills it from a frame's samples.
Activation pixels(Build& b, std::vector<Operation>& list);
bool conv_wide_fits(const Build& b, const Layer& l);
Status conv_wide(Build& b);
/// Gradients of weights alone, in float: for 5x5, between oneDNN's other passes in bf16.
bool conv_wide_weights_fits(const Layer& l);
Status conv_wide_weights(Build& b, const Tensor& x, const Tensor& dy);
bool conv_few_fits(const Layer& l);
bool conv_few_pools(const Layer& l, const Layer& pool);
Status conv_few(Build& b);

}   // namespace gradcast::cpu
