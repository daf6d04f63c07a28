#include "runtime/job/report/pipeline_status.h"

#include <fmt/format.h>

#include <algorithm>

namespace gradcast {
namespace {

constexpr uint64_t simulated_most = 1 << 16;   // passes of micro-batches, which take milliseconds to simulate

/// The name may be an outsider's.
Schedule schedule_of(const std::string& name) { return pipeline_schedule_find(name).value_or(Schedule::one_forward_one_backward); }

}   // namespace

void pipeline_status_derive(PipelineStatus* status) {
    const auto stages = static_cast<uint32_t>(status->layers.size());
    const Schedule schedule = schedule_of(status->schedule);
    std::vector<StageTimes> times(stages);
    std::vector<uint32_t> counts(stages);
    status->micro_batches = status->step_us = 0;
    status->idle_formula = -1;
    status->idle_simulated.clear();
    for (const StageNode& node : status->nodes) {
        const StageNews& news = node.news;
        if (news.steps == 0 || news.micro_batches == 0 || node.stage > stages) continue;
        const auto seconds = [&](StageTime what) { return news.of(what) * 1e-6 / news.micro_batches; };
        StageTimes& sum = times[node.stage - 1];
        sum.forward += seconds(StageTime::forward);
        sum.data += seconds(StageTime::backward);
        sum.weights += seconds(StageTime::weights);
        ++counts[node.stage - 1];
        status->micro_batches = std::max(status->micro_batches, news.micro_batches);
        status->step_us = std::max(status->step_us, news.step_us);
    }
    if (!status->known()) return;
    status->idle_formula = idle_share(schedule, stages, status->micro_batches);
    if (std::ranges::find(counts, 0u) != counts.end()) return;
    for (uint32_t i = 0; i < stages; ++i) {
        times[i].forward /= counts[i];
        times[i].data /= counts[i];
        times[i].weights /= counts[i];
        if (times[i].sum() <= 0) return;
    }
    if (uint64_t{stages} * status->micro_batches > simulated_most) return;
    status->idle_simulated = pipeline_cost(schedule, times, status->micro_batches).idle;
}

std::vector<DrawnPass> drawn_passes(const PipelineStatus& status, const StageNode& node) {
    std::vector<DrawnPass> drawn;
    if (node.news.passes.empty() || node.stage == 0 || node.stage > status.layers.size()) return drawn;
    // The first tasks are the same for all larger numbers of micro-batches, and the number may be an outsider's.
    const auto stages = static_cast<uint32_t>(status.layers.size());
    const uint32_t micro_batches = std::min(node.news.micro_batches, StageRecord::passes_max + 2 * stages);
    const std::vector<StageTask> tasks = stage_tasks(schedule_of(status.schedule), stages, node.stage - 1, micro_batches);
    for (size_t i = 0; i < std::min(tasks.size(), node.news.passes.size()); ++i)
        drawn.push_back({tasks[i].pass, tasks[i].micro_batch + 1, node.news.passes[i]});
    return drawn;
}

std::string stage_wait_name(StageTime what, uint32_t stage, uint32_t stages) {
    switch (what) {
        case StageTime::values: return stage > 1 ? fmt::format("values of stage {}", stage - 1) : "values";
        case StageTime::gradients: return stage < stages ? fmt::format("gradients of stage {}", stage + 1) : "gradients";
        case StageTime::unsent: return "the link to send";
        case StageTime::sums: return "sums of its group";
        case StageTime::reports: return "reports of the other stages";
        case StageTime::forward:
        case StageTime::backward:
        case StageTime::weights: break;
    }
    return "?";
}

std::vector<StageWait> stage_waits(const StageNews& news) {
    std::vector<StageWait> waits;
    for (size_t i = stage_passes; i < stage_times; ++i)
        if (news.us[i] > 0 && uint64_t{news.us[i]} * 100 >= news.step_us) waits.push_back({static_cast<StageTime>(i), news.us[i]});
    std::ranges::stable_sort(waits, [](const StageWait& a, const StageWait& b) { return a.us > b.us; });
    return waits;
}

std::string stage_waits_text(const StageNode& node, uint32_t stages) {
    constexpr size_t most = 3;
    std::vector<StageWait> waits = stage_waits(node.news);
    if (waits.size() > most) waits.resize(most);
    std::string text;
    for (const StageWait& each : waits)
        text += fmt::format("{}{} {:.2f} ms", text.empty() ? "" : ", ", stage_wait_name(each.what, node.stage, stages), each.us * 1e-3);
    return text.empty() && node.news.steps > 0 ? "nothing" : text;
}

std::string pipeline_line(const PipelineStatus& status) {
    const auto stages = static_cast<uint32_t>(status.layers.size());
    std::string text;
    for (uint32_t stage = 1; stage <= stages; ++stage)
        for (const StageNode& node : status.nodes) {
            if (node.stage != stage || node.news.passes.empty()) continue;
            const std::vector<StageWait> waits = stage_waits(node.news);
            text += fmt::format("{}{}: {} ({:.0f}% idle)", text.empty() ? "" : ", ", stage,
                                waits.empty() ? "nothing" : stage_wait_name(waits[0].what, stage, stages), node.news.idle() * 100);
            break;
        }
    return text;
}

}   // namespace gradcast
