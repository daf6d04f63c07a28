// Reads steps.jsonl back: of each line only what is equal at all nodes.  The file is an outsider's: every byte is checked.
#pragma once
#include <string>

#include "runtime/core/fd.h"

namespace gradcast {

constexpr size_t step_line_bytes_max = 1 << 16;   // of a line

struct StepLine {
    uint64_t step = 0;     // from 1
    uint64_t digest = 0;   // of the state after it
    std::string loss;      // as the line has it: six digits after the point
    bool operator==(const StepLine&) const = default;
};

/// In place of the lines of steps first .. last, which this node did not record: it took its state after step `last` from another node.
struct StepGap {
    uint64_t first = 0, last = 0;
    std::string logged_by;   // that node's name; empty: not known
};
/// {"gap":[121,128],"logged_by":"b"}, with the line feed.
std::string step_gap_line(const StepGap& gap);
/// Of a line without its line feed.  False: it is none.
bool step_gap_parse(std::string_view line, StepGap* gap);
/// "steps 121..128"; "step 5".
std::string step_range(uint64_t first, uint64_t last);
/// "steps.jsonl has no lines of steps 121..128: node b logged them"
std::string step_gap_text(const StepGap& gap);

/// A file that may still grow.
class StepLines {
public:
    Status open(const std::string& path);
    /// *got is false at the end of the file; later there may be more.  Steps ascend, not always by one.  Errors name file and line.
    Status next(StepLine* line, bool* got);
    /// The gap line before that of next()'s step, or at the end of the file; last 0: there is none.
    const StepGap& gap() const { return gap_; }
    /// Beyond the last line there is a part of one.
    bool torn() const { return at_ < block_.size(); }
    /// Of the first step's line: the name of its kernels and their set; empty where it has none.
    const std::string& kernels() const { return kernels_; }
    const std::string& kernel_set() const { return kernel_set_; }
    /// The set that the newest step's line names.  It differs from the first line's in a job that was resumed from a checkpoint with
    /// Model::other_functions.
    const std::string& kernel_set_last() const { return kernel_set_last_; }

private:
    /// *is_step is false for a gap line.
    Status parse(std::string_view text, StepLine* line, bool* is_step);

    std::string path_, block_, kernels_, kernel_set_, kernel_set_last_;
    Fd fd_;
    StepGap gap_;
    size_t at_ = 0;                    // in block_
    bool seen_ = false;                // a step's line
    uint64_t number_ = 0, step_ = 0;   // the last line's; the last step that has a line or lies in a gap
};

}   // namespace gradcast
