// The net on GPUs, as one class over several files: net.cc plans it, walk.cc enqueues operations, block.cc computes blocks, pass.cc passes
// of micro-batches in flight, update.cc changes the parameters, whole.cc computes whole steps.  Only these files include this header.
//
// A block is one CUDA graph: copy of the samples, forward pass, backward pass.  When a bucket's gradient is complete, the codec quantises
// it in the same graph, or an event is recorded; both overlap with the rest of the backward pass.  Passes of a stage are no graphs.
#pragma once
#include <atomic>

#include "nn/cuda/build.h"
#include "nn/cuda/optimiser.h"
#include "nn/programs.h"

namespace gradcast::cuda {

inline constexpr Status step_cancelled = {Code::cancelled, 0, "the step was cancelled"};

/// quantised: a block whose gradient the device's codec quantises bucket by bucket.  whole: a block of a whole step, which has no graph of
/// its own.
enum class Work : uint8_t { evaluation, block, quantised, whole };
constexpr size_t work_count = 3;   // with a graph

/// The net's operations for one block size.
struct Program : ProgramSize {
    Tensor input;
    std::vector<Operations> layers;   // one each; of other stages' layers none
    std::vector<EdgeTensors> edges;
    std::vector<std::array<GraphExec, work_count>> graphs;   // by lane
};

/// Offsets of the parts of a block's input; the same in page-locked memory and, but for the images, on the device.
struct InputLayout {
    uint64_t scale, shift, seeds, labels, images, image_bytes;   // image_bytes: of a sample; 0 where another stage reads them
};

class CudaNet final : public Net {
public:
    explicit CudaNet(CudaDevice& device) : device_(device) {}
    ~CudaNet() override;
    CudaNet(const CudaNet&) = delete;
    Status plan(const NetSpec& spec, const NetConfig& config);
    Status ready();
    Status plan(const OptimiserConfig& config, std::unique_ptr<Optimiser>* optimiser);

    const Layout& layout() const override { return layout_; }
    const NetSpec& spec() const override { return spec_; }
    const char* kernels() const override { return kernels_name_.c_str(); }
    uint64_t engines() const override { return engines_; }
    std::span<const std::string> engine_list() const override { return engine_list_; }
    std::span<float> parameters() override;
    uint64_t digest() override;
    void refresh() override { must(upload()); }
    Status block(uint32_t lane, BlockId id, const Samples& samples, GradientSink& sink) override;
    bool by_position() const override { return spec_.by_position(); }
    uint32_t slots() const override { return config_.slots; }
    Status forward(uint32_t lane, uint32_t slot, std::span<const Block> all, GradientSink& sink) override;
    Status backward(uint32_t lane, uint32_t slot, Backward passes, GradientSink& sink) override;
    std::span<const Edge> edges() const override { return edges_; }
    uint64_t edge_bytes(size_t edge, bool gradient, uint32_t samples) override;
    Buffer edge(uint32_t lane, uint32_t slot, size_t edge, bool gradient, uint32_t samples) override;
    Buffer evaluation_edge(uint32_t lane, size_t edge, uint32_t samples) override;
    std::vector<uint32_t> stage_begins() const override { return stage_begins_; }
    void cancel(StepId step) override { cancelled_.store(step, std::memory_order_relaxed); }   // relaxed: orders nothing
    void trace(NetTrace* trace) override { trace_ = trace; }
    Status evaluate(uint32_t lane, const Samples& samples, uint32_t* right, double* loss, int32_t* predicted, float* outputs) override;
    Status apply(Lanes& lanes, Optimiser& optimiser, std::span<const BucketSum> sums, uint64_t* digest) override;

    uint32_t steps_ahead() const override { return whole_.on ? 2 : 0; }
    Status step_begin(StepId step, std::span<const Samples> blocks) override;
    Status step_end(WholeStep* done) override;

private:
    /// Memory of a micro-batch in flight, and what it is at.
    struct Slot {
        Frame frame, beside;         // beside: for Operations::weights
        std::byte* head = nullptr;   // on the device: the block's input without images
        const Program* program = nullptr;
        BlockId id{};
    };
    /// A lane's memory and events; its streams and handles are in CudaDevice::Lane.
    struct Lane {
        std::vector<Slot> slots;
        cudaStream_t stream = nullptr;
        Buffer memory[place_count];   // empty for places that lanes share
        Buffer input, staged;         // the block's input: on the device (by slot, then images), page-locked on the host
        Buffer edges;                 // page-locked: what crosses cuts, by slot, then of an evaluation
        Buffer results;               // LossResult and best classes, page-locked: kernels write there
        Buffer gradient;              // on the host, for sinks that read it there
        Event lost, done, taken;      // the loss is complete; the block is complete; its gradient has been read
        Event loss_read;              // like `lost`, recorded outside of the graph: the host waits for it
        Event forked, joined;         // `beside` may begin; has ended
        Event complete, followed;     // a bucket's gradient; the codec's work on all buckets
        Event stepped;                // the lane's blocks of a whole step
        Event passed;                 // all of a pass; the host waits for it
        std::vector<Event> buckets;   // by bucket: its gradient is complete
        std::vector<Event> copied;    // by bucket: it has been copied to the host
        bool used = false;
    };
    /// Whole steps, on one GPU.  Two may be under way; each has a parity, with a graph and page-locked memory of its own.
    struct Whole {
        bool on = false;
        uint32_t lanes = 0;                            // block b is computed by lane b % lanes
        uint64_t staged_bytes = 0, result_bytes = 0;   // of a block
        uint32_t thread_blocks = 0;                    // of the update
        std::array<Buffer, 2> staged, results;         // by parity: inputs of the blocks; uint64_t digest, then the blocks' results
        Buffer blocks, total;                          // UpdateBlock [thread block], UpdateTotal
        std::array<UpdateTask, 2> task{};              // by parity
        std::array<GraphExec, 2> graphs;
        std::array<Event, 2> done;
        std::array<StepId, 2> step{};
        uint64_t begun = 0, ended = 0;   // steps
        std::vector<double> losses;
    };
    void plan_whole();
    void plan_whole_update();   // the optimiser is there
    Status ready_whole();
    Status enqueue_whole(uint32_t parity, NetTrace* trace = nullptr);
    struct Gpu {
        Buffer parameters, copies;          // behind the parameters: uint32_t, 1 if one is not finite (spoiled())
        cudaStream_t stream = nullptr;      // CudaDevice::Gpu's
        std::vector<GraphExec> refreshes;   // by bucket; on the first GPU part of CudaNet::updates_
    };
    Status make(Build& build, Program& program);
    Status ready_lane(uint32_t number);
    /// Checks what this stage reads of the samples.
    Status check_samples(const Samples& samples) const;
    void write_input(std::byte* to, const Samples& samples, BlockId id, uint32_t size);
    void write_labels(std::byte* to, const Samples& samples, uint32_t size) const;
    /// Passes on the loss of a block that has been computed, with mean_over_valid() also its positions that count.
    void tell_loss(uint32_t lane, BlockId id, const Samples& samples, GradientSink& sink) const;
    /// Writes a block's input, and enqueues the copies that its graph does not make.
    Status put(uint32_t lane, const Slot& slot, const Samples& samples, BlockId id, const Program& program);
    BlockInput input_of(uint32_t lane, const Slot& slot, const std::byte* staged) const;
    ImageShape image_shape(const Program& program) const { return {program.samples, spec_.C, spec_.H, spec_.W, spec_.pad, spec_.element}; }
    /// Labels of a sample, or targets of a regression: 4 bytes each.
    uint32_t sample_labels() const { return spec_.by_position() || spec_.targets == 0 ? spec_.positions() : spec_.targets; }
    /// Returns the bytes of a block's results: LossResult and best classes.
    uint64_t result_bytes(uint64_t samples) const { return sizeof(LossResult) + samples * spec_.positions() * sizeof(int32_t); }
    struct Enqueue {
        const Program& program;
        uint32_t lane;
        Work work;
        const std::byte* staged;   // the block's input: InputLayout, page-locked
        std::byte* results;        // LossResult and best classes, page-locked
        NetTrace* trace = nullptr;
        uint32_t slot = 0;
    };
    /// A gradient that a block has of a bucket.
    struct BucketGradient {
        uint64_t at, count;   // in a lane's gradient, elements
        bool again, last;     // an earlier one of the block is of that bucket; no later one is
    };
    /// Enqueues operations of one slot in the lane's stream.
    struct Walk {
        CudaNet& net;
        const Enqueue& run;
        Lane& lane;
        Slot& slot;
        Frame& f;
        const cudaStream_t stream, codec;
        CudaDevice::Follower* const follower;   // null: this work's graph does not quantise
        bool forked = false;
        Walk(CudaNet& of, const Enqueue& what);
        Status forward();
        Status backward(Backward passes);
        /// A layer's gradient is complete in that stream, or that of the statistics.
        Status complete(size_t layer, cudaStream_t in);
        Status complete_statistics();

    private:
        Status complete(uint32_t bucket, const BucketGradient& gradient, cudaStream_t in);
        template <typename Enqueued>
        Status traced(size_t layer, Pass pass, Enqueued enqueued);
        /// Gradients of weights run in another stream, beside the gradient of the layer's input.  Their input must not change before
        /// join().
        Status fork(const std::vector<Operation>& list, size_t layer);
        Status join();
        Status walk_on(const std::vector<Operation>& list, size_t layer, Pass pass);
        Status walk(const std::vector<Operation>& list, size_t layer, Pass pass);
    };
    /// Enqueues all device work of a block or an evaluation in the lane's stream.
    Status enqueue(const Enqueue& run);
    /// Waits (in the stream) for updates, then put() and the launch of the graph of enqueue().
    Status start(Program& program, uint32_t lane, const Samples& samples, BlockId id, Work work);
    /// Buckets first .. end - 1.  hand_in() also lets the lane's next work wait until the sink has read them.
    Status deliver(uint32_t lane, BlockId id, GradientSink& sink, Work work, uint32_t first, uint32_t end);
    Status hand_in(uint32_t lane, BlockId id, GradientSink& sink, uint32_t first, uint32_t end);
    // Passes of slots.
    void plan_edges();
    /// Enqueues the copies of all values, or gradients, that come in or go out.
    Status cross(const Enqueue& run, bool gradients, bool comes);
    Status pass_begin(uint32_t lane);
    Status pass_end(uint32_t lane);
    Status evaluate_stage(uint32_t lane, const Samples& samples, const Program& program);
    Status upload();
    static constexpr uint32_t all_buckets = ~0u;
    Status apply(const Sum& sum, std::span<const double> units);
    /// Enqueues the update of a bucket on the first GPU: the optimiser and copies of weights.
    Status update(uint32_t bucket);
    /// Enqueues rewriting the copies of weights in [offset, end) on a GPU.
    Status refresh(const Gpu& gpu, uint64_t offset, uint64_t end);
    /// Enqueues copying the first GPU's parameters to the others and rewriting the copies of weights there (all_buckets: on the first GPU,
    /// too, and clearing the tickets of sums).  Blocks wait for it on the device.
    Status spread(uint32_t bucket);
    /// Makes the first GPU's stream wait for all blocks.
    Status settle();
    uint64_t lead() const { return Build::lead(layout_); }
    BucketGradient gradient_of(size_t layer) const;
    /// In the order in which the block's passes complete them.
    template <typename F>
    Status each_gradient(uint32_t bucket, F f) const {
        for (size_t i = further_.size(); i-- > 0;)
            if (bucket_of_layer_[further_[i].layer] == bucket) GC_TRY(f(further_[i].at, further_[i].count));
        return f(layout_.buckets[bucket].offset, layout_.buckets[bucket].count);
    }
    bool has_loss() const override { return stage_.end == layers_.size(); }
    bool cancelled(StepId step) const { return cancelled_.load(std::memory_order_relaxed) == step; }

    CudaDevice& device_;
    NetSpec spec_;
    NetConfig config_;
    Layout layout_;
    std::vector<Layer> layers_;
    Stage stage_;   // its end is the number of layers at most
    std::vector<uint32_t> stage_begins_;
    bool graphs_ = true;   // blocks are graphs: the net is whole, and has one slot whose passes come together
    std::vector<uint32_t> bucket_of_layer_;
    std::vector<FurtherGradient> further_;   // ascending
    uint64_t gradient_elements_ = 0;         // with the further ones
    bool statistics_ = false;                // bucket 0 holds running statistics
    std::string kernels_name_;
    uint64_t engines_ = 0;
    std::vector<std::string> engine_list_;
    std::vector<Program> programs_;            // by ascending block size
    std::vector<WeightCopy> copies_;           // in the order of the layers
    std::vector<uint64_t> copy_offsets_;       // of their layers' parameters
    std::vector<Build::Constant> constants_;   // of all GPUs
    std::vector<uint64_t> dropout_seeds_;      // by dropout layer
    InputLayout input_{};
    std::vector<Edge> edges_;
    struct EdgePlace {
        uint64_t value, gradient, evaluated;   // in Lane::edges: of slot 0; of an evaluation
    };
    std::vector<EdgePlace> edge_places_;   // by edge
    uint64_t slot_edges_ = 0;              // bytes of a slot in Lane::edges
    std::vector<Lane> lanes_;
    std::vector<Gpu> gpus_;
    uint32_t* spoiled(const Gpu& gpu) const { return static_cast<uint32_t*>(gpu.parameters.device) + layout_.elements; }
    Buffer mirror_, words_;             // Gpu::parameters on the host; a bucket's sum on the first GPU
    std::vector<uint64_t> update_at_;   // by bucket, offset in both of:
    Buffer update_now_, update_here_;   // ApplyNow, double unit [group]: on the first GPU, on the host
    std::vector<GraphExec> updates_;    // by bucket
    std::vector<bool> updated_;         // by bucket: launched since the last block
    Whole whole_;
    DeviceDigest digest_;
    std::atomic<bool> blocks_since_{false};   // blocks were started after the last settle()
    bool stale_ = false;                      // mirror_ is older than the parameters
    bool spoiled_ = false;                    // of stages: a parameter is not finite
    CudaOptimiser* optimiser_ = nullptr;
    bool counts_valid_ = false;   // mean_over_valid()
    std::atomic<StepId> cancelled_{no_step};
    NetTrace* trace_ = nullptr;
};

}   // namespace gradcast::cuda
