#include "runtime/job/model/checkpoint_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <string_view>

namespace gradcast {
namespace {

constexpr uint64_t audited_about = 20;    // checkpoints of a job that stay where audit_every is 0
constexpr uint64_t of_epochs_max = 100;   // checkpoints of a job where checkpoint_every is 0
constexpr std::string_view suffix = ".h5";

}   // namespace

CheckpointPlan::CheckpointPlan(const JobConfig& job, const Sampler& sampler, uint64_t steps)
    : every_(job.checkpoint_every), last_(steps), audit_(job.audit_every), sampler_(&sampler) {
    const uint64_t epochs = sampler.epoch_of(steps - 1) + 1;
    epochs_ = (epochs + of_epochs_max - 1) / of_epochs_max;
    const uint64_t all = every_ > 0 ? steps / every_ : epochs / epochs_;
    if (audit_ == 0) audit_ = std::max<uint64_t>((all + audited_about - 1) / audited_about, 1);
}

uint64_t CheckpointPlan::number(uint64_t steps) const {
    if (steps == 0 || steps >= last_) return 0;   // the last state is final.h5
    if (every_ > 0) return steps % every_ == 0 ? steps / every_ : 0;
    const uint64_t epochs = sampler_->epoch_of(steps);   // that have ended
    return epochs > 0 && epochs % epochs_ == 0 && sampler_->steps(epochs) == steps ? epochs / epochs_ : 0;
}

bool CheckpointPlan::audited(uint64_t steps) const {
    const uint64_t of = number(steps);
    return of > 0 && of % audit_ == 0;
}

std::string checkpoint_path(const std::string& folder, const CheckpointName& name) {
    const std::string cell = name.cells > 1 ? fmt::format("-cell-{}-of-{}", name.cell + 1, name.cells) : "";
    return fmt::format("{}/{}{:010}{}{}", folder, checkpoint_prefix, name.steps, cell, suffix);
}

bool checkpoint_parse(std::string_view file, CheckpointName* name) {
    if (!file.starts_with(checkpoint_prefix)) return false;
    const char *at = file.data() + checkpoint_prefix.size(), *end = file.data() + file.size();
    auto number = [&](auto* value) { at = std::from_chars(at, end, *value).ptr; };
    auto word = [&](std::string_view text) {
        if (!std::string_view(at, end).starts_with(text)) return false;
        at += text.size();
        return true;
    };
    CheckpointName found;
    number(&found.steps);
    if (word("-cell-")) {
        number(&found.cell);
        if (!word("-of-") || found.cell-- == 0) return false;
        number(&found.cells);
        if (found.cell >= found.cells) return false;
    }
    if (checkpoint_path("", found).substr(1) != file) return false;   // other digits for the same numbers
    *name = found;
    return true;
}

std::vector<CheckpointName> checkpoint_files(const std::string& folder) {
    std::vector<CheckpointName> all;
    std::error_code error;
    for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
        if (CheckpointName name; checkpoint_parse(at->path().filename().string(), &name)) all.push_back(name);
    std::ranges::sort(all);
    return all;
}

std::vector<CheckpointHere> checkpoints_in(const std::string& folder) {
    std::map<std::pair<uint64_t, uint32_t>, uint32_t> parts;   // by steps and cells
    for (const CheckpointName& name : checkpoint_files(folder)) ++parts[{name.steps, name.cells}];
    std::vector<CheckpointHere> all;
    for (const auto& [of, count] : parts)
        if (const auto [steps, cells] = of; count == cells && (all.empty() || all.back().steps != steps))
            all.push_back({steps, checkpoint_path(folder, {steps, 0, cells})});
    return all;
}

}   // namespace gradcast
