// What the ranks of a grid (algos/grid) report to each other in each step, by mail: that all sums are there, the digest of their part of
// the state, and how far their checkpoints are.  With optimiser.clip_norm also the terms of the gradient's norm (nn/clip.h): a rank
// computes those of its own groups, and each rank adds those of all cells in the order of the whole net's groups.
//
// Bytes by mail, to each other rank and step: two reports of 80, and 8 for each group whose term this rank reports.  A report of more than
// mail_early_bytes leaves once its receiver has asked for it, which it does before its passes.
//
// Where `spare` replicas may be late or lost, the reports of all others suffice.  So a rank may be some steps ahead of a late one, and the
// reports of several steps are under way at a time, each in memory of its own.  A rank waits before it uses the memory again, so no two
// living ranks are more than step_slots steps apart.
#pragma once
#include <span>
#include <vector>

#include "algos/grid/grid.h"
#include "algos/mailbox.h"
#include "nn/net.h"
#include "runtime/core/limits.h"
#include "transport/exchange/exchange.h"

namespace gradcast {

struct Context;

/// A rank's checkpoints.
struct CheckpointNews {
    uint64_t named = 0;   // steps of the newest of which it has named all its files
    bool busy = false;    // it writes, sends or receives one
};

/// Sums over the mini-batch of a step, all cells together.
struct StepTotals {
    int64_t loss = 0;                  // in units of 2^-20
    uint64_t valid = 0, clipped = 0;   // Sum::valid; elements
};

class Cells final : public Consumer {
public:
    /// By number of the cell: the groups of its layout whose terms its ranks report, and their numbers in the whole net.
    using CellGroups = std::vector<std::vector<Layout::Run>>;
    /// Allocates.  All outlive this.  keeps[r]: the ranks whose cells rank r keeps in addition (KeptStages); empty: none.  alike[c]: the
    /// first cell that shares weights of several stages with cell c (TiedSums), or c itself.  groups: empty where no step is
    /// clipped.
    Cells(Context& context, Dispatch& dispatch, const View& view, const Grid& grid, Rank self, uint32_t spare,
          std::vector<std::vector<Rank>> keeps, std::vector<uint32_t> alike, CellGroups groups);

    /// Before the passes of context.step.  Blocks while another rank is step_slots steps behind.
    Status begin();
    /// Reports that this rank holds all sums of its cell of context.step, which are finite, and those of cells that it keeps; a spare has
    /// none.  Later calls in the step do nothing.  lanes: they share what is to compute; null: they have other work.
    void report_held(std::span<const Sum* const> sums, Lanes* lanes);
    /// Whether it has reported that.
    bool reported() const { return begun_ == context_step() && rounds_[commit_tag(begun_) % rounds].reported; }
    /// Every rank that lives has reported that, so nobody needs anything that this rank computes in context.step.
    bool all_hold() const;
    /// Reports it, and blocks until `replicas - spare` replicas are whole: each of their ranks has reported it.  Gives the sums over the
    /// cells.  No rank applies a step before commit() returns, so `replicas - spare` replicas have applied the step before.
    Status commit(std::span<const Sum* const> sums, StepTotals* totals);
    /// Gives the sums as commit() does, if the reports of all ranks of some replica are here; commit() need not have been called.  Returns
    /// false if they are not.  Does not block.
    bool totals(StepTotals* totals);
    /// Returns the norm of the whole gradient of the last commit() or totals(), as NormClip::norm(); 0 where no step is clipped.
    double norm() const { return norm_; }
    /// Reports the digest of this rank's part of the state before step `next`, and of what it keeps of others, and blocks until as many
    /// replicas have reported theirs; *state: the digest of all of it.  Error: Code::conflict, where two ranks of the same cell differ, or
    /// two cells differ in the groups that both have.
    Status state(StepId next, uint64_t part, uint64_t* state);
    /// The last state() that this rank has begun: the step, and the digest of this rank's part.
    StepId next() const { return next_; }
    uint64_t part() const { return part_; }
    /// Returns the Context::checkpoints that `rank` sent with the last state(); of a late rank, those of its latest report.
    CheckpointNews checkpoints(Rank rank) const;
    /// The digest of that rank's part of that state; 0 where it has not been reported here.
    uint64_t part(Rank rank) const;

    Status take(const Completion& completion) override;

private:
    /// Travels as it is.
    struct Word {
        uint64_t digest = 0;   // of the rank's part of the state
        uint64_t valid = 0;    // Sum::valid
        uint64_t clipped = 0;
        int64_t loss = 0;
        uint64_t named = 0, busy = 0;   // CheckpointNews
        uint64_t kept[2] = {};          // digests of the cells that it keeps
        uint64_t shared = 0;            // digest of what all slice groups of the stage have
        uint64_t tied = 0;              // of weights that other stages have too
        /// Returns whether the words of two ranks with the same cell agree.
        bool agrees(const Word& other) const {
            return digest == other.digest && valid == other.valid && clipped == other.clipped && loss == other.loss &&
                   shared == other.shared && tied == other.tied;
        }
    };
    enum class Fate : uint8_t { open, done, lost };
    /// The reports of all ranks about one thing.
    struct Round {
        bool reported = false;
        std::vector<uint64_t> reports;   // by rank a Word, and of a commit its terms behind it
        std::vector<Fate> fates;         // of the mail from each rank; the own entry is that of the mail to all others
    };
    static constexpr uint64_t rounds = 2 * step_slots;   // commit and state, of each step
    static constexpr uint64_t commit_tag(StepId step) { return 2 * step; }
    static constexpr uint64_t state_tag(StepId step) { return 2 * step + 1; }
    static constexpr bool is_commit(uint64_t tag) { return tag % 2 == 0; }

    Round& round_of(uint64_t tag) { return rounds_[tag % rounds]; }
    const Round& round_of(uint64_t tag) const { return rounds_[tag % rounds]; }
    Word& word(Round& round, Rank rank) const { return reinterpret_cast<Word&>(round.reports[places_[rank]]); }
    const Word& word(const Round& round, Rank rank) const { return reinterpret_cast<const Word&>(round.reports[places_[rank]]); }
    /// Returns the terms that a rank has reported.  For a commit only.
    std::span<const double> terms(const Round& round, Rank rank) const {
        return {reinterpret_cast<const double*>(&word(round, rank) + 1), term_counts_[rank]};
    }
    std::span<double> own_terms(Round& round) const { return {reinterpret_cast<double*>(&word(round, self_) + 1), term_counts_[self_]}; }
    /// A rank's report, as it travels.
    Buffer report(uint64_t tag, Rank rank);
    const std::vector<Layout::Run>& groups_of(const Cell& cell) const { return groups_[grid_.number_of(cell)]; }
    Status open(uint64_t tag, const char* what);
    /// Sends this rank's report, which is in its place.
    void send(uint64_t tag);
    /// Returns whether the reports of two ranks with the same cell agree.
    bool agree(uint64_t tag, Rank first, Rank second) const;
    /// Blocks until enough replicas are whole in that round; *replica: the first of them.
    Status gather(uint64_t tag, const char* what, uint32_t* replica);
    /// Cells are kept with the state that their own ranks have.
    Status check_kept(const Round& round) const;
    bool done(const Round& round, Rank rank) const { return rank == self_ ? round.reported : round.fates[rank] == Fate::done; }
    bool whole(const Round& round, uint32_t replica) const;
    void add_up(const Round& round, uint32_t replica, StepTotals* totals);
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
    const CellGroups groups_;
    const std::vector<uint64_t> others_;
    Mail mail_;
    std::vector<uint64_t> places_, term_counts_;   // by rank: where its report begins in Round::reports; of a commit
    std::vector<Round> rounds_;
    std::vector<double> terms_;      // of the last commit(): by group of the whole net
    std::vector<BucketSum> whole_;   // of this rank's sums
    double norm_ = 0;
    // Of the last state() of this rank:
    StepId next_ = 0;
    uint64_t part_ = 0;
    StepId begun_ = ~StepId{0};   // of the last begin()
};

}   // namespace gradcast
