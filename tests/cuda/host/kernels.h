// Shared by the parts of the stand-in's runtime.
#pragma once
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

namespace cuda_host {

/// Ends the process: the call is wrong on a GPU, too.
[[noreturn]] void stop(const char* format, auto... args) {
    std::fprintf(stderr, "CUDA stand-in: ");
    std::fprintf(stderr, format, args...);
    std::fprintf(stderr, "\n");
    std::abort();
}

/// Runs `body` once for each thread of the grid.  One kernel at a time.
void kernel_run(const char* name, dim3 grid, dim3 threads, const std::function<void()>& body);

}   // namespace cuda_host
