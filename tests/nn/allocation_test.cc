// No allocation in a step: malloc and its kin are wrapped for the thread under test, and every call that does not come from inside oneDNN
// fails.
//
// oneDNN 2.6 itself allocates while it runs a primitive: dnnl_primitive_execute() builds a map of its arguments, and its matrix product
// takes packing buffers from the heap.  Neither can be turned off; both are freed before the call returns.
#include <dlfcn.h>
#include <execinfo.h>

#include <array>
#include <cerrno>

#include "tests/nn/rig.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
TEST(Allocation, NoneInAStep) { GTEST_SKIP() << "malloc of our own: a sanitizer has taken its place"; }
#else

namespace {
thread_local bool watching = false;
thread_local uint64_t inside_onednn = 0, others = 0;
thread_local std::array<void*, 8> culprit;   // return addresses of the first other allocation

// Who allocates?  The first caller that is not one of the allocators between us and it.
void account() {
    if (!watching) return;
    watching = false;   // backtrace and dladdr may allocate themselves
    std::array<void*, 32> frames;
    int count = backtrace(frames.data(), static_cast<int>(frames.size()));
    bool onednn = false;
    for (int i = 2; i < count; ++i) {   // 0 is account(), 1 the wrapper
        Dl_info info;
        std::string_view file = dladdr(frames[static_cast<size_t>(i)], &info) && info.dli_fname ? info.dli_fname : "";
        if (file.find("libstdc++") != file.npos || file.find("libc.so") != file.npos) continue;
        onednn = file.find("libdnnl") != file.npos;
        break;
    }
    if (onednn) ++inside_onednn;
    else if (others++ == 0) std::copy_n(frames.begin(), culprit.size(), culprit.begin());
    watching = true;
}
}   // namespace

// glibc's own allocator under its other names.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
__attribute__((noinline)) void* malloc(size_t bytes) { return account(), __libc_malloc(bytes); }
__attribute__((noinline)) void* calloc(size_t count, size_t bytes) { return account(), __libc_calloc(count, bytes); }
__attribute__((noinline)) void* realloc(void* old, size_t bytes) { return account(), __libc_realloc(old, bytes); }
__attribute__((noinline)) void* aligned_alloc(size_t alignment, size_t bytes) { return account(), __libc_memalign(alignment, bytes); }
__attribute__((noinline)) void* memalign(size_t alignment, size_t bytes) { return account(), __libc_memalign(alignment, bytes); }
__attribute__((noinline)) int posix_memalign(void** memory, size_t alignment, size_t bytes) {
    account();
    *memory = __libc_memalign(alignment, bytes);
    return *memory ? 0 : ENOMEM;
}
}

namespace gradcast {
namespace {

struct Forget : GradientSink {
    Status bucket(uint32_t, BlockId, uint32_t, Buffer) override { return {}; }
    void loss(uint32_t, BlockId, double) override {}
};

TEST(Allocation, NoneInAStep) {
    for (const char* name : {"lenet5", "mlp"}) {
        NetSpec spec;
        ASSERT_TRUE(preset_find(name, 1, 28, 28, 10, &spec).ok());
        Rig rig(spec, sizes({12, 13}), {.momentum = 0.9});
        Data a(spec, 12), b(spec, 13);
        std::vector<int32_t> words(rig.net->layout().elements, 1);
        const std::vector<double> units(rig.net->layout().groups.size(), 0x1p-40);
        Forget sink;
        std::array<void*, 4> warm;
        backtrace(warm.data(), 4);   // loads the unwinder
        auto step = [&](StepId number) {
            bool ok = rig.net->block(0, {number, 0}, a.samples, sink).ok() && rig.net->block(0, {number, 1}, b.samples, sink).ok();
            rig.optimiser->step(number);
            for (uint32_t i = 0; i < rig.net->layout().buckets.size(); ++i) {
                const Bucket& bucket = rig.net->layout().buckets[i];
                Sum sum;
                sum.bucket = i, sum.words = {reinterpret_cast<std::byte*>(words.data() + bucket.offset), nullptr, bucket.count * 4};
                ok = ok && rig.net->apply(*rig.optimiser, sum, std::span(units).first(bucket.group_count)).ok();
            }
            return ok;
        };
        // OpenMP keeps a setting for each thread, made at the thread's first block.
        ASSERT_TRUE(step(0));
        inside_onednn = others = 0;
        watching = true;
        bool ok = step(1);
        watching = false;
        EXPECT_TRUE(ok);
        EXPECT_GT(inside_onednn, 0u) << "nothing is counted at all: the wrappers do not work";
        EXPECT_EQ(others, 0u) << name;
        if (others) backtrace_symbols_fd(culprit.data(), static_cast<int>(culprit.size()), 2);
    }
    others = 0;
    watching = true;
    std::vector<int> proof(1000);   // the test can fail
    watching = false;
    EXPECT_EQ(others, 1u) << proof.size();
}

}   // namespace
}   // namespace gradcast
#endif
