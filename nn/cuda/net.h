// The net on GPUs, as one class over several files: net.cc plans it, block.cc computes blocks, update.cc changes the
// parameters, whole.cc computes whole steps.  Only these files include this header.
//
// A block is one CUDA graph: copy of the samples, forward pass, backward pass.  When a bucket's gradient is complete, the codec quantises
// it in the same graph, or an event is recorded; both overlap with the rest of the backward pass.
#pragma once
#include <atomic>

#include "nn/cuda/build.h"
#include "nn/cuda/optimiser.h"
#include "nn/programs.h"

namespace gradcast::cuda {

/// quantised: a block whose gradient the device's codec quantises bucket by bucket.  whole: a block of a whole step, which has no graph of
/// its own.
enum class Work : uint8_t { evaluation, block, quantised, whole };
constexpr size_t work_count = 3;   // with a graph

/// The net's operations for one block size.
struct Program : ProgramSize {
    Tensor input;
    std::vector<Operations> layers;
    std::vector<std::array<GraphExec, work_count>> graphs;   // by lane
};

/// Offsets of the parts of a block's input; the same in page-locked memory and on the device.
struct InputLayout {
    uint64_t scale, shift, seeds, labels, images, image_bytes;
    uint64_t bytes(uint32_t samples) const { return images + samples * image_bytes; }
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
    void cancel(StepId step) override { cancelled_.store(step, std::memory_order_relaxed); }   // relaxed: orders nothing
    void trace(NetTrace* trace) override { trace_ = trace; }
    Status evaluate(uint32_t lane, const Samples& samples, uint32_t* right, double* loss, int32_t* predicted, float* outputs) override;
    Status apply(Lanes& lanes, Optimiser& optimiser, std::span<const BucketSum> sums, uint64_t* digest) override;

    uint32_t steps_ahead() const override { return whole_.on ? 2 : 0; }
    Status step_begin(StepId step, std::span<const Samples> blocks) override;
    Status step_end(WholeStep* done) override;

private:
    /// A lane's memory and events; its streams and handles are in CudaDevice::Lane.
    struct Lane {
        Frame frame, beside;          // beside: for Operations::weights
        Buffer memory[place_count];   // empty for places that lanes share
        Buffer input, staged;         // the block's input: on the device, page-locked on the host
        Buffer results;               // LossResult and best classes, page-locked: kernels write there
        Buffer gradient;              // on the host, for sinks that read it there
        Event lost, done, taken;      // the loss is complete; the block is complete; its gradient has been read
        Event heard;                  // like `lost`, recorded outside of the graph: the host waits for it
        Event forked, joined;         // `beside` may begin; has ended
        Event complete, followed;     // a bucket's gradient; the codec's work on all buckets
        Event stepped;                // the lane's blocks of a whole step
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
    Status ready_whole();
    Status enqueue_whole(uint32_t parity, NetTrace* trace = nullptr);
    struct Gpu {
        Buffer parameters, copies;          // behind the parameters: uint32_t, 1 if one is not finite (spoiled())
        cudaStream_t stream = nullptr;      // CudaDevice::Gpu's
        std::vector<GraphExec> refreshes;   // by bucket; on the first GPU part of CudaNet::updates_
    };
    Status make(Build& build, Program& program);
    void write_input(std::byte* to, const Samples& samples, BlockId id, uint32_t size);
    Status stage(uint32_t lane, const Samples& samples, BlockId id, const Program& program);
    BlockInput input_of(uint32_t lane, const std::byte* staged) const;
    ImageShape image_shape(const Program& program) const { return {program.samples, spec_.C, spec_.H, spec_.W, spec_.pad}; }
    struct Enqueue {
        const Program& program;
        uint32_t lane;
        Work work;
        const std::byte* staged;   // the block's input: InputLayout, page-locked
        std::byte* results;        // LossResult and best classes, page-locked
        NetTrace* trace = nullptr;
    };
    /// Enqueues all device work of a block or an evaluation in the lane's stream.
    Status enqueue(const Enqueue& run);
    /// Waits (in the stream) for updates, then stage() and the launch of the graph of enqueue().
    Status start(Program& program, uint32_t lane, const Samples& samples, BlockId id, Work work);
    Status deliver(uint32_t lane, BlockId id, GradientSink& sink, Work work);
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
    bool cancelled(StepId step) const { return cancelled_.load(std::memory_order_relaxed) == step; }

    CudaDevice& device_;
    NetSpec spec_;
    NetConfig config_;
    Layout layout_;
    std::vector<Layer> layers_;
    std::vector<uint32_t> bucket_of_layer_;
    bool statistics_ = false;   // bucket 0 holds running statistics
    std::string kernels_name_;
    uint64_t engines_ = 0;
    std::vector<std::string> engine_list_;
    std::vector<Program> programs_;         // by ascending block size
    std::vector<WeightCopy> copies_;        // in the order of the layers
    std::vector<uint64_t> copy_offsets_;    // of their layers' parameters
    std::vector<uint64_t> dropout_seeds_;   // by dropout layer
    InputLayout input_{};
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
    CudaOptimiser* optimiser_ = nullptr;
    std::atomic<StepId> cancelled_{no_step};
    NetTrace* trace_ = nullptr;
};

}   // namespace gradcast::cuda
