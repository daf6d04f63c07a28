// replay.log: what followed the clock in a run, so that another can repeat it.  A title, which tells the job, and lines.
#pragma once
#include <string>

#include "runtime/core/status.h"

namespace gradcast {

/// The lines behind the title, of a file from outside.  Error: it is of another job.
Status replay_read(const std::string& path, const std::string& title, std::string* lines);
/// Writes the title, the first `before` lines that the file has, and `lines`.  A job that goes on elsewhere has no log of its beginning,
/// and keeps none: nothing is written where `before` lines are not there.
Status replay_keep(const std::string& path, const std::string& title, uint64_t before, const std::string& lines);

}   // namespace gradcast
