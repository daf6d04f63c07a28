// steps.jsonl: one line a step, kept in memory and written by a thread of its own, so that a slow disk never stalls a step.
#pragma once
#include <condition_variable>
#include <mutex>
#include <string>
#include <string_view>

#include "runtime/core/fd.h"
#include "runtime/core/log.h"
#include "runtime/core/thread.h"

namespace gradcast {

class StepLog {
public:
    StepLog() = default;
    StepLog(const StepLog&) = delete;
    StepLog& operator=(const StepLog&) = delete;
    ~StepLog() { close(); }
    /// threaded: a second after it was added at the latest, a line is in the file.  Otherwise add() writes it (the simulator).
    /// What an earlier run of the job has written stays where `append` says so; see keep().
    Status open(const std::string& path, bool threaded, bool append, const Log& log);
    /// Before the first line: of an earlier run's lines those of later steps go, and a last one that is torn.  Returns the last step that
    /// has a line or lies in a gap that a line names (step_lines.h); 0: none.
    uint64_t keep(uint64_t steps);
    /// Trainer thread.  Takes memory only when the disk is far behind.
    void add(std::string_view line);
    /// Trainer thread.  The lines added so far are written at once, and nobody waits for that.
    void hurry();
    /// Any thread, before close(): returns when all lines added so far are written, or lost.
    void flush();
    /// Any thread, before close(): returns when all lines added so far are on the disk.  Error: Code::deadline, that took longer than
    /// us_max.  Ok also where records are lost, which has been logged.  Not threaded: returns at once.
    Status sync(uint64_t us_max);
    /// Writes the rest.  An error has been logged, once.
    void close();

private:
    void loop();
    void write(std::string& lines);
    void lost(int error);
    Log log_;
    std::string path_;
    Fd fd_;
    std::mutex mutex_;
    std::condition_variable wake_, written_;
    std::string lines_, writing_;
    uint64_t added_ = 0, done_ = 0, synced_ = 0;   // lines: written, on the disk
    bool threaded_ = false, stop_ = false, flush_ = false, sync_ = false, failed_ = false;
    Thread thread_;
};

}   // namespace gradcast
