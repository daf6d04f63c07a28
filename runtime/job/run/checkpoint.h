// Checkpoints of a job at one rank: states from which the training can go on, in the job's folder.
//
//     snapshot   trainer and lanes copy the state into planned memory, after the optimiser has applied a step
//     write      a thread of its own: checkpoint-<steps>.h5.part, on the disk with all that it holds
//     confirm    all ranks have computed the next step from this state: the file gets its name
//
// The last `keep` of a rank stay, and every `audit`-th of the job.
#pragma once
#include <condition_variable>
#include <mutex>
#include <string>

#include "runtime/core/thread.h"
#include "runtime/job/model/checkpoint_files.h"
#include "runtime/job/model/model_file.h"
#include "runtime/job/report/report.h"
#include "runtime/job/run/parts.h"

namespace gradcast {

class Checkpoints {
public:
    Checkpoints() = default;
    Checkpoints(const Checkpoints&) = delete;
    Checkpoints& operator=(const Checkpoints&) = delete;
    ~Checkpoints() { close(); }
    /// Takes the memory of a snapshot and starts the thread.  `parts` are ready; the models of snapshots are as large as `like`.  Nothing
    /// is ever written where job.checkpoint_keep is 0.
    Status open(const EngineConfig& config, JobParts& parts, Report& report, const Model& like);
    const Arena& arena() const { return arena_; }

    // Trainer thread.
    /// The job goes on from `steps`: later checkpoints and unfinished ones of an earlier run go.
    void begin(uint64_t steps);
    /// So many steps are done, and all ranks had the state that the last one began from.
    void applied(uint64_t steps);
    /// Number of the checkpoint after so many steps; 0: there is none.
    uint64_t number(uint64_t steps) const { return keep_ > 0 ? plan_.number(steps) : 0; }
    /// Of the present state.  Never waits for the disk: where the one before is still being written this one is skipped, with a warning.
    void snapshot(const Model& model, std::span<const std::byte> algorithm);
    /// The job ends with an error before its last step: writes the present state, which the other ranks may not have had.
    void rescue(const Model& model, std::span<const std::byte> algorithm);
    /// Waits for what is being written; a snapshot that is not confirmed goes.
    void close();

private:
    enum class Phase : uint8_t { idle, writing, written, naming };
    void loop();
    void write();
    void name();
    void failed(const Status& status);
    void trim() const;

    JobParts* parts_ = nullptr;
    Report* report_ = nullptr;
    std::string folder_;
    CheckpointPlan plan_;
    uint32_t keep_ = 0;
    bool threaded_ = false;
    bool late_ = false, failed_ = false;   // a snapshot was skipped, or could not be written: warned once
    Arena arena_;
    Buffer parameters_, optimiser_, exponents_;   // the snapshot
    std::vector<std::byte> algorithm_;
    Model model_;   // of the snapshot

    std::mutex mutex_;   // all below; the snapshot belongs to the writer in Phase::writing and ::naming
    std::condition_variable changed_;
    Phase phase_ = Phase::idle;
    bool confirmed_ = false, stop_ = false;
    uint64_t steps_ = 0;   // of the snapshot
    Thread thread_;
};

}   // namespace gradcast
