#include "runtime/job/model/state_vectors.h"

#include "runtime/core/status.h"

namespace gradcast {

StateRuns state_runs(const Layout& own, const Layout& whole, uint32_t vectors) {
    StateRuns all;
    all[StateVector::parameters] = own.runs();
    for (uint64_t v = 0; v < vectors; ++v)
        for (const Layout::Run& run : own.runs())
            all[StateVector::optimiser].push_back({v * own.elements + run.offset, run.count, v * own.whole() + run.place});
    uint64_t number = 0;   // in the whole net
    for (uint64_t group = 0; group < own.groups.size(); ++group) {
        while (number < whole.groups.size() && whole.groups[number].place() != own.groups[group].place()) ++number;
        GC_ASSERT(number < whole.groups.size());
        all[StateVector::exponents].push_back({group, 1, number});
    }
    return all;
}

}   // namespace gradcast
