#include "runtime/core/cuda.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <thread>

namespace gradcast::cuda {
namespace {

// "cudaMalloc(&device_, bytes)" -> "cudaMalloc", "(relu_kernel<T, width>)" -> "relu_kernel"
std::string_view name_of(std::string_view call) {
    if (call.starts_with('(')) call.remove_prefix(1);
    return call.substr(0, call.find_first_of("(<"));
}

constexpr uint64_t align = 256;
uint64_t up(uint64_t bytes) { return (bytes + align - 1) / align * align; }
double mib(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}   // namespace

Status check(cudaError_t error, const char* call) {
    if (error == cudaSuccess) return {};
    (void)cudaGetLastError();
    return fail(error == cudaErrorMemoryAllocation ? Code::node_memory : Code::unsupported, "{}: {} ({})", name_of(call),
                cudaGetErrorName(error), cudaGetErrorString(error));
}

Status check(cudnnStatus_t error, const char* call) {
    if (error == CUDNN_STATUS_SUCCESS) return {};
    (void)cudaGetLastError();   // of a call within the library
    char why[256] = "";
    cudnnGetLastErrorString(why, sizeof why);
    return fail(Code::unsupported, "{}: {}{}{}", name_of(call), cudnnGetErrorString(error), *why ? ": " : "", why);
}

Status check(cublasStatus_t error, const char* call) {
    if (error == CUBLAS_STATUS_SUCCESS) return {};
    (void)cudaGetLastError();
    return fail(Code::unsupported, "{}: {}", name_of(call), cublasLtGetStatusName(error));
}

Status make(Stream* stream) {
    cudaStream_t made = nullptr;
    GC_CUDA(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
    stream->reset(made);
    return {};
}

Status make(Event* event, bool awaited) {
    cudaEvent_t made = nullptr;
    GC_CUDA(cudaEventCreateWithFlags(&made, cudaEventDisableTiming | (awaited ? cudaEventBlockingSync : 0)));
    event->reset(made);
    return {};
}

Status wait(Event& event) {
    using std::chrono::steady_clock;
    constexpr auto margin = std::chrono::microseconds(200), most = std::chrono::microseconds(2000);
    const auto begin = steady_clock::now(), until = begin + (event.waited + margin <= most ? event.waited + margin : margin);
    while (cudaEventQuery(event.get()) == cudaErrorNotReady && steady_clock::now() < until) std::this_thread::yield();
    (void)cudaGetLastError();   // clears cudaErrorNotReady
    const Status status = check(cudaEventSynchronize(event.get()), "cudaEventSynchronize");
    event.waited = steady_clock::now() - begin;
    return status;
}

Status capture(cudaStream_t stream, const std::function<Status()>& enqueue, GraphExec* graph) {
    GC_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    Status status = enqueue();
    cudaGraph_t captured = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream, &captured);
    if (status.ok()) status = check(ended, "cudaStreamEndCapture");
    else (void)cudaGetLastError();   // of the capture that `enqueue` has made invalid
    cudaGraphExec_t made = nullptr;
    if (status.ok()) status = check(cudaGraphInstantiate(&made, captured, 0), "cudaGraphInstantiate");
    if (captured) cudaGraphDestroy(captured);
    if (!status.ok()) return status;
    graph->reset(made);
    return check(cudaGraphUpload(made, stream), "cudaGraphUpload");   // else the first launch allocates
}

Status record(const Event& event, cudaStream_t stream) {
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    GC_CUDA(cudaStreamIsCapturing(stream, &capturing));
    // Without the flag only the capture knows the event; outside of a capture the flag is an error.
    const unsigned flags = capturing == cudaStreamCaptureStatusNone ? cudaEventRecordDefault : cudaEventRecordExternal;
    return check(cudaEventRecordWithFlags(event.get(), stream, flags), "cudaEventRecordWithFlags");
}

DeviceArena::~DeviceArena() {
    if (device_ || host_) cudaSetDevice(number_);
    if (device_) cudaFree(device_);
    if (host_) cudaFreeHost(host_);
}

void DeviceArena::plan(const char* purpose, uint64_t bytes, Buffer* buffer) {
    GC_ASSERT(!device_);
    items_.push_back({purpose, device_bytes_, bytes, buffer});
    device_bytes_ += up(bytes);
}

void DeviceArena::plan_pinned(const char* purpose, uint64_t bytes, Buffer* buffer) {
    GC_ASSERT(!host_);
    pinned_.push_back({purpose, host_bytes_, bytes, buffer});
    host_bytes_ += up(bytes);
}

Status DeviceArena::seal() {
    GC_ASSERT(!device_ && !host_);
    GC_CUDA(cudaGetDevice(&number_));
    size_t free = 0, total = 0;
    GC_CUDA(cudaMemGetInfo(&free, &total));
    if (device_bytes_ > free)
        return fail(Code::node_memory, "device {} has {:.1f} MiB free of {:.1f} MiB, but the job needs {}", number_, mib(free), mib(total),
                    memory_text(memory(fmt::format("gpu {}", number_))));
    GC_CUDA(cudaMalloc(&device_, std::max(device_bytes_, align)));
    for (const Item& item : items_) *item.buffer = {nullptr, static_cast<char*>(device_) + item.offset, item.bytes};
    if (host_bytes_ == 0) return {};
    GC_CUDA(cudaMallocHost(&host_, host_bytes_));
    for (const Item& item : pinned_) *item.buffer = {static_cast<std::byte*>(host_) + item.offset, nullptr, item.bytes};
    return {};
}

std::vector<MemoryUse> DeviceArena::memory(const std::string& place) const {
    std::vector<MemoryUse> all = {{place, {}, true}, {place + " page-locked", {}}};
    for (const Item& item : items_) all[0].add(item.purpose, item.bytes);
    for (const Item& item : pinned_) all[1].add(item.purpose, item.bytes);
    if (pinned_.empty()) all.pop_back();
    return all;
}

}   // namespace gradcast::cuda
