#include "runtime/job/model/state_vectors.h"

#include "runtime/core/status.h"

namespace gradcast {

StateRuns state_runs(const Layout& own, const Layout& whole, uint32_t vectors, bool owned) {
    StateRuns all;
    all[StateVector::parameters] = own.runs(owned);
    for (uint64_t v = 0; v < vectors; ++v)
        for (const Layout::Run& run : own.runs(owned))
            all[StateVector::optimiser].push_back({v * own.elements + run.offset, run.count, v * own.whole() + run.place});
    uint64_t number = 0;   // in the whole net
    for (uint64_t group = 0; group < own.groups.size(); ++group) {
        if (!owned && !own.stands_for(own.groups[group])) continue;
        while (number < whole.groups.size() && whole.groups[number].place() != own.groups[group].place()) ++number;
        GC_ASSERT(number < whole.groups.size());
        auto& runs = all[StateVector::exponents];
        if (!runs.empty() && runs.back().place + runs.back().count == number) ++runs.back().count;
        else runs.push_back({group, 1, number});
    }
    return all;
}

StateRuns state_runs_whole(const StateSizes& sizes) {
    StateRuns all;
    for (const StateVector which : state_vectors)
        if (sizes[which] > 0) all[which].push_back({0, sizes[which], 0});
    return all;
}

StateSizes state_sizes(const StateRuns& runs) {
    StateSizes sizes{};
    for (const StateVector which : state_vectors)
        for (const Layout::Run& run : runs[which]) sizes[which] += run.count;
    return sizes;
}

std::vector<uint64_t> ranges_values(const StateRuns& runs) {
    std::vector<uint64_t> values;
    for (const StateVector which : state_vectors)
        for (const auto& [offset, count, place] : runs[which])
            for (const uint64_t value : {static_cast<uint64_t>(which), place, count}) values.push_back(value);
    return values;
}

bool ranges_parse(std::span<const uint64_t> values, const StateSizes& sizes, StateRuns* runs) {
    StateSizes next{}, end{};   // in the file, and in the whole vector
    uint64_t last = 0;
    for (size_t i = 0; i + ranges_width <= values.size(); i += ranges_width) {
        const uint64_t vector = values[i], place = values[i + 1], count = values[i + 2];
        if (vector < last || vector >= state_vector_count) return false;
        last = vector;
        if (place < end[vector] || count == 0 || count > sizes[vector] || place > sizes[vector] - count) return false;
        (*runs)[vector].push_back({next[vector], count, place});
        next[vector] += count;
        end[vector] = place + count;
    }
    return values.size() % ranges_width == 0;
}

}   // namespace gradcast
