// For all CUDA code: errors as Status, kernel launches, streams and events that close themselves, and one allocation of device memory for
// nets and codecs.  Only sources in folders named cuda/ include this; they are in libgradcast_cuda.so alone
// (runtime/job/run/cuda_module.h).
//
// g++ compiles the same sources against tests/cuda/host, a stand-in for CUDA on the CPU (with GC_CUDA_HOST).  So kernels use only
// threadIdx, blockIdx, blockDim, gridDim, __shared__ arrays, __syncthreads(), __threadfence(), __ldcg() (a load past the first-level
// cache), atomics of integers and plain arithmetic.
#pragma once
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
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

/// Ok, Code::node_memory (out of memory) or Code::unsupported; the text has the call and the library's name of the error.  A failed call is
/// no longer CUDA's last error then, for which a library would blame its next call.
Status check(cudaError_t error, const char* call);
Status check(cudnnStatus_t error, const char* call);
Status check(cublasStatus_t error, const char* call);

/// For calls that cannot return an error: ends the process with the text.  A device's fault shows when the host waits.
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
struct Event : std::unique_ptr<CUevent_st, Closer<&cudaEventDestroy>> {
    std::chrono::steady_clock::duration waited{};   // by the last wait()
};
using GraphExec = std::unique_ptr<CUgraphExec_st, Closer<&cudaGraphExecDestroy>>;
/// A stream that does not wait for stream 0.
Status make(Stream* stream);
/// An event without timing.  awaited: the host waits for it with wait().
Status make(Event* event, bool awaited = false);
/// Waits for the event's last record outside of graphs.  Spins for 200 us more than the last wait for this event took, then sleeps: a
/// wake-up takes longer than many kernels.  Does not spin for more than 2 ms.  One thread at a time for an event.
Status wait(Event& event);

/// Captures the work that `enqueue` puts into the stream, and into others that it forks and joins, as a graph.  Addresses are fixed at the
/// capture; the memory's values are read at each launch.
Status capture(cudaStream_t stream, const std::function<Status()>& enqueue, GraphExec* graph);
/// cudaEventRecord(); within a capture each launch of the graph records the event, and streams outside can wait for it.
Status record(const Event& event, cudaStream_t stream);

/// Memory of the device that is current at seal().  Planned first, then taken once.
class DeviceArena {
public:
    DeviceArena() = default;
    DeviceArena(const DeviceArena&) = delete;
    DeviceArena& operator=(const DeviceArena&) = delete;
    ~DeviceArena();
    /// Plans device memory, aligned to 256 bytes.  seal() writes buffer->device; *buffer must not move until then.
    void plan(const char* purpose, uint64_t bytes, Buffer* buffer);
    /// Plans page-locked host memory (buffer->host), for copies that overlap with kernels.
    void plan_pinned(const char* purpose, uint64_t bytes, Buffer* buffer);
    /// Takes both, uninitialised.  Error: Code::node_memory with the budget and the device's free memory.
    Status seal();
    uint64_t device_bytes() const { return device_bytes_; }
    Buffer whole() const { return {nullptr, device_, device_bytes_}; }
    /// Returns the uses of the device's memory and, where there is any, of the host's.
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

/// Blocks of `threads` for `count` elements.
inline uint32_t blocks_of(uint64_t count, uint32_t threads) { return static_cast<uint32_t>((count + threads - 1) / threads); }

#ifdef __CUDACC__
template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream, Arguments&&... arguments) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}
#endif

}   // namespace gradcast::cuda

/// In functions that return Status: GC_CUDA(cudaMemcpyAsync(...)).
#define GC_CUDA(call) GC_TRY(::gradcast::cuda::check((call), #call))

/// Launches `kernel`; the value is a Status of this launch alone: GC_TRY(GC_LAUNCH(relu, grid, block, stream, x, count)).  Put a kernel
/// with several template arguments in parentheses.  In .cu files only.
#ifdef GC_CUDA_HOST
#define GC_LAUNCH(kernel, grid, block, stream, ...) \
    ::gradcast::cuda::check(cuda_host_launch(#kernel, kernel, dim3(grid), dim3(block), stream, __VA_ARGS__), #kernel)
#else
#define GC_LAUNCH(kernel, grid, block, stream, ...) \
    ::gradcast::cuda::check(::gradcast::cuda::launch(kernel, grid, block, stream, __VA_ARGS__), #kernel)
#endif
