// What belongs to one view at one rank: the exchange with its bulk and its placement of blocks, mail, the job protocol, the trainer's side
// of them, and memory of its own.  Data, net, optimiser, codec, loader, lanes and reports outlive it (JobParts, Report).
//
//     plan -> ready -> open -> begin -> (steps) -> end -> destroyed
//
// A session that was not ended is destroyed after the driver, which has its memory until then.
#pragma once
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "algos/cells.h"
#include "algos/kept_stages.h"
#include "algos/pipeline.h"
#include "algos/synchronous.h"
#include "algos/tied_sums.h"
#include "algos/worker_sum.h"
#include "runtime/job/report/report.h"
#include "runtime/job/run/distributed_evaluation.h"
#include "runtime/job/run/job_protocol.h"
#include "runtime/job/run/part_holders.h"
#include "runtime/job/run/parts.h"
#include "runtime/job/run/stages.h"
#include "transport/bulk/bulk.h"
#include "transport/exchange/auto.h"
#include "transport/ranked/ranked.h"

namespace gradcast {

struct SessionConfig {
    uint32_t view = 1;           // its number
    std::vector<NodeId> nodes;   // by rank
    Alternative exchange;
    Alternative spare = {};   // of a spare, over this rank alone
    StepId first_step = 0;
    bool first = true;   // of the job: when it begins nobody may be missing
};

class Session {
public:
    Session(const SessionConfig& config, const EngineConfig& job, JobParts& parts, Report& report);
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    ~Session();

    /// Installs the exchange and plans the memory.
    Status plan();
    /// Takes it.  `parts` are ready.
    Status ready();

    // Trainer thread, while Engine::run() runs, whose `context` is the job's.
    /// Opens the view: from here on the other ranks may send.  `lost`: those of its nodes that were given up before.
    void open(Context& context, const std::vector<NodeId>& lost);
    /// A barrier: blocks until all ranks are here, with the same state.
    Status begin();
    /// Another barrier: blocks until all ranks have applied the last step, so that nobody needs this one any more.  Then closes the view.
    /// An error leaves it open.
    Status end();
    /// Closes the view at once, with whatever is under way.
    Status leave();
    /// Ends the session at all ranks with what this rank has found.  All end with one status, which is the return value.
    Status abort(Status found);
    /// The job is done, with this SHA-256 of the parameters in hex: blocks until all ranks are, with the same.
    Status finish(const std::string& digest);

    /// Any thread, while the session is open.
    static void post(Host& host, const JobCommand& command);

    const SessionConfig& config() const { return config_; }
    Rank self() const { return self_; }
    const View& view() const { return view_; }
    const Grid& grid() const { return grid_; }             // of a net in stages
    const ViewStages& stages() const { return stages_; }   // likewise
    bool spare() const { return parts_.pipeline && grid_.is_spare(self_); }
    /// Ranks that the exchange sums over; at a spare those of the others'.
    uint32_t summing() const { return parts_.pipeline ? grid_.replicas() : exchange_view_.n(); }
    RankSet others() const { return {0, others_.data()}; }
    const std::vector<uint32_t>& own_blocks() const { return own_blocks_; }
    uint32_t blocks_most() const;                                  // that a rank of the exchange computes in a step
    const Pipeline* pipeline() const { return pipeline_.get(); }   // null: the net is not cut
    uint32_t targets() const { return exchange_->targets(); }
    uint32_t losses_tolerated() const;                                                // ranks, or of a net in stages replicas
    uint32_t ranks_tolerated() const { return losses_tolerated() * grid_.cells(); }   // the most that may be lost
    /// Returns the bytes of words that a step takes from this rank: by the exchange's formula, for its buddy, and for tied weights.
    uint64_t bytes_bound() const;
    uint64_t edge_bytes() const { return pipeline_ ? pipeline_->bytes_sent(own_blocks_) : 0; }   // that a step takes from this rank
    const KeptStages* kept() const { return kept_.get(); }                                       // null: this rank has no buddy
    const TiedSums* tied() const { return tied_.get(); }   // null: this stage shares no weights with others
    /// Whose packet this rank has waited for in the last step; nothing: for none.
    std::optional<NodeId> waited_for() const;
    const BulkCounters& bulk_counters() const { return bulk_counters_; }
    /// A member to which multicast from here has stopped to come; null: none.
    const Member* deaf() const;
    const Arena& arena() const { return arena_; }
    /// Memory for a message between steps.  It lives until keep_none(), or as long as the session: after a wait that has failed the link
    /// may still use it.
    std::span<std::byte> keep(size_t bytes) { return kept_messages_.emplace_back(bytes); }
    /// The waits for all of those messages have succeeded.
    void keep_none() { kept_messages_.clear(); }

    bool is_open() const { return open_; }
    /// Returns the status with which all ranks have agreed to end the job; ok while it goes on, and if the session was never open.
    Status ended() const { return dispatch_ ? dispatch_->ended() : Status{}; }
    // While it is open.
    Dispatch& dispatch() const { return *dispatch_; }
    std::vector<NodeId> lost() const;
    Rank lowest() const;   // of the ranks that are not lost
    /// Ranks that are not lost take turns, by number.  Returns whether one of the turns number .. number + count - 1 is this rank's.
    bool turn(uint64_t number, uint32_t count = 1) const;
    /// For a net in stages: returns who holds the parts of the checkpoint with this number, of which there are to be `copies` copies.
    std::vector<PartHolders> part_holders(uint64_t number, uint32_t copies) const;
    /// This rank computes wrongly, and the job goes on without it.
    bool outvoted() const { return synchronous_ && synchronous_->outvoted(); }
    Status evaluate(BatchResult* sum) { return evaluation_.run(*context_, parts_, first_step_us(), sum); }
    /// For a net in stages, before its first step: block 0 passes all stages, and its gradients are the first scales.  A rank of a replica
    /// that breaks meanwhile gets them from another replica.
    Status probe();
    uint64_t first_step_us() const { return timeouts_of(parts_.deadline_us).first_step_us; }

private:
    std::unique_ptr<KeptStages> keep_stages() const;
    std::unique_ptr<TiedSums> tie_sums() const;
    std::vector<uint32_t> cells_alike() const;   // by number of a cell: the first one with the same weights that other stages have too
    PipelineStatus pipeline_status() const;      // of a net in stages: without news of its nodes
    uint32_t own_samples() const;
    const Alternative& alternative() const { return spare() ? config_.spare : config_.exchange; }
    Status share_scales(bool own);
    Status agree_lanes();   // Pipeline::agree()
    /// The node of a rank of the exchange.
    NodeId exchange_node(Rank rank) const {
        return config_.nodes[exchange_ranks_.empty() ? rank : static_cast<Rank>(exchange_ranks_[rank])];
    }
    Status barrier(const JobCommand& command, JobDone done);

    const SessionConfig config_;
    const EngineConfig& job_;
    View view_;
    Rank self_ = 0;
    ViewStages stages_;
    Grid grid_;
    JobParts& parts_;
    Report& report_;
    // Ranks that the exchange sums over: those of the view, or of a net in stages those that have the same cell.
    View exchange_view_;
    Rank exchange_self_ = 0;
    std::vector<NodeId> exchange_ranks_;      // by rank of the exchange: rank of the view; empty: all of them
    std::vector<uint64_t> exchange_others_;   // of a net in stages: bits of the others among them
    Arena arena_;
    BulkCounters bulk_counters_;
    std::unique_ptr<Exchange> exchange_;
    std::unique_ptr<Protocol> broadcast_;   // where datagrams go, and the algorithm uses no exchange
    std::unique_ptr<Protocol> bulk_;        // around the exchange or broadcast, where that goes by datagrams
    std::unique_ptr<Protocol> mail_protocol_, job_protocol_;
    std::unique_ptr<Protocol> group_;   // the exchange, on the ranks of the view
    std::unique_ptr<Protocol> edges_;
    Placement placement_;
    std::vector<uint32_t> own_blocks_;
    std::vector<uint64_t> others_;   // bits of ranks: all but this one
    DistributedEvaluation evaluation_;
    Buffer kept_parameters_, kept_exponents_;   // where ranks can be missed (Arbiter)
    Buffer scales_;                             // of all ranks of the exchange, where a replica can be missed
    Buffer vectors_;                            // of own workers
    Buffer shared_;                             // with the device
    std::deque<std::vector<std::byte>> kept_messages_;

    Context* context_ = nullptr;
    std::unique_ptr<ViewHost> host_;
    std::unique_ptr<Dispatch> dispatch_;
    std::unique_ptr<Mailbox> mailbox_;
    std::unique_ptr<SynchronousStep> synchronous_;
    std::unique_ptr<WorkerSum> workers_;   // one of the two
    // For a net in stages:
    std::unique_ptr<Pipeline> pipeline_;
    std::unique_ptr<KeptStages> kept_;
    std::unique_ptr<TiedSums> tied_;
    std::unique_ptr<Cells> cells_;
    bool open_ = false;
};

}   // namespace gradcast
