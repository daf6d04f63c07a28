// The job file of a command line: a path or "-" (stdin), changed by --set.
#pragma once
#include <string>
#include <vector>

#include "runtime/job/file/job_file.h"
#include "runtime/job/run/job_check.h"

namespace gradcast {

/// As job_read().  sets: "section.key=value", the value as TOML or, where that is none, a text; each takes the place of its key's value,
/// in whichever form the file has it, or is added.
Status job_input(const std::string& path, const std::vector<std::string>& sets, JobConfig* config);
/// job_check() of what job_input() has made; the error names the --set.  check.cc.
Status job_checked(const std::string& path, const std::vector<std::string>& sets, const JobConfig& job, const JobCheckOptions& options,
                   JobCheck* check);
/// The text with one --set; it parses to what it parsed to before, but for this key.  *note: another key that went with it, for people;
/// job.steps and job.epochs exclude each other.  Error: names it.  Text that is no TOML stays as it is.
Status job_set(const std::string& set, std::string* text, std::string* note);

}   // namespace gradcast
