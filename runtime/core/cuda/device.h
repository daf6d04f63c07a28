// The GPUs that a job computes on, and the lanes on them: each lane has a stream and library handles of its own, so blocks run side by side
// and no lane's work changes another's bits.
#pragma once
#include <memory>

#include "runtime/core/cuda.h"
#include "runtime/core/device.h"

namespace gradcast::cuda {

using Cudnn = std::unique_ptr<cudnnContext, Closer<&cudnnDestroy>>;
using Cublas = std::unique_ptr<cublasContext, Closer<&cublasDestroy>>;

class CudaDevice final : public Device {
public:
    struct Gpu {
        int number = 0;
        DeviceArena arena;
        Stream stream;   // for what all lanes share: parameters, sums
        /// Recorded on `stream` when the parameters have changed; lanes wait for it before each block.
        Event changed;
    };
    /// A stream, and handles of libraries that work in it.
    struct Worker {
        Stream stream;
        Cudnn cudnn;
        Cublas cublas;
        Buffer workspace;   // of cublas
    };
    struct Lane : Worker {   // its stream has the blocks
        uint32_t gpu = 0;    // index in gpus()
        Stream codec;        // quantising, beside the rest of the backward pass
        Worker beside;       // gradients of weights, beside those of activations
    };
    /// The codec's part of a block's graph.
    struct Follower {
        virtual ~Follower() = default;
        /// Enqueues the copy of the codec's parameters for the lane's next block.
        virtual Status start(uint32_t lane, cudaStream_t stream) = 0;
        /// Enqueues the quantising of a bucket's complete gradient.
        virtual Status follow(uint32_t lane, uint32_t bucket, const void* gradient, cudaStream_t stream) = 0;
    };
    ~CudaDevice() override;
    Status open(const DeviceConfig& config);
    const std::string& name() const override { return name_; }
    uint32_t lane_count() const override { return static_cast<uint32_t>(lanes_.size()); }
    Status seal() override;
    void share(Buffer host) override;
    void unshare(Buffer host) override;
    std::vector<MemoryUse> memory() const override;

    /// A copy from the host in that stream of the current GPU; the call waits for the stream if the memory is not page-locked.
    Status copy_in(void* to, const void* from, uint64_t bytes, cudaStream_t stream);
    std::vector<std::unique_ptr<Gpu>>& gpus() { return gpus_; }
    std::vector<Lane>& lanes() { return lanes_; }
    Gpu& gpu_of(uint32_t lane) { return *gpus_[lanes_[lane].gpu]; }
    /// Makes that GPU this thread's current one.
    Status use(const Gpu& gpu) { return check(cudaSetDevice(gpu.number), "cudaSetDevice"); }
    /// For the error of seal(): this many bytes on each GPU grow with the largest block, which now has `samples`.
    void grows(uint64_t bytes, uint32_t samples) { growing_bytes_ = bytes, growing_samples_ = samples; }

    // Parts of blocks' graphs, if set before net_ready().
    Follower* follower = nullptr;
    ResidentImages* resident = nullptr;   // the data set that blocks come from

private:
    static Status make(Worker* worker);
    std::vector<std::unique_ptr<Gpu>> gpus_;
    std::vector<Lane> lanes_;   // after gpus_: streams and handles go before the memory that they use
    std::vector<Buffer> shared_;
    std::string name_;
    uint64_t growing_bytes_ = 0;
    uint32_t growing_samples_ = 0;
};

}   // namespace gradcast::cuda
