#include "tools/gradcastctl/print.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <ctime>

#include "runtime/core/clock.h"
#include "runtime/core/nearest.h"
#include "runtime/job/model/tensors.h"
#include "tools/gradcastctl/ctl.h"

namespace gradcast {

int complain_text(Exit exit, const std::string& text) {
    fmt::print(stderr, "gradcastctl: {}\n", text);
    if (errors_as_json) fmt::print("{}\n", json_text(Json{{"error", text}, {"exit", static_cast<int>(exit)}}, 2));
    return exit;
}

int job_goes_on(const std::string& id) {
    return complain(exit_failed, "interrupted; job {0} goes on: gradcastctl watch {0} follows it, gradcastctl cancel {0} ends it",
                    id.substr(0, 8));
}

std::string text_bytes(uint64_t bytes) {
    const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = static_cast<double>(bytes);
    size_t unit = 0;
    for (; value >= 1000 && unit + 1 < std::size(units); ++unit) value /= 1024;
    return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.{}f} {}", value, value < 10 ? 2 : value < 100 ? 1 : 0, units[unit]);
}

std::string text_seconds(double seconds) {
    auto whole = static_cast<uint64_t>(seconds);
    if (seconds < 120) return fmt::format("{:.{}f} s", seconds, seconds < 10 ? 2 : 1);
    if (whole < 7200) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
    return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

std::vector<std::string> labels_of(const std::string& class_names, size_t classes) {
    std::vector<std::string> labels = class_names_split(class_names);
    if (labels.size() >= classes) {
        labels.resize(classes);   // a net may have fewer outputs than the data has classes
        return labels;
    }
    labels.clear();
    for (size_t i = 0; i < classes; ++i) labels.push_back(std::to_string(i));
    return labels;
}

size_t text_columns(std::string_view text) {
    return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string text_time(uint64_t unix) {
    time_t at = static_cast<time_t>(unix);
    tm parts{};
    ::localtime_r(&at, &parts);
    return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday, parts.tm_hour,
                       parts.tm_min, parts.tm_sec);
}

bool parse_share(std::string_view text, double* share) {
    if (!text.ends_with('%')) return false;
    text.remove_suffix(1);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *share);
    *share /= 100;
    return error == std::errc() && end == text.data() + text.size() && *share > 0 && *share <= 1;
}

double seconds_remaining(uint64_t step, uint64_t steps, uint64_t resumed, double seconds) {
    if (step <= resumed || step >= steps) return -1;
    return seconds / static_cast<double>(step - resumed) * static_cast<double>(steps - step);
}

std::string text_nodes(size_t now, size_t submitted) {
    return now < submitted ? fmt::format("{} of {}", now, submitted) : std::to_string(now);
}

std::string text_jobs_of(const std::string& self, const std::vector<NodeInfo>& nodes) {
    constexpr size_t named_max = 8;
    std::vector<std::string> others;
    for (const NodeInfo& each : nodes)
        if (!each.self) others.push_back(each.name);
    if (others.empty()) return {};
    const size_t more = others.size() - std::min(others.size(), named_max);
    others.resize(others.size() - more);
    return fmt::format("jobs of node {}; jobs without it are shown by gradcastctl list on {}{}", self, fmt::join(others, ", "),
                       more > 0 ? fmt::format(" and {} more", more) : "");
}

std::vector<std::string> table_lines(const std::vector<std::vector<std::string>>& rows) {
    std::vector<size_t> widths(rows[0].size());
    for (const auto& row : rows)
        for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], text_columns(row[i]));
    std::vector<std::string> lines;
    for (const auto& row : rows) {
        std::string line;
        for (size_t i = 0; i < row.size(); ++i) {
            bool right = rows.size() > 1 && !rows[1][i].empty() && std::isdigit(static_cast<unsigned char>(rows[1][i][0])) && i > 0;
            const std::string space(widths[i] - text_columns(row[i]), ' ');
            line += right ? space + row[i] + "  " : row[i] + space + "  ";
        }
        line.erase(line.find_last_not_of(' ') + 1);
        lines.push_back(std::move(line));
    }
    return lines;
}

void print_table(const std::vector<std::vector<std::string>>& rows) {
    for (const std::string& line : table_lines(rows)) fmt::print("{}\n", line);
}

ProgressBar::ProgressBar() : terminal_(::isatty(STDERR_FILENO) != 0) {}

void ProgressBar::show(const JobDetail& job) {
    const JobStatus& status = job.summary.status;
    for (const std::string& warning : status.warnings) {
        if (std::find(warned_.begin(), warned_.end(), warning) != warned_.end()) continue;
        end();
        fmt::print(stderr, "warning: {}\n", warning);
        warned_.push_back(warning);
    }
    bool last = status.state != JobState::preparing && status.state != JobState::running;
    uint64_t now = clock_us();
    const uint64_t pause_us = terminal_ ? 100'000 : status.epoch != epoch_ ? 1'000'000 : 5'000'000;   // a file gets few lines
    if (status.step == 0 || !(now - shown_us_ >= pause_us || last)) return;   // nothing to say before the first step
    std::string text = progress_text(status);
    if (!terminal_ && text == printed_) return;
    printed_ = text;
    shown_us_ = now;
    epoch_ = status.epoch;
    if (terminal_ && status.evaluating >= 0) text = fmt::format("evaluating {:.0f}%  {}", status.evaluating * 100, text);
    text += "  " + text_seconds(status.seconds);
    if (const double remaining = seconds_remaining(status.step, status.steps, status.resumed, status.seconds); remaining >= 0)
        text += fmt::format(", {} left", text_seconds(remaining));
    text += fmt::format("  {}  sent {}  received {}", speed_text(status), text_bytes(status.bytes_sent), text_bytes(status.bytes_received));
    if (!terminal_) {
        fmt::print(stderr, "{}\n", text);
        return;
    }
    constexpr size_t cells = 24;
    size_t full = status.steps ? status.step * cells / status.steps : 0;
    text = "[" + std::string(full, '#') + std::string(cells - full, '.') + "] " + text;
    winsize size{};
    if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 && text.size() >= size.ws_col) text.resize(size.ws_col - 1u);
    fmt::print(stderr, "\r{}\x1b[K", text);
    std::fflush(stderr);
    open_ = true;
}

void ProgressBar::end() {
    if (std::exchange(open_, false)) fmt::print(stderr, "\n");
}

void print_times(const std::vector<NodeTimes>& nodes) {
    if (nodes.empty()) return;
    std::vector<std::vector<std::string>> rows(1 + nodes.size());
    rows[0].emplace_back("p50/p99 ms");
    for (size_t i = 0; i < nodes.size(); ++i) rows[1 + i].push_back(nodes[i].node);
    for (size_t phase = 0; phase < step_phases; ++phase) {
        rows[0].emplace_back(step_phase_name(static_cast<StepPhase>(phase)));
        for (size_t i = 0; i < nodes.size(); ++i) {
            const PhaseTimes& each = nodes[i].times.phases[phase];
            rows[1 + i].push_back(fmt::format("{:.1f}/{:.1f}", each.p50 * 1e-3, each.p99 * 1e-3));
        }
    }
    print_table(rows);
}

std::string words_of(std::string key) {
    std::replace(key.begin(), key.end(), '_', ' ');
    return key;
}

void print_pipeline(const PipelineStatus& pipeline) {
    const auto stages = static_cast<uint32_t>(pipeline.layers.size());
    const bool groups = pipeline.slice_groups > 1;
    std::string text = stages > 1 || !groups ? fmt::format("{} stages, {}", stages, pipeline.schedule) : "1 stage";
    if (groups) text += fmt::format(", {} slice groups", pipeline.slice_groups);
    if (pipeline.known())
        text += fmt::format(", {} micro-batches of {} block{}; idle by formula {:.2f}; {:.1f} ms a step", pipeline.micro_batches,
                            pipeline.micro_batch, pipeline.micro_batch == 1 ? "" : "s", pipeline.idle_formula, pipeline.step_us * 1e-3);
    fmt::print("{:<15} {}\n", "pipeline", text);
    std::vector<std::vector<std::string>> rows = {
        {"stage", "layers", "node", "replica", "idle", "simulated", "forward ms", "backward ms", "weights ms", "waits for, in a step"}};
    if (groups) rows[0].insert(rows[0].begin() + 2, "slices");
    std::vector<const StageNode*> nodes;
    for (const StageNode& node : pipeline.nodes) nodes.push_back(&node);
    std::ranges::stable_sort(nodes, {}, [](const StageNode* node) { return std::pair(node->stage, node->slice_group); });
    for (const StageNode* node : nodes) {
        const StageNews& news = node->news;
        auto ms = [&](StageTime what) { return news.of(what) > 0 ? fmt::format("{:.2f}", news.of(what) * 1e-3) : "-"; };
        rows.push_back({std::to_string(node->stage), node->stage - 1 < stages ? pipeline.layers[node->stage - 1] : "-", node->node,
                        node->replica > 0 ? std::to_string(node->replica) : "spare",
                        news.idle() >= 0 ? fmt::format("{:.2f}", news.idle()) : "-",
                        node->replica > 0 && node->stage - 1 < pipeline.idle_simulated.size()
                            ? fmt::format("{:.2f}", pipeline.idle_simulated[node->stage - 1])
                            : "-",
                        ms(StageTime::forward), ms(StageTime::backward), ms(StageTime::weights),
                        news.steps > 0 ? stage_waits_text(*node, stages) : "-"});
        if (groups) rows.back().insert(rows.back().begin() + 2, fmt::format("{} of {}", node->slice_group, pipeline.slice_groups));
    }
    print_table(rows);
}

void print_workers(const std::vector<NodeResult>& nodes) {
    constexpr size_t lines_max = 32;
    std::vector<std::vector<std::string>> rows = {
        {"worker", "node", "rounds", "samples", "gradients", "forward only", "computing", "sent", "received"}};
    size_t more = 0;
    for (const NodeResult& node : nodes) {
        if (!node.status) continue;
        for (const WorkerCounts& each : node.status->workers) {
            if (rows.size() > lines_max) ++more;
            else
                rows.push_back({std::to_string(each.worker), node.name, std::to_string(each.rounds), std::to_string(each.samples),
                                std::to_string(each.gradients), std::to_string(each.forwards),
                                text_seconds(static_cast<double>(each.compute_us) * 1e-6), text_bytes(each.bytes_sent),
                                text_bytes(each.bytes_received)});
        }
    }
    if (rows.size() == 1) return;
    print_table(rows);
    if (more > 0) fmt::print("and {} workers more: -o json has {} of a node, at most\n", more, workers_reported_max);
}

void print_metrics(const std::vector<MetricSample>& samples) {
    auto text = [](const MetricSample& each) -> std::string {
        const MetricRow& row = metric_row(each.metric);
        if (row.kind == MetricKind::histogram)
            return fmt::format("{} in all, p50 {}, p99 {}", text_seconds(each.value), text_seconds(each.quantile(0.5)),
                               text_seconds(each.quantile(0.99)));
        if (row.unit == MetricUnit::bytes) return text_bytes(static_cast<uint64_t>(each.value));
        if (row.unit == MetricUnit::seconds) return text_seconds(each.value);
        return fmt::format("{:.10g}", each.value);
    };
    for (size_t i = 0; i < samples.size();) {
        const MetricRow& row = metric_row(samples[i].metric);
        std::string values;
        for (const Metric metric = samples[i].metric; i < samples.size() && samples[i].metric == metric; ++i)
            if (samples[i].value != 0)
                values += fmt::format("{}{}{}{}", values.empty() ? "" : "; ", samples[i].label, samples[i].label.empty() ? "" : " ",
                                      text(samples[i]));
        if (!values.empty()) fmt::print("{:<15} {}\n", row.name, one_line(values));
    }
}

void print_warnings(const JobStatus& status) {
    for (const std::string& warning : status.warnings) fmt::print(stderr, "warning: {}\n", warning);
}

/// Of what a node sends by formula.  Nodes of a net in stages send edges, and words where there are several replicas.
static std::string bound_text(bool less, const std::string& exchange, const std::optional<PipelineStatus>& pipeline) {
    const bool words =
        exchange != "none" && (!pipeline || std::ranges::any_of(pipeline->nodes, [](const StageNode& each) { return each.replica > 1; }));
    const std::string what = fmt::format("{}{}{}", pipeline ? "edges" : "", pipeline && words ? ", " : "", words ? exchange : "");
    return fmt::format("{}{}", less ? "formula" : "at least", what.empty() ? "" : fmt::format(" ({})", what));
}

int print_result(bool json, const JobDetail& job, const std::vector<NodeResult>& nodes, const std::string& kept) {
    const JobStatus& status = job.summary.status;
    const bool done = status.state == JobState::done;
    if (json) {
        Json all = job;
        Json list = Json::array();
        for (const NodeResult& node : nodes)
            list.push_back(Json{
                {"name", node.name}, {"known", node.status.has_value()}, {"status", node.status ? Json(*node.status) : Json(nullptr)}});
        all["node_results"] = list;
        all["kept"] = kept;
        fmt::print("{}\n", json_text(all, 2));
    } else {
        const bool less =
            std::any_of(nodes.begin(), nodes.end(), [](const NodeResult& each) { return each.status && each.status->may_send_less; });
        std::vector<std::vector<std::string>> rows = {{"node", "sent", bound_text(less, job.exchange, status.pipeline), "received",
                                                       "exchange wait", "load wait", "samples", "gradients", "forward only"}};
        std::vector<std::string> unknown;
        for (const NodeResult& node : nodes) {
            if (!node.status) {
                unknown.push_back(node.name);
                continue;
            }
            const JobStatus& each = *node.status;
            const uint64_t least = each.bytes_bound + each.edge_bytes;
            rows.push_back({node.name, text_bytes(each.bytes_sent), least ? text_bytes(least) : "-", text_bytes(each.bytes_received),
                            text_seconds(static_cast<double>(each.exchange_wait_us) * 1e-6),
                            text_seconds(static_cast<double>(each.load_wait_us) * 1e-6), std::to_string(each.samples),
                            std::to_string(each.gradients), std::to_string(each.forwards)});
        }
        if (rows.size() > 1) print_table(rows);
        print_workers(nodes);
        if (!unknown.empty()) fmt::print("not known here: {} (each daemon knows the bytes of its own node)\n", fmt::join(unknown, ", "));
        fmt::print("time {}, {} of {} steps, {}\n", text_seconds(status.seconds), status.step, status.steps, speed_text(status));
        if (!kept.empty()) {
            if (!status.model.empty()) fmt::print("model {}\n", status.model);
            else if (!done) fmt::print("no model: the job ended before its last step was done\n");
            fmt::print("kept in {}\n", kept);
        }
        if (done) fmt::print("{}digest {}\n", quality_text(status), status.digest);
    }
    std::fflush(stdout);
    if (done) return exit_done;
    std::string why = status.error.empty() ? "" : ": " + status.error;
    fmt::print(stderr, "gradcastctl: job {} ({}) {}{}\n", job.summary.name, job.summary.id.substr(0, 8), job_state_name(status.state), why);
    return exit_failed;   // with -o json the status above says why
}

}   // namespace gradcast
