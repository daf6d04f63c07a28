// Starts a program in a daemon that has many threads: all memory is prepared before the fork, and the child makes system calls alone.
#pragma once
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "runtime/core/status.h"

namespace gradcast {

using Variables = std::vector<std::pair<std::string, std::string>>;   // of an environment: name, value

/// The file that a command starts.  A name without a slash is looked up in PATH, that of `environment` first, then this process's.  A
/// relative name with a slash is against `folder`.  Reads names and rights of files only.
/// Errors, which name the program and the way out: Code::invalid: the command is empty, is not found, is a folder, may not be executed.
Status program_find(const std::vector<std::string>& command, const std::string& folder, const Variables& environment, std::string* path);

/// This process's environment with these variables in place of or beside its own.  What speaks to the daemon alone is left out: its key
/// (GRADCAST_KEY), credentials, and the sockets of systemd.
std::vector<std::string> environment_with(const Variables& variables);

constexpr int attach_fd = 3;   // the number of `Spawn::socket` in the child

struct Spawn {
    std::string name;                       // for messages: "lane 0"
    std::string path;                       // of the program
    std::vector<std::string> words;         // its arguments, the program first
    std::vector<std::string> environment;   // "NAME=value"
    std::string folder;                     // working directory
    int socket = -1;                        // becomes descriptor 3; -1: none
    int out = -1, error = -1;               // become 1 and 2
    std::vector<int> groups;                // ProcessGroup::entries()
};

/// Starts the program as the leader of a new session: default signals, none blocked, /dev/null as standard input, no other descriptor.
/// It gets SIGKILL when the calling thread ends, so this thread must stay as long as the program.  Where the machine has no memory left,
/// the kernel ends the program before the daemon (oom_score_adj). Blocks until the program is executed, at most 10 s.  All descriptors in
/// `spawn` stay the caller's. Errors, with no process left: no process can be made (fork_failed()), the folder cannot be entered, the
/// program cannot be executed. *group_failed: the process could not enter a control group.
Status spawn_process(const Spawn& spawn, pid_t* pid, bool* group_failed);

}   // namespace gradcast
