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
/// A checkpoint is one file with a whole state, or of a net in `cells` parts one file a part.
struct CheckpointName {
    uint64_t steps = 0;             // that are done
    uint32_t cell = 0, cells = 1;   // which part, of how many
    auto operator<=>(const CheckpointName&) const = default;
};
/// "<folder>/checkpoint-0000000123.h5", after 123 steps, or "<folder>/checkpoint-0000000123-cell-1-of-2.h5".
std::string checkpoint_path(const std::string& folder, const CheckpointName& name);
inline std::string checkpoint_path(const std::string& folder, uint64_t steps) { return checkpoint_path(folder, CheckpointName{steps}); }
/// Of the name of a file; false: it is none of a checkpoint.
bool checkpoint_parse(std::string_view file, CheckpointName* name);
/// All files of checkpoints in a folder, ascending.
std::vector<CheckpointName> checkpoint_files(const std::string& folder);
/// A checkpoint whose files all lie in one folder.
struct CheckpointHere {
    uint64_t steps = 0;
    std::string path;   // of one of them; ModelReader finds the others
};
/// Those of a folder, ascending, one for each number of steps.
std::vector<CheckpointHere> checkpoints_in(const std::string& folder);

}   // namespace gradcast
