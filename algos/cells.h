// What the ranks of a grid (algos/grid) report to each other in each step, by mail: that all sums are there, the digest of their part of
// the state, and how far their checkpoints are.
//
// Where `spare` replicas may be late or lost, the reports of all others suffice.  So a rank may be some steps ahead of a late one, and the
// reports of several steps are under way at a time, each in memory of its own.  A rank waits before it uses the memory again, so no two
// living ranks are more than step_slots steps apart.
#pragma once
#include <span>
#include <vector>

#include "algos/grid/grid.h"
#include "algos/mailbox.h"
#include "runtime/core/limits.h"
#include "transport/exchange/exchange.h"

namespace gradcast {

struct Context;

/// A rank's checkpoints.
struct CheckpointNews {
    uint64_t named = 0;   // steps of the newest of which it has named all its files
    bool busy = false;    // it writes, sends or receives one
};

class Cells final : public Consumer {
public:
    /// Allocates.  All outlive this.  keeps: by rank, the ranks whose cells it keeps too (KeptStages); empty: none.  alike: by number of
    /// a cell, the first cell with the same shared groups (Group::shared), which may be itself.
    Cells(Context& context, Dispatch& dispatch, const View& view, const Grid& grid, Rank self, uint32_t spare,
          std::vector<std::vector<Rank>> keeps, std::vector<uint32_t> alike);

    /// Before the passes of context.step.  Blocks while another rank is step_slots steps behind.
    Status begin();
    /// Reports that this rank holds all sums of its cell of context.step, which are finite, and those of cells that it keeps; a spare has
    /// none.  Later calls in the step do nothing.
    void tell(std::span<const Sum* const> sums);
    /// Whether it has reported that.
    bool told() const { return begun_ == context_step() && rounds_[commit_tag(begun_) % rounds].told; }
    /// Every rank that lives has reported that, so nobody needs anything that this rank computes in context.step.
    bool all_hold() const;
    /// Reports it, and blocks until `replicas - spare` replicas are whole: each of their ranks has reported it.  Gives the sums over the
    /// cells.  No rank applies a step before, so when one applies t, as many replicas have applied t - 1.
    Status commit(std::span<const Sum* const> sums, int64_t* loss, uint64_t* clipped);
    /// Reports the digest of this rank's part of the state before step `next`, and of what it keeps of others, and blocks until as many
    /// replicas have reported theirs; *state: the digest of all of it.  Error: Code::conflict, two ranks with the same cell differ, or
    /// cells in the groups that they share.
    Status state(StepId next, uint64_t part, uint64_t* state);
    /// The last state() that this rank has begun: the step, and the digest of this rank's part.
    StepId next() const { return next_; }
    uint64_t part() const { return part_; }
    /// That rank's Context::checkpoints, as of that state; of a rank that is late, as of the last one that it has reported.
    CheckpointNews checkpoints(Rank rank) const;
    /// The digest of that rank's part of that state; 0 where it has not been reported here.
    uint64_t part(Rank rank) const;

    Status take(const Completion& completion) override;

private:
    /// Travels as it is.
    struct Word {
        uint64_t digest = 0, clipped = 0;
        int64_t loss = 0;
        uint64_t named = 0, busy = 0;   // CheckpointNews
        uint64_t kept[2] = {};          // digests of the cells that it keeps
        uint64_t shared = 0;            // digest of its shared groups
        /// Of one cell at different ranks.
        bool agrees(const Word& other) const {
            return digest == other.digest && clipped == other.clipped && loss == other.loss && shared == other.shared;
        }
    };
    enum class Fate : uint8_t { open, done, lost };
    /// The reports of all ranks about one thing.
    struct Round {
        bool told = false;
        std::vector<Word> words;   // by rank
        std::vector<Fate> fates;   // of the mail from each rank; the own entry is that of the mail to all others
    };
    static constexpr uint64_t rounds = 2 * step_slots;   // commit and state, of each step
    static constexpr uint64_t commit_tag(StepId step) { return 2 * step; }
    static constexpr uint64_t state_tag(StepId step) { return 2 * step + 1; }

    Round& round_of(uint64_t tag) { return rounds_[tag % rounds]; }
    Status open(uint64_t tag, const char* what);
    void tell(uint64_t tag, const Word& own);
    /// Blocks until enough replicas are whole in that round; *replica: the first of them.
    Status gather(uint64_t tag, const char* what, uint32_t* replica);
    /// Cells are kept with the state that their own ranks have.
    Status check_kept(const Round& round) const;
    bool done(const Round& round, Rank rank) const { return rank == self_ ? round.told : round.fates[rank] == Fate::done; }
    bool whole(const Round& round, uint32_t replica) const;
    uint64_t us() const;
    StepId context_step() const;

    Context& context_;
    Dispatch& dispatch_;
    const View& view_;
    const Grid grid_;
    const Rank self_;
    const uint32_t needed_;   // replicas
    const std::vector<std::vector<Rank>> keeps_;
    const std::vector<uint32_t> alike_;   // by cell
    const std::vector<uint64_t> others_;
    Mail mail_;
    std::vector<Round> rounds_;
    // Of the last state().
    StepId next_ = 0;
    uint64_t part_ = 0;
    StepId begun_ = ~StepId{0};   // of the last begin()
};

}   // namespace gradcast
