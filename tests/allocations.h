// Counts what a program takes from the heap: malloc and its kin are wrapped here, so at most one file of a test program includes this.
//
// oneDNN is counted apart.  2.6 itself allocates while it runs a primitive: dnnl_primitive_execute() builds a map of its arguments, and its
// matrix product takes packing buffers from the heap.  Neither can be turned off; both are freed before the call returns.
#pragma once
#include <dlfcn.h>
#include <execinfo.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace gradcast {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool allocations_counted = false;   // a sanitizer's malloc has taken the place
#else
constexpr bool allocations_counted = true;
#endif

inline std::atomic<bool> allocations_watched{false};
inline thread_local bool allocations_ignored = false;   // of this thread
inline std::atomic<uint64_t> allocations_of_onednn{0}, allocations{0};
inline std::array<void*, 12> allocation_first;   // return addresses of the first one

inline void allocations_watch() {
    std::array<void*, 4> warm;
    backtrace(warm.data(), 4);   // loads the unwinder
    allocations_of_onednn = allocations = 0;
    allocations_watched = true;
}

// Who allocates?  The first caller that is not one of the allocators between us and it.
inline void allocation_account() {
    if (!allocations_watched.load(std::memory_order_relaxed) || allocations_ignored) return;
    allocations_ignored = true;   // backtrace and dladdr may allocate themselves
    std::array<void*, 32> frames;
    int count = backtrace(frames.data(), static_cast<int>(frames.size()));
    bool onednn = false;
    for (int i = 2; i < count; ++i) {   // 0 is this function, 1 the wrapper
        Dl_info info;
        std::string_view file = dladdr(frames[static_cast<size_t>(i)], &info) && info.dli_fname ? info.dli_fname : "";
        if (file.find("libstdc++") != file.npos || file.find("libc.so") != file.npos) continue;
        onednn = file.find("libdnnl") != file.npos;
        break;
    }
    if (onednn) ++allocations_of_onednn;
    else if (allocations++ == 0) std::copy_n(frames.begin(), allocation_first.size(), allocation_first.begin());
    allocations_ignored = false;
}

}   // namespace gradcast

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// glibc's own allocator under its other names.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
__attribute__((noinline)) void* malloc(size_t bytes) { return gradcast::allocation_account(), __libc_malloc(bytes); }
__attribute__((noinline)) void* calloc(size_t count, size_t bytes) { return gradcast::allocation_account(), __libc_calloc(count, bytes); }
__attribute__((noinline)) void* realloc(void* old, size_t bytes) { return gradcast::allocation_account(), __libc_realloc(old, bytes); }
__attribute__((noinline)) void* memalign(size_t alignment, size_t bytes) {
    return gradcast::allocation_account(), __libc_memalign(alignment, bytes);
}
__attribute__((noinline)) void* aligned_alloc(size_t alignment, size_t bytes) {
    return gradcast::allocation_account(), __libc_memalign(alignment, bytes);
}
__attribute__((noinline)) int posix_memalign(void** memory, size_t alignment, size_t bytes) {
    gradcast::allocation_account();
    *memory = __libc_memalign(alignment, bytes);
    return *memory ? 0 : ENOMEM;
}
}
#endif
