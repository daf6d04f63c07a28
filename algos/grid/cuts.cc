#include "algos/grid/cuts.h"

#include <algorithm>
#include <limits>

namespace gradcast {
namespace {

constexpr double impossible = std::numeric_limits<double>::infinity();

/// What lies between two layers that may begin a stage.
struct Unit {
    double work = 0;
    uint32_t learning = 0;   // layers with parameters
};

std::vector<Unit> units_of(std::span<const double> work, const std::vector<bool>& learns, std::span<const uint32_t> begins) {
    std::vector<Unit> units(begins.size());
    for (size_t unit = 0; unit < units.size(); ++unit)
        for (size_t layer = begins[unit], end = unit + 1 < begins.size() ? begins[unit + 1] : learns.size(); layer < end; ++layer) {
            units[unit].work += work.empty() ? 0 : work[layer];
            units[unit].learning += learns[layer] ? 1 : 0;
        }
    return units;
}

std::vector<uint32_t> cuts_at(const CutCosts& costs, const std::vector<bool>& learns, std::span<const uint32_t> begins, uint32_t stages) {
    const std::vector<Unit> units = units_of(costs.work, learns, begins);
    const size_t count = units.size();
    std::vector<Unit> before(count + 1);   // of the units before this one
    for (size_t unit = 0; unit < count; ++unit)
        before[unit + 1] = {before[unit].work + units[unit].work, before[unit].learning + units[unit].learning};
    auto edge = [&](size_t unit) { return costs.edges.empty() || unit == 0 || unit == count ? 0 : costs.edges[begins[unit]]; };
    auto stage = [&](size_t first, size_t end) {
        return before[end].learning > before[first].learning ? before[end].work - before[first].work + edge(first) + edge(end) : impossible;
    };
    // least[s][u]: of units u .. in s + 1 stages, the highest cost of a stage; next[s][u]: the unit that begins the second of them.
    std::vector least(stages, std::vector<double>(count + 1, impossible));
    std::vector next(stages, std::vector<size_t>(count + 1, count));
    for (size_t first = 0; first < count; ++first) least[0][first] = stage(first, count);
    for (uint32_t s = 1; s < stages; ++s)
        for (size_t first = 0; first < count; ++first)
            for (size_t cut = first + 1; cut < count; ++cut)
                if (const double most = std::max(stage(first, cut), least[s - 1][cut]); most < least[s][first])
                    least[s][first] = most, next[s][first] = cut;
    if (stages == 0 || least[stages - 1][0] == impossible) return {};
    std::vector<uint32_t> firsts = {0};
    size_t unit = 0;
    for (uint32_t s = stages - 1; s > 0; --s) {
        unit = next[s][unit];
        firsts.push_back(begins[unit]);
    }
    return firsts;
}

}   // namespace

std::vector<uint32_t> cuts_even(const CutCosts& costs, const std::vector<bool>& learns, std::span<const uint32_t> begins, uint32_t stages) {
    std::vector<uint32_t> preferred;
    for (const uint32_t begin : begins)
        if (begin == 0 || learns[begin]) preferred.push_back(begin);
    const std::vector<uint32_t> firsts = cuts_at(costs, learns, preferred, stages);
    return firsts.empty() ? cuts_at(costs, learns, begins, stages) : firsts;
}

std::vector<uint64_t> cuts_crossed(std::span<const uint64_t> outputs, std::span<const std::pair<uint32_t, uint32_t>> reads) {
    std::vector<uint32_t> last(outputs.size());   // that reads each output
    for (const auto& [from, by] : reads) last[from] = std::max(last[from], by);
    std::vector<uint64_t> crossed(outputs.size());
    for (uint32_t from = 0; from < outputs.size(); ++from)
        for (uint32_t cut = from + 1; cut <= last[from]; ++cut) crossed[cut] += outputs[from];
    return crossed;
}

uint32_t cuts_most(const std::vector<bool>& learns, std::span<const uint32_t> begins) {
    uint32_t most = 0;
    for (const Unit& unit : units_of({}, learns, begins)) most += unit.learning > 0 ? 1 : 0;
    return most;
}

}   // namespace gradcast
