// The model that a job has trained: final.h5 in the job's folder, and the transcript of the training beside it.
#pragma once
#include <string>

#include "algos/algorithm.h"
#include "runtime/job/model/model_file.h"
#include "runtime/job/report/report.h"
#include "runtime/job/run/parts.h"
#include "runtime/job/run/resume.h"

namespace gradcast {

/// Trainer thread.  The file is written beside its place, and gets its name when all ranks have the same bits.  Of a net in stages they
/// have them before: each step compares the digests of all parts.
class TrainedModel {
public:
    TrainedModel(const EngineConfig& config, JobParts& parts, Report& report) : config_(config), parts_(parts), report_(report) {}
    TrainedModel(const TrainedModel&) = delete;
    TrainedModel& operator=(const TrainedModel&) = delete;
    ~TrainedModel();   // an unused reservation goes
    /// Fills in what all models of this job have in common, once its parts are planned.
    void describe();
    /// The description of the present state.
    const Model& of(const Context& context, const Standing& standing);
    /// Describes this rank's part of the state of a net in stages after so many steps.  After an error these may be one more than the
    /// context's: all ranks had the sums of that step.  part: Context::part() of it.
    const Model& part_of(const Context& context, const Standing& standing, StepId steps, uint64_t part);
    const Model& described() const { return model_; }
    /// Takes room on the disk.  Error: there is none.
    Status reserve(Algorithm& algorithm);
    void run_begins() { reserved_ = false; }

    void compute_digest();
    const std::string& digest() const { return digest_; }   // SHA-256 of the parameters in hex; empty: not computed
    Status write(const Context& context, const Standing& standing, Algorithm& algorithm, bool agreed);
    /// In place of compute_digest(), write() and name(), of a net in stages: all ranks call it, and one of them writes what they have.
    Status gather(Context& context, Session& session, const Standing& standing);
    bool written() const { return written_; }
    /// Gives what was written its name.
    Status name();
    bool named() const { return named_; }
    /// Removes what was written and has no name.
    void discard() const;
    /// After a good end: its steps are written, and nobody waits for this rank any more.
    void transcript(const Context& context);
    std::string path() const { return config_.folder + "/final.h5"; }

private:
    std::string part() const { return path() + ".part"; }
    const EngineConfig& config_;
    JobParts& parts_;
    Report& report_;
    Model model_;
    std::string digest_;
    bool reserved_ = false, written_ = false, named_ = false;
};

}   // namespace gradcast
