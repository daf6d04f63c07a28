// The GPUs that this process may use, counted without CUDA.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace gradcast {

/// How many GPUs CUDA finds here: those of NVIDIA's driver, or as many of them as CUDA_VISIBLE_DEVICES names.  0: the driver names none.
/// Reads a folder under `root` (tests use another one).
uint32_t gpu_count(const std::string& root = "");
/// The GPUs of daemon `index`, one of `sharers` daemons of a machine with `count` GPUs: every sharers-th, or one GPU where there are fewer
/// GPUs than daemons.  Empty where nothing is divided, so that the daemon may use all GPUs.
std::vector<uint32_t> gpus_shared_out(uint32_t count, uint32_t index, uint32_t sharers);
/// "GPU 0", "GPUs 0, 1".
std::string gpus_text(std::span<const uint32_t> numbers);

}   // namespace gradcast
