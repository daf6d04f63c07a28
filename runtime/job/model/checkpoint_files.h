// Which states of a job become checkpoints, and the names of their files.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "datasets/sampler.h"
#include "runtime/job/file/job_file.h"

namespace gradcast {

/// Which states of a job become checkpoints.
class CheckpointPlan {
public:
    CheckpointPlan() = default;
    CheckpointPlan(const JobConfig& job, const Sampler& sampler, uint64_t steps);
    /// Returns the number of the checkpoint after `steps` steps, from 1 on; 0: there is none.
    uint64_t number(uint64_t steps) const;
    /// True if there is one after `steps` steps that is not removed later, so that audits can begin from it.
    bool audited(uint64_t steps) const;

private:
    uint64_t every_ = 0, epochs_ = 1, last_ = 0, audit_ = 1;   // every_: steps; 0: epochs_ counts
    const Sampler* sampler_ = nullptr;
};

inline constexpr std::string_view checkpoint_prefix = "checkpoint-";
/// "<folder>/checkpoint-0000000123.h5", after 123 steps.
std::string checkpoint_path(const std::string& folder, uint64_t steps);
/// The steps of all checkpoints in a folder, ascending.
std::vector<uint64_t> checkpoints_in(const std::string& folder);

}   // namespace gradcast
