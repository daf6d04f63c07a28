// Checkpoints of a job at one rank: states from which the training can go on, in the job's folder.
//
//     snapshot   trainer and lanes copy the state into planned memory, after the optimiser has applied a step
//     write      a thread of its own: checkpoint-<steps>.h5.part, on the disk with all that it holds
//     confirm    all ranks have computed the next step from this state: the file gets its name
//
// The last `keep` of a rank stay, and every `audit`-th of the job.
//
// Of a net in stages each cell's file is a part of the checkpoint (CheckpointName), by the ranks that part_holders() names: some write
// their own, others get a copy by mail (PartCopies).  All parts are taken or none, because ranks report with each state whether they still
// write; a part is removed when `keep` newer checkpoints have all their parts at all their holders.
#pragma once
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>

#include "algos/cells.h"
#include "runtime/core/thread.h"
#include "runtime/job/model/checkpoint_files.h"
#include "runtime/job/model/model_file.h"
#include "runtime/job/report/report.h"
#include "runtime/job/run/part_copies.h"
#include "runtime/job/run/part_holders.h"
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

    // Trainer thread.
    /// The job goes on from `steps`: later checkpoints and unfinished ones of an earlier run go.
    void begin(uint64_t steps);
    /// So many steps are done, and all ranks had the state that the last one began from.
    void applied(uint64_t steps);
    /// Number of the checkpoint after so many steps; 0: there is none.
    uint64_t number(uint64_t steps) const { return keep_ > 0 ? plan_.number(steps) : 0; }
    /// Takes the present state.  Never waits for the disk: if the one before is still being written, skips this one with a warning.
    void snapshot(const Model& model, std::span<const std::byte> algorithm);
    // For a net in stages:
    /// A session is open, in which copies travel.
    void join(Host& host, Dispatch& dispatch) { copies_.join(host, dispatch); }
    CheckpointNews news();
    /// Takes what this rank has of the present state, of which `model` describes its part.  Each stage's part is for these holders, and has
    /// the digest part_of(a rank of the stage).  Nobody takes anything if some holder was busy with this step's reports.
    void take(const std::vector<PartHolders>& stages, Rank self, const Model& model, std::span<const std::byte> algorithm,
              const std::function<CheckpointNews(Rank)>& news, const std::function<uint64_t(Rank)>& part_of);
    /// The job goes on from `steps` in another view, where ranks have other numbers: what is expected of them is not known any more.  A
    /// state that is not confirmed yet gets its name if the net is in stages, and is discarded if it is not.
    void regrouped(uint64_t steps);
    /// Takes the news that all ranks have reported with the last state.
    void reported(const std::function<CheckpointNews(Rank)>& of);
    /// A part of another cell that this rank keeps.
    struct Kept {
        uint32_t cell;    // in the present view
        uint64_t state;   // digest
        StateMemory memory;
    };
    /// The job ends with an error before its model has a name: writes the present state, which the other ranks may not have had.
    void rescue(const Model& model, std::span<const std::byte> algorithm, std::span<const Kept> kept = {});
    /// Waits for what is being written; a snapshot that is not confirmed goes.
    void close();

private:
    enum class Phase : uint8_t { idle, writing, written, naming };
    enum class Fate : uint8_t { open, confirmed, dropped };
    void loop();
    void write();
    void settle(uint64_t steps, Fate fate);
    void settled();
    Status name_file(const CheckpointName& name) const;
    void named(uint64_t steps);
    void copy_ended(const CheckpointName& name, const Status& status);
    void failed(const std::string& what, uint64_t steps, const Status& status);
    void late(uint64_t steps);
    void wake();
    /// Which part of a checkpoint this rank has in the present view.
    void take_part();
    Status write_file(const ModelState& state) const;
    ModelState snapshot_state() const;
    std::string path_of(uint64_t steps) const { return checkpoint_path(folder_, {steps, cell_, cells_}); }
    /// After a file of a whole state got its name.
    void trim_own(uint64_t newest) const;
    /// Removes the files of all but the newest `keep_` of these numbers of steps, ascending.
    void trim(std::span<const uint64_t> steps) const;

    JobParts* parts_ = nullptr;
    Report* report_ = nullptr;
    std::string folder_;
    CheckpointPlan plan_;
    uint32_t keep_ = 0;
    bool threaded_ = false;
    bool late_ = false, failed_ = false;   // a snapshot was skipped, or could not be written: warned once
    Arena arena_;
    Buffer rooms_;                                // of copies
    Buffer parameters_, optimiser_, exponents_;   // the snapshot
    std::vector<std::byte> algorithm_;
    Model model_;   // of the snapshot
    PartCopies copies_;
    // The part of a checkpoint that the snapshot is:
    uint32_t cell_ = 0, cells_ = 1;
    StateRuns runs_;
    StateSizes has_ = {};

    struct Expected {
        uint64_t steps;
        std::vector<Rank> missing;   // that have not reported their files
    };
    std::vector<Expected> expected_;
    std::vector<uint64_t> complete_;   // steps of checkpoints that have all parts, ascending

    std::mutex mutex_;   // all below; the snapshot belongs to the writer in Phase::writing and ::naming
    std::condition_variable changed_;
    Phase phase_ = Phase::idle;
    Fate fate_ = Fate::open;   // of the snapshot
    bool stop_ = false;
    uint64_t steps_ = 0;   // of the snapshot
    uint64_t unnamed_steps_ = 0;
    uint32_t unnamed_ = 0;   // files that this rank is to name of the checkpoint after so many steps
    uint64_t named_ = 0;     // steps of the last checkpoint of which it has named all
    Thread thread_;
};

}   // namespace gradcast
