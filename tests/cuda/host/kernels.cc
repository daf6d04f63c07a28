// A kernel's blocks run one after the other; a block's threads are fibers that switch at __syncthreads().
#include "tests/cuda/host/kernels.h"

#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <vector>

using cuda_host::stop;

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

extern "C" void cuda_host_switch(void** from, void* to);
asm(R"(
.text
.type cuda_host_switch,@function
cuda_host_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

namespace {

constexpr size_t page = 4096, stack_bytes = 128 * 1024;

struct Fiber {
    void* sp = nullptr;
    unsigned thread = 0;
};
/// A block.  Threads that do not wait share one fiber; a thread that waits keeps its fiber, and the next one gets another.
struct Block {
    const std::function<void()>* body;
    const char* name;
    unsigned threads, next, ended;
    bool backwards;
    void* scheduler;
    Fiber* current;
    std::vector<std::unique_ptr<Fiber>> fibers;
    std::vector<Fiber*> idle, waiting, resumed;
} block;

void set_thread(unsigned t) { threadIdx = {t % blockDim.x, t / blockDim.x % blockDim.y, t / (blockDim.x * blockDim.y)}; }

void fiber_main() {
    for (;;) {
        while (block.next < block.threads) {
            const unsigned t = block.next++;
            block.current->thread = block.backwards ? block.threads - 1 - t : t;
            set_thread(block.current->thread);
            (*block.body)();
            ++block.ended;
        }
        block.idle.push_back(block.current);
        cuda_host_switch(&block.current->sp, block.scheduler);
    }
}

Fiber* fiber_take() {
    if (block.idle.empty()) {
        auto* stack =
            static_cast<char*>(mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        if (stack == MAP_FAILED || mprotect(stack, page, PROT_NONE) != 0) stop("no memory for fibers");
        auto* top = reinterpret_cast<void**>(stack + stack_bytes);
        *--top = nullptr;   // a return address: aligns the stack as after a call
        *--top = reinterpret_cast<void*>(&fiber_main);
        top -= 6;
        block.fibers.push_back(std::make_unique<Fiber>());
        block.fibers.back()->sp = top;
        return block.fibers.back().get();
    }
    Fiber* fiber = block.idle.back();
    block.idle.pop_back();
    return fiber;
}

void fiber_run(Fiber* fiber) {
    block.current = fiber;
    cuda_host_switch(&block.scheduler, fiber->sp);
}

void block_run(const std::function<void()>& body, bool backwards) {
    block.body = &body;
    block.next = block.ended = 0;
    block.backwards = backwards;
    while (block.next < block.threads) fiber_run(fiber_take());
    while (!block.waiting.empty()) {
        if (block.ended > 0)
            stop("kernel %s, block (%u, %u, %u): %u threads ended while %zu wait at __syncthreads()", block.name, blockIdx.x, blockIdx.y,
                 blockIdx.z, block.ended, block.waiting.size());
        block.resumed.swap(block.waiting);
        std::reverse(block.resumed.begin(), block.resumed.end());
        for (Fiber* fiber : block.resumed) {
            set_thread(fiber->thread);
            fiber_run(fiber);
        }
        block.resumed.clear();
    }
}

}   // namespace

void cuda_host::kernel_run(const char* name, dim3 grid, dim3 threads, const std::function<void()>& body) {
    gridDim = grid;
    blockDim = threads;
    block.name = name;
    block.threads = threads.x * threads.y * threads.z;
    static uint64_t launches = 0;
    const bool backwards = ++launches % 2 == 0;
    const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
    for (uint64_t i = 0; i < blocks; ++i) {
        const uint64_t b = backwards ? blocks - 1 - i : i;
        blockIdx = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                    static_cast<unsigned>(b / grid.x / grid.y)};
        block_run(body, b % 2 == 1);
    }
}

void __syncthreads() {
    block.waiting.push_back(block.current);
    cuda_host_switch(&block.current->sp, block.scheduler);
}
