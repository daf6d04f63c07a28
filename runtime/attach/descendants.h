// Which processes descend from a process that this one has started, also where their parents have ended and they have sessions of their
// own.
//
// This process is the subreaper of all that it starts: a process whose parents have ended becomes its child.  Such an orphan is told by
// session (a started process is the leader of one), else by the marker in its environment, else by its parent.  An orphan that has got rid
// of all three is unknown; it counts as a descendant of the last started process that is left.
//
// A session that is not this process's own is the sign of a descendant: other children of this process (a benchmark, say) have its session,
// and are neither ended nor reaped here.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gradcast {

constexpr const char* descendant_marker = "GRADCAST_PROCESS";   // the variable

/// The started processes are known to the whole process, because orphans come to the whole process.  All calls: any thread.  A call that
/// looks through /proc takes about 10 us for each process of the machine.
struct Descendants {
    /// Before a fork().  Makes this process the subreaper.  Nothing is reaped until started() or not_started().
    static void starting();
    /// The process `leader` was started; it is the leader of a session, and has GRADCAST_PROCESS=marker.
    static void started(pid_t leader, const std::string& marker);
    static void not_started();
    /// The leader is ended and not reaped yet.
    static void ended(pid_t leader);

    /// The descendants of a leader that have not ended, without itself.
    static std::vector<pid_t> of(pid_t leader);
    /// Reaps orphans that have ended.  Does not take the status of a leader or of another part's child.
    static void reap();
};

}   // namespace gradcast
