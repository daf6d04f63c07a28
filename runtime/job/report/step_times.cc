#include "runtime/job/report/step_times.h"

#include <algorithm>
#include <span>

namespace gradcast {
namespace {

/// Reorders them.
uint32_t median(std::span<uint32_t> values) {
    if (values.empty()) return 0;
    const auto middle = values.begin() + static_cast<ptrdiff_t>((values.size() - 1) / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

const char* advice_for(StepPhase phase) {
    switch (phase) {
        case StepPhase::load: return "look at its disk and page cache, or copy the shards to a local disk";
        case StepPhase::send: return "look at its network interface";
        case StepPhase::compute:
        case StepPhase::quantise:
        case StepPhase::encode:
        case StepPhase::wait:
        case StepPhase::edges:
        case StepPhase::decode:
        case StepPhase::add:
        case StepPhase::apply: break;
    }
    return "look there for other processes, a CPU quota, throttled clocks, or fewer `cpus` in gradcastd.toml; gradcastctl drain takes it "
           "out";
}

}   // namespace

void RankTimesWire::set(const RankTimes& times) {
    steps.set(times.steps);
    blocks.set(times.blocks);
    for (size_t i = 0; i < step_phases; ++i) {
        phases[i].recent.set(times.phases[i].recent);
        phases[i].p50.set(times.phases[i].p50);
        phases[i].p99.set(times.phases[i].p99);
    }
}

RankTimes RankTimesWire::get() const {
    RankTimes times;
    times.steps = steps.get();
    times.blocks = blocks.get();
    for (size_t i = 0; i < step_phases; ++i) times.phases[i] = {phases[i].recent.get(), phases[i].p50.get(), phases[i].p99.get()};
    return times;
}

void StepTimes::step(const std::array<uint64_t, step_phases>& us, uint32_t blocks) {
    const uint32_t count = count_.load(std::memory_order_relaxed);
    for (size_t i = 0; i < step_phases; ++i)
        steps_[count % window_steps][i].store(static_cast<uint32_t>(std::min<uint64_t>(us[i], UINT32_MAX)), std::memory_order_relaxed);
    blocks_.store(blocks, std::memory_order_relaxed);
    count_.store(count + 1, std::memory_order_release);   // pairs with read()
}

RankTimes StepTimes::read() const {
    RankTimes times;
    const uint32_t count = count_.load(std::memory_order_acquire), kept = std::min(count, window_steps);
    times.steps = kept;
    times.blocks = blocks_.load(std::memory_order_relaxed);
    if (kept == 0) return times;
    std::array<uint32_t, window_steps> all;
    for (size_t phase = 0; phase < step_phases; ++phase) {
        const uint32_t recent = std::min(kept, recent_steps);
        for (uint32_t i = 0; i < kept; ++i) all[i] = steps_[(count - 1 - i) % window_steps][phase].load(std::memory_order_relaxed);
        times.phases[phase].recent = median(std::span(all).first(recent));
        std::sort(all.begin(), all.begin() + kept);
        times.phases[phase].p50 = all[(kept - 1) / 2];
        times.phases[phase].p99 = all[(kept - 1) * 99 / 100];
    }
    return times;
}

void TimesOfNodes::plan(size_t nodes) {
    nodes_ = nodes;
    words_ = std::make_unique<std::atomic<uint32_t>[]>(nodes * words);
}

void TimesOfNodes::set(size_t node, const RankTimes& times) {
    if (node >= nodes_) return;
    std::atomic<uint32_t>* to = &words_[node * words];
    auto put = [&](uint32_t value) { (to++)->store(value, std::memory_order_relaxed); };
    put(times.steps), put(times.blocks);
    for (const PhaseTimes& each : times.phases) put(each.recent), put(each.p50), put(each.p99);
}

RankTimes TimesOfNodes::get(size_t node) const {
    RankTimes times;
    if (node >= nodes_) return times;
    const std::atomic<uint32_t>* from = &words_[node * words];
    auto take = [&](uint32_t& value) { value = (from++)->load(std::memory_order_relaxed); };
    take(times.steps), take(times.blocks);
    for (PhaseTimes& each : times.phases) take(each.recent), take(each.p50), take(each.p99);
    return times;
}

std::vector<Straggler> stragglers_of(const std::vector<NodeTimes>& nodes) {
    constexpr uint32_t steps_min = 8, least_us = 2000;
    constexpr uint64_t factor = 2;
    std::vector<Straggler> found;
    auto work = [](const RankTimes& times) { return uint64_t{times.of(StepPhase::compute).recent} + times.of(StepPhase::apply).recent; };
    for (const NodeTimes& node : nodes) {
        std::vector<uint32_t> works, by_block;
        for (const NodeTimes& other : nodes) {
            if (&other == &node || other.times.steps < steps_min) continue;
            works.push_back(static_cast<uint32_t>(std::min<uint64_t>(work(other.times), UINT32_MAX)));
            by_block.push_back(works.back() / std::max(other.times.blocks, 1u));
        }
        if (works.empty() || node.times.steps < steps_min) continue;
        const uint64_t own = work(node.times), typical = median(works);
        if (own <= factor * typical || own < typical + least_us) continue;
        if (own / std::max(node.times.blocks, 1u) <= factor * median(by_block)) continue;
        auto others = [&](StepPhase phase) {
            std::vector<uint32_t> all;
            for (const NodeTimes& other : nodes)
                if (&other != &node && other.times.steps >= steps_min) all.push_back(other.times.of(phase).recent);
            return median(all);
        };
        auto excess = [&](StepPhase phase) { return int64_t{node.times.of(phase).recent} - others(phase); };
        StepPhase worst = excess(StepPhase::apply) > excess(StepPhase::compute) ? StepPhase::apply : StepPhase::compute;
        // Within compute: the part that makes most of it.
        for (const StepPhase part : {StepPhase::load, StepPhase::quantise})
            if (worst == StepPhase::compute && 2 * excess(part) > excess(StepPhase::compute)) worst = part;
        found.push_back({node.node, step_phase_name(worst), node.times.of(worst).recent, others(worst), advice_for(worst)});
    }
    return found;
}

}   // namespace gradcast
