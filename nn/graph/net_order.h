// What a cut of a net into stages goes by.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/status.h"

namespace gradcast {

struct NetSpec;

/// Layers are numbered in the order in which they are computed, which is that of Stage and Edge.
struct NetOrder {
    std::vector<std::string> names;   // by layer
    std::vector<double> work;         // by layer: multiplications and additions of a sample's forward and backward passes, about
    std::vector<bool> learns;         // by layer: it has parameters
    std::vector<uint32_t> begins;     // layers that may begin a stage, ascending
    std::vector<std::pair<uint32_t, uint32_t>> reads;   // each layer with each one whose output it takes: {from, by}, in the order of `by`
};
/// Finds the order of the net on GPUs.  Those compute other runs of layers as one than CPUs do, whose order net_cpu_order() (nn/net.h)
/// finds. Error: as layers_check().
Status net_gpu_order(const NetSpec& spec, NetOrder* order);

}   // namespace gradcast
