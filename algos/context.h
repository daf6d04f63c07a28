// What an algorithm may use: the net, the exchange, mail, data, time.  No sockets, no threads but lanes.
#pragma once
#include <array>
#include <atomic>
#include <span>
#include <vector>

#include "datasets/reader.h"
#include "nn/net.h"
#include "nn/optimiser.h"
#include "runtime/core/lanes.h"
#include "runtime/core/profile.h"
#include "runtime/core/protocol.h"
#include "transport/code/codec.h"
#include "transport/exchange/exchange.h"
#include "transport/mail.h"

namespace gradcast {

/// Channels of a job, the same at every rank.  chosen: of the exchange that `auto` chooses.
enum class Channel : uint16_t { job = 0, gradient = 1, mail = 2, chosen = 3 };

/// Command on Channel::job: Event::rank computes wrongly, as status says.  Completion::id of what follows from that or any other loss: rank
/// Completion::step is lost, for the reason in `status`, and the job goes on without it.
constexpr uint64_t job_rank_lost = 4;

/// What one applied step leaves behind: a line of steps.jsonl.
struct StepRecord {
    StepId step = 0;
    double loss = 0;       // mean over the mini-batch, the same at every rank
    uint64_t digest = 0;   // of parameters, optimiser state and scales after the step
    uint64_t clipped = 0;
    uint64_t compute_us = 0, wait_us = 0, apply_us = 0;   // this rank's
};

/// How far a rank's trainer is: written by it and its lanes, looked at by the job protocol on the network thread.  Counters, so relaxed.
struct Progress {
    std::atomic<uint64_t> step{0};
    std::atomic<uint64_t> done{0};      // grows with every bucket computed, every step applied, every batch evaluated
    std::atomic<bool> waiting{false};   // for other ranks
    void advance() { done.fetch_add(1, std::memory_order_relaxed); }
};

struct Context {
    Host& host;
    Lanes& lanes;
    Loader& loader;
    const DataSet& data;
    const Sampler& sampler;
    Net& net;
    Optimiser& optimiser;
    Codec& codec;
    Exchange* exchange;   // `auto` changes it between two steps, with its channel and own_blocks
    Mail& mail;
    Progress& progress;
    Rank self;
    const View& view;
    uint32_t batch, blocks;
    uint64_t deadline_us;                                          // longest tolerable stall; ten times that in the first step
    uint64_t spend_us = 0;                                         // what the backward pass of one bucket costs (the simulator)
    StepId step = 0;                                               // the next one to compute
    uint64_t state = 0;                                            // digest of the state that step is computed from
    std::vector<uint32_t> own_blocks = {};                         // of every step
    uint16_t channel = static_cast<uint16_t>(Channel::gradient);   // of the exchange
    StepId first_step = 0;                                         // that it sums
    StepRecord record = {};                                        // of the last step applied
    Profile* profile = nullptr;                                    // of one step; its round turns it on and off
    std::vector<bool> lost = {};                                   // by rank: the job goes on without it
    std::vector<std::string> why_lost = {};                        // for people, one a rank
    Status ended = {};                                             // what all ranks have agreed that the job ends with; ok while it goes on
    bool outvoted = false;                                         // this rank computes wrongly, and the others go on without it

    /// Takes the working memory below, once, before a protocol may tell anything: a sum may come before this trainer begins its first step.
    /// `targets`: the most that any exchange of the job has.
    void take_memory(uint32_t targets);
    /// Computes this rank's blocks of `step` on the lanes; every bucket is quantised and made `ready` as soon as its last block is done.
    /// Error: of the block that failed first; the others are abandoned.
    Status compute();
    /// Blocks until all buckets of `step` are summed.  `into` is indexed by bucket.  The only place where a round waits.
    /// Errors: deadline (names the first bucket that waits and what is missing), conflict, peer_lost, or whatever the job has been ended
    /// with elsewhere.
    Status wait(std::span<const Sum*> into);
    /// Blocks until mail with tickets first .. last is done: `mailed` then says of each whether it went well or its rank is lost.  Tickets
    /// of one round of mail count from 1.  `what` names it in the error, as "result of the evaluation after step 938".
    Status wait_mail(uint64_t first, uint64_t last, uint64_t us, const char* what);
    /// Blocks until Channel::job says that `id` is done.  The job protocol keeps the deadlines and always
    /// answers; this one, of 20 times deadline_us, is for a network thread that has died.
    Status wait_job(uint64_t id);
    /// Two ranks disagree about the sum of some blocks of step `at` (Exchange::conflict): the other holders have outvoted one of them, or
    /// the blocks are computed here once more, and the one whose digest differs is named.  One of the two leaves the verdict to the others,
    /// if there are any.  `found` is what is known so far, and the answer where no more can be told.  Ok: the job goes on without the wrong
    /// rank.
    Status arbitrate(Status found, StepId at);
    /// At the end of a round: the link gives up the ranks that compute wrongly.
    void cut_expelled();
    /// Before the state is written: where ranks can be missed, a conflict about this step may be found in the next.
    void keep_state();
    /// Digest of all that step `next` is computed from: `model`, that of parameters and optimiser state, and the scales.
    uint64_t digest(StepId next, uint64_t model);

    // Working memory of the above.
    std::vector<std::atomic<uint32_t>> blocks_left = {};   // by bucket
    std::vector<std::atomic<int64_t>> losses = {};         // by target of the exchange, which may have fewer
    std::vector<Completion> completions = {};
    std::array<std::vector<const Sum*>, step_slots> sums = {};   // by step % step_slots and bucket: come, and not yet taken by wait()
    enum class Mailed : uint8_t { open, done, lost };
    std::vector<Mailed> mailed = {};   // by ticket; whoever begins a round of mail clears it
    std::vector<float> kept_parameters = {};
    std::vector<int32_t> kept_exponents = {};
    std::vector<Rank> expelled = {};   // lost, but not yet to the link
    Completion early = {};             // a conflict about the next step, which this rank has not begun
    bool judging = false;
};

}   // namespace gradcast
