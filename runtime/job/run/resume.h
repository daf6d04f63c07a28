// How a job goes on from a checkpoint: one rank, the holder, reads it, and all others get the state from that rank by mail.
#pragma once
#include "algos/algorithm.h"
#include "runtime/job/model/model_file.h"
#include "runtime/job/run/session.h"

namespace gradcast {

/// What a run knows of the one before, beside the state itself; alike at all ranks.
struct Standing {
    uint64_t steps = 0, state = 0;   // that are done; digest of the state after them
    uint64_t evaluated = 0;          // the step of the last evaluation; 0: none
    double accuracy = -1, test_loss = -1;
    uint64_t algorithm_bytes = 0;
};

/// The newest checkpoint in a job's folder that is whole, final.h5 among them.  *notes gets a line for each newer one that is not.  Error:
/// Code::data, there is none.  Reads whole files.
Status resume_find(const std::string& folder, Model* model, std::string* path, std::vector<std::string>* notes);

/// At the holder, in PREPARE: reads the checkpoint and puts its state into `parts`, which are ready, and into the algorithm.  Errors name
/// the file and what does not fit: job, data, kernel set.  The kernel set of an old file (Model::other_functions) is not compared; a
/// warning says so.
Status resume_load(const EngineConfig& config, JobParts& parts, Algorithm& algorithm, Report& report, Standing* standing);
/// In a session that is open: what training goes on from, from the rank that has it to the ranks `to` (none of them itself), which all
/// receive it in place of what they have.  `standing` is of it; where receiving fails, what came is torn.
Status state_send(Context& context, Session& session, const RankSet& to, JobParts& parts, Algorithm& algorithm, Standing* standing);
Status state_receive(Context& context, Session& session, Rank from, JobParts& parts, Algorithm& algorithm, Standing* standing);
/// At all ranks, in a session that has begun: the others receive what the holder has, and check its digest.
Status resume_spread(const EngineConfig& config, Context& context, Session& session, JobParts& parts, Algorithm& algorithm,
                     Standing* standing);

}   // namespace gradcast
