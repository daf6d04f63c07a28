// The GPUs of a job and the lanes on them: each lane has its own streams and library handles, so blocks run concurrently and lanes do not
// change each other's bits.
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
        Stream stream;   // for work that all lanes share: parameters, sums
        /// Recorded on `stream` when the parameters have changed; lanes wait for it before each block.
        Event changed;
    };
    /// A stream, and library handles that work in it.
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
    ResidentImages* resident = nullptr;   // the data set of the blocks' images

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
