// A node's part of a step where the net is cut into stages (algos/grid): the passes of its stage in the order of a schedule, with the
// values and gradients that cross the cuts.
//
//     edges (transport/edges) --> rooms of blocks --> slots of the net --> passes on the lanes --> sends, from the slots
//
// Slice groups of a stage also exchange in the middle of a pass (algos/slice_exchange.h).  A net of one stage with several slice groups is
// a pipeline too.
//
// Receives are posted before the step, for as many micro-batches as there are rooms.  Gradients of parameters go to a GradientSink, as
// those of a whole net do.
//
// A step ends early where nobody needs the rest of it.  The ranks of a replica find that out each by itself: what is under way between them
// is abandoned at both ends, and its memory is free once the link has answered.  A replica that has lost a rank computes nothing.
#pragma once
#include <algorithm>
#include <array>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "algos/dispatch.h"
#include "algos/grid/grid.h"
#include "algos/grid/schedule.h"
#include "algos/slice_exchange.h"
#include "nn/net.h"
#include "runtime/core/arena.h"
#include "runtime/core/profile.h"
#include "transport/edges/edges.h"

namespace gradcast {

struct Context;

/// Where a net is cut, the same in every view; alike at all ranks but for `own_stage`,
/// `own_slice_group` and `lanes`.
struct PipelineConfig {
    std::vector<uint32_t> begins;   // first layers of the stages
    uint32_t slice_groups = 1;
    uint32_t own_stage = 0, own_slice_group = 0;
    NetOrder order;   // of the whole net
    Schedule schedule = Schedule::one_forward_one_backward;
    bool recompute = false;              // activations are computed again before a backward pass
    uint32_t micro_batch = 1;            // blocks that pass the stages together; each lane takes a share of them
    uint32_t lanes = 1;                  // of this rank
    uint32_t blocks_most = 0;            // that a replica computes in a step
    std::vector<uint32_t> block_sizes;   // of all blocks of a step, in samples

    uint32_t stages() const { return static_cast<uint32_t>(begins.size()); }
    Stage stage(uint32_t number) const { return {begins[number], number + 1 < begins.size() ? begins[number + 1] : ~0u}; }
    uint32_t cells() const { return stages() * slice_groups; }
    uint32_t cell_number(const Cell& cell) const { return gradcast::cell_number(cell, slice_groups); }
    Cell own() const { return {own_stage, own_slice_group}; }
    uint32_t own_cell() const { return cell_number(own()); }
    /// Returns the layers and slices that the cell with this number computes.
    Stage cell(uint32_t number) const;
    std::string layers_text(uint32_t number) const;   // "conv1 .. pool2"
    std::string stage_text(uint32_t number) const;    // "stage 1 of 2 (conv1 .. pool2)"
    std::string cell_text(const Cell& cell) const;    // the same; "stage 1 of 2 (conv1 .. pool2), slice group 2 of 4"
    std::vector<StageTask> tasks(uint32_t of_stage, uint32_t blocks) const;
    /// Micro-batches that a stage has in flight, the most.
    uint32_t in_flight(uint32_t of_stage) const { return slots_of(tasks(of_stage, blocks_most)); }
    /// NetConfig::slots of the stage's net.
    uint32_t slots() const { return in_flight(own_stage) * lane_share(); }
    /// Micro-batches for which there is memory where edges arrive: one more than in flight, and all that the stage before sends ahead.
    uint32_t rooms() const { return std::max(in_flight(own_stage) + 1, own_stage > 0 ? in_flight(own_stage - 1) : 0); }
    /// NetConfig::recompute.  A stage with one micro-batch in flight has nothing to save.
    bool recomputes() const { return recompute && slots() > 1; }
    bool passes_apart() const { return gradcast::passes_apart(schedule); }
    uint32_t lane_share() const { return (micro_batch + lanes - 1) / lanes; }   // blocks of a micro-batch, the most of a lane
};

/// The samples of blocks.  Any lane.
struct BlockSource {
    virtual ~BlockSource() = default;
    virtual Status get(BlockId id, Samples* samples) = 0;   // *samples is valid until done()
    virtual void done(BlockId id) = 0;
};

struct EvaluationBatch {
    uint32_t number, samples;
};

class Pipeline final : public Consumer {
public:
    /// Makes the pipeline of rank `self` of the grid, which is no spare.  `net` computes this rank's stage, and outlives this.
    Pipeline(const PipelineConfig& config, const Grid& grid, Rank self, Net& net) : config_(config), grid_(grid), self_(self), net_(net) {}
    /// Plans the rooms in which edges arrive.  The net is planned.
    void plan(Arena& arena);
    /// Bytes of the values, or gradients, that come from other stages for a block of `samples` samples, or go to them.  After plan().
    uint64_t edge_bytes(bool comes, bool gradients, uint32_t samples) const;
    /// Bytes that this rank sends to the other slice groups for a block of `samples` samples.
    uint64_t slice_bytes(uint32_t samples) const { return slices_ ? slices_->bytes_sent(samples) : 0; }
    /// In a new view.  Before anything is completed.
    void open(Context& context, Dispatch& dispatch);
    /// Ranks that share slices must compute as many blocks in a call: the most lanes that any rank of the replica has.
    void agree(uint32_t lanes);
    /// Runs all passes of these blocks, which are the same at all stages of the replica.  Trainer thread.  Between passes and while it
    /// waits it asks needless(), unless that is empty: true, once nobody needs the rest, ends it.  With slice groups a lane that waits
    /// within a pass asks, one at a time, while other lanes compute.  A replica that is broken() ends it, too. Errors: deadline, which
    /// names the stage, layer, block and rank that it waits for; peer_lost; cancelled; what a pass says.
    Status run(StepId step, std::span<const uint32_t> blocks, BlockSource& source, GradientSink& sink,
               const std::function<bool()>& needless);
    /// Runs the passes of block 0 of step 0, before that step.  Ends early where the replica is broken().
    Status probe(BlockSource& source, GradientSink& sink);
    /// Another rank of this replica is lost, and the job goes on without it.
    bool broken() const;
    /// The last run(), probe() or evaluate() has ended early, so what it computed is not whole.  Another rank may have stopped because it
    /// knows of a loss of which this one does not know yet.
    bool ended_early() const { return stopped_; }
    uint64_t waited_us() const { return waited_us_; }   // for edges, by the trainer, in the last run()
    /// That this rank sends over edges for these blocks, where none of them is given up.
    uint64_t bytes_sent(std::span<const uint32_t> blocks) const;

    /// Passes these batches of test data forward, alike at all stages of the replica: `evaluate` computes that with this index on a lane of
    /// the net (Net::evaluate()).  Between steps.  Ends early where the replica is broken().  Errors: as run().
    Status evaluate(std::span<const EvaluationBatch> batches, const std::function<Status(uint32_t lane, uint32_t index)>& evaluate);

    Status take(const Completion& completion) override;

private:
    /// A value or gradient that comes or goes for each block.
    struct Crossing {
        size_t edge;   // Net::edge(); of a value that several layers of a stage read, that of one of them
        bool gradient;
        Rank peer;
        uint16_t number;      // EdgeKey::edge
        std::string layer;    // for errors
        uint64_t place = 0;   // in a block's room, of what comes
    };
    enum class Fate : uint8_t { free, open, done, gone };   // gone: it does not come
    struct Transfer {
        const Crossing* crossing = nullptr;
        bool comes = false;
        uint32_t block = 0;
        Fate fate = Fate::free;
    };
    /// Blocks of a micro-batch that a lane computes in one call.
    struct Call {
        uint32_t lane, slot, first, count;   // first, count: indices of blocks of the step
    };

    uint32_t micro_batches() const { return static_cast<uint32_t>((blocks_.size() + config_.micro_batch - 1) / config_.micro_batch); }
    uint32_t end_of(uint32_t micro_batch) const {
        return std::min((micro_batch + 1) * config_.micro_batch, static_cast<uint32_t>(blocks_.size()));
    }
    uint32_t samples_of(uint32_t index) const { return config_.block_sizes[blocks_[index]]; }
    /// Return a block's transfers.  Block index + rooms_ has the same incoming ones; blocks in the same slot have the same outgoing ones.
    std::span<Transfer> incoming(uint32_t index) {
        return std::span(transfers_).subspan(index % rooms_ * incoming_.size(), incoming_.size());
    }
    std::span<Transfer> outgoing(uint32_t index) {
        return std::span(transfers_)
            .subspan(rooms_ * incoming_.size() + index % (slots_ * config_.micro_batch) * outgoing_.size(), outgoing_.size());
    }
    Buffer room(uint32_t index, const Crossing& crossing);
    void connect();
    void receive(uint32_t index, bool gradients);
    void send(uint32_t index, const Call& call, bool gradients);
    /// Returns a lane's transfers in an evaluation: its incoming values, then its outgoing ones.
    std::span<Transfer> evaluated(uint32_t lane) {
        const size_t all = incoming_.size() + outgoing_.size();
        return std::span(transfers_).last((config_.lanes - lane) * all).first(all);
    }
    void post(Transfer& transfer, const Crossing& crossing, bool comes, uint32_t block, Buffer memory);
    MicroBatchPlace place(uint32_t micro_batch) const { return {config_.own_stage + 1, micro_batch + 1}; }
    /// For those of values, or of gradients, of a micro-batch; or until stopped().
    Status wait(std::span<Transfer> transfers, bool gradients, MicroBatchPlace place = {});
    Status wait(const Transfer& transfer, uint64_t until_us);
    Status overdue(const Transfer& transfer);
    /// The rest of the run is not needed, or cannot be computed.
    bool stopped();
    /// Takes what has come, and asks stopped().
    Status poll();
    /// Takes a block that is not needed from the source, which returns them in order.
    void skip(uint32_t index);
    /// Ends the passes before the task of this number: waits until the other slice groups have what was sent to them, or, where the passes
    /// have ended early, abandons what is under way.
    Status end(size_t next_task);
    /// Until nothing is under way.
    Status drain();
    /// Abandons these blocks, which may be there twice, and waits until nothing is under way.
    Status abandon(std::vector<uint32_t> blocks);
    /// True once the rest of the run is not needed or cannot be computed.  Waits within a pass ask it, on the thread of a lane, one thread
    /// at a time.
    std::function<bool()> slices_needless() const;
    Call call(uint32_t micro_batch, uint32_t number) const;
    bool other_places(uint32_t micro_batch) const;
    Buffer edge(const Call& call, uint32_t index, size_t edge, bool gradient);
    void begin(StepId step, uint32_t mark, const std::function<bool()>& needless);
    Status run_all(std::span<const uint32_t> blocks, BlockSource& source, GradientSink& sink);
    Status run(const StageTask& task);
    /// A call of a task, and its event.  Any lane.
    Status traced(const StageTask& task, uint32_t number);
    Status pass(const Call& call, StagePass pass);

    const PipelineConfig config_;
    const Grid grid_;
    const Rank self_;
    Net& net_;
    std::vector<StageTask> tasks_;
    uint32_t slots_ = 0;      // micro-batches in flight
    uint32_t rooms_ = 0;      // blocks
    uint32_t together_ = 1;   // blocks of a call, the most
    std::vector<Crossing> incoming_, outgoing_;
    std::unique_ptr<SliceExchange> slices_;   // null: one slice group
    uint64_t room_bytes_ = 0;                 // of a block
    Buffer memory_;
    std::vector<Transfer> transfers_;

    Context* context_ = nullptr;
    Dispatch* dispatch_ = nullptr;
    // The state of the present run().
    StepId step_ = 0;
    uint32_t mark_ = 0;   // in the keys' numbers of blocks
    std::span<const uint32_t> blocks_;
    uint64_t wait_us_ = 0;   // the longest wait for an edge
    std::function<bool()> needless_;
    bool stopped_ = false;
    uint32_t fetched_ = 0;   // blocks that the source has given
    BlockSource* source_ = nullptr;
    GradientSink* sink_ = nullptr;
    uint64_t waited_us_ = 0;
    Status missing_;   // the answer to Edges::explain()
};

}   // namespace gradcast
