#include "runtime/control/metrics_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/control/json.h"
#include "runtime/core/version.h"

namespace gradcast {
namespace {

/// A label's value, or a help text: UTF-8 without line ends.
std::string escaped(const std::string& text) {
    std::string valid = json_text(Json(text));   // bytes that are not UTF-8 have become replacement characters
    valid = Json::parse(valid).get<std::string>();
    std::string result;
    for (const char c : valid) {
        if (c == '\\' || c == '"') result += '\\';
        if (c == '\n') result += "\\n";
        else result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return result;
}

using Labels = std::vector<std::pair<const char*, std::string>>;

class Writer {
public:
    explicit Writer(MetricsFormat format) : format_(format) {}

    void family(const std::string& name, MetricKind kind, const char* help) {
        static constexpr const char* kinds[] = {"counter", "gauge", "histogram"};
        name_ = name;
        total_ = kind == MetricKind::counter ? "_total" : "";
        const std::string shown = format_ == MetricsFormat::open_metrics ? name : name + total_;
        text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", shown, help, shown, kinds[static_cast<size_t>(kind)]);
    }
    void value(const Labels& labels, double value) { line(total_, labels, fmt::format("{:.17g}", value)); }
    void histogram(Labels labels, const MetricSample& sample) {
        uint64_t below = 0;
        labels.emplace_back("le", "");
        for (size_t bucket = 0; bucket < histogram_buckets; ++bucket) {
            below += sample.counts[bucket];
            const bool last = bucket + 1 == histogram_buckets;
            labels.back().second = last ? "+Inf" : fmt::format("{}", static_cast<double>(histogram_bound_us(bucket)) * 1e-6);
            line("_bucket", labels, std::to_string(below));
        }
        labels.pop_back();
        line("_sum", labels, fmt::format("{:.17g}", sample.value));
        line("_count", labels, std::to_string(below));
    }
    std::string text() const { return text_ + (format_ == MetricsFormat::open_metrics ? "# EOF\n" : ""); }

private:
    void line(const char* suffix, const Labels& labels, const std::string& value) {
        text_ += name_ + suffix;
        for (size_t i = 0; i < labels.size(); ++i)
            text_ += fmt::format("{}{}=\"{}\"", i == 0 ? "{" : ",", labels[i].first, escaped(labels[i].second));
        text_ += (labels.empty() ? " " : "} ") + value + "\n";
    }
    const MetricsFormat format_;
    std::string name_, text_;
    const char* total_ = "";
};

const char* unit_suffix(MetricUnit unit) {
    switch (unit) {
        case MetricUnit::none: return "";
        case MetricUnit::bytes: return "_bytes";
        case MetricUnit::seconds: return "_seconds";
        case MetricUnit::ratio: return "_ratio";
    }
    return "";
}

}   // namespace

const char* metrics_content_type(MetricsFormat format) {
    return format == MetricsFormat::open_metrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                                                 : "text/plain; version=0.0.4; charset=utf-8";
}

std::string metrics_text(const std::vector<JobSummary>& jobs, const std::vector<NodeInfo>& nodes, MetricsFormat format) {
    Writer writer(format);
    writer.family("gradcast_build_info", MetricKind::gauge, "the version of gradcastd");
    writer.value({{"version", version_text}}, 1);
    writer.family("gradcast_node_alive", MetricKind::gauge, "whether this node sees that one alive");
    for (const NodeInfo& each : nodes) writer.value({{"node", each.name}}, each.alive ? 1 : 0);
    writer.family("gradcast_node_draining", MetricKind::gauge, "whether the node takes no new jobs");
    for (const NodeInfo& each : nodes) writer.value({{"node", each.name}}, each.draining ? 1 : 0);
    writer.family("gradcast_jobs", MetricKind::gauge, "jobs that this node lists, by state");
    for (const JobState state : {JobState::preparing, JobState::running, JobState::done, JobState::failed, JobState::cancelled})
        writer.value({{"state", job_state_name(state)}},
                     static_cast<double>(
                         std::count_if(jobs.begin(), jobs.end(), [&](const JobSummary& each) { return each.status.state == state; })));
    std::vector<const JobSummary*> running;
    for (const JobSummary& each : jobs)
        if (each.status.state == JobState::running) running.push_back(&each);
    writer.family("gradcast_job_straggler_seconds", MetricKind::gauge, "time of a step that a straggler spends in its slow phase");
    for (const JobSummary* job : running)
        for (const Straggler& each : job->status.stragglers)
            writer.value({{"job", job->name}, {"id", job->id}, {"straggler", each.node}, {"phase", each.phase}}, each.us * 1e-6);
    for (const MetricRow& row : metric_rows) {
        writer.family(fmt::format("gradcast_job_{}{}", row.name, unit_suffix(row.unit)), row.kind, row.help);
        for (const JobSummary* job : running)
            for (const MetricSample& each : job->status.metrics) {
                if (each.metric != row.id) continue;
                Labels labels = {{"job", job->name}, {"id", job->id}};
                if (*row.label) labels.emplace_back(row.label, each.label);
                if (row.kind == MetricKind::histogram) writer.histogram(std::move(labels), each);
                else writer.value(labels, each.value);
            }
    }
    return writer.text();
}

}   // namespace gradcast
