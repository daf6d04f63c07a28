// A network on one device.  Parameters are shared by all lanes; activations and the gradient belong to a lane.
// Built from a list of layers, whose shape rules are in nn/graph/layers.h; presets (nn/presets.cc) are such lists.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nn/graph/net_order.h"
#include "nn/graph/net_spec.h"
#include "nn/slice_link.h"
#include "runtime/core/arena.h"
#include "runtime/core/digest.h"
#include "runtime/core/isa.h"
#include "runtime/core/lanes.h"
#include "runtime/core/types.h"

namespace gradcast {

/// The size of a preset that comes in sizes (preset_sized()).
struct PresetSize {
    uint32_t depth = 4, width = 128, heads = 4;
    bool tied_head = false;   // the head has the embedding's weights
    double dropout = 0;       // the rate of dropout layers and of attention; 0: there are no such layers
    bool valid = false;       // of all presets: the loss has mean_over = "valid"
};
bool preset_sized(std::string_view name);
/// Gives the net of those samples the layers of one of preset_names().  Error: the nearest, and all of them.
Status preset_layers(const std::string& name, const PresetSize& size, NetSpec* spec);
/// Gives the layers of a preset for images of bytes [C, H, W] with labels.  Errors: those of preset_layers().
Status preset_find(const std::string& name, uint32_t C, uint32_t H, uint32_t W, uint32_t classes, NetSpec* spec);
/// All names, for errors.
std::span<const char* const> preset_names();

/// Gets a bucket's gradient as soon as the backward pass has completed it: float32 [bucket.count], summed over the block's samples,
/// valid until the call returns.  Called on the lane that computes the block.  Of a bucket of tied weights a block hands in a gradient for
/// each layer that takes them (Group::uses).
struct GradientSink {
    virtual ~GradientSink() = default;
    virtual Status bucket(uint32_t lane, BlockId block, uint32_t bucket, Buffer gradient) = 0;
    virtual void loss(uint32_t lane, BlockId block, double sum) = 0;   // over the block's samples; before the first bucket
    /// Takes gradients on the device: a GPU's buffers have `device` alone then.  They are complete for work in the lane's codec stream
    /// (runtime/core/cuda/device.h), and valid until the work enqueued there is done.
    virtual bool on_device() const { return false; }
    /// Called before a block if the sink is on_device().  Returns true if a codec of that device knows each bucket's destination
    /// (DeviceWords::begin).  Quantising is then part of the block, and bucket() is called all the same.
    virtual bool begin(uint32_t lane, BlockId block, Status* status) {
        (void)lane, (void)block, (void)status;
        return false;
    }
    /// bucket() of a large gradient that is computed piece by piece as it is taken.  False: none was taken, and bucket() gets the whole.
    virtual bool pieces(uint32_t lane, std::span<const Block> blocks, uint32_t bucket, const GradientPiece& piece, Status* status) {
        (void)lane, (void)blocks, (void)bucket, (void)piece, (void)status;
        return false;
    }
    /// Called before the first bucket if the net has mean_over_valid() (nn/graph/layers.h).  Takes the number of positions in the
    /// block's samples whose label counts.
    virtual void valid(uint32_t lane, BlockId block, uint64_t positions) { (void)lane, (void)block, (void)positions; }
    /// Whether it takes row_bound().
    virtual bool row_bounds() const { return false; }
    /// Called for an embedding in slices, before its bucket.  largest: the largest |x| of its output's gradient in the block, if that is
    /// finite.  It bounds what one position adds to a row.  The rows are elements place .. place + count - 1 of the whole vector.
    virtual void row_bound(uint64_t place, uint64_t count, float largest) { (void)place, (void)count, (void)largest; }
};

struct Layer;   // nn/graph/layers.h; it lives as long as the net
const std::string& layer_name(const Layer& layer);
enum class Pass : uint8_t { input, forward, backward_weights, backward_data };
/// Gets the time of each layer's passes, on the lane, after each.  `input` is the normalising before layer 0.  Work that both backward
/// passes need is reported as `backward_weights` if the layer has weights, so a layer may report that pass twice.  A forward pass that is
/// computed again is reported again.  A layer that is computed with another one has no passes of its own.
struct NetTrace {
    virtual ~NetTrace() = default;
    virtual uint64_t now_ns() = 0;
    virtual void pass(uint32_t lane, const Layer& layer, Pass pass, uint64_t begin_ns, uint64_t end_ns) = 0;
};

struct Optimiser;   // nn/optimiser.h

/// A bucket's sum, and the value of one unit in each of the bucket's groups.
struct BucketSum {
    Sum sum;
    std::span<const double> units;
};

/// The factors of convolutions and inner products.  Sums, parameters and their gradients are float.  tf32 (GPUs alone): float with 10 bits
/// of fraction.  On GPUs bf16 flows between all layers.
enum class Precision : uint8_t { f32, bf16, tf32 };
/// Names in job files, in the order of Precision; and the precision of a name.
std::span<const char* const> precision_names();
Precision precision_of(std::string_view name);

/// A whole step is one graph, whose size is in proportion to its blocks.
constexpr uint32_t step_blocks_max = 64;

/// The passes that Net::backward() computes: both layer by layer, or one of them.
enum class Backward : uint8_t { both, data, weights };

/// The output of layer `from`, which layer `by` of another stage reads.  Numbers are those in the whole net's list.
struct Edge {
    uint32_t from, by;
    bool incoming;   // `by` is this net's: it gets the value and gives the gradient
    bool learns;     // there is a gradient
};

struct NetConfig {
    uint32_t lanes = 1;
    uint32_t samples_max = 0;   // the most of an evaluation batch, and of a block if block_sizes is empty
    /// All sizes of blocks; kernels are made for these alone.  Empty: samples_max and one less, as the blocks of a mini-batch differ by one
    /// sample at most.
    std::vector<uint32_t> block_sizes = {};
    uint64_t bucket_bytes = 64 * 1024;   // a bucket is closed when it has at least that many bytes of float
    uint64_t seed = 1;
    Precision precision = Precision::f32;   // on CPUs bf16 needs Isa::avx512_bf16 or Isa::amx
    bool deterministic = true;              // false (GPUs alone): the fastest kernels, whose bits may differ from run to run
    /// The size of each block of a whole step (Net::step_begin), step_blocks_max at most; empty: no whole steps.
    std::vector<uint32_t> step_blocks = {};
    Stage stage = {};            // the layers that this net computes, or slices of them (CPUs); it begins at one of stage_begins()
    uint32_t slots = 1;          // micro-batches in flight of a lane
    bool passes_apart = false;   // gradients of activations stay until the slot's weights pass, which costs their memory
    /// A slot keeps what its forward pass read and what crosses cuts.  Activations are memory that a lane's slots share: backward()
    /// computes them again if another slot has used it since.  Not with passes_apart (CPUs).
    bool recompute = false;
};

/// The results of a whole step (Net::step_end).  Valid until the next step_end().
struct WholeStep {
    std::span<const double> losses = {};   // by block: the sum over its samples
    std::span<const float> maxima = {};    // by group of the layout: the largest |x| over all blocks, before clipping
    uint64_t clipped = 0;                  // elements clipped
    uint64_t digest = 0;                   // of the parameters and, behind them, of the optimiser's state after the step
};

struct Net {
    virtual ~Net() = default;
    virtual const Layout& layout() const = 0;
    virtual const NetSpec& spec() const = 0;
    virtual const char* kernels() const = 0;   // the kernel set that the bits of a block come from: "avx512", "bf16-amx"
    /// Digest of the kernels that a library has chosen, for all sizes of blocks; 0 where none chooses.
    virtual uint64_t engines() const { return 0; }
    /// The same kernels as text, one for each layer, pass and size of blocks: "conv1 forward, 100 samples: engine 51, knobs 2 0, ...".
    virtual std::span<const std::string> engine_list() const { return {}; }
    /// [layout.elements]; after writing call refresh().  Of a device: a copy, which the call updates.  No block may run.
    virtual std::span<float> parameters() = 0;
    /// Digest of the parameters that this node stands for, by their places in the whole net's vector, computed on the device.
    virtual uint64_t digest() = 0;
    virtual void refresh() = 0;   // parameters were written: copies for kernels are made anew
    /// Forward and backward pass of one block, on the thread of that lane.  The gradient's bits do not depend on the lane, other lanes or
    /// the number of threads.
    virtual Status block(uint32_t lane, BlockId id, const Samples& samples, GradientSink& sink) = 0;
    /// The most blocks for one call of blocks(): several blocks share the reads of the weights.
    virtual uint32_t together() const { return 1; }
    /// block() of up to together() blocks of a step, all of the same mean and std.  The gradients have the same bits, as long as parameters
    /// are finite: 0 times Inf may count as 0.
    virtual Status blocks(uint32_t lane, std::span<const Block> all, GradientSink& sink) {
        for (const Block& each : all) GC_TRY(block(lane, each.id, each.samples, sink));
        return {};
    }
    // Micro-batches in flight.  A slot is memory of a lane: that of a forward pass until its backward passes are done.  A lane does one
    // call at a time; its slots take turns in any order.
    /// Returns the number of slots of each lane; 0: this net has no passes as calls.
    virtual uint32_t slots() const { return 0; }
    /// Forward pass of up to together() blocks.  Hands in losses and statistics.  The samples are free again on return.
    virtual Status forward(uint32_t lane, uint32_t slot, std::span<const Block> all, GradientSink& sink) {
        (void)lane, (void)slot, (void)all, (void)sink;
        return fail(Code::unsupported, "this net computes whole blocks");
    }
    /// Returns the values that cross the cuts of a stage, in the order in which layers read them.  Several layers may read one value; each
    /// of them gives a gradient.
    virtual std::span<const Edge> edges() const { return {}; }
    /// Size of that edge's value or gradient, for blocks of `samples` samples in all.  The net need not be ready.
    virtual uint64_t edge_bytes(size_t edge, bool gradient, uint32_t samples) {
        (void)edge, (void)gradient, (void)samples;
        return 0;
    }
    /// Host memory of that edge's value or gradient in a slot, for blocks of `samples` samples in all; the whole net's order.  Values
    /// that come in are written before forward(), those that go out are valid after it; gradients likewise around the data pass.  With
    /// NetConfig::recompute a gradient that comes in is written between the lane's call before the data pass and that pass.
    virtual Buffer edge(uint32_t lane, uint32_t slot, size_t edge, bool gradient, uint32_t samples) {
        (void)lane, (void)slot, (void)edge, (void)gradient, (void)samples;
        return {};
    }
    /// Memory of that edge's value in an evaluation of `samples` samples, with the order and the size of the program that computes them.
    /// Values that come in are written before evaluate(); those that go out are valid after it, until the lane's next call.
    virtual Buffer evaluation_edge(uint32_t lane, size_t edge, uint32_t samples) {
        (void)lane, (void)edge, (void)samples;
        return {};
    }
    // For a net of one of several slice groups (Stage::slice_groups).  The net calls the link in forward(), backward() and evaluate().
    /// Before the first pass.  It must outlive the passes.
    virtual void slice_link(SliceLink* link) { (void)link; }
    virtual std::span<const SlicePoint> slice_points() const { return {}; }
    /// Returns the bytes that the group sends at a point, for blocks of `samples` samples in all or an evaluation of so many.  Returns 0 if
    /// an evaluation does not come there.  The net need not be ready.
    virtual uint64_t slice_bytes(size_t point, uint32_t group, uint32_t samples, bool training) {
        (void)point, (void)group, (void)samples, (void)training;
        return 0;
    }
    /// Returns the largest slice_bytes() of this point and group, over all sizes of batches.
    virtual uint64_t slice_bytes_most(size_t point, uint32_t group) const {
        (void)point, (void)group;
        return 0;
    }
    /// As of the last apply(): the digest of the parameters and the optimiser's state that every slice group of the stage owns.
    virtual uint64_t shared_digest() const { return 0; }
    /// Layers that may begin a stage: those that are not computed with the one before them.
    virtual std::vector<uint32_t> stage_begins() const { return {0}; }
    /// Backward pass of the slot's blocks.  `data` computes gradients of activations; `weights` computes those of parameters and hands them
    /// in, at any time after `data` and before the slot's next forward pass.  Both need NetConfig::passes_apart.
    virtual Status backward(uint32_t lane, uint32_t slot, Backward passes, GradientSink& sink) {
        (void)lane, (void)slot, (void)passes, (void)sink;
        return fail(Code::unsupported, "this net computes whole blocks");
    }
    /// block() of that step returns Code::cancelled between two layers, until the next call: cancel(no_step) allows every step.  Any
    /// thread.
    virtual void cancel(StepId step) = 0;
    static constexpr StepId no_step = ~StepId{0};
    /// Traces every block from the next one on.  Pass null to stop.  Call it between blocks.  Traced gradients are not offered in pieces,
    /// so that each pass has a time of its own.
    virtual void trace(NetTrace* trace) = 0;
    static constexpr uint32_t no_classes = ~0u;
    /// It computes the loss: the whole net, or the last stage.
    virtual bool has_loss() const { return true; }
    /// evaluate() gives a class for each position of a sample (NetSpec::positions()), not one a sample.
    virtual bool by_position() const { return false; }
    /// Forward only: the number of right classes (no_classes: the net gives none), the sum of losses and, where they are not null, the
    /// classes [samples] or [samples, positions], and for each the outputs as the loss takes them [classes]: softmax, or those of
    /// squared_loss.  Error: unsupported, where a GPU is to give outputs.  A stage computes its layers.  It reads images if it has layer 0
    /// or, of a text, the loss, and labels if it has the loss.
    /// Without the loss *right and *loss are 0, and nothing else is written.  The memory is that of the lane's slot 0, whose passes must be
    /// complete; passes of other slots may be in flight.
    virtual Status evaluate(uint32_t lane, const Samples& samples, uint32_t* right, double* loss, int32_t* predicted,
                            float* outputs = nullptr) = 0;
    /// Applies a step's sums, of every bucket in order: value = (float)((double)S * unit of its group), then the optimiser.  *digest: that
    /// of the parameters and, behind them, of the optimiser's state as they are now, where this node stands for them.  Trainer thread,
    /// which shares the work with the lanes; no block running.
    virtual Status apply(Lanes& lanes, Optimiser& optimiser, std::span<const BucketSum> sums, uint64_t* digest) = 0;

    // Whole steps: a device that computes all blocks of a step also sums, applies and digests them, in one launch and with the bits of
    // block(), Codec::finish() and apply().  Trainer thread.  While a step is under way, no call but these two.
    /// The most whole steps that may be under way; 0: this net computes none.
    virtual uint32_t steps_ahead() const { return 0; }
    /// Enqueues a step and returns before the device has done it.  blocks: all of the step, in the sizes of NetConfig::step_blocks; their
    /// memory is free again on return.  The optimiser has had Optimiser::step().
    virtual Status step_begin(StepId step, std::span<const Samples> blocks) {
        (void)step, (void)blocks;
        return fail(Code::unsupported, "this net computes no whole steps");
    }
    /// Waits for the oldest step that was begun.  Error: Code::diverged; the state is then that before the step, and a later step that was
    /// begun is dropped.
    virtual Status step_end(WholeStep* done) {
        (void)done;
        return fail(Code::unsupported, "this net computes no whole steps");
    }
};
/// How many blocks a lane computes at a time, so that all lanes have about as many.
inline uint32_t together_of(const Net& net, uint32_t blocks, uint32_t lanes) {
    auto shares = [](uint32_t count, uint32_t size) { return (count + size - 1) / size; };
    return std::max(shares(blocks, lanes * std::max(shares(blocks, lanes * net.together()), 1u)), 1u);
}
/// Makes the kernels and plans activations, gradients and parameters in `arena`; after the arena is sealed, net_cpu_ready() binds them
/// and draws the initial weights; not `initial`: the caller writes the parameters.  The arena must outlive the net.  Error: names the layer
/// and both shapes.
Status net_cpu_plan(const NetSpec& spec, const NetConfig& config, Arena& arena, std::unique_ptr<Net>* net);
Status net_cpu_ready(Net& net, bool initial = true);

/// Finds the order of the net on CPUs.  Error: as layers_check().
Status net_cpu_order(const NetSpec& spec, NetOrder* order);

/// Fixes the instruction set of this process's kernels, once and before the first net is planned: bits differ between levels.  In float
/// avx512_bf16 has the bits of avx512, and so has amx in layers that it does not multiply (nn/cpu/README.md).  common computes in float and
/// has no layer of oneDNN.  Error: this CPU lacks it, or it comes too late.  Not called: the best that this CPU has.
Status nn_isa(Isa isa);
/// As it was fixed, or the best that this CPU has.
Isa nn_isa();

}   // namespace gradcast
