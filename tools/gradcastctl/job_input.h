// The job file of a command line: a path or "-" (stdin), changed by --set.
#pragma once
#include <string>
#include <vector>

#include "runtime/job/job_file.h"

namespace gradcast {

/// As job_read().  sets: "section.key=value", the value as TOML or, where that is none, a text; each replaces the line of its key or is
/// added.
Status job_input(const std::string& path, const std::vector<std::string>& sets, JobConfig* config);
/// The text with one --set.  Error: names it.
Status job_set(const std::string& set, std::string* text);

}   // namespace gradcast
