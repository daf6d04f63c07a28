// What a job reports at one rank while it runs: its log, its status for the control plane, a line of steps.jsonl a step.
#pragma once
#include <fmt/format.h>

#include <array>
#include <mutex>
#include <optional>

#include "algos/context.h"
#include "runtime/job/file/engine_config.h"
#include "runtime/job/report/event_file.h"
#include "runtime/job/report/job_status.h"
#include "runtime/job/report/step_log.h"
#include "transport/bulk/bulk.h"
#include "transport/link/link.h"

namespace gradcast {

class Evaluator;

class Report {
public:
    explicit Report(const Log& log) : log_(log) {}
    /// Log and steps.jsonl, in the job's folder, which is there.
    Status open(const EngineConfig& config);
    const Log& log() const { return log_; }
    const StepTimes& times() const { return times_; }
    /// Network thread: the step times of another node have come.
    void times_of(NodeId node, const RankTimes& times) { nodes_times_.set(static_cast<size_t>(node), times); }
    // Of a net in stages.
    const StageLog& stages() const { return stages_; }
    void stage_of(NodeId node, StageNews news) { nodes_stages_.set(static_cast<size_t>(node), std::move(news)); }   // as times_of()
    /// A view begins, with these nodes and without their news.
    void pipeline(PipelineStatus status);
    /// Logged, and shown with the job.
    void warn(const std::string& text);
    JobStatus status() const;                                               // any thread
    void counters(const LinkCounters* counters) { counters_ = counters; }   // of the driver; before begin()
    uint64_t copies() const { return counters_ ? counters_->copies.load(std::memory_order_relaxed) : 0; }
    /// change(JobStatus&).
    template <typename Change>
    void update(Change change) {
        std::lock_guard lock(mutex_);
        change(status_);
    }

    /// ask(const JobStatus&), without a copy of it and without the metrics that status() adds.  Any thread.
    template <typename Ask>
    auto look(Ask ask) const {
        std::lock_guard lock(mutex_);
        return ask(status_);
    }

    // Trainer thread.
    /// All views so far (view_records.h).
    void views(std::vector<ViewRecord> views);
    std::vector<ViewRecord> views() const;   // any thread
    /// The first step of this run begins, after `steps` of an earlier one, the last of which was in `epoch` (0: there is none).
    void begin(uint64_t now_us, uint64_t steps, uint64_t epoch);
    /// Bytes that this node has sent and received since the last call.
    std::pair<uint64_t, uint64_t> take_bytes();
    struct Step {
        StepRecord record;
        uint64_t bytes_sent, bytes_received;     // since the step before
        uint64_t bytes_bound;                    // what the step takes by the exchange's formula
        uint64_t edge_bytes;                     // likewise: of values and gradients that cross the cuts of a net in stages
        uint64_t samples, gradients, forwards;   // so far
        std::span<const WorkerCounts> workers;
        const Staleness& staleness;
        uint64_t epoch, load_wait_us, now_us;
        std::array<uint64_t, step_phases> phases_us;
        const StageRecord* stage;           // null: this node computes no stage
        uint32_t blocks;                    // that this node computes
        std::optional<NodeId> waited_for;   // whose packet it has waited for
        const BulkCounters& bulk;           // since the view `bulk_view` began
        uint32_t bulk_view;
        const char* kernels;
        const std::string& kernel_set;
        const char* exchange;
        bool logs;   // this rank says in its log how far the job is
    };
    /// A step is applied.  Its line stays open for what an evaluation adds.
    void step(const Step& step, const std::vector<std::string>& why_lost);
    /// An evaluation, whose time is none of training, until evaluation_end().
    void evaluation_begin(const Evaluator& evaluator, uint64_t now_us);
    void evaluation_end(uint64_t now_us);
    /// After that step; accuracy below 0: a regression, of which nothing is right or wrong.
    void evaluated(uint64_t epoch, double accuracy, double loss);
    /// What own workers have learnt in that step, before they were averaged: their accuracies on the test data.
    void workers(std::span<const std::pair<uint32_t, double>> accuracies);
    void step_end();
    /// After the last step: steps.jsonl is complete.
    void steps_end(uint64_t steps) { log_gap(steps), steps_log_.close(), events_.close(); }
    /// The state after `steps` steps came from that node, which has recorded those that have no line here.
    void state_from(const std::string& node, uint64_t steps) { state_from_ = {node, steps}; }
    /// Any thread: waits until all records so far are in the file, and those of steps on the disk.  Error: as of StepLog::sync().
    Status sync(uint64_t us_max) { return events_.flush(), steps_log_.sync(us_max); }
    void hurry() { steps_log_.hurry(); }
    void samples(uint64_t of_a_step, uint32_t tokens) {
        batch_ = of_a_step;
        std::lock_guard lock(mutex_);
        status_.tokens = tokens;
    }
    /// What an earlier run has evaluated last.
    void resumed(double accuracy, double loss);
    /// Of the whole job, after `steps` steps, with this digest where it has gone well.
    void end(Status status, uint64_t steps, const std::string& digest, uint64_t now_us, const std::vector<std::string>& why_lost);

private:
    JobStatus known() const;   // without what follows from it
    void measure(const Step& step);
    /// A line of steps.jsonl in place of those up to step `steps` that are missing.
    void log_gap(uint64_t steps);
    void point(const CurvePoint& point);
    void fill_metrics(JobStatus& status) const;   // holding mutex_

    Log log_;
    StepLog steps_log_;
    EventFile events_;                // of TensorBoard, where the job file wants one
    std::array<Scalar, 7> scalars_;   // of the step whose line is open
    size_t scalars_count_ = 0;
    double wall_seconds_ = 0;                                // at the end of that step
    double trained_seconds_ = 0;                             // of this run until the end of that step, without evaluations
    uint64_t evaluation_us_ = 0, evaluation_begin_us_ = 0;   // of all that have ended; of the one under way
    void scalar(const char* tag, double value) { scalars_[scalars_count_++] = {tag, value}; }
    const char* quantiser_ = "";
    uint64_t batch_ = 0;   // samples of a step
    const LinkCounters* counters_ = nullptr;
    StepRecord record_;       // of the last step
    double begin_wall_ = 0;   // seconds of Unix at begin_us_
    uint64_t begin_us_ = 0, first_ = 0, logged_us_ = 0, sent_ = 0, received_ = 0;
    uint64_t bound_ = 0,
             edge_bytes_ = 0;   // of the newest step; it counts once a step of the same view follows: a new view drops what is still unsent
    fmt::memory_buffer line_;
    /// The last step that has a line in steps.jsonl, or lies in a gap that has one; not known before begin().
    std::optional<uint64_t> logged_;
    std::pair<std::string, uint64_t> state_from_;   // the node and its steps
    uint32_t bulk_view_ = 0;
    std::array<uint64_t, 7> bulk_seen_{};   // in that view
    Roster nodes_;
    NodeId self_{0};
    StepTimes times_;
    TimesOfNodes nodes_times_;
    StageLog stages_;
    StagesOfNodes nodes_stages_;
    uint64_t curve_every_ = 1;   // steps between two points
    std::atomic<uint64_t> repairs_bytes_{0}, feedback_bytes_{0};
    mutable Metrics metrics_;
    mutable std::mutex mutex_;
    JobStatus status_;
    const Evaluator* evaluator_ = nullptr;   // while it evaluates
};

}   // namespace gradcast
