// How gradcastctl shows things: numbers with units, tables, the progress line, the result of a job.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/control/json.h"
#include "runtime/job/model/model_evaluate.h"

namespace gradcast {

/// What a command that was interrupted (local.h) says of its job.  Returns the exit code.
int job_goes_on(const std::string& id);

std::string text_bytes(uint64_t bytes);       // "12.3 MiB"
std::string text_seconds(double seconds);     // "12.3 s", "4 min 05 s", "2 h 03 min"
std::string text_time(uint64_t unix);         // local, "2025-01-31 18:00:05"
size_t text_columns(std::string_view text);   // code points of UTF-8

/// A share as a flag has it: "1%" is 0.01.  False: it is none above 0% and up to 100%.
bool parse_share(std::string_view text, double* share);

/// The classes by their names, as DataInfo::class_names has them, or their numbers.
std::vector<std::string> labels_of(const std::string& class_names, size_t classes);

/// The time until a job's last step, by the pace of this run; below 0: not known, or no step remains.
double seconds_remaining(uint64_t step, uint64_t steps, uint64_t resumed, double seconds);

/// Of a job: "3", or "2 of 3" where some of those it began with are missing.
std::string text_nodes(size_t now, size_t submitted);
/// "jobs of node a; …": whose jobs a daemon lists, and how those of the other nodes are found; "": it has no other nodes.
std::string text_jobs_of(const std::string& self, const std::vector<NodeInfo>& nodes);

/// Columns as wide as their widest cell, two spaces between; a column that holds numbers (first row after the head) is set to the right.
std::vector<std::string> table_lines(const std::vector<std::vector<std::string>>& rows);
void print_table(const std::vector<std::vector<std::string>>& rows);

/// One rewritten line on a terminal; otherwise a line an epoch, and one every five seconds.  Each warning of the job once, when it comes.
class ProgressBar {
public:
    ProgressBar();
    ~ProgressBar() { end(); }
    void show(const JobDetail& job);
    void end();   // leaves the line as it is

private:
    bool terminal_, open_ = false;
    uint64_t shown_us_ = 0, epoch_ = 0;
    std::string printed_;   // progress_text() of the last line
    std::vector<std::string> warned_;
};

/// "peer_lost": "peer lost".
std::string words_of(std::string key);
/// What one node of a job did, as far as we could ask it.
struct NodeResult {
    std::string name;
    std::optional<JobStatus> status;
};
/// A line a node: p50 and p99 of each phase of its last steps, in milliseconds.
void print_times(const std::vector<NodeTimes>& nodes);
/// Of a net in stages: how it runs, and a line a node.
void print_pipeline(const PipelineStatus& pipeline);
/// A line for each worker at each node, 32 at most; nothing where no node has several: then a node's counts are its worker's.  Bytes and
/// waiting belong to nodes.
void print_workers(const std::vector<NodeResult>& nodes);
/// All that are not zero, a line a metric.
void print_metrics(const std::vector<MetricSample>& samples);
/// On stderr.
void print_warnings(const JobStatus& status);
/// The end of run, submit --wait and watch: the table of nodes, the time, then the lines `accuracy …` (without accuracies `test loss …`)
/// and `digest …`; or the error on stderr. `kept`: where the model and the records are, "" if nowhere.  Returns the exit code.
int print_result(bool json, const JobDetail& job, const std::vector<NodeResult>& nodes, const std::string& kept);

}   // namespace gradcast
