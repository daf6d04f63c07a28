// The GPUs of a job and the lanes on them: each lane has its own streams and library handles, so blocks run concurrently and lanes do not
// change each other's bits.
#pragma once
#include <memory>
#include <span>

#include "runtime/core/cuda.h"
#include "runtime/core/cuda/images.h"
#include "runtime/core/device.h"

namespace gradcast::cuda {

using Cudnn = std::unique_ptr<cudnnContext, Closer<&cudnnDestroy>>;
using Cublas = std::unique_ptr<cublasLtContext, Closer<&cublasLtDestroy>>;

/// The workspace of each Worker for cuBLAS.  NVIDIA's recommendation for Hopper; the same for all GPUs, because it may select kernels.
constexpr size_t cublas_workspace_bytes = 32 << 20;

class CudaDevice final : public Device {
public:
    struct Gpu {
        int number = 0;
        DeviceArena arena;
        Stream stream;   // for work that all lanes share: parameters, sums
        /// Recorded on `stream` when the parameters have changed; lanes wait for it before each block.
        Event changed;
    };
    /// A stream, and what libraries need to work in it.
    struct Worker {
        Stream stream;
        Cudnn cudnn;
        Cublas cublas;
        Buffer workspace;   // of cublas
    };
    struct Lane : Worker {   // its own stream runs the blocks
        uint32_t gpu = 0;    // index in gpus()
        Stream codec;        // quantising, concurrent with the backward pass
        Worker beside;       // gradients of weights, concurrent with those of activations
    };
    /// The words of a whole step.  The update of the parameters adds those of all lanes, and the sum wraps.
    struct StepWords {
        static constexpr uint32_t lanes_max = 64;
        Word word{};
        uint32_t lanes = 0;
        const void* from[lanes_max] = {};
        const double* units = nullptr;      // [group]: the value of one word
        const uint32_t* halted = nullptr;   // not 0: a gradient holds NaN or Inf, and nothing may be updated
    };
    /// A group's place in a lane's words.
    struct StepGroup {
        uint64_t first;   // word
        int32_t radix;    // not 0: three digits an element, [digit][element], lowest first
    };
    /// The findings of a whole step in its gradients.
    struct StepFound {
        std::span<const float> maxima = {};   // [group]
        uint64_t clipped = 0;
    };
    /// The codec's part of a block's graph.
    struct Follower {
        virtual ~Follower() = default;
        /// Enqueues the copy of the codec's parameters for the lane's next block.
        virtual Status start(uint32_t lane, cudaStream_t stream) = 0;
        /// By bucket: how many gradients a block has of it, several of tied weights.  Before the first block; one each where it is not
        /// called.
        virtual void gradients(std::span<const uint32_t> of_buckets) = 0;
        /// Enqueues the quantising of a complete gradient of a bucket.  again: the words have an earlier gradient of the block, to which
        /// this one is added.  last: it is the block's last gradient of the bucket.
        virtual Status follow(uint32_t lane, uint32_t bucket, const void* gradient, bool again, bool last, cudaStream_t stream) = 0;

        // Whole steps (Net::step_begin).  On the device the scales of a step follow from the maxima of the step before.
        /// Whether it takes part in whole steps.  The calls below are made only if it does.
        virtual bool whole_steps() const = 0;
        virtual StepGroup step_group(uint32_t group) const = 0;
        /// Enqueues the quantising of block `block`'s gradient [layout.elements] into the lane's words, which the first block of a lane
        /// overwrites.  step: on the device, the step's number.
        virtual Status quantise(uint32_t lane, uint32_t block, bool first, const void* gradient, const uint32_t* step,
                                cudaStream_t stream) = 0;
        /// After quantise() of the block: enqueues the quantising of a further gradient of a bucket, which is added to the same words.
        virtual Status quantise_further(uint32_t lane, uint32_t block, uint32_t bucket, const void* gradient, const uint32_t* step,
                                        cudaStream_t stream) = 0;
        /// Enqueues, after all blocks of the first `lanes` lanes, what found() reads, the units of this step, and the scales of the next.
        virtual Status close(uint32_t lanes, uint32_t parity, cudaStream_t stream) = 0;
        /// The words that are complete after close().
        virtual StepWords step_words(uint32_t lanes) const = 0;
        /// Enqueues the copy of the host's scales to the device, and clears the values of unfinished steps.  While no whole step is under
        /// way.
        virtual Status scales(cudaStream_t stream) = 0;
        /// Reads what a whole step has found; the host has waited for it.  Error: Code::diverged, with step, layer and block.
        virtual Status found(StepId step, uint32_t parity, StepFound* found) = 0;
    };
    struct Resident : ResidentImages {
        virtual Images images(uint32_t gpu) const = 0;   // after seal()
    };
    ~CudaDevice() override;
    Status open(const DeviceConfig& config);
    const std::string& name() const override { return name_; }
    uint32_t lane_count() const override { return static_cast<uint32_t>(lanes_.size()); }
    Status seal() override;
    void share(Buffer host) override;
    void unshare(Buffer host) override;
    std::vector<MemoryUse> memory() const override;

    /// Enqueues a copy from the host in a stream of the current GPU; waits for the stream if the memory is not page-locked.
    Status copy_in(void* to, const void* from, uint64_t bytes, cudaStream_t stream);
    std::vector<std::unique_ptr<Gpu>>& gpus() { return gpus_; }
    std::vector<Lane>& lanes() { return lanes_; }
    Gpu& gpu_of(uint32_t lane) { return *gpus_[lanes_[lane].gpu]; }
    /// Sets this thread's current GPU.
    Status use(const Gpu& gpu) { return check(cudaSetDevice(gpu.number), "cudaSetDevice"); }
    /// For the message of seal(): `bytes` a GPU are proportional to the largest block's size, now `samples`.
    void grows(uint64_t bytes, uint32_t samples) {
        growing_bytes_ = bytes;
        growing_samples_ = samples;
    }

    // Parts of the blocks' graphs, if set before net_ready().
    Follower* follower = nullptr;
    Resident* resident = nullptr;   // the data set of the blocks' images

private:
    static Status make(Worker* worker);
    std::vector<std::unique_ptr<Gpu>> gpus_;
    std::vector<Lane> lanes_;   // after gpus_: destroyed before the memory that they use
    std::vector<Buffer> shared_;
    std::string name_;
    uint64_t growing_bytes_ = 0;
    uint32_t growing_samples_ = 0;
};

}   // namespace gradcast::cuda
