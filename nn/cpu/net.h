// The net on the CPU: one list of operations for each size of block, shared by all lanes; memory by lane.
#pragma once
#include <atomic>

#include "nn/cpu/kept_link.h"
#include "nn/optimiser.h"
#include "nn/sums.h"

namespace gradcast::cpu {

/// A block is computed by one thread, because weight gradients differ between thread counts.  oneDNN reads this thread's OpenMP setting
/// when it makes a kernel and when it runs it.
class OneThread {
public:
    OneThread();
    OneThread(const OneThread&) = delete;
    OneThread& operator=(const OneThread&) = delete;
    ~OneThread();

private:
    int before_;
};

/// The net for blocks of one size.
struct Program : ProgramSize {
    std::vector<Operation> input;
    std::vector<Operations> layers;   // one each, those with weights at their own place; of other stages' layers none
    std::vector<EdgeTensors> edges;   // alike in all programs of training but for the sizes
    std::vector<SliceBytes> slices;   // by point
    Tensor blocks;                    // with recompute: what the stage reads of the samples
    /// With recompute: where a slot keeps what a slice group has sent forward, by point and group.
    std::vector<std::vector<uint64_t>> received;
    /// The first samples of a tensor of this program.
    uint64_t bytes(const Tensor& of, uint32_t count) const {
        const uint64_t all = of.bytes();
        return count == samples ? all : all / samples * count;
    }
};

class CpuNet final : public Net {
public:
    Status plan(const NetSpec& spec, const NetConfig& config, Arena& arena);
    Status ready(bool initial);
    void freeze(uint32_t layers);   // net_cpu_freeze()

    const Layout& layout() const override { return layout_; }
    const NetSpec& spec() const override { return spec_; }
    const char* kernels() const override { return kernels_name_; }
    bool has_loss() const override { return stage_.end == layers_.size(); }
    bool by_position() const override { return spec_.by_position(); }
    std::span<float> parameters() override { return {parameters_.as<float>(), layout_.elements}; }
    uint64_t digest() override;
    void refresh() override;
    Status block(uint32_t lane, BlockId id, const Samples& samples, GradientSink& sink) override {
        const Block one{id, samples};
        return blocks(lane, {&one, 1}, sink);
    }
    uint32_t together() const override { return together_; }
    Status blocks(uint32_t lane, std::span<const Block> all, GradientSink& sink) override {
        GC_TRY(forward(lane, 0, all, sink));
        return backward(lane, 0, Backward::both, sink);
    }
    uint32_t slots() const override { return config_.slots; }
    Status forward(uint32_t lane, uint32_t slot, std::span<const Block> all, GradientSink& sink) override;
    Status backward(uint32_t lane, uint32_t slot, Backward passes, GradientSink& sink) override;
    std::span<const Edge> edges() const override { return edges_; }
    uint64_t edge_bytes(size_t edge, bool gradient, uint32_t samples) override;
    Buffer edge(uint32_t lane, uint32_t slot, size_t edge, bool gradient, uint32_t samples) override;
    Buffer evaluation_edge(uint32_t lane, size_t edge, uint32_t samples) override;
    void slice_link(SliceLink* link) override;
    std::span<const SlicePoint> slice_points() const override { return slice_points_; }
    uint64_t slice_bytes(size_t point, uint32_t group, uint32_t samples, bool training) override;
    uint64_t slice_bytes_most(size_t point, uint32_t group) const override;
    uint64_t shared_digest() const override { return shared_digest_; }
    std::vector<uint32_t> stage_begins() const override { return stage_begins_; }
    void cancel(StepId step) override { cancelled_.store(step, std::memory_order_relaxed); }   // a flag: it orders nothing
    void trace(NetTrace* trace) override { trace_ = trace; }
    Status evaluate(uint32_t lane, const Samples& samples, uint32_t* right, double* loss, int32_t* predicted, float* outputs) override {
        return evaluate(lane, samples, samples.count, 0, right, loss, predicted, outputs);
    }
    /// In pieces of NetConfig::samples_max samples, with the program of `program_samples` samples or, if these are more, of a piece.
    /// loss_before: the sum over samples before these, behind which their losses are added.
    Status evaluate(uint32_t lane, const Samples& samples, uint32_t program_samples, double loss_before, uint32_t* right, double* loss,
                    int32_t* predicted, float* outputs);
    /// net_cpu_evaluate_further()
    Status evaluate_further(uint32_t lane, const Samples& samples, uint32_t* right, double* loss, int32_t* predicted) {
        return evaluate(lane, samples, config_.samples_max, *loss, right, loss, predicted, nullptr);
    }
    Status apply(Lanes& lanes, Optimiser& optimiser, std::span<const BucketSum> sums, uint64_t* digest) override;

private:
    Status make(Build& build, Program& program);
    /// Returns the program that trains blocks of `samples` samples in all.
    Program& program_of(uint32_t samples);
    void drop_other_stages(Build& build);
    Frame& frame_of(uint32_t lane, uint32_t slot) { return frames_[lane * config_.slots + slot]; }
    /// Checks what this stage reads of the samples.
    Status check(const Samples& samples) const;
    uint64_t blocks_bytes(const Program& program, uint32_t blocks) const;
    /// Copies what this stage reads of the samples to the slot.
    void keep_blocks(Frame& frame) const;
    /// Plans where a slot keeps what other slice groups send forward.
    void keep_received(Build& build, Program& program);
    /// Fills the input and runs all layers forward.
    Status layers_forward(Frame& frame, StepId step);
    Status computed_again(Frame& frame, StepId step);
    /// Of at most as many samples as the largest program has.
    Status evaluate_piece(Frame& frame, const Program& program, const Samples& samples);
    /// Computes and hands in the layer's gradients of weights, block by block.
    Status weights(Frame& frame, size_t layer, GradientSink& sink);
    Status run(const std::vector<Operation>& list, Frame& frame, size_t layer, Pass pass);
    /// Gradients of weights are those of that block from now on; the layer's are written at the place of block `place`.
    void turn_to(Frame& frame, uint32_t block, size_t layer, uint32_t place) const;
    Buffer gradient_of(const Frame& frame, uint32_t bucket, uint32_t block) const;
    bool sample_by_sample() const;
    /// Returns whether this stage reads samples: for the first layer, or as labels of a text.
    bool reads_images() const { return stage_.has(0) || (has_loss() && spec_.vocabulary > 0); }
    void plan_gradients(Build& build);
    /// Offers the layer's gradients in pieces.
    Status in_pieces(const Operations& operations, size_t layer, Frame& frame, GradientSink& sink, bool* taken);
    bool cancelled(StepId step) const { return cancelled_.load(std::memory_order_relaxed) == step; }
    void refresh_layer(uint32_t lane, size_t layer);

    NetSpec spec_;
    NetConfig config_;
    Layout layout_;
    std::vector<Layout::Run> runs_;   // of what this node stands for
    std::vector<Layer> layers_;
    std::vector<bool> merged_;   // by layer: computed with the one before it
    Stage stage_;                // its end is the number of layers at most
    std::vector<uint32_t> stage_begins_;
    std::vector<Edge> edges_;
    std::vector<SlicePoint> slice_points_;
    uint64_t shared_digest_ = 0;
    std::vector<uint32_t> bucket_of_layer_;   // the bucket that is complete once this layer's gradient is; none: ~0
    std::vector<uint64_t> apart_;             // by bucket: floats from one block's gradient to the next one's, in a lane's memory
    std::vector<uint32_t> in_bucket_;         // by layer: the bucket of its gradient; none: ~0
    bool counts_valid_ = false;               // mean_over_valid()
    bool goes_back_ = true;                   // a layer has a backward pass
    bool statistics_ = false;                 // bucket 0 is not learnt but holds running statistics
    std::vector<WeightCopies> copies_;        // by layer
    std::vector<size_t> copied_;              // layers with copies
    std::vector<SumPiece> pieces_;
    std::vector<Program> programs_;   // ascending sizes
    uint32_t together_ = 1;           // blocks computed at a time; above 1:
    Program all_;                     // for that many of the largest size
    std::vector<std::unique_ptr<Call>> calls_;
    std::vector<std::array<Buffer, place_count>> memory_;   // by lane; those of all lanes stay empty
    std::vector<Stream> streams_;
    std::vector<Frame> frames_;          // those of a lane one behind the other
    std::vector<KeptLink> kept_links_;   // with recompute: by frame
    std::vector<uint32_t> computed_;     // by lane: the frame of the newest forward pass
    Buffer parameters_, copies_memory_;
    Engine engine_;
    std::atomic<StepId> cancelled_{no_step};
    NetTrace* trace_ = nullptr;
    const char* kernels_name_ = nullptr;
};

}   // namespace gradcast::cpu
