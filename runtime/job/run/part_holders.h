// Which ranks of a grid hold the parts of a checkpoint.  Pure functions: all ranks compute the same.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "algos/grid/grid.h"
#include "runtime/job/file/job_file.h"

namespace gradcast {

/// The holders of one cell's part.
struct PartHolders {
    std::vector<Rank> writers;     // ranks of the cell: each writes the part from its own state
    std::vector<Rank> receivers;   // ranks of other cells: each writes the copy that writers[0] sends it
};

/// By cell, of the checkpoint with this number.  copies: nodes that are to hold each part; 0: 2 where a cell has one rank, else 1.  The
/// ranks of a cell take turns; where they are too few, ranks of the next cells in a ring get copies, those of the same replica first.
/// travel = false: nobody gets copies, as ranks may be lost in the view and the others learn it at different times.  lost(): no holder.
std::vector<PartHolders> part_holders(const Grid& grid, const std::function<bool(Rank)>& lost, uint64_t number, uint32_t copies,
                                      bool travel);

/// Whether some view of a job over so many nodes, whose net is in stages, sends copies.
bool parts_travel(const JobConfig& job, uint32_t nodes);

/// The most nodes that hold a part in the first view of a job over so many nodes, and so the most that job.checkpoint_copies can be.  The
/// number of stages is known, or is taken as 1.
uint32_t copies_most(const JobConfig& job, uint32_t nodes);

/// Error: job.checkpoint_copies is above copies_most(), which it names.  A job that is resumed may be on fewer nodes than before: it goes
/// on all the same, with as many copies as are possible.
Status copies_check(const JobConfig& job, uint32_t nodes);

}   // namespace gradcast
