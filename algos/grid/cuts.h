// Where a net is cut into stages.  A pure function, so that all nodes cut alike.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace gradcast {

/// The first layer of each of `stages` stages, ascending from 0, such that the most work of a stage is the least possible; of equal choices
/// the earliest cuts.  Stages begin at layers with parameters where that is possible.  By layer: `work` in any unit, and whether it has
/// parameters, of which each stage needs some.  `begins`: layers that may begin a stage, ascending from 0.  Empty: there are not so many
/// stages.  O(stages * begins^2).
std::vector<uint32_t> cuts_even(std::span<const double> work, const std::vector<bool>& learns, std::span<const uint32_t> begins,
                                uint32_t stages);
/// The most stages that the net can be cut into.
uint32_t cuts_most(const std::vector<bool>& learns, std::span<const uint32_t> begins);

}   // namespace gradcast
