// A process of the user that computes a net: started, watched, and ended with all its descendants.
//
// A thread of the Process starts the program and stays until its end, so that the kernel ends the program when the daemon is no more.  The
// thread reads what the program prints.  The program and its descendants are in a control group of their own where one can be made
// (group.h): this bounds their number and their memory.  Elsewhere, and for what has left the group, they are found in /proc
// (descendants.h), and the thread looks at their memory about once a second.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/attach/group.h"
#include "runtime/attach/output.h"
#include "runtime/attach/process_memory.h"
#include "runtime/core/fd.h"
#include "runtime/core/status.h"
#include "runtime/core/thread.h"

namespace gradcast {

struct ProcessConfig {
    std::vector<std::string> command;   // program by PATH or path, then its arguments
    std::string folder;                 // working directory; a relative program with a slash is against it
    /// Set beside what the daemon's own environment has (environment_with()).  Its PATH finds the program.
    std::vector<std::pair<std::string, std::string>> environment;
    /// The process gets it as descriptor 3, with GRADCAST_ATTACH=3, and no other descriptor.  It stays the caller's, who closes it after
    /// start(): the end of the other end is seen only then.  -1: none.
    int socket = -1;
    std::string name;   // "lane 0": for messages
    /// Each line of standard output and standard error, as ProcessOutput bounds them, and lines of the Process itself.  Called on the
    /// thread of the Process, until end() returns.  Must not call the Process.
    std::function<void(std::string_view line)> output;
    /// Bytes of the process and its descendants; 0: no limit.  The kernel ends them where the control group has this limit.  Elsewhere the
    /// Process ends them when it sees more at one of its looks; how it looks: process_pss().
    uint64_t memory_max = 0;
    bool control_group = true;   // false: none is made (for tests)
    uint32_t pids_max = 256;   // tasks (threads count) of the process and its descendants; 0: no limit.  Without a control group: no limit
};

/// All calls but start() and the destructor: any thread.
class Process {
public:
    /// Starts a process.  Blocks until its program is executed, at most 10 s.  The process has the CPUs that the calling thread may use.
    /// Errors name the process and the way out: Code::invalid (the program is not found or may not be executed), Code::node_memory (a limit
    /// on processes or threads), Code::node_io (fork, folder), Code::deadline (10 s).
    static Status start(const ProcessConfig& config, std::unique_ptr<Process>* process);
    /// end(0)
    ~Process();
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;

    /// Waits so long for the process to exit by itself, as it does after the caller has closed the socket.  Then ends it and all
    /// descendants by SIGKILL, and waits until none is left, at most 5 s.  A process that the kernel holds longer is named in a line of
    /// output. A second call returns at once.
    void end(uint64_t patience_us);
    /// The process has exited.  Its descendants may run on.  Does not block.
    bool ended() const;
    /// How it has ended, without its name: "exited with status 1", "was ended by signal 11 (SIGSEGV)", with the last line of its standard
    /// error where there is one: "...; its last line: ValueError: ...".  Blocks until the process has exited, at most 2 s; then: "is still
    /// running".
    std::string death() const;
    pid_t pid() const { return pid_; }
    /// What the process and its descendants have.  Reads /proc, see process_memory_add().
    ProcessMemory memory() const;
    /// Another memory_max from now on.  Not beside end().
    void limit_memory(uint64_t bytes);
    /// The control group holds pids_max.
    bool bounded() const { return group_ && group_room().bounds_tasks(); }

private:
    explicit Process(const ProcessConfig& config) : config_(config), output_(config.output), memory_max_(config.memory_max) {}
    void run();   // the thread
    Status execute();
    bool read_some(Fd& from, ProcessOutput::Stream stream);
    void drain();
    void exited();
    void look_at_memory();
    std::vector<pid_t> descendants() const;
    void kill_all();
    bool wait_exited(uint64_t limit_us) const;

    ProcessConfig config_;
    ProcessOutput output_;                  // of the thread
    std::unique_ptr<ProcessGroup> group_;   // null: none can be made
    std::atomic<uint64_t> memory_max_;      // a number: it orders nothing
    // Of the thread.
    uint64_t looks_us_ = 0;          // when it looks at the memory again
    bool over_memory_ = false;       // it has ended the process for its memory
    Fd out_, error_, exit_, wake_;   // reading ends; pidfd; eventfd that ends the thread
    pid_t pid_ = -1;
    Thread thread_;

    mutable std::mutex mutex_;
    mutable std::condition_variable changed_;
    bool started_ = false;   // or not: start_ says why
    Status start_;
    bool exited_ = false, stop_ = false;
    std::string death_, left_;   // left_: a last line for output
    std::once_flag end_;
};

/// Whether the program of a command can be started here.  Starts nothing.  Errors: those of program_find(); `folder` is not there.
Status process_check(const std::vector<std::string>& command, const std::string& folder,
                     const std::vector<std::pair<std::string, std::string>>& environment = {});

}   // namespace gradcast
