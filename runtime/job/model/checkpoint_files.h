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
    /// Number of the checkpoint after so many steps; 0: there is none.
    uint64_t number(uint64_t steps) const;
    /// Stays for audits.
    bool audited(uint64_t steps) const;

private:
    uint64_t every_ = 0, epochs_ = 1, last_ = 0, audit_ = 1;   // every_ 0: so many epochs
    const Sampler* sampler_ = nullptr;
};

inline constexpr std::string_view checkpoint_prefix = "checkpoint-";
/// "<folder>/checkpoint-0000000123.h5", after 123 steps.
std::string checkpoint_path(const std::string& folder, uint64_t steps);
/// The steps of all that are in a folder, ascending.
std::vector<uint64_t> checkpoints_in(const std::string& folder);

}   // namespace gradcast
