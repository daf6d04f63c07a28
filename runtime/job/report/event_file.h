// A TensorBoard event file: scalars by steps, in the format that TensorFlow's RecordWriter has.  A record is
//     length u64 | masked CRC-32C of it u32 | data | masked CRC-32C of the data u32        little-endian
// and its data an Event of protobuf (tensorflow/core/util/event.proto).  Written by a thread of its own, as steps.jsonl.
#pragma once
#include <span>
#include <string>

#include "runtime/job/report/step_log.h"

namespace gradcast {

inline constexpr const char* event_file_prefix = "events.out.tfevents.";

struct Scalar {
    const char* tag;   // "train/loss"
    double value;
};

class EventFile {
public:
    bool is_open() const { return open_; }
    /// Makes events.out.tfevents.<milliseconds>.<node> in the folder, above all that are there; an earlier run's stays, and TensorBoard
    /// reads both.  threaded: see StepLog.
    Status open(const std::string& folder, const std::string& node, double wall_seconds, bool threaded, const Log& log);
    /// What an earlier run has written of later steps does not count any more.  Before the first scalars.
    void resume(double wall_seconds, uint64_t steps);
    /// Trainer thread.  Neither allocates nor locks for long; scalars that are not finite are omitted.
    void scalars(double wall_seconds, uint64_t step, std::span<const Scalar> scalars);
    void flush() { log_.flush(); }
    void close() { log_.close(); }

private:
    StepLog log_;
    bool open_ = false;
};

}   // namespace gradcast
