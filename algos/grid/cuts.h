// Where a net is cut into stages.  A pure function, so that all nodes cut alike.
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace gradcast {

struct CutCosts {
    std::span<const double> work;   // by layer, in any unit
    /// By layer: what it costs to carry the values that a cut before the layer crosses to one side, and their gradients to the other, in
    /// the unit of `work`.  Both stages pay it: with few micro-batches in flight a stage waits for its edges.  Empty: nothing.
    std::span<const double> edges = {};
};

/// The first layer of each of `stages` stages, ascending from 0, such that the highest cost of a stage is the least possible; of equal
/// choices the earliest cuts.  Stages begin at layers with parameters where that is possible.  learns: by layer, whether it has parameters,
/// of which each stage needs some.  `begins`: layers that may begin a stage, ascending from 0.  Empty: there are not so many stages.
/// O(stages * begins^2).
std::vector<uint32_t> cuts_even(const CutCosts& costs, const std::vector<bool>& learns, std::span<const uint32_t> begins, uint32_t stages);
/// By layer: the elements that a cut before it crosses.  outputs: elements of each layer's output.  reads: {from, by}, each layer with each
/// one whose output it takes.  A value that several layers behind the cut read counts once.
std::vector<uint64_t> cuts_crossed(std::span<const uint64_t> outputs, std::span<const std::pair<uint32_t, uint32_t>> reads);
/// The most stages that the net can be cut into.
uint32_t cuts_most(const std::vector<bool>& learns, std::span<const uint32_t> begins);

}   // namespace gradcast
