#include "tests/exchange/spy.h"

#include <cstdlib>
#include <new>

// Counts what protocols allocate while a Spy says so.
void* operator new(size_t bytes) {
    if (gradcast::allocations_counted) ++gradcast::allocations;
    if (void* memory = std::malloc(bytes ? bytes : 1)) return memory;
    throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
