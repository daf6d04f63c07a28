// The stand-in's runtime: memory, streams, events, graphs.
#include <cuda_runtime.h>
#include <sys/mman.h>
#include <unistd.h>
#include <csignal>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cuda/host/kernels.h"

namespace {

constexpr size_t page = 4096, guard = 256;
constexpr unsigned threads_max = 1024;
constexpr int devices_max = 8;

using cuda_host::stop;

struct Stream;
struct Position {   // the first `count` operations of a stream
    CUstream_st* stream;
    uint64_t count;
};
struct Operation {
    const char* name;
    int device;
    bool host;   // runs as host code
    std::function<void()> body;
    std::vector<Position> after;   // dependencies on other streams
    std::vector<size_t> nodes;     // in a graph: dependencies
};

}   // namespace

struct CUgraph_st {
    std::vector<Operation> nodes;
    std::vector<cudaEvent_t> events;   // recorded by each launch
    bool invalid = false;
    cudaStreamCaptureMode mode{};
    std::thread::id by;
    CUstream_st* origin = nullptr;
};
struct CUgraphExec_st {
    std::shared_ptr<const CUgraph_st> graph;
    bool uploaded = false;   // else the first launch allocates
};
struct CUstream_st {
    int device = 0;
    bool blocking = true, destroyed = false;
    std::deque<Operation> queue;
    uint64_t issued = 0, done = 0;
    std::vector<Position> after;   // dependencies of the next operation
    CUgraph_st* capture = nullptr;
    std::vector<size_t> nodes;   // the same, in a capture
};
struct CUevent_st {
    int device = 0;
    bool timing = true, recorded = false;
    Position position{};
    std::shared_ptr<double> ms = std::make_shared<double>(-1);
    CUgraph_st* capture = nullptr;   // the capture that recorded it
    std::vector<size_t> nodes;
};

namespace {

struct Allocation {
    size_t bytes, mapped;
    int device;
};
struct Runtime {
    std::mutex queues;                // guards the members below, except running operations
    std::recursive_mutex execution;   // held while operations run
    std::map<char*, Allocation> memory;
    std::map<char*, size_t> pinned;
    std::map<char*, size_t> pinned_by_us;
    std::vector<std::unique_ptr<CUstream_st>> streams;   // also destroyed ones: positions point to them
    CUstream_st defaults[devices_max];
    std::vector<CUgraph_st*> captures;
    bool peers[devices_max][devices_max] = {};
    bool open[devices_max] = {};
    int devices = 2;
    size_t limit = size_t{1} << 30, used[devices_max] = {};   // of each device
    std::atomic<uint64_t> run{0}, allocations{0}, synchronisations{0}, kernels{0}, graphs{0}, sleeps{0};
    std::atomic<uint64_t> calls[devices_max] = {};   // see cuda_host_calls()
    std::atomic<bool> broken{false};                 // see cuda_host_break()
    bool helper = false;                             // a thread runs operations that nobody waits for

    Runtime() {
        if (const char* text = std::getenv("GC_CUDA_HOST_DEVICES")) devices = std::clamp(std::atoi(text), 0, devices_max);
        if (const char* text = std::getenv("GC_CUDA_HOST_MEMORY")) limit = std::strtoull(text, nullptr, 10);
        for (int d = 0; d < devices_max; ++d) {
            defaults[d].device = d;
            peers[d][d] = true;
        }
    }
};
Runtime& rt() {
    static Runtime& runtime = *new Runtime;   // never destroyed: the helper may still use it
    return runtime;
}
thread_local int device = 0;
thread_local cudaError_t last = cudaSuccess;
// The calling thread's device, for a call that creates a context.
int in_context() {
    ++rt().calls[device];
    return device;
}
cudaError_t result(cudaError_t error) {
    if (error != cudaSuccess) last = error;   // also cudaErrorNotReady
    return error;
}

// ---- memory ----------------------------------------------------------------------------------------------------------------------

/// The allocation that contains [at, at + bytes); null: none.
template <typename Map>
auto* holder(Map& map, const void* at, size_t bytes) {
    auto* from = static_cast<char*>(const_cast<void*>(at));
    auto it = map.upper_bound(from);
    using Value = typename Map::mapped_type;
    if (it == map.begin()) return static_cast<Value*>(nullptr);
    --it;
    size_t size;
    if constexpr (std::is_same_v<Value, size_t>) size = it->second;
    else size = it->second.bytes;
    return from + bytes <= it->first + size ? &it->second : nullptr;
}

// Makes a device's own memory accessible, all other device memory not; -1: none.
void reach(int from) {
    for (int d = 0; d < devices_max; ++d) {
        const bool wanted = from == d;
        if (wanted == rt().open[d]) continue;
        rt().open[d] = wanted;
        for (auto& [at, each] : rt().memory)
            if (each.device == d) mprotect(at, each.mapped, wanted ? PROT_READ | PROT_WRITE : PROT_NONE);
    }
}

void fault(int, siginfo_t* info, void*) {
    auto* at = static_cast<char*>(info->si_addr);
    for (auto& [base, each] : rt().memory)
        if (at >= base && at < base + each.mapped)
            stop("memory of device %d (byte %zu of an allocation of %zu) was touched by the host, or by a device that may not", each.device,
                 static_cast<size_t>(at - base), each.bytes);
    std::signal(SIGSEGV, SIG_DFL);
}

// ---- streams ---------------------------------------------------------------------------------------------------------------------

CUstream_st* stream_of(cudaStream_t stream) { return stream ? stream : &rt().defaults[in_context()]; }

void run(const Operation& operation) {
    reach(operation.host ? -1 : operation.device);
    operation.body();
    ++rt().run;
}

// Runs a stream's operations up to `count`, each after its dependencies.  The caller holds `execution`.
void advance(CUstream_st* stream, uint64_t count) {
    while (stream->done < count) {
        std::unique_lock lock(rt().queues);
        if (stream->queue.empty()) stop("a stream comes after itself");
        Operation operation = std::move(stream->queue.front());
        stream->queue.pop_front();
        lock.unlock();
        for (const Position& each : operation.after) advance(each.stream, each.count);
        run(operation);
        ++stream->done;
    }
}

void advance_to(CUstream_st* stream, uint64_t count) {
    std::lock_guard lock(rt().execution);
    advance(stream, count);
    reach(-1);
}

std::vector<CUstream_st*> streams_all(int of) {   // -1: of all devices
    std::lock_guard lock(rt().queues);
    std::vector<CUstream_st*> all;
    for (auto& each : rt().streams)
        if (of < 0 || each->device == of) all.push_back(each.get());
    for (int d = 0; d < devices_max; ++d)
        if (of < 0 || d == of) all.push_back(&rt().defaults[d]);
    return all;
}

// For calls that a capture forbids: true and the capture is invalid if this thread captures.
bool forbidden() {
    std::lock_guard lock(rt().queues);
    bool found = false;
    for (CUgraph_st* each : rt().captures)
        if (each->mode == cudaStreamCaptureModeGlobal ||
            (each->mode == cudaStreamCaptureModeThreadLocal && each->by == std::this_thread::get_id()))
            each->invalid = found = true;
    return found;
}

cudaError_t issue(CUstream_st* stream, Operation operation) {
    std::lock_guard lock(rt().queues);
    if (stream->destroyed) return cudaErrorInvalidResourceHandle;
    if (stream->capture) {
        operation.nodes = std::move(stream->nodes);
        stream->nodes = {stream->capture->nodes.size()};
        stream->capture->nodes.push_back(std::move(operation));
        return cudaSuccess;
    }
    // The default stream and blocking streams wait for each other.
    CUstream_st* plain = &rt().defaults[stream->device];
    if (stream != plain && stream->blocking) stream->after.push_back({plain, plain->issued});
    if (stream == plain)
        for (auto& each : rt().streams)
            if (each->blocking && each->device == stream->device) stream->after.push_back({each.get(), each->issued});
    operation.after = std::move(stream->after);
    stream->after.clear();
    stream->queue.push_back(std::move(operation));
    ++stream->issued;
    return cudaSuccess;
}

cudaError_t synchronise(const std::vector<CUstream_st*>& streams) {
    if (forbidden()) return cudaErrorStreamCaptureUnsupported;
    ++rt().synchronisations;
    for (CUstream_st* each : streams) {
        uint64_t issued;
        {
            std::lock_guard lock(rt().queues);
            if (each->capture) return cudaErrorStreamCaptureUnsupported;
            issued = each->issued;
        }
        advance_to(each, issued);
    }
    return rt().broken ? cudaErrorIllegalAddress : cudaSuccess;
}

cudaError_t query(CUstream_st* stream, uint64_t count) {
    if (forbidden()) return cudaErrorStreamCaptureUnsupported;
    std::lock_guard lock(rt().execution);
    if (stream->done < count) advance(stream, stream->done + 1);
    reach(-1);
    return stream->done >= count ? cudaSuccess : cudaErrorNotReady;
}

// Checks a copy: each side is what `kind` says; an asynchronous copy needs page-locked host memory.
cudaError_t sides(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, bool async) {
    std::lock_guard lock(rt().queues);
    const bool to_device = holder(rt().memory, to, bytes), from_device = holder(rt().memory, from, bytes);
    const bool to_pinned = to_device || holder(rt().pinned, to, bytes), from_pinned = from_device || holder(rt().pinned, from, bytes);
    if (async && !(to_pinned && from_pinned)) return cudaErrorInvalidValue;
    if (kind == cudaMemcpyDefault) return cudaSuccess;
    const bool want_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool want_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    return want_to == to_device && want_from == from_device ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t copy_now(const char* name, std::function<void()> body) {
    CUstream_st* stream = stream_of(nullptr);
    if (forbidden()) return cudaErrorStreamCaptureUnsupported;
    if (cudaError_t error = issue(stream, {name, device, false, std::move(body), {}, {}})) return error;
    return synchronise({stream});
}

double now_ms() { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void graph_run(const CUgraph_st& graph) {
    // Replays alternate the order of branches: all orders come, the same in each run of the program.
    static std::atomic<uint64_t> replays{0};
    uint64_t chance = replays.fetch_add(1);
    std::vector<bool> done(graph.nodes.size());
    std::function<void(size_t)> visit = [&](size_t i) {
        if (done[i]) return;
        done[i] = true;
        std::vector<size_t> into = graph.nodes[i].nodes;
        for (size_t count = into.size(); count > 1; --count) {
            chance = chance * 6364136223846793005 + 1442695040888963407;
            std::swap(into[count - 1], into[(chance >> 33) % count]);
        }
        for (size_t before : into) visit(before);
        run(graph.nodes[i]);
    };
    for (size_t i = graph.nodes.size(); i-- > 0;) visit(i);   // last branch first
}

}   // namespace

cudaError_t cuda_host_grid(const char* name, dim3 grid, dim3 threads, cudaStream_t stream, std::function<void()> body) {
    const uint64_t n = uint64_t{threads.x} * threads.y * threads.z;
    if (n == 0 || n > threads_max || threads.z > 64 || grid.x == 0 || grid.x > INT32_MAX || grid.y == 0 || grid.y > 65535 || grid.z == 0 ||
        grid.z > 65535)
        return result(cudaErrorInvalidConfiguration);
    return cuda_host_run(name, stream, [=] { cuda_host::kernel_run(name, grid, threads, body); });
}

cudaError_t cuda_host_run(const char* name, cudaStream_t stream, std::function<void()> body) {
    CUstream_st* on = stream_of(stream);
    if (on->device != device) return result(cudaErrorInvalidResourceHandle);
    if (!on->capture) ++rt().kernels;
    return result(issue(on, {name, device, false, std::move(body), {}, {}}));
}

void cuda_host_break() { rt().broken = true; }
uint64_t cuda_host_calls(int of) { return rt().calls[of]; }
CudaHostCounts cuda_host_counts() { return {rt().run, rt().allocations, rt().synchronisations, rt().kernels, rt().graphs, rt().sleeps}; }

// ---- errors, devices -------------------------------------------------------------------------------------------------------------

cudaError_t cudaGetLastError() { return std::exchange(last, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last; }
const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "cudaSuccess";
        case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
        case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
        case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
        case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
        case cudaErrorNoDevice: return "cudaErrorNoDevice";
        case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
        case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
        case cudaErrorNotReady: return "cudaErrorNotReady";
        case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
        case cudaErrorPeerAccessAlreadyEnabled: return "cudaErrorPeerAccessAlreadyEnabled";
        case cudaErrorHostMemoryAlreadyRegistered: return "cudaErrorHostMemoryAlreadyRegistered";
        case cudaErrorHostMemoryNotRegistered: return "cudaErrorHostMemoryNotRegistered";
        case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
        case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
        case cudaErrorStreamCaptureUnjoined: return "cudaErrorStreamCaptureUnjoined";
        case cudaErrorStreamCaptureIsolation: return "cudaErrorStreamCaptureIsolation";
        case cudaErrorCapturedEvent: return "cudaErrorCapturedEvent";
    }
    return "cudaErrorUnknown";
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

cudaError_t cudaGetDeviceCount(int* count) {
    *count = rt().devices;
    return result(*count ? cudaSuccess : cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* out) {
    *out = device;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int to) {
    if (to < 0 || to >= rt().devices) return result(rt().devices ? cudaErrorInvalidDevice : cudaErrorNoDevice);
    device = to;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int of) {
    if (of < 0 || of >= rt().devices) return result(cudaErrorInvalidDevice);
    *prop = {"CUDA stand-in on a CPU", rt().limit, 9, 0, 2, threads_max, 48 * 1024};
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int of) {
    if (of < 0 || of >= rt().devices) return result(cudaErrorInvalidDevice);
    switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock: *value = threads_max; break;
        case cudaDevAttrMultiProcessorCount: *value = 2; break;
        case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
        case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    }
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    std::lock_guard lock(rt().queues);
    *total = rt().limit;
    *free = rt().limit - rt().used[in_context()];
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int of, int peer) { return *can = of != peer, cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
    if (peer < 0 || peer >= rt().devices || peer == device) return result(cudaErrorInvalidDevice);
    std::lock_guard lock(rt().execution);
    if (rt().peers[device][peer]) return result(cudaErrorPeerAccessAlreadyEnabled);
    rt().peers[device][peer] = true;
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return result(synchronise(streams_all(in_context()))); }

// ---- memory ----------------------------------------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** at, size_t bytes) {
    if (forbidden()) return result(cudaErrorStreamCaptureUnsupported);
    std::lock_guard running(rt().execution);
    std::lock_guard lock(rt().queues);
    if (in_context() >= rt().devices) return result(cudaErrorNoDevice);
    if (bytes == 0) {
        *at = nullptr;
        return cudaSuccess;
    }
    if (bytes > rt().limit - rt().used[device]) return result(cudaErrorMemoryAllocation);
    if (rt().memory.empty()) {
        struct sigaction action {};
        action.sa_sigaction = fault;
        action.sa_flags = SA_SIGINFO;
        sigaction(SIGSEGV, &action, nullptr);
    }
    const size_t mapped = (bytes + guard + page - 1) / page * page;
    void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return result(cudaErrorMemoryAllocation);
    madvise(base, mapped, MADV_HUGEPAGE);
    std::memset(base, 0xFF, bytes);
    std::memset(static_cast<char*>(base) + bytes, 0xA5, mapped - bytes);
    mprotect(base, mapped, rt().open[device] ? PROT_READ | PROT_WRITE : PROT_NONE);
    rt().memory[static_cast<char*>(base)] = {bytes, mapped, device};
    rt().used[device] += bytes;
    ++rt().allocations;
    *at = base;
    return cudaSuccess;
}

cudaError_t cudaFree(void* at) {
    in_context();
    if (!at) return cudaSuccess;
    if (cudaError_t error = synchronise(streams_all(-1))) return result(error);
    std::lock_guard running(rt().execution);
    std::lock_guard lock(rt().queues);
    auto it = rt().memory.find(static_cast<char*>(at));
    if (it == rt().memory.end()) return result(cudaErrorInvalidValue);
    mprotect(at, it->second.mapped, PROT_READ);
    for (size_t i = it->second.bytes; i < it->second.mapped; ++i)
        if (it->first[i] != static_cast<char>(0xA5)) stop("byte %zu was written of an allocation of %zu", i, it->second.bytes);
    munmap(at, it->second.mapped);
    rt().used[it->second.device] -= it->second.bytes;
    rt().memory.erase(it);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** at, size_t bytes, unsigned) {
    in_context();
    if (forbidden()) return result(cudaErrorStreamCaptureUnsupported);
    *at = std::aligned_alloc(page, (std::max<size_t>(bytes, 1) + page - 1) / page * page);
    std::memset(*at, 0xFF, bytes);
    std::lock_guard lock(rt().queues);
    rt().pinned[static_cast<char*>(*at)] = rt().pinned_by_us[static_cast<char*>(*at)] = bytes;
    ++rt().allocations;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void* at) {
    in_context();
    if (!at) return cudaSuccess;
    if (cudaError_t error = synchronise(streams_all(-1))) return result(error);
    std::lock_guard lock(rt().queues);
    if (rt().pinned_by_us.erase(static_cast<char*>(at)) == 0) return result(cudaErrorInvalidValue);
    rt().pinned.erase(static_cast<char*>(at));
    std::free(at);
    return cudaSuccess;
}
cudaError_t cudaHostRegister(void* at, size_t bytes, unsigned) {
    in_context();
    if (forbidden()) return result(cudaErrorStreamCaptureUnsupported);
    std::lock_guard lock(rt().queues);
    if (holder(rt().pinned, at, 1)) return result(cudaErrorHostMemoryAlreadyRegistered);
    rt().pinned[static_cast<char*>(at)] = bytes;
    ++rt().allocations;
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* at) {
    in_context();
    if (cudaError_t error = synchronise(streams_all(-1))) return result(error);
    std::lock_guard lock(rt().queues);
    return result(rt().pinned.erase(static_cast<char*>(at)) ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* at) {
    std::lock_guard lock(rt().queues);
    const Allocation* own = holder(rt().memory, at, 1);
    if (own) *attributes = {cudaMemoryTypeDevice, own->device};
    else *attributes = {holder(rt().pinned, at, 1) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered, -1};
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    if (cudaError_t error = sides(to, from, bytes, kind, false)) return result(error);
    return result(copy_now("cudaMemcpy", [=] { std::memmove(to, from, bytes); }));
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    if (cudaError_t error = sides(to, from, bytes, kind, true)) return result(error);
    CUstream_st* on = stream_of(stream);
    return result(issue(on, {"cudaMemcpyAsync", on->device, false, [=] { std::memmove(to, from, bytes); }, {}, {}}));
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
    if (width == 0 || height == 0) return cudaSuccess;
    if (width > to_pitch || width > from_pitch) return result(cudaErrorInvalidValue);
    if (cudaError_t error = sides(to, from, width, kind, true)) return result(error);
    CUstream_st* on = stream_of(stream);
    auto body = [=] {
        for (size_t i = 0; i < height; ++i)
            std::memmove(static_cast<char*>(to) + i * to_pitch, static_cast<const char*>(from) + i * from_pitch, width);
    };
    return result(issue(on, {"cudaMemcpy2DAsync", on->device, false, body, {}, {}}));
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t stream) {
    CUstream_st* on = stream_of(stream);
    {
        std::lock_guard lock(rt().queues);
        const Allocation *a = holder(rt().memory, to, bytes), *b = holder(rt().memory, from, bytes);
        if (!a || !b || a->device != to_device || b->device != from_device) return result(cudaErrorInvalidValue);
    }
    if (!rt().peers[on->device][to_device == on->device ? from_device : to_device]) ++rt().synchronisations;   // through the host
    auto body = [=] {
        std::vector<char> between(bytes);
        reach(from_device);
        std::memcpy(between.data(), from, bytes);
        reach(to_device);
        std::memcpy(to, between.data(), bytes);
    };
    return result(issue(on, {"cudaMemcpyPeerAsync", on->device, false, body, {}, {}}));
}
cudaError_t cudaMemset(void* at, int value, size_t bytes) {
    return result(copy_now("cudaMemset", [=] { std::memset(at, value, bytes); }));
}
cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t stream) {
    CUstream_st* on = stream_of(stream);
    return result(issue(on, {"cudaMemsetAsync", on->device, false, [=] { std::memset(at, value, bytes); }, {}, {}}));
}

// ---- streams, events -------------------------------------------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    std::lock_guard lock(rt().queues);
    if (in_context() >= rt().devices) return result(cudaErrorNoDevice);
    rt().streams.push_back(std::make_unique<CUstream_st>());
    *stream = rt().streams.back().get();
    ++rt().allocations;
    (*stream)->device = device;
    (*stream)->blocking = !(flags & cudaStreamNonBlocking);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    in_context();
    if (!stream || stream->destroyed) return result(cudaErrorInvalidResourceHandle);
    advance_to(stream, stream->issued);
    stream->destroyed = true;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return result(synchronise({stream_of(stream)})); }
cudaError_t cudaStreamQuery(cudaStream_t stream) { return result(query(stream_of(stream), stream_of(stream)->issued)); }

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    CUstream_st* on = stream_of(stream);
    std::unique_lock lock(rt().queues);
    if (!event->recorded) return cudaSuccess;
    if (event->capture) {
        if (on->capture && on->capture != event->capture) return result(cudaErrorStreamCaptureIsolation);
        on->capture = event->capture;
        on->nodes.insert(on->nodes.end(), event->nodes.begin(), event->nodes.end());
    } else if (on->capture) {
        on->capture->invalid = true;
        return result(cudaErrorStreamCaptureIsolation);
    } else {
        on->after.push_back(event->position);
        lock.unlock();
        // An operation of its own: who waits for the stream waits for the event, also where nothing follows.
        return result(issue(on, {"cudaStreamWaitEvent", on->device, true, [] {}, {}, {}}));
    }
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
    CUstream_st* on = stream_of(stream);
    {
        std::lock_guard lock(rt().queues);
        if (!std::exchange(rt().helper, true))
            std::thread([] {
                for (;;) {
                    std::this_thread::sleep_for(std::chrono::milliseconds(2));
                    for (CUstream_st* each : streams_all(-1)) {
                        uint64_t issued;
                        {
                            std::lock_guard queues(rt().queues);
                            issued = each->issued;
                        }
                        advance_to(each, issued);
                    }
                }
            }).detach();
    }
    return result(issue(on, {"cudaLaunchHostFunc", on->device, true, [=] { function(data); }, {}, {}}));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    *event = new CUevent_st;
    (*event)->device = in_context();
    (*event)->timing = !(flags & cudaEventDisableTiming);
    ++rt().allocations;
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    in_context();
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    CUstream_st* on = stream_of(stream);
    if (event->device != on->device) return result(cudaErrorInvalidResourceHandle);
    if (on->capture) {
        std::lock_guard lock(rt().queues);
        event->capture = on->capture;
        event->nodes = on->nodes;
        event->recorded = true;
        return cudaSuccess;
    }
    event->ms = std::make_shared<double>(-1);
    if (cudaError_t error = issue(on, {"cudaEventRecord", on->device, true, [ms = event->ms] { *ms = now_ms(); }, {}, {}}))
        return result(error);
    std::lock_guard lock(rt().queues);
    event->capture = nullptr;
    event->position = {on, on->issued};
    event->recorded = true;
    return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    CUstream_st* on = stream_of(stream);
    if (!(flags & cudaEventRecordExternal)) return cudaEventRecord(event, stream);
    if (!on->capture) return result(cudaErrorInvalidValue);
    on->capture->events.push_back(event);
    return result(issue(on, {"cudaEventRecord", on->device, true, [ms = event->ms] { *ms = now_ms(); }, {}, {}}));
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    if (!event->recorded) return cudaSuccess;
    if (event->capture) return result(cudaErrorCapturedEvent);
    if (forbidden()) return result(cudaErrorStreamCaptureUnsupported);
    ++rt().synchronisations;
    std::lock_guard lock(rt().execution);
    rt().sleeps += event->position.stream->done < event->position.count;
    advance_to(event->position.stream, event->position.count);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    if (!event->recorded) return cudaSuccess;
    if (event->capture) return result(cudaErrorCapturedEvent);
    return result(query(event->position.stream, event->position.count));
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
    if (!from->timing || !to->timing || !from->recorded || !to->recorded) return result(cudaErrorInvalidResourceHandle);
    if (*from->ms < 0 || *to->ms < 0) return result(cudaErrorNotReady);
    *ms = static_cast<float>(*to->ms - *from->ms);
    return cudaSuccess;
}

// ---- graphs ----------------------------------------------------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    std::lock_guard lock(rt().queues);
    if (!stream || stream->capture) return result(cudaErrorStreamCaptureUnsupported);
    auto* graph = new CUgraph_st;
    graph->mode = mode;
    graph->by = std::this_thread::get_id();
    graph->origin = stream;
    stream->capture = graph;
    stream->nodes.clear();
    rt().captures.push_back(graph);
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    std::lock_guard lock(rt().queues);
    const CUgraph_st* graph = stream_of(stream)->capture;
    *status = !graph ? cudaStreamCaptureStatusNone : graph->invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    std::lock_guard lock(rt().queues);
    *graph = nullptr;
    if (!stream || !stream->capture || stream->capture->origin != stream) return result(cudaErrorInvalidValue);
    std::unique_ptr<CUgraph_st> captured(stream->capture);
    std::vector<bool> joined(captured->nodes.size());
    std::vector<size_t> open = stream->nodes;
    while (!open.empty()) {
        const size_t i = open.back();
        open.pop_back();
        if (joined[i]) continue;
        joined[i] = true;
        open.insert(open.end(), captured->nodes[i].nodes.begin(), captured->nodes[i].nodes.end());
    }
    std::erase(rt().captures, captured.get());
    for (auto& each : rt().streams)
        if (each->capture == captured.get()) {
            each->capture = nullptr;
            each->nodes.clear();
        }
    if (captured->invalid) return result(cudaErrorStreamCaptureInvalidated);
    if (std::find(joined.begin(), joined.end(), false) != joined.end()) return result(cudaErrorStreamCaptureUnjoined);
    *graph = captured.release();
    ++rt().allocations;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
    if (!graph) return result(cudaErrorInvalidValue);
    *exec = new CUgraphExec_st{std::make_shared<CUgraph_st>(*graph)};
    ++rt().allocations;
    return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t) {
    if (forbidden()) return result(cudaErrorStreamCaptureUnsupported);
    if (!std::exchange(exec->uploaded, true)) ++rt().allocations;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    CUstream_st* on = stream_of(stream);
    if (on->capture) return result(cudaErrorStreamCaptureUnsupported);   // child graphs are not supported
    if (cudaError_t error = issue(on, {"cudaGraphLaunch", on->device, false, [graph = exec->graph] { graph_run(*graph); }, {}, {}}))
        return result(error);
    ++rt().graphs;
    std::lock_guard lock(rt().queues);
    if (!std::exchange(exec->uploaded, true)) ++rt().allocations;
    for (cudaEvent_t each : exec->graph->events) {
        each->position = {on, on->issued};
        each->recorded = true;
        each->capture = nullptr;
    }
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    in_context();
    delete exec;
    return cudaSuccess;
}
