// The keys of a job file: one table makes the parser (job_file.cc), its messages and the help.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "algos/algorithm.h"
#include "runtime/job/job_file.h"

namespace gradcast {

struct JobValue {
    std::string text;
    int64_t integer = 0;
    double number = 0;   // of a duration: seconds
    std::vector<double> numbers = {};
};

/// Where values go: a layer is filled in and then appended to the job's.
struct JobTarget {
    JobConfig* job;
    LayerSpec* layer;
};

/// One key.
struct JobOption {
    enum class Kind : uint8_t { text, name, integer, number, duration, flag, numbers };   // name: one of names()

    const char* section;
    const char* key;
    Kind kind;
    const char* value;   // what it is when left out, as written in the file; "" where there is none
    double min, max;     // integer, number; duration in seconds
    bool above;          // min itself is not allowed
    std::vector<std::string> (*names)();
    const char* help;
    void (*set)(JobTarget, const JobValue&);           // null: checked only
    std::string (*show)(const JobConfig&) = nullptr;   // of the keys that belong to algorithms
    bool of_layer = false;                             // set() is null: LayerSpec::values takes the value

    /// min or max as it is written in a job file.
    std::string bound(double limit) const;
    /// Of those that not all algorithms have.
    bool belongs_to(const AlgorithmKind& algorithm) const;
};

/// By sections, in the order of the help.
std::span<const JobOption> job_options();

}   // namespace gradcast
