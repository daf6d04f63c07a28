// CUDA on a CPU, for tests: the calls and the kernel language that gradcast uses, so that g++ compiles its device code and it runs without
// a GPU.  Slow, and stricter than a GPU:
//  * Nothing runs before a call that waits, and then only the stream that is waited for and the operations it depends on by events.
//  * Branches of a graph run in varying order; blocks of a grid, and threads between two barriers, run forwards and backwards in turn.
//  * Device memory is NaN at first, ends in guard bytes, and faults on access by the host or another device.  A copy between devices
//  without
//    peer access counts as a wait.
//  * The process stops with a message if a thread ends while others of its block wait at __syncthreads().
//  * The process stops if a library handle is destroyed on another device than its own.  Calls that create a context are counted.
// Types and names are NVIDIA's; runtime.cc and kernels.cc in this folder implement them.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <tuple>

#define CUDART_VERSION 13000

// ---- the kernel language ---------------------------------------------------------------------------------------------------------

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static   // one block runs at a time

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
void __syncthreads();
inline void __threadfence() {}   // one thread runs at a time
// Functions of a whole warp: here all threads of the block must call them.
namespace cuda_host {
template <typename T, typename Of>
T warp(T value, Of of) {
    static T all[1024];
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z), lane = thread % 32;
    all[thread] = value;
    __syncthreads();
    const T result = of(all + thread - lane, lane);
    __syncthreads();
    return result;
}
}   // namespace cuda_host
template <typename T>
T __shfl_down_sync(unsigned, T value, unsigned by) {
    return cuda_host::warp(value, [by](const T* all, unsigned lane) { return all[lane + by < 32 ? lane + by : lane]; });
}
inline unsigned __reduce_add_sync(unsigned, unsigned value) {
    return cuda_host::warp(value, [](const unsigned* all, unsigned) { return std::accumulate(all, all + 32, 0u); });
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
    return cuda_host::warp(value, [](const unsigned* all, unsigned) { return *std::max_element(all, all + 32); });
}
template <typename T>
T __ldcg(const T* at) {
    return *at;
}

inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
inline long long __double_as_longlong(double x) { return __builtin_bit_cast(long long, x); }
inline double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((uint64_t{a} * b) >> 32); }
// Integers only: the order of threads does not matter.
template <typename T, typename U>
T atomicAdd(T* at, U value) {
    static_assert(static_cast<T>(0.5) == 0, "an atomicAdd of floats depends on the order");
    const T before = *at;
    *at = static_cast<T>(before + static_cast<T>(value));
    return before;
}
template <typename T, typename U>
T atomicMax(T* at, U value) {
    const T before = *at;
    if (static_cast<T>(value) > before) *at = static_cast<T>(value);
    return before;
}
template <typename T, typename U>
T atomicMin(T* at, U value) {
    const T before = *at;
    if (static_cast<T>(value) < before) *at = static_cast<T>(value);
    return before;
}

// ---- the runtime -----------------------------------------------------------------------------------------------------------------

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorPeerAccessAlreadyEnabled = 704,
    cudaErrorHostMemoryAlreadyRegistered = 712,
    cudaErrorHostMemoryNotRegistered = 713,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureUnjoined = 904,
    cudaErrorStreamCaptureIsolation = 905,
    cudaErrorCapturedEvent = 907,
};
using cudaStream_t = struct CUstream_st*;   // null: the default stream
using cudaEvent_t = struct CUevent_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;
using cudaHostFn_t = void (*)(void*);
#define CUDART_CB
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive, cudaStreamCaptureStatusInvalidated };
enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
};
constexpr unsigned cudaEventRecordDefault = 0, cudaEventRecordExternal = 1;
constexpr unsigned cudaStreamDefault = 0, cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventBlockingSync = 1,
                   cudaEventDisableTiming = 2, cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2,
                   cudaHostRegisterDefault = 0, cudaHostRegisterPortable = 1, cudaHostRegisterMapped = 2;
struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem;
    int major, minor, multiProcessorCount, maxThreadsPerBlock;
    size_t sharedMemPerBlock;
};

cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);

cudaError_t cudaGetDeviceCount(int* count);   // GC_CUDA_HOST_DEVICES, by default 2
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);   // total: GC_CUDA_HOST_MEMORY bytes, by default 1 GiB
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);
cudaError_t cudaDeviceSynchronize();

cudaError_t cudaMalloc(void** at, size_t bytes);
cudaError_t cudaFree(void* at);
cudaError_t cudaHostAlloc(void** at, size_t bytes, unsigned flags);
inline cudaError_t cudaMallocHost(void** at, size_t bytes) { return cudaHostAlloc(at, bytes, cudaHostAllocDefault); }
cudaError_t cudaFreeHost(void* at);
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged };
struct cudaPointerAttributes {
    cudaMemoryType type;
    int device;
};
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* at);
cudaError_t cudaHostRegister(void* at, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* at);
template <typename T>
cudaError_t cudaMalloc(T** at, size_t bytes) {
    return cudaMalloc(reinterpret_cast<void**>(at), bytes);
}
template <typename T>
cudaError_t cudaMallocHost(T** at, size_t bytes) {
    return cudaMallocHost(reinterpret_cast<void**>(at), bytes);
}
// An asynchronous copy refuses host memory that is not page-locked; CUDA would copy it synchronously.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream = nullptr);
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream = nullptr);
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t stream = nullptr);
cudaError_t cudaMemset(void* at, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t stream = nullptr);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data);

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
inline cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
/// cudaEventRecordExternal: in a capture, each launch of the graph records the event, and others can wait for it.
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

// ---- for the tests and the other stand-ins ---------------------------------------------------------------------------------------

/// Enqueues `body`, once for each thread of the grid.  `name` is for messages.
cudaError_t cuda_host_grid(const char* name, dim3 grid, dim3 block, cudaStream_t stream, std::function<void()> body);
/// Launches a kernel; copies the arguments at once.
template <typename... Parameters, typename... Arguments>
cudaError_t cuda_host_launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream,
                             Arguments&&... arguments) {
    return cuda_host_grid(name, grid, block, stream, [kernel, all = std::tuple<Parameters...>(arguments...)] { std::apply(kernel, all); });
}
/// Enqueues a library's call: `body` runs once, with access to the stream's device memory.
cudaError_t cuda_host_run(const char* name, cudaStream_t stream, std::function<void()> body);
/// Counts so far: operations run, in streams and replayed graphs; allocations of memory, streams, events and graphs; calls that wait;
/// kernels and library calls outside of graphs; graph launches; waits for an event that is not complete: a GPU's host would sleep.
struct CudaHostCounts {
    uint64_t run, allocations, synchronisations, kernels, graphs, sleeps;
};
CudaHostCounts cuda_host_counts();
/// For tests: the most threads of a launch of pieces() (nn/cuda/element.h).
inline uint64_t cuda_host_piece_max = uint64_t{1} << 31;
/// Calls that wait return an illegal address from now on.
void cuda_host_break();
/// Calls so far that would create a context on that device: those that use the current device.
uint64_t cuda_host_calls(int device);
