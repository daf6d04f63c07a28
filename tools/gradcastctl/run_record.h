// What `report` and `describe` know of one run: from a daemon, or from a folder that a run has left; and where those folders are.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "runtime/job/model_evaluate.h"
#include "tools/gradcastctl/client.h"

namespace gradcast {

/// A point of the curves; the loss is a mean over the steps since the point before.
struct RunPoint {
    uint64_t step = 0;
    double seconds = 0, bytes = 0, value = 0;   // bytes: sent by the node
};

struct RunRecord {
    std::string name, id, folder;                                // as it is named in the report; id and folder may be empty
    std::optional<JobDetail> job;                                // of a daemon
    std::vector<RunPoint> loss, accuracy;                        // of steps.jsonl; points_max each, at most
    uint64_t steps = 0;                                          // that steps.jsonl has
    double seconds = 0, bytes = 0;                               // of these steps
    double test_loss = -1;                                       // of the last evaluation
    std::vector<std::pair<std::string, std::string>> settings;   // keys of the job file, "section.key"; else what the daemon tells
    std::optional<Evaluation> evaluation;                        // of final.h5 on the test data
    std::string why;                                             // there is none
    std::string digest;
};

/// which: a folder, or a job of the daemon.  data: of the evaluation, in place of the job's own; evaluate: false leaves it out.  Returns
/// the exit code; what is wrong has been said.
int run_read(const Options& options, const std::string& which, bool evaluate, const std::string& data, RunRecord* run);

/// Where `run` keeps results without --keep, each run in a folder of its own: $XDG_STATE_HOME/gradcast.
std::string runs_folder();
/// "local runs: 3 in FOLDER; …", of runs_folder(); "": there is none.
std::string text_local_runs();
/// Shows what a run has left in `folder`.  Returns the exit code.
int describe_folder(const Options& options, const std::string& folder);

}   // namespace gradcast
