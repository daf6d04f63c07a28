// Audits: any stretch of a job is computed again on this machine alone, from a checkpoint or the beginning, and compared with steps.jsonl
// step by step.  Nothing in the job's folder is written, and nothing in it is trusted.
#pragma once
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/job/file/job_file.h"
#include "runtime/job/file/sources.h"
#include "runtime/job/model/checkpoint_files.h"
#include "runtime/job/report/transcript.h"

namespace gradcast {

/// What the folder of a job holds for audits.
struct AuditFolder {
    std::string path;
    JobConfig job;                             // of job.toml
    std::vector<StepLine> lines;               // of steps.jsonl, at least one
    std::string kernels, kernel_set;           // that its first line names
    std::string kernel_set_last;               // that its last line names
    std::vector<CheckpointHere> checkpoints;   // ascending
    Sources sources;                           // of net.command, of which the folder has copies; no files: it has none
    std::string data_digest;                   // of a checkpoint or the model; empty: none has it
    std::string digest;                        // of the model in final.h5; empty: there is none
    uint64_t model_steps = 0;                  // of that model
    std::vector<std::string> notes;            // for people: gaps in steps.jsonl
    std::vector<std::string> findings;         // the model and checkpoints that are not whole, by name
};
/// base: of the job file's relative paths; empty: what a checkpoint says, else the folder.  Errors name the file: no job.toml or
/// steps.jsonl, or one that is broken.
Status audit_read(const std::string& path, const std::string& base, AuditFolder* folder);

struct AuditConfig {
    uint64_t first = 0, last = 0;   // steps to compare, from 1; 0: the first or last one that steps.jsonl has
    std::string from;               // checkpoint to begin with; empty: the nearest one before `first`, else the beginning of the job
    std::string scratch;            // a folder for what the run writes; made here, removed by the caller
    uint32_t lanes = 1;
    /// The program of net.command, which the folder names, may be started: the copies of its sources, where the folder has some.
    bool commands = false;
    const std::atomic<bool>* stop = nullptr;
    std::function<void(uint64_t step, uint64_t last)> progress;   // called a few times a second
};
struct AuditResult {
    uint64_t first = 0, last = 0;     // that were compared
    uint64_t from = 0;                // steps of the checkpoint; 0: the beginning
    uint64_t compared = 0;            // digests that are equal, of these steps
    std::string finding;              // the first thing that differs, by name; empty: nothing does
    std::vector<std::string> notes;   // for people
};
/// Computes the stretch.  What differs is a finding, not an error.  Errors: the stretch is not in the folder; no data, other data, another
/// kernel set; a copy of a source that was altered; cancelled.
Status audit_stretch(const AuditFolder& folder, const AuditConfig& config, AuditResult* result);

struct AuditStretch {
    uint64_t first, last;
};
/// The stretches between the beginning, the kept checkpoints and the last line, of which a share in 0 .. 1 is chosen by the seed: each with
/// the same probability.  *missed: the probability that none of them has a given step, if that was chosen without knowing the seed.
std::vector<AuditStretch> audit_sample(const AuditFolder& folder, double share, uint64_t seed, double* missed);

/// Compares a transcript with the lines and files beside it, and with `keys`, where there are some, its HMAC.  Returns what differs, by
/// name.
std::vector<std::string> audit_transcript(const AuditFolder& folder, const Transcript& transcript, const std::vector<ClusterKey>& keys);

}   // namespace gradcast
