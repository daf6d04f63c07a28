// What an algorithm may use on the trainer's thread: the job's services, which are the same in every view, its current step, and the
// present view's connections to other ranks.  No sockets, no threads but lanes.
#pragma once
#include <array>
#include <functional>
#include <optional>

#include "algos/local.h"
#include "algos/mailbox.h"
#include "algos/progress.h"
#include "algos/stage_record.h"
#include "algos/staleness.h"
#include "algos/worker_counts.h"
#include "datasets/reader.h"
#include "nn/net.h"
#include "nn/optimiser.h"
#include "runtime/core/lanes.h"
#include "runtime/core/profile.h"
#include "runtime/core/protocol.h"
#include "transport/code/codec.h"

namespace gradcast {

class Cells;
class KeptStages;
class NormClip;
class TiedSums;
struct CheckpointNews;
class Pipeline;
class SynchronousStep;
class WorkerSum;

/// The result of one applied step: a line of steps.jsonl.
struct StepRecord {
    StepId step = 0;
    double loss = 0;       // mean over the mini-batch, the same at every rank
    uint64_t digest = 0;   // of parameters, optimiser state and scales after the step
    uint64_t clipped = 0;
    uint64_t compute_us = 0, wait_us = 0, apply_us = 0;   // this rank's
};

/// Digest of a codec's scales, those of `groups`: their offsets in `exponents`, and their numbers in the whole net.  behind: the place of
/// the whole net's first one, after parameters and optimiser state.
uint64_t scales_digest(std::span<const int32_t> exponents, std::span<const Layout::Run> groups, uint64_t behind);

struct Context {
    Host& host;
    Lanes& lanes;
    Loader* loader;   // of the blocks of synchronous SGD; null: workers read their own samples (algos/local.h)
    const DataSet& data;
    const Sampler& sampler;
    Progress& progress;
    uint32_t batch, blocks;       // samples of a step; blocks, or workers, of the exchange
    Local* local = nullptr;       // of workers
    uint64_t deadline_us;         // longest tolerable stall; ten times that in the first step
    uint64_t patience = 1;        // deadlines without a packet that end a wait for sums, where nobody is given up before
    uint64_t spend_us = 0;        // simulator: cost of one bucket's backward pass, or of a pass of a stage (data and weights are two)
    Profile* profile = nullptr;   // of all steps; the round of its own turns events on and off

    StepId first = 0;             // first step of this run of the job
    StepId step = 0;              // next step to compute
    uint64_t state = 0;           // digest of the state before that step
    uint64_t since_us = 0;        // when that step could begin here
    uint64_t gradients = 0;       // samples whose gradient this rank has computed, so far
    uint64_t forwards = 0;        // samples of training data that it has only evaluated
    uint64_t samples = 0;         // that its workers have trained on, each as often as a step took it
    WorkerAccounts workers_did;   // the workers' shares of these (WorkerTurn)
    Staleness staleness = {};     // of the pushes that servers have applied, so far
    StepRecord record = {};       // of the last applied step

    /// The next step may be begun before this one has ended, because nobody looks at the state between them.
    bool at_once = false;

    /// Tries the net's parameters on the test data, as what this worker has learnt, for steps.jsonl.  Null: not wanted in this round.
    const std::function<Status(uint32_t worker)>* try_worker = nullptr;

    /// Returns what this rank reports of its checkpoints, of a net in stages.  Null: it writes none.
    const std::function<CheckpointNews()>* checkpoints = nullptr;

    const char* advice = "lower the learning rate, or look at the data";   // where a worker diverges

    std::string replay_head = {};   // of logs of this job

    std::vector<std::string> why_lost = {};   // reasons why ranks were lost, for people

    // In the present view:
    Net* net = nullptr;   // what this rank computes in it
    Optimiser* optimiser = nullptr;
    Codec* codec = nullptr;
    uint32_t view = 0;   // its number
    Rank self = 0;
    uint32_t ranks = 1;
    SynchronousStep* synchronous = nullptr;
    WorkerSum* workers = nullptr;   // one of the two
    Mailbox* mail = nullptr;
    // Where the net is cut into stages, else null.
    bool spare = false;       // this rank computes nothing, and follows the others
    StageRecord stage = {};   // of the present step
    static constexpr StepId no_part = ~StepId{0};
    uint64_t shared = 0;          // digest of the groups that other cells have too, 0 until a step of the present view was applied here
    StepId part_step = no_part;   // so many steps are done in this rank's part of the state; a spare's falls behind
    /// By what a step multiplied the units of all its sums: the clip's factor, times that of a mean over the positions that count.
    struct StepFactor {
        StepId steps = 0;   // until the end of that step
        double factor = 1;
    };
    std::array<StepFactor, 2> factors = {};   // of the newest two steps: a change of view may take the newest one back
    void factor_is(StepId steps, double factor) { factors[steps % 2] = {steps, factor}; }
    /// Returns the factor of the step that made the state after `steps` steps.  All ranks that know it have the same.  Returns 1 if steps
    /// have no factor, or if no step of this run made that state.
    double factor_of(StepId steps) const { return factors[steps % 2].steps == steps ? factors[steps % 2].factor : 1; }
    /// A step that this rank has applied, while not all have reported their parts of the state after it.
    std::optional<StepRecord> unreported = {};
    Cells* cells = nullptr;
    NormClip* clip = nullptr;   // of the net of the present round; null: no step is clipped
    Pipeline* pipeline = nullptr;
    KeptStages* kept = nullptr;                 // with `buddy`
    TiedSums* tied = nullptr;                   // this stage shares weights with others
    std::span<const Layout::Run> groups = {};   // own groups, and their numbers in the whole net

    /// Digest of this rank's part of a state: `model`, the digest of parameters and optimiser state, and the scales.
    uint64_t part(uint64_t model) const;
    /// Digest of the input of step `next`, where this rank has all of it.
    uint64_t digest(StepId next, uint64_t model) const;
    /// The same of all ranks' parts.
    Status digest(StepId next, uint64_t model, uint64_t* whole) const;
    /// How long a stage waits for others that compute `count` blocks meanwhile, of which a deadline is at least 8.
    uint64_t stage_wait_us(uint64_t count) const { return (step <= first + 1 ? 10 : patience) * deadline_us * (1 + count / 8); }
    /// At the end of a round whose parameters and optimiser state are in place.
    void round_done(StepRecord applied);
};

/// This rank computes for that worker during the lifetime of this object, and what is counted meanwhile is the worker's, too.
class WorkerTurn {
public:
    WorkerTurn(Context& context, uint32_t worker);
    ~WorkerTurn();
    WorkerTurn(const WorkerTurn&) = delete;
    WorkerTurn& operator=(const WorkerTurn&) = delete;

private:
    Context& context_;
    const uint32_t worker_;
    const uint64_t begin_us_, samples_, gradients_, forwards_;   // before it
};

}   // namespace gradcast
