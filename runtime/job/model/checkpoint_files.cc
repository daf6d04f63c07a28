#include "runtime/job/model/checkpoint_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
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

std::string checkpoint_path(const std::string& folder, uint64_t steps) {
    return fmt::format("{}/{}{:010}{}", folder, checkpoint_prefix, steps, suffix);
}

std::vector<uint64_t> checkpoints_in(const std::string& folder) {
    std::vector<uint64_t> all;
    std::error_code error;
    for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
        const std::string name = at->path().filename().string();
        if (!name.starts_with(checkpoint_prefix) || !name.ends_with(suffix)) continue;
        uint64_t steps = 0;
        const char* first = name.data() + checkpoint_prefix.size();
        const char* last = name.data() + name.size() - suffix.size();
        if (std::from_chars(first, last, steps).ptr == last && checkpoint_path("", steps).substr(1) == name) all.push_back(steps);
    }
    std::sort(all.begin(), all.end());
    return all;
}

}   // namespace gradcast
