// replay.log: what followed the clock in a run, so that another can repeat it.  Its head says of which job it is: "gradcast replay 2", a
// line "name = value" for each fact, and an empty line.  Lines follow.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/core/status.h"

namespace gradcast {

/// Settings and what else a result depends on, by name.
using Facts = std::vector<std::pair<std::string, std::string>>;

std::string replay_head(const Facts& job);
/// The lines behind the head, of a file from outside.  Error: it is of another version, or of a job with other facts; those that it has
/// beyond `job` do not count.
Status replay_read(const std::string& path, const Facts& job, std::string* lines);

/// The log that a run writes.
class ReplayLog {
public:
    void open(std::string path) { path_ = std::move(path); }
    /// `lines` behind the head and `before` lines of this job; what the file has behind those goes.  If the file
    /// lacks the first `before` lines, as at a node that the job was moved to, keep() writes nothing.  Cost: if the call before ended at
    /// `before`, keep() appends `lines` and does not wait for the disk (a checkpoint does); else it writes the file anew.
    Status keep(const std::string& head, uint64_t before, std::string_view lines);

private:
    std::string path_;
    std::optional<uint64_t> lines_;   // that the file has
};

}   // namespace gradcast
