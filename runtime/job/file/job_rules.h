// The rules about several keys of a job file, in one table.
#pragma once
#include <set>
#include <span>
#include <string>
#include <vector>

#include "algos/algorithm.h"
#include "runtime/job/file/job_file.h"
#include "transport/exchange/exchange.h"

namespace gradcast {

/// What rules look at.  Names of keys are "section.key".
struct JobKeys {
    const JobConfig& job;
    std::set<std::string, std::less<>> given = {};   // keys that the file has
    std::set<std::string, std::less<>> wrong = {};   // keys with a mistake; `job` has the default of such a key
    const AlgorithmKind* algorithm = nullptr;
    const ExchangeKind* exchange = nullptr;   // null: auto

    bool has(std::string_view key) const { return given.contains(key); }
    /// The value is not the default.
    bool changed(std::string_view key) const;
};

struct JobRule {
    const char* key;   // that the message is about
    bool (*broken)(const JobKeys&);
    /// Words in braces stand for the value of a key, as {job.blocks}, and for lists of names: see job_rules.cc.
    const char* text;
};
std::span<const JobRule> job_rules();

struct BrokenRule {
    std::string key, text;
};
/// Returns the first broken rule of each key.  A key of another algorithm or optimiser (optimiser_mistakes()) breaks one, and so does a key
/// whose row (JobOption::Field) says `ssgd` or `cpus`.  Nothing is said of a key whose value is a mistake, nor of a section where its kind
/// or schedule is one.
std::vector<BrokenRule> job_rules_broken(JobKeys keys);

}   // namespace gradcast
