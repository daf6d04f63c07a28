// Where a job stands at one rank, for the control plane.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "algos/staleness.h"
#include "algos/worker_counts.h"
#include "runtime/core/memory_use.h"
#include "runtime/core/metrics.h"
#include "runtime/core/status.h"
#include "runtime/job/report/pipeline_status.h"
#include "runtime/job/report/step_times.h"
#include "transport/exchange/exchange_report.h"
#include "transport/link/datagrams_found.h"

namespace gradcast {

enum class JobState : uint8_t { preparing, running, done, failed, cancelled };
const char* job_state_name(JobState state);

/// A view in which the job has trained, as this node knows it.
struct ViewRecord {
    uint32_t number = 1;   // from 1 on
    uint64_t first_step = 1, began_unix = 0;
    std::vector<std::string> members = {};                 // by rank
    std::vector<std::string> joined = {}, departed = {};   // members that the view before did not have; that it alone had
    std::string why = {};                                  // of the change; empty: the first view
    uint64_t stood_us = 0;                                 // between the last step before and the first one that could begin
};

/// A point of the curves of loss and accuracy, by steps, seconds and bytes.
struct CurvePoint {
    uint64_t step = 0;
    double loss = 0, accuracy = -1;   // accuracy -1: not evaluated since the point before
    double seconds = 0;               // since the first step of this run
    uint64_t bytes_sent = 0;          // by this node in this run
    bool operator==(const CurvePoint&) const = default;
};

/// A copy of where a job stands, for the control plane.
struct JobStatus {
    JobState state = JobState::preparing;
    std::string error;                                           // of failed: one line that names rank, phase and thing
    Code code = Code::ok;                                        // of failed and cancelled
    std::vector<std::string> losses;                             // "without rank 2 (c): …": ranks that the job is now without, and why
    std::vector<std::string> warnings;                           // what is otherwise than was asked for
    bool goes_on = false;                                        // others go on with it, or have done it, without this node
    bool may_rejoin = false;                                     // it ended here while other members may go on: this node may rejoin it
    uint32_t voters = 0;                                         // of a view, its first members that choose the next one; 0: all
    uint64_t step = 0, steps = 0;                                // that are done; of the whole job
    uint64_t epoch = 0, epochs = 0;                              // in which the last step was, from 1 on; 0: no step is done
    uint64_t checkpoint = 0;                                     // steps that this node's newest checkpoint has; 0: none
    uint64_t resumed = 0;                                        // steps that were done when this run of the job began
    std::vector<std::pair<std::string, std::string>> settings;   // of the algorithm, with what was taken where the file says nothing
    uint64_t samples = 0;                  // that this node has trained on; one that several nodes compute is the first one's
    uint64_t gradients = 0;                // samples whose gradient it has computed
    uint64_t forwards = 0;                 // samples that it has only evaluated, test data aside
    std::vector<WorkerCounts> workers;     // that have computed at this node; workers_told_max at most
    std::vector<StalenessBin> staleness;   // of the pushes that servers have applied in this run; bins with some
    double loss = 0;                       // of the last step, mean over the mini-batch; not known where !stepped()
    double accuracy = -1;                  // on the test data, 0..1; -1: not known, or a regression
    double test_loss = -1;                 // mean; of a regression its mean squared error; -1: not known
    std::string digest;                    // 64 hex digits at the end
    uint64_t step_digest = 0;              // of the last step
    double seconds = 0;                    // since the first step
    double samples_per_second = 0;         // of training: without the time of evaluations
    uint32_t tokens = 0;                   // of a sample; 0: no text
    double evaluating = -1;                // how much of its test data this node has evaluated, 0..1; -1: no evaluation is under way
    uint64_t bytes_sent = 0, bytes_received = 0;   // this node, on the wire
    uint64_t bytes_bound = 0;     // of them sent, what this run's steps take by the exchange's formula (Cost::words_sent); 0: not known
    uint64_t edge_bytes = 0;      // likewise: of what crosses the cuts of a net in stages
    bool may_send_less = false;   // than bytes_bound: sums can do without the words of a node that is late
    uint64_t load_wait_us = 0, exchange_wait_us = 0;
    std::string stage;                         // of the net, that this node computes: "stage 1 of 2 (conv1 .. pool1)"; empty: all
    std::optional<PipelineStatus> pipeline;    // of a net in stages
    std::string grid;                          // why the net is cut so, where the job file leaves it open; empty: it does not
    std::string kernel_set;                    // as Engine::kernel_set()
    std::string path;                          // "uring_tcp" …
    std::optional<ExchangeReport> choice;      // of `auto`; nothing before it
    std::optional<DatagramsFound> datagrams;   // nothing without any
    std::vector<std::pair<std::string, uint64_t>> timeouts_us;   // all derived from the deadline (runtime/view/VIEWS.md, "Times")
    uint32_t view = 1;                                           // number of the present one
    std::vector<ViewRecord> views;                               // of this run; the newest 256
    uint64_t change_us = 0;                                      // the longest time between two steps for a change of view
    std::vector<MemoryUse> memory;                               // of the job, its view and GPUs
    std::vector<MetricSample> metrics;                           // of this node
    std::vector<NodeTimes> times;                                // of the present view's nodes that have sent them, by rank
    std::vector<Straggler> stragglers;                           // of them
    std::vector<CurvePoint> curve;                               // of this run, thinned out evenly; at most 512
    std::string model;                                           // path of final.h5; "" at ranks that have none

    bool stepped() const { return step > resumed; }   // a step is done in this run
};

/// "step 3/60  epoch 1/2  loss 0.5127  accuracy 0.8904", as progress lines begin: "loss -" where this run has done no step, "test loss"
/// where the net tells no classes, neither before the first evaluation.  Of a text "test loss" with its perplexity.
std::string progress_text(const JobStatus& status);
/// "1200 samples/s", or of a text "90000 tokens/s".
std::string speed_text(const JobStatus& status);
/// What the last evaluation found, a line each: "accuracy 0.8904", or "test loss", of a text with "perplexity".  Empty: there was none.
std::string quality_text(const JobStatus& status);

}   // namespace gradcast
