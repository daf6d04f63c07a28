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

#include "runtime/core/memory_use.h"
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

/// For calls that cannot return an error: ends the program with its text.  A device's fault shows when the host waits.
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
/// Does not wait for stream 0.
Status make(Stream* stream);
/// An event without a time.  `awaited`: by the host, with wait().
Status make(Event* event, bool awaited = false);
/// Waits for the event's last record outside of graphs.  Spins at first, so that short blocks are not late by a wake-up, then sleeps, so
/// that other threads get the core.
Status wait(const Event& event);

/// Captures what `enqueue` puts into that stream, and into others that join it again, as a graph on the device.  Addresses are fixed then;
/// values may change from launch to launch.
Status capture(cudaStream_t stream, const std::function<Status()>& enqueue, GraphExec* graph);
/// cudaEventRecord(); within a capture each launch of the graph records the event, and others can wait for it.
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
    /// Allocates both, uninitialised.  Error: Code::node_memory with the budget and the device's free memory.
    Status seal();
    uint64_t device_bytes() const { return device_bytes_; }
    Buffer whole() const { return {nullptr, device_, device_bytes_, 0}; }
    /// Of the device's memory and, where there is any, of the host's.
    std::vector<MemoryUse> memory(const std::string& place) const;

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
