// replay.log: what followed the clock in a run, so that another can repeat it.  Its head says of which job it is: "gradcast replay 2", a
// line "name = value" for each fact, and an empty line.  Lines follow.
#pragma once
#include <string>
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
/// Writes the head, the first `before` lines that the file has, and `lines`.  A job that goes on elsewhere has no log of its beginning,
/// and keeps none: nothing is written where `before` lines of this job are not there.
Status replay_keep(const std::string& path, const std::string& head, uint64_t before, const std::string& lines);

}   // namespace gradcast
