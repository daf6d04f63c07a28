// net.command of a job, for a person who is to judge it before it is started.
#pragma once
#include <string>
#include <string_view>

#include "runtime/job/file/job_file.h"
#include "runtime/job/file/sources.h"

namespace gradcast {

/// The command with its working directory and the SHA-256 of each word that names a file: `["python3", "train.py"] in /jobs, SHA-256 of
/// /jobs/train.py: ...`.  One line of printable text, whatever the job file holds.  Of a file that is no regular file, is larger than
/// 64 MiB or cannot be read it says so.  Reads at most 16 files; starts nothing.
/// copies: what is started in their place, if there are some; the text then has their SHA-256.  folder: that has them.
std::string command_text(const JobConfig& job, const Sources& copies = {}, const std::string& folder = {});

/// The error where a command comes out of a folder, a checkpoint or a model, and nobody has allowed it.  from: where, for people:
/// "out/job.toml".  option: what allows it, "--allow-command".
Status command_refused(const JobConfig& job, std::string_view from, const Sources& copies = {}, const std::string& folder = {},
                       std::string_view option = "--allow-command");

}   // namespace gradcast
