// Reads steps.jsonl back: of each line only what is equal at all nodes.  The file is an outsider's: every byte is checked.
#pragma once
#include <string>

#include "runtime/core/fd.h"

namespace gradcast {

struct StepLine {
    uint64_t step = 0;     // from 1
    uint64_t digest = 0;   // of the state after it
    std::string loss;      // as the line has it: six digits after the point
    bool operator==(const StepLine&) const = default;
};

/// A file that may still grow.
class StepLines {
public:
    Status open(const std::string& path);
    /// *got is false at the end of the file; later there may be more.  Steps ascend, not always by one.  Errors name file and line.
    Status next(StepLine* line, bool* got);
    /// Beyond the last line there is a part of one.
    bool torn() const { return at_ < block_.size(); }
    /// Of the first line: the name of its kernels and their set; empty where it has none.
    const std::string& kernels() const { return kernels_; }
    const std::string& kernel_set() const { return kernel_set_; }

private:
    Status parse(std::string_view text, StepLine* line);

    std::string path_, block_, kernels_, kernel_set_;
    Fd fd_;
    size_t at_ = 0;   // in block_
    uint64_t number_ = 0, step_ = 0;
};

}   // namespace gradcast
