// How the ranks of a job keep in step about the job itself: they begin together, know who lives, end with one verdict.  A state machine on
// job_channel.
//
// There is one message, the *news* of a rank: its phase, how far its trainer is, and whatever goes with the phase.  It is sent to all when
// something changes and as the heartbeat, and the latest counts, so nothing depends on any single packet.
//
//   preparing  -> started   Begin; with kernel set, data, the file that is started from and parameters, which must be equal
//   everywhere.  Complete when all have started.
//   started    -> ended     End, with the SHA-256 of the parameters, which must be equal everywhere
//   ended      -> done      all have ended, or the news of another rank say that all have.  Complete.
//   any but done -> aborted the first cause: Abort, a peer lost, silent or stuck for D/2, a mismatch, or the news that somebody
//                           else has aborted.
//   started    -> departed  Leave, or all other ranks are silent: this rank ends alone, D/40 after it has announced that
//
// Where the exchange can do without some ranks (coded with s >= 1), the trainer gets the loss of one of them as a completion, and the news
// of that rank count no more.  Of a net in stages it can do without so many replicas, whichever of their ranks are lost.  In a job with
// `survive` losses go to the view change instead (JobProtocolConfig::suspect).  A rank counts as lost when its stream is lost, when it
// leaves, when it is silent for D/4, or when it is behind all others for D/4 while these wait and receive nothing.
//
// If several aborts cross, the one of the lowest rank wins: every rank passes on the abort of the lowest rank that it knows.  It gives its
// trainer the verdict when all living ranks name the same abort, or after D/40.  Timer 1 is the heartbeat, at which silence and progress
// are checked.  Timer 2 is the end of that D/40.
#pragma once
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "algos/dispatch.h"
#include "algos/grid/grid.h"
#include "runtime/core/isa.h"
#include "runtime/core/log.h"
#include "runtime/job/report/stage_news.h"
#include "runtime/job/report/step_times.h"
#include "runtime/job/run/timeouts.h"
#include "runtime/view/messages.h"

namespace gradcast {

/// An order of the trainer on job_channel, beside WrongRank.
struct JobCommand {
    struct Begin {
        uint64_t state = 0;   // digest of the initial state
    };
    struct End {
        std::array<char, 64> digest{};   // hex digits: SHA-256 of the parameters
    };
    struct Pause {            // as End, but the job goes on in another view
        uint64_t state = 0;   // its digest
    };
    struct Abort {
        Status found;
    };
    struct Leave {   // this rank ends, the others go on without it where they can; else as Abort
        Status why;
    };
    std::variant<Begin, End, Pause, Abort, Leave> what;
};
/// Completion::id on job_channel.
enum class JobDone : uint32_t {
    begun = 1,
    ended = 2,
    aborted = 3,                 // after Leave, too.  Every completion of it has the status that all ranks end with
    rank_lost = job_rank_lost,   // a rank computes wrongly, is dead or silent
    paused = 6,
};

struct JobProtocolConfig {
    View view;
    Rank self = 0;
    uint64_t deadline_us = 30'000'000;
    std::string kernel_set;     // 16 hex digits
    std::string data_digest;    // 64 hex digits
    std::string start_digest;   // of the file that parameters begin from, 64 hex digits; empty: none
    const Progress* progress = nullptr;
    // Ranks, or replicas, that the exchange can do without: the loss of each of their ranks completes as rank_lost, one more ends the job.
    uint32_t losses_tolerated = 0;
    bool first = true;             // view of the job: when it begins nobody may be missing
    std::vector<bool> lost = {};   // by rank, before this view; empty: none
    StepId steps = ~StepId{0};     // of the whole job
    StepId first_step = 0;         // of this run of the job
    /// Set in a job with `survive`.  After the job has begun, a suspected rank does not end the job: this function is called instead, with
    /// silent for a silent or lost rank, stuck for one that makes no progress or is leaving, and none when the suspicion has ended.
    std::function<void(Rank, Suspicion)> suspect = {};
    const StepTimes* times = nullptr;                            // of this rank, sent with each heartbeat; may be null
    std::function<void(Rank, const RankTimes&)> times_of = {};   // the times of another rank have come; without steps: it is lost
    const StageLog* stages = nullptr;                            // of this rank's stage, likewise
    std::function<void(Rank, StageNews)> stage_of = {};          // news of another rank's stage have come
    std::string isa_setting = isa_setting_in_file;               // what messages call it
    const Grid* grid = nullptr;                                  // of a net in stages: a loss takes the rank's replica; null: each is one
    std::function<std::string(Rank)> part_of = {};               // of a net in stages: which part of it the rank has
    std::atomic<bool>* ending = nullptr;   // becomes true when the job ends with an error at this rank: what computes gives up; may be null
};
std::unique_ptr<Protocol> job_protocol(const JobProtocolConfig& config, const Log& log);

}   // namespace gradcast
