// The keys of a job file: one table makes the parser (job_file.cc), its messages, the help and job_identity().
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "algos/algorithm.h"
#include "nn/optimiser.h"
#include "runtime/job/file/job_file.h"
#include "transport/exchange/exchange.h"

namespace gradcast {

struct JobValue {
    std::string text;
    int64_t integer = 0;
    double number = 0;   // of a duration: seconds
    std::vector<double> numbers = {};
    std::vector<std::string> texts = {};
};

/// Where values go: a layer is filled in and then appended to the job's.
struct JobTarget {
    JobConfig* job;
    LayerSpec* layer;
};

/// One key.
struct JobOption {
    enum class Kind : uint8_t {
        text,
        name,
        integer,
        number,
        duration,
        flag,
        numbers,
        texts,
        flag_or_texts,
        table
    };   // name: one of names(); flag_or_texts: JobValue::integer, or texts; table: texts by name, "NAME=value"
    /// Whether the value changes the bits of the training: see job_identity().
    /// length: with a schedule that ends with the job (ScheduleKind::ends); changed: where it is not the default.
    enum class Identity : uint8_t { no, yes, length, changed };
    /// The member of the JobConfig, or of the layer, that has the value.
    struct Field {
        void (*set)(JobTarget, const JobValue&) = nullptr;   // null: the member of `optimiser`, else LayerSpec::values
        std::string (*show)(const JobConfig&) = nullptr;     // null: the member of `optimiser`, else of a layer
        Identity identity = Identity::no;
        const OptimiserKey* optimiser = nullptr;
        bool of_algorithms = false;   // only the algorithms whose AlgorithmKind::keys list the key take it
        // The help names those with the trait, which alone use the value.
        bool ExchangeKind::*exchanges = nullptr;
        bool AlgorithmKind::*algorithms = nullptr;
        bool ssgd = false;   // a value other than the default goes with ssgd alone
    };

    const char* section;
    const char* key;
    Kind kind;
    const char* value;                     // the default, as written in the file; "" where there is none
    double min, max;                       // integer, number; duration in seconds
    bool above;                            // min itself is not allowed
    std::vector<std::string> (*names)();   // of an integer: a word that stands for 0, which is below min
    const char* help;
    Field field;
    bool below = false;   // max itself is not allowed

    /// min or max as it is written in a job file.
    std::string bound(double limit) const;
    void set(JobTarget target, const JobValue& is) const;
    /// The value as job_identity() prints it; not of a layer.
    std::string show(const JobConfig& job) const;
    bool of_layers() const { return std::string_view(section) == "net.layers"; }
    /// The key means something to jobs of this algorithm.
    bool taken_by(const AlgorithmKind& algorithm) const;
};

/// By sections, in the order of the help and of job_identity().  The heads of replay logs have the identity in this order: after a new key
/// of the identity, or another order, older logs of jobs that take the key are refused as those of another job.
std::span<const JobOption> job_options();
/// The row of "section.key"; null: there is none.
const JobOption* job_option(std::string_view name);

}   // namespace gradcast
