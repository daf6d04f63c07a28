// How a job goes on from a checkpoint: its holder, or of one in parts the holder of each part, reads it, and the other ranks get from them
// by mail what they own.
#pragma once
#include "algos/algorithm.h"
#include "runtime/job/model/model_reader.h"
#include "runtime/job/run/session.h"
#include "runtime/mesh/found.h"

namespace gradcast {

/// The progress that a run takes over from the one before, beside the state itself; alike at all ranks.
struct Standing {
    uint64_t steps = 0, state = 0;   // that are done; digest of the state after them
    uint64_t evaluated = 0;          // the step of the last evaluation; 0: none
    double accuracy = -1, test_loss = -1;
    uint64_t algorithm_bytes = 0;
};

/// Finds the whole checkpoints in a job's folder, for Found: the newest whole state, in one file (final.h5 among them) or in parts,
/// and parts of newer ones.
/// *newest: the newest of them.  *notes gets a line for each newer file that is damaged.  Error: Code::data, there is none.  Reads whole
/// files.
Status resume_find(const std::string& folder, std::vector<FoundState>* states, Model* newest, std::vector<std::string>* notes);

/// The files that this node holds, from resume_load() to resume_spread().
struct ResumeFiles {
    std::vector<std::pair<uint32_t, ModelReader>> parts;   // by cell
};

/// At a holder, in PREPARE: reads its files, and puts what this rank owns into `parts`, which are ready, and into the algorithm.  Errors
/// name the file and what does not fit: job, data, kernel set.  The kernel set of an old file (Model::other_functions) is not compared; a
/// warning says so.
Status resume_load(const EngineConfig& config, JobParts& parts, Algorithm& algorithm, Report& report, ResumeFiles* files,
                   Standing* standing);
/// In a session that is open: what training goes on from, from the rank that has it to the ranks `to` (none of them itself), which all
/// receive it in place of what they have.  `standing` is of it; where receiving fails, what came is torn.
Status state_send(Context& context, Session& session, const RankSet& to, JobParts& parts, Algorithm& algorithm, Standing* standing);
Status state_receive(Context& context, Session& session, Rank from, JobParts& parts, Algorithm& algorithm, Standing* standing);
/// Moves what belongs to the state beside vectors of the net from one rank to all others.
Status standing_move(Context& context, Session& session, Rank from, Algorithm& algorithm, Standing* standing);
/// At all ranks, in a session that has begun: each receives what it owns from the holders, and the digest of all of it is compared.
Status resume_spread(const EngineConfig& config, Context& context, Session& session, JobParts& parts, Algorithm& algorithm,
                     const ResumeFiles& files, Standing* standing);

}   // namespace gradcast
