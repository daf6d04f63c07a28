// The vectors of a state, in memory and in a model's file, and the ranges of them that one node has.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/status.h"
#include "runtime/core/types.h"

namespace gradcast {

/// parameters float32, optimiser float32 [vectors of the optimiser, parameters], exponents int32 [groups], algorithm uint8.
enum class StateVector : uint8_t { parameters, optimiser, exponents, algorithm };
struct StateVectorKind {
    const char* name;   // of its data set in a file
    uint32_t width;     // bytes of an element
};
constexpr StateVectorKind state_vector_kinds[] = {{"parameters", 4}, {"optimiser", 4}, {"exponents", 4}, {"algorithm", 1}};
constexpr uint32_t state_vector_count = std::size(state_vector_kinds);
constexpr StateVector state_vectors[] = {StateVector::parameters, StateVector::optimiser, StateVector::exponents, StateVector::algorithm};
static_assert(std::size(state_vectors) == state_vector_count);
constexpr const StateVectorKind& kind_of(StateVector which) { return state_vector_kinds[static_cast<size_t>(which)]; }

/// One value for each StateVector.
template <typename T>
struct PerVector : std::array<T, state_vector_count> {
    using std::array<T, state_vector_count>::operator[];
    T& operator[](StateVector which) { return (*this)[static_cast<size_t>(which)]; }
    const T& operator[](StateVector which) const { return (*this)[static_cast<size_t>(which)]; }
};
/// Elements of each vector, of the whole net.
using StateSizes = PerVector<uint64_t>;

/// What a step begins from, beside its number.
struct ModelState {
    std::span<const float> parameters, optimiser;
    std::span<const int32_t> exponents;
    std::span<const std::byte> algorithm;
    PerVector<std::span<const std::byte>> bytes() const {
        return {{std::as_bytes(parameters), std::as_bytes(optimiser), std::as_bytes(exponents), algorithm}};
    }
    StateSizes sizes() const { return {{parameters.size(), optimiser.size(), exponents.size(), algorithm.size()}}; }
};
struct ModelVectors {
    std::vector<float> parameters, optimiser;
    std::vector<int32_t> exponents;
    std::vector<std::byte> algorithm;
    operator ModelState() const { return {parameters, optimiser, exponents, algorithm}; }
};

/// The elements that a node has of each vector, ascending.  The algorithm's state has no runs: no node has a part of it.
using StateRuns = PerVector<std::vector<Layout::Run>>;
/// own: of the node's cell; whole: of the whole net, in any buckets; vectors: OptimiserKind::vectors().  Not `owned`: without what another
/// slice group stands for.
StateRuns state_runs(const Layout& own, const Layout& whole, uint32_t vectors, bool owned = true);
/// Of a node that has everything.
StateRuns state_runs_whole(const StateSizes& sizes);
/// Elements of each vector that these runs have.
StateSizes state_sizes(const StateRuns& runs);
/// As numbers: vector (as StateVector), place, elements; ascending.  Their offsets are those of elements one behind the other.
constexpr uint32_t ranges_width = 3;
constexpr uint64_t ranges_max = 1 << 20;   // numbers that a reader takes
std::vector<uint64_t> ranges_values(const StateRuns& runs);
/// False: they are no ranges of vectors of these sizes.
bool ranges_parse(std::span<const uint64_t> values, const StateSizes& sizes, StateRuns* runs);
/// Calls act(offset, place, count) for each stretch of the elements place .. place + count - 1 that the runs have.  Stops at an error.
template <typename Act>
Status each_stretch(std::span<const Layout::Run> runs, uint64_t place, uint64_t count, Act act) {
    for (const Layout::Run& run : runs) {
        const uint64_t first = std::max(run.place, place), end = std::min(run.place + run.count, place + count);
        if (first < end) GC_TRY(act(run.offset + first - run.place, first, end - first));
    }
    return {};
}

}   // namespace gradcast
