// The metrics of a job at one node: one table of name, kind, unit, label and help, and atomic values that any thread reads.  A new metric
// is a name in Metric and a row in metric_rows.
//
// Values of a metric are planned before the first step, one for each value of its label.  add(), set() and observe() neither allocate nor
// lock; what was not planned is ignored.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace gradcast {

enum class MetricKind : uint8_t { counter, gauge, histogram };
/// Times are kept in microseconds and read in seconds.
enum class MetricUnit : uint8_t { none, bytes, seconds, ratio };

// clang-format off
enum class Metric : uint8_t {
    steps, samples, gradients, forwards, step, steps_planned, epoch, loss, accuracy, test_loss, clipped, step_time, phase_time, peer_wait,
    sent, received, datagrams, retransmissions, losses, repaired, duplicates, unsent, reconnects, dropped, memory, view, members,
    view_change, checkpoint,
};

struct MetricRow {
    Metric id;
    const char* name;
    MetricKind kind;
    MetricUnit unit;
    const char* label;   // "": it has one value
    const char* help;
};
inline constexpr auto metric_rows = [] {
    using enum MetricKind;
    using enum MetricUnit;
    return std::to_array<MetricRow>({
        {Metric::steps,           "steps",           counter,   none,    "",        "steps that this run of the job has done"},
        {Metric::samples,         "samples",         counter,   none,    "",        "samples of these steps, at all nodes"},
        {Metric::gradients,       "gradients",       counter,   none,    "",        "samples whose gradient this node has computed"},
        {Metric::forwards,        "forwards",        counter,   none,    "",        "samples of training data that this node has only evaluated"},
        {Metric::step,            "step",            gauge,     none,    "",        "steps that the job has done in all its runs"},
        {Metric::steps_planned,   "steps_planned",   gauge,     none,    "",        "steps of the whole job"},
        {Metric::epoch,           "epoch",           gauge,     none,    "",        "epoch of the last step, from 1 on"},
        {Metric::loss,            "loss",            gauge,     none,    "",        "mean loss over the mini-batch of the last step"},
        {Metric::accuracy,        "accuracy",        gauge,     ratio,   "",        "share of the test data that the last evaluation classed correctly"},
        {Metric::test_loss,       "test_loss",       gauge,     none,    "",        "mean loss over the test data at the last evaluation"},
        {Metric::clipped,         "clipped",         counter,   none,    "",        "values that the quantiser has clipped"},
        {Metric::step_time,       "step_time",       histogram, seconds, "",        "time of a step at this node"},
        {Metric::phase_time,      "phase_time",      histogram, seconds, "phase",   "time of a step by phase; load and quantise add up all lanes and lie within compute"},
        {Metric::peer_wait,       "peer_wait",       counter,   seconds, "peer",    "time that this node has waited in steps whose last packet came from this peer"},
        {Metric::sent,            "sent",            counter,   bytes,   "kind",    "bytes that this node has sent on the wire: own, repairs and feedback of datagrams"},
        {Metric::received,        "received",        counter,   bytes,   "",        "bytes that this node has received"},
        {Metric::datagrams,       "datagrams",       counter,   none,    "",        "data packets sent as datagrams, with repairs"},
        {Metric::retransmissions, "retransmissions", counter,   none,    "",        "datagrams sent again, or as parity"},
        {Metric::losses,          "losses",          counter,   none,    "",        "datagrams that did not arrive here the first time"},
        {Metric::repaired,        "repaired",        counter,   none,    "",        "datagrams that were computed from parity here"},
        {Metric::duplicates,      "duplicates",      counter,   none,    "",        "datagrams that came here twice"},
        {Metric::unsent,          "unsent",          counter,   none,    "",        "datagrams that this node could not send"},
        {Metric::reconnects,      "reconnects",      counter,   none,    "",        "streams to other nodes that were opened again"},
        {Metric::dropped,         "dropped",         counter,   none,    "reason",  "packets that this node has dropped on receipt"},
        {Metric::memory,          "memory",          gauge,     bytes,   "purpose", "memory that the job has taken at this node"},
        {Metric::view,            "view",            gauge,     none,    "",        "number of the present view"},
        {Metric::members,         "members",         gauge,     none,    "",        "nodes of the present view"},
        {Metric::view_change,     "view_change",     gauge,     seconds, "",        "longest time that the job stood for a change of view"},
        {Metric::checkpoint,      "checkpoint",      gauge,     none,    "",        "steps that the newest checkpoint of this node has"},
    });
}();
// clang-format on
constexpr size_t metric_count = std::size(metric_rows);
constexpr const MetricRow& metric_row(Metric metric) { return metric_rows[static_cast<size_t>(metric)]; }
static_assert(std::ranges::all_of(metric_rows, [](const MetricRow& row) { return &metric_row(row.id) == &row; }),
              "rows stand in the order of Metric");

/// Upper bounds of a histogram's buckets: 64 us, and twice as much from one to the next; the last one has no bound.
constexpr size_t histogram_buckets = 21;
constexpr uint64_t histogram_bound_us(size_t bucket) { return uint64_t{64} << bucket; }

/// One value, as read.
struct MetricSample {
    Metric metric{};
    std::string label;                                  // its value; "" where the metric has none
    double value = 0;                                   // of a histogram: the sum
    std::array<uint64_t, histogram_buckets> counts{};   // of a histogram, each bucket alone
    bool operator==(const MetricSample&) const = default;
    uint64_t count() const;
    /// The upper bound of the bucket in which that share of the observations lies, in seconds.
    double quantile(double share) const;
};

class Metrics {
public:
    Metrics();
    /// One value for each label.  Before the first step; once more: what was there counts on where its label is the same.
    void plan(Metric metric, std::vector<std::string> labels);

    // Any thread.
    void add(Metric metric, uint64_t more, size_t label = 0) {
        if (std::atomic<uint64_t>* value = at(metric, label)) value->fetch_add(more, std::memory_order_relaxed);   // relaxed: a statistic
    }
    /// Sets a counter that is kept elsewhere.
    void set(Metric metric, uint64_t now, size_t label = 0) {
        if (std::atomic<uint64_t>* value = at(metric, label)) value->store(now, std::memory_order_relaxed);
    }
    void gauge(Metric metric, double now, size_t label = 0);
    void observe(Metric metric, uint64_t us, size_t label = 0);
    /// All values that are known, in the order of the table.  Not beside plan().
    std::vector<MetricSample> read() const;

private:
    struct Values {
        std::vector<std::string> labels;
        std::unique_ptr<std::atomic<uint64_t>[]> cells;   // of a histogram: its sum, then its buckets
    };
    static size_t cells_of(Metric metric) { return metric_row(metric).kind == MetricKind::histogram ? 1 + histogram_buckets : 1; }
    std::atomic<uint64_t>* at(Metric metric, size_t label) {
        Values& values = values_[static_cast<size_t>(metric)];
        return label < values.labels.size() ? &values.cells[label * cells_of(metric)] : nullptr;
    }
    std::array<Values, metric_count> values_;
};

}   // namespace gradcast
