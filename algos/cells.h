// What the ranks of a grid (algos/grid) report to each other in each step, by mail: that all sums are there, the digest of their part of
// the state, and how far their checkpoints are.
#pragma once
#include <array>
#include <vector>

#include "algos/grid/grid.h"
#include "algos/mailbox.h"

namespace gradcast {

struct Context;

/// A rank's checkpoints.
struct CheckpointNews {
    uint64_t named = 0;   // steps of the newest whose file is complete
    bool busy = false;    // one is being written
};

class Cells {
public:
    /// Allocates.  `view` and `context` outlive this.
    Cells(Context& context, const View& view, const Grid& grid, Rank self);

    /// Blocks until every rank holds all sums of its cell of context.step, and gives the sums over the cells in place of this cell's.
    /// No rank applies a step before, so no two ranks are more than one step apart.
    Status commit(int64_t* loss, uint64_t* clipped);
    /// Blocks until every rank has reported the digest of its part of the state before step `next`; *state: the digest of all of it. Error:
    /// Code::conflict, two ranks with the same cell differ.
    Status state(StepId next, uint64_t part, uint64_t* state);
    /// The last state() that this rank has begun: the step, and the digest of this rank's part.
    StepId next() const { return next_; }
    uint64_t part() const { return sent_[1].digest; }
    /// That rank's Context::checkpoints, as of its last state.
    CheckpointNews checkpoints(Rank rank) const { return {words_[rank].named, words_[rank].busy > 0}; }

private:
    /// Travels as it is.
    struct Word {
        uint64_t digest = 0, clipped = 0;
        int64_t loss = 0;
        uint64_t named = 0, busy = 0;   // CheckpointNews
        /// Of one cell at different ranks.
        bool agrees(const Word& other) const { return digest == other.digest && clipped == other.clipped && loss == other.loss; }
    };
    Status gather(uint64_t tag, const Word& own, const char* what);

    Context& context_;
    const View& view_;
    const Grid grid_;
    const Rank self_;
    // The others have this rank's word of a commit when all have reported their state, and its state when all commit the next step:
    // nobody waits for these sends.
    std::array<Word, 2> sent_;   // commit, state
    StepId next_ = 0;            // of the last state()
    std::vector<Word> words_;    // by rank
};

}   // namespace gradcast
