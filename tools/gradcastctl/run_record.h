// What `report` and `describe` know of one run: from a daemon, or from the folder of a run; and where those folders are.
#pragma once
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "runtime/job/model/model_evaluate.h"
#include "tools/gradcastctl/client.h"

namespace gradcast {

/// A point of the curves; the loss is a mean over the steps since the point before.
struct RunPoint {
    double samples = 0, seconds = 0, bytes = 0, value = 0;   // samples: trained on by all nodes; seconds: of steps; bytes: sent by the node
};

struct RunRecord {
    std::string name, id, folder;                                // as it is named in the report; id and folder may be empty
    std::optional<JobDetail> job;                                // of a daemon, or of job.json in the folder
    std::vector<RunPoint> loss, accuracy;                        // of steps.jsonl; points_max each, at most
    uint64_t steps = 0;                                          // that steps.jsonl has
    double last_loss = std::nan("");                             // of the last of them; NaN: there is none
    double seconds = 0, bytes = 0;                               // of the whole job, by its own result; without one, by its steps
    double test_loss = -1;                                       // of the last evaluation
    std::vector<std::string> gaps;                               // for people: steps whose lines it has not
    std::vector<std::pair<std::string, std::string>> settings;   // keys of the job file, "section.key"; else of the daemon
    bool settings_whole = false;                                 // what is not among them has its default
    std::optional<Evaluation> evaluation;                        // of final.h5 on the test data
    std::string why;                                             // there is none
    std::string digest;
};

/// The value of a key that the run's job file leaves out, as `settings` have values; "": there is none.
std::string setting_default(const RunRecord& run, const std::string& key);

/// which: the folder of a job, as `run --keep` leaves it; WORK of gradcastd under a launcher; or a job of the daemon.  data: of the
/// evaluation, in place of the job's own; evaluate: false leaves it out.  Returns the exit code; what is wrong has been said.
int run_read(const Options& options, const std::string& which, bool evaluate, const std::string& data, RunRecord* run);

/// Where `run` keeps results without --keep, each run in a folder of its own: $XDG_STATE_HOME/gradcast.
std::string runs_folder();
/// "local runs: 3 in FOLDER; …", of runs_folder(); "": there is none.
std::string text_local_runs();
/// Shows the run whose folder is `folder`.  Returns the exit code.
int describe_folder(const Options& options, const std::string& folder);

}   // namespace gradcast
