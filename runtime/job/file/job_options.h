// The keys of a job file: one table makes the parser (job_file.cc), its messages, the help and job_identity().
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "algos/algorithm.h"
#include "runtime/job/file/job_file.h"

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
    /// Whether the value changes the bits of the training: see job_identity().
    enum class Identity : uint8_t { no, yes, cosine };   // cosine: with this schedule, whose end is that of the job
    /// The member of the JobConfig, or of the layer, that has the value.
    struct Field {
        void (*set)(JobTarget, const JobValue&);           // null: LayerSpec::values takes the value
        std::string (*show)(const JobConfig&) = nullptr;   // as job_identity() prints it; null: of a layer
        Identity identity = Identity::no;
        bool of_algorithms = false;   // only the algorithms whose AlgorithmKind::keys list the key take it
    };

    const char* section;
    const char* key;
    Kind kind;
    const char* value;   // the default, as written in the file; "" where there is none
    double min, max;     // integer, number; duration in seconds
    bool above;          // min itself is not allowed
    std::vector<std::string> (*names)();
    const char* help;
    Field field;
    bool below = false;   // max itself is not allowed

    /// min or max as it is written in a job file.
    std::string bound(double limit) const;
    /// The key means something to jobs of this algorithm.
    bool taken_by(const AlgorithmKind& algorithm) const;
};

/// By sections, in the order of the help and of job_identity(), which replay logs on disk have too.
std::span<const JobOption> job_options();
/// The row of "section.key"; null: there is none.
const JobOption* job_option(std::string_view name);

}   // namespace gradcast
