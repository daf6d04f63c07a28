// What all code for CUDA shares: errors as Status, kernel launches, streams and events that close themselves, and one piece of device
// memory for everything that a net or a codec needs.  Only sources in folders named cuda/ include this; they are in libgradcast_cuda.so
// alone (runtime/core/module.h).
//
// The same sources are compiled a second time by g++ against tests/cuda/host, a stand-in for CUDA on the CPU (GC_CUDA_HOST is defined
// then), so kernels keep to what it can run: threadIdx, blockIdx, blockDim, gridDim, __shared__ arrays, __syncthreads(), plain arithmetic.
#pragma once
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <cudnn.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/status.h"
#include "runtime/core/types.h"

#if CUDART_VERSION < 12000
#error "CUDA 12 or newer is needed"
#endif
#if CUDNN_MAJOR < 9
#error "cuDNN 9 or newer is needed"
#endif

namespace gradcast::cuda {

/// Ok, or Code::node_memory where memory is what lacks, else Code::unsupported; the text names the call and the library's own name of the
/// error.
Status check(cudaError_t error, const char* call);
Status check(cudnnStatus_t error, const char* call);
Status check(cublasStatus_t error, const char* call);

/// Where a call cannot return an error: it ends the program with its text.  A device's fault shows no sooner than somebody waits.
inline void must(const Status& status) {
    if (!status.ok()) assert_failed(status.what, __FILE__, __LINE__);
}

template <auto destroy>
struct Closer {
    template <typename T>
    void operator()(T* handle) const {
        destroy(handle);
    }
};
using Stream = std::unique_ptr<CUstream_st, Closer<&cudaStreamDestroy>>;
using Event = std::unique_ptr<CUevent_st, Closer<&cudaEventDestroy>>;
using GraphExec = std::unique_ptr<CUgraphExec_st, Closer<&cudaGraphExecDestroy>>;
/// Not to be mixed up with the stream 0, which waits for all others.
Status make(Stream* stream);
/// Without a time: such events are cheaper.  `awaited`: by the host, with wait().
Status make(Event* event, bool awaited = false);
/// Until what was recorded last, outside of graphs, is done.  The first 200 us spin: what takes no longer, as blocks of small nets, is not
/// late by a wake-up (some 30 us).  Then the thread sleeps, or each lane would keep a core busy all the time, which the network's thread
/// and the loader want.
Status wait(const Event& event);

/// What `enqueue` puts into that stream, and into others that join it again, as a graph, ready on the device.  What kernels or copies read
/// must be where it is whenever the graph is launched; what changes from launch to launch lies in memory.
Status capture(cudaStream_t stream, const std::function<Status()>& enqueue, GraphExec* graph);
/// cudaEventRecord(), within a capture too: the event is recorded then whenever the graph is launched, and can be waited for from outside.
Status record(const Event& event, cudaStream_t stream);

/// Of the device that is current where seal() is called.  Memory is planned first, then taken once.
class DeviceArena {
public:
    DeviceArena() = default;
    DeviceArena(const DeviceArena&) = delete;
    DeviceArena& operator=(const DeviceArena&) = delete;
    ~DeviceArena();
    /// Device memory, aligned to 256 bytes.  seal() fills in buffer->device; *buffer must stay where it is until then.
    void plan(const char* purpose, uint64_t bytes, Buffer* buffer);
    /// Page-locked memory of the host, for copies that run beside kernels: buffer->host.
    void plan_pinned(const char* purpose, uint64_t bytes, Buffer* buffer);
    /// Takes both, as they are.  Error: Code::node_memory with the budget and what the device has.
    Status seal();
    uint64_t device_bytes() const { return device_bytes_; }
    Buffer whole() const { return {nullptr, device_, device_bytes_, 0}; }
    /// "parameters 0.2 MiB, activations 3.1 MiB: 3.3 MiB of device memory, 1.0 MiB page-locked"
    std::string budget() const;

private:
    struct Item {
        const char* purpose;
        uint64_t offset, bytes;
        Buffer* buffer;
    };
    std::vector<Item> items_, pinned_;
    void *device_ = nullptr, *host_ = nullptr;
    uint64_t device_bytes_ = 0, host_bytes_ = 0;
    int number_ = 0;   // of the device
};

/// How many blocks of `threads` hold `count`.
inline uint32_t blocks_of(uint64_t count, uint32_t threads) { return static_cast<uint32_t>((count + threads - 1) / threads); }

}   // namespace gradcast::cuda

/// In functions that return Status: GC_CUDA(cudaMemcpyAsync(...)).
#define GC_CUDA(call) GC_TRY(::gradcast::cuda::check((call), #call))

/// Launches `kernel` with those arguments and is a Status: GC_TRY(GC_LAUNCH(relu, grid, block, stream, x, count)).  A kernel that is a
/// template with several arguments goes in parentheses.  In .cu files only.
#ifdef GC_CUDA_HOST
#define GC_LAUNCH(kernel, grid, block, stream, ...)                                         \
    ((void)cuda_host_launch(#kernel, kernel, dim3(grid), dim3(block), stream, __VA_ARGS__), \
     ::gradcast::cuda::check(cudaGetLastError(), #kernel))
#else
// clang-format off
#define GC_LAUNCH(kernel, grid, block, stream, ...) \
    ((kernel)<<<grid, block, 0, stream>>>(__VA_ARGS__), ::gradcast::cuda::check(cudaGetLastError(), #kernel))
// clang-format on
#endif
