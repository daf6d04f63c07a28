// Control groups for processes of the user: what is in a group is bounded in tasks and memory, and can be ended to the last process.
//
// A group of version 2 is a folder below the group of the daemon itself.  Where version 2 lacks a controller and version 1 has it, as on a
// machine with both, a second folder of version 1 takes the limit.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/fd.h"

namespace gradcast {

/// Where this process may make groups.  Empty folders: nowhere.
struct GroupRoom {
    std::string two;            // of version 2
    std::string pids, memory;   // the folder whose groups can have this limit; that of version 2 or one of version 1
    std::string why;            // without `pids`: what is missing and the way out, as a part of a sentence
    std::string why_memory;     // the same without `memory`
    bool any() const { return !two.empty() || !pids.empty() || !memory.empty(); }
    bool bounds_tasks() const { return !pids.empty(); }
    bool bounds_memory() const { return !memory.empty(); }
};

/// Looks where groups can be made, and has controllers passed on to them.  A group of version 2 passes nothing on while a process is in it:
/// where this process is alone in its group, it moves to a group gradcast-PID-self below that one.  Creates and removes folders; takes
/// milliseconds.  root: of /proc and /sys (tests use another one).
GroupRoom group_room_find(const std::string& root = "");
/// The result of the first call of group_room_find().  Any thread.
const GroupRoom& group_room();

class ProcessGroup {
public:
    /// Creates a group.  0: no such limit.  A limit that `room` cannot hold is left out.  Null: no group can be made.
    /// memory_max: in bytes.  The members get no swap beside it: they would slow the machine down before the kernel ends them.
    static std::unique_ptr<ProcessGroup> make(const GroupRoom& room, uint64_t memory_max, uint32_t pids_max);
    /// remove()
    ~ProcessGroup();
    ProcessGroup(const ProcessGroup&) = delete;
    ProcessGroup& operator=(const ProcessGroup&) = delete;

    /// Descriptors to which a process writes "0" to enter.  They belong to the group.
    std::vector<int> entries() const;
    /// The processes in it and in groups below it, without zombies.
    std::vector<pid_t> members() const;
    /// Sends SIGKILL to all members.  On a kernel older than 5.14 the group is frozen first, so that no member has another child meanwhile;
    /// a group of version 1 may have no new task from now on.  Call it again until members() is empty. freeze: freezes the group on newer
    /// kernels, too (for tests).
    void kill(bool freeze = false) const;
    /// Another limit on memory from now on.  Members that have more are ended by the kernel.  One thread at a time.
    void limit_memory(uint64_t bytes);
    /// The kernel holds the limit on memory.
    bool bounds_memory() const { return bounds_memory_.load(std::memory_order_relaxed); }
    /// Why the kernel has ended a member for want of memory: it has not, the group had its limit, or there was none elsewhere: in a group
    /// above, in the machine.
    enum class OutOfMemory : uint8_t { no, limit, elsewhere };
    OutOfMemory out_of_memory() const;
    /// Removes the folders.  False: a member is left.
    bool remove();

private:
    struct Folder {
        std::string path;
        bool two, memory;   // of version 2; takes the limit on memory
        Fd procs;
    };
    ProcessGroup() = default;
    std::vector<Folder> folders_;
    std::atomic<bool> bounds_memory_{false};   // a flag: it orders nothing
};

}   // namespace gradcast
