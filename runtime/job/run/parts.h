// What a job has at one node in every view: its data, the net with optimiser and codec, loader, lanes; and what must be alike at all nodes.
#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "algos/algorithm.h"
#include "algos/pipeline.h"
#include "nn/graph/layers.h"
#include "nn/net.h"
#include "runtime/attach/attach.h"
#include "runtime/job/model/constants.h"
#include "runtime/job/model/evaluate.h"
#include "runtime/job/model/model_file.h"
#include "runtime/job/report/report.h"
#include "runtime/job/run/buddy_parts.h"
#include "runtime/job/run/cuda_module.h"

namespace gradcast {

/// Called first on a lane's thread: it then yields to the network thread, and is pinned where cpus are given.
void lane_start(uint32_t lane, const std::vector<uint32_t>& cpus);

/// The vectors of a state, to be written; not that of the algorithm.
PerVector<std::span<std::byte>> writable_state(const Computer& computer);

struct JobParts {
    JobParts() = default;
    JobParts(const JobParts&) = delete;
    JobParts& operator=(const JobParts&) = delete;

    /// Opens and checks what needs neither the nodes' devices nor their kernels: data, workers, steps, layers.  verify: all bytes of the
    /// data are read and compared with their digests.
    Status examine(const EngineConfig& config, bool verify, Report& report);
    /// After examine(): opens the file of the job's folder that gets the constants of net.command, before the first process sends them.
    Status open_constants(const EngineConfig& config);
    /// The first part of examine(): all but the net.  Starts no process of net.command, which examine() does.
    Status examine_data(const EngineConfig& config, bool verify, Report& report);
    /// After examine(): plans the net and all that does not depend on the view, on a CPU or on the job's device.
    Status plan_examined(const EngineConfig& config, const std::string& device, Report& report);
    /// The deadline that all members have.
    void agree(uint64_t agreed_us, Report& report);
    /// When everybody has planned: measures the kernels, takes the memory, fills in the parameters, starts loader and lanes, computes the
    /// probe block.
    Status ready(const EngineConfig& config, Report& report);
    /// How long all workers of a node may compute, in deadlines: each of their mini-batches in less than one.
    uint64_t deadlines_of_round() const { return 1 + block_sizes.size() * local->config().steps; }
    /// Returns the digest of the state before the first step (Context::digest()).
    uint64_t model_digest() const { return compute.net->digest() + compute.optimiser->digest(compute.net->layout().whole()); }
    /// Returns the state from which the next step begins, with these bytes of the algorithm's; valid until the state changes.
    ModelState state(std::span<const std::byte> of_algorithm) const;
    /// The same vectors, to be written; not that of the algorithm.  Then refresh().
    PerVector<std::span<std::byte>> writable_state() { return gradcast::writable_state(compute); }
    /// Returns the memory of this node's parts of a state: the own part, then those of kept stages.
    std::vector<StateMemory> state_memory();
    /// Another state in its place, of the same sizes; not that of the algorithm.
    void restore(const ModelState& state);
    /// After parameters or optimiser state were written.
    void refresh();
    /// Exchanges the net's weights for the averaged ones, or back; running statistics stay.  The optimiser keeps averages.
    void swap_averaged();
    /// Tells the algorithm what computes in the present view.
    void give(Context& context) const;

    /// Returns the number of vectors of the optimiser's state, also before their memory is taken.
    uint32_t optimiser_vectors() const { return gradcast::optimiser_vectors(schedule); }
    /// Returns the elements of a state for which the nodes of a cell of the present view stand: each element is one cell's.
    StateRuns state_runs_of(uint32_t cell) const { return runs_of(pipeline->cell(cell), false); }
    /// Returns the elements of a state that nodes have if they compute this run of stages of `cut`, and this slice group of sliced layers.
    /// Not `owned`: those for which they stand.
    StateRuns state_runs_of(const StageRun& of, uint32_t slice_group = 0, bool owned = true) const;
    /// Returns the sizes of the whole state without that of the algorithm.  For parts that are ready.
    StateSizes state_sizes() const;
    uint64_t optimiser_values() const { return optimiser_vectors() * compute.net->layout().elements; }
    /// Returns the computer of the largest part of a state that this node may have.
    const Computer& largest() const { return buddies ? buddies->longest(*this) : compute; }
    /// Returns the bytes of a copy of that part.
    uint64_t state_bytes() const {
        const uint64_t elements = largest().net->layout().elements;
        return (1 + optimiser_vectors()) * elements * sizeof(float) + largest().codec->exponents().size_bytes();
    }
    /// Returns the settings of the algorithm as they are taken: name and value.
    std::vector<std::pair<std::string, std::string>> settings(const JobConfig& job) const;

    /// The kernel set is that of net_measure(), of synchronous SGD on CPUs, or of NetProcesses::measure(); else of the probe block.
    bool kernels_measured() const { return processes || (!local && !compute.device); }
    /// Each node's processes have values of their own to begin with.
    bool initial_values_differ() const { return processes && start_digest.empty(); }
    /// Returns the facts on which the result depends; those of the kernels and of net.start are there once these are ready.
    Facts facts(const JobConfig& job) const;

    static bool exact(const JobConfig& job) { return job.settings.solver == "exact"; }
    /// Steps of the exchange in a round.
    uint64_t sums() const { return (exact_ ? 2 : 1) * algorithm->sums + (algorithm->gathers ? block_sizes.size() : 0); }

    /// The job ends with an error at this rank: processes of net.command are waited for no longer.
    std::atomic<bool> ending{false};

    // In the order in which they are made; each may use those before it.
    Arena arena;
    std::unique_ptr<Profile> profile;   // of all steps; events of one, where the job wants them
    std::unique_ptr<DataSet> train, test;
    std::unique_ptr<Sampler> sampler;   // of a step's mini-batch; of workers it counts epochs alone
    std::unique_ptr<Local> local;       // null where no workers learn alone
    Layout carried;                     // what the exchange sums of workers
    std::unique_ptr<ConstantsWriter>
        constants;                             // of the net of net.command, for the job's folder; null: it has none, or nobody wants them
    std::unique_ptr<NetProcesses> processes;   // of net.command
    Computer compute;
    std::unique_ptr<ResidentImages> resident;   // null: each block's samples are read
    std::unique_ptr<Loader> loader;             // null where workers learn alone: they read their own samples
    std::unique_ptr<Evaluator> evaluator;       // null without test data
    Progress progress;
    Lanes lanes;

    /// The key of the job file that examine() looks at: "data.train", "net.layers[2]".  It stays if examine() fails; an error that
    /// begins with another key is about that one.
    std::string about;
    NetSpec spec;
    std::vector<Layer> layers;
    // For a net that is cut into stages, or whose slices nodes share:
    std::optional<PipelineConfig> cut;        // where, while no node is lost
    std::optional<PipelineConfig> pipeline;   // the same in the present view: a rank may compute several of those stages as one
    StageRun run;                             // of `cut`, that this node computes
    Layout largest_stage;                     // of the cell with the most parameters
    StateRuns runs;                           // what this node stands for of a state, but for kept stages
    std::unique_ptr<BuddyParts> buddies;      // with `buddy`
    const AlgorithmKind* algorithm = nullptr;
    uint64_t steps = 0;
    uint64_t updates = 0;                // of a server in a round; 0: there is none
    uint32_t batch = 0;                  // samples of a step or round
    std::vector<uint32_t> block_sizes;   // samples of the exchange's blocks; of workers 1
    OptimiserConfig schedule;            // of the optimiser: the job's, with its steps
    uint64_t deadline_us = 0;            // the job's, or what ready() raised it to; then as agreed
    std::string kernel_set;              // as Engine::kernel_set()
    std::string data_digest;
    bool data_compared = true;   // false: the samples are a program's, which says nothing of them
    std::string begins_with;     // start_digest; with net.command that of the program's sources behind it
    std::string inventory;       // of the program of net.command
    std::string start_digest;    // of the file that parameters begin from; empty: the seed's

private:
    bool exact_ = false;   // local problems are solved in double, whose means take two sums
    Status open_data(const EngineConfig& config, bool verify, Report& report);
    /// Returns the sizes of the blocks that the net computes.
    std::vector<uint32_t> sizes_computed() const { return local ? local->block_sizes() : block_sizes; }
    Status check_net(const EngineConfig& config, Report& report);
    Status start_processes(const EngineConfig& config, Report& report);
    Status check_stages(const EngineConfig& config);
    Status check_shared_weights(const JobConfig& job);
    StateRuns runs_of(const Stage& stage, bool owned) const;
    Status plan_workers(const EngineConfig& config);
    Status plan_loader(const EngineConfig& config, const Augment& augment, uint32_t lane_count, Report& report);
    Status start(const JobConfig& job, const Log& log);
    void name_kernels(const std::string& computing);
    Status measure_kernels(const EngineConfig& config);
    Status measure_processes();
    Status probe(const EngineConfig& config, Report& report);
    Status probe_block(const EngineConfig& config);
    uint64_t block_us_ = 0;   // what a block takes, of all layers
};

}   // namespace gradcast
