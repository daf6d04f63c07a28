#include "tests/exchange/spy.h"

#include <cstdlib>
#include <new>

// Counts the allocations of protocols while a Spy is active.
// Not inlined: g++ would warn of a mismatched malloc and free.
[[gnu::noinline]] void* operator new(size_t bytes) {
    if (gradcast::allocations_counted) ++gradcast::allocations;
    if (void* memory = std::malloc(bytes ? bytes : 1)) return memory;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
