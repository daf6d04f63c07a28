#include "runtime/control/json.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

namespace gradcast {
namespace {

constexpr JobState states[] = {JobState::preparing, JobState::running, JobState::done, JobState::failed, JobState::cancelled};

/// "Peer lost, twice": "peer_lost_twice".
std::string key_of(const std::string& name) {
    std::string key;
    for (unsigned char c : name) {
        if (std::isalnum(c)) key += static_cast<char>(std::tolower(c));
        else if (!key.empty() && key.back() != '_') key += '_';
    }
    return key;
}

using Numbers = std::vector<std::pair<std::string, uint64_t>>;
Json numbers_json(const Numbers& numbers) {
    Json json = Json::object();
    for (const auto& [name, number] : numbers) json[key_of(name)] = number;
    return json;
}
void take_numbers(const Json& json, const char* key, Numbers& numbers) {
    if (auto at = json.find(key); at != json.end())
        for (const auto& [name, number] : at->items()) numbers.emplace_back(name, number.get<uint64_t>());
}

// What of a struct is written and read by one list of fields; the rest of it stands in its to_json() and from_json().

void some_fields(const auto& each, Is<ExchangeReport> auto& report) {
    each("chosen", report.chosen);
    each("predictions", report.predictions);
    each("block_us", report.block_us);
    each("wait_us", report.wait_us);
    each("latency_us", report.latency_us);
}

void some_fields(const auto& each, Is<NodeTimes> auto& node) {
    each("node", node.node);
    each("steps", node.times.steps);
    each("blocks", node.times.blocks);
}

void some_fields(const auto& each, Is<PhaseTimes> auto& phase) {
    each("recent_us", phase.recent);
    each("p50_us", phase.p50);
    each("p99_us", phase.p99);
}

void some_fields(const auto& each, Is<JobStatus> auto& status) {
    each("error", status.error);
    each("goes_on", status.goes_on);
    each("unheard", status.may_rejoin);
    each("voters", status.voters);
    each("losses", status.losses);
    each("warnings", status.warnings);
    each("step", status.step);
    each("steps", status.steps);
    each("epoch", status.epoch);
    each("epochs", status.epochs);
    each("checkpoint", status.checkpoint);
    each("resumed", status.resumed);
    each("samples", status.samples);
    each("gradients", status.gradients);
    each("forwards", status.forwards);
    each("workers", status.workers);
    each("staleness", status.staleness);
    each("loss", status.loss, status.stepped());
    each("accuracy", status.accuracy, status.accuracy >= 0);
    each("test_loss", status.test_loss, status.test_loss >= 0);
    each("digest", status.digest);
    each("seconds", status.seconds);
    each("samples_per_second", status.samples_per_second);
    each("tokens", status.tokens);
    each("evaluating", status.evaluating, status.evaluating >= 0);
    each("bytes_sent", status.bytes_sent);
    each("bytes_received", status.bytes_received);
    each("bytes_bound", status.bytes_bound);
    each("edge_bytes", status.edge_bytes);
    each("may_send_less", status.may_send_less);
    each("load_wait_us", status.load_wait_us);
    each("exchange_wait_us", status.exchange_wait_us);
    each("stage", status.stage);
    each("pipeline", status.pipeline);
    each("grid", status.grid);
    each("kernel_set", status.kernel_set);
    each("path", status.path);
    each("choice", status.choice);
    each("datagrams", status.datagrams);
    each("view", status.view);
    each("views", status.views);
    each("change_us", status.change_us);
    each("times", status.times);
    each("stragglers", status.stragglers);
    each("model", status.model);
}

void some_fields(const auto& each, Is<JobDetail> auto& detail) {
    each("started", detail.started);
    each("algorithm", detail.algorithm);
    each("exchange", detail.exchange);
    each("quantiser", detail.quantiser);
    each("protect", detail.protect);
    each("batch", detail.batch);
    each("blocks", detail.blocks);
}

void some_fields(const auto& each, Is<StageNode> auto& node) {
    each("node", node.node);
    each("stage", node.stage);
    each("replica", node.replica, node.replica > 0);   // null: a spare
    each("slice_group", node.slice_group);
    each("steps", node.news.steps);
    each("micro_batches", node.news.micro_batches);
    each("step_us", node.news.step_us);
}

constexpr const char* stage_time_keys[] = {"forward_us",   "backward_us", "weights_us", "values_us",
                                           "gradients_us", "unsent_us",   "sums_us",    "reports_us"};
static_assert(std::size(stage_time_keys) == stage_times);

template <typename T>
void write(Json& json, const T& value) {
    if (!json.is_object()) json = Json::object();
    some_fields(JsonWriter{json}, value);
}
template <typename T>
void read(const Json& json, T& value) {
    some_fields(JsonReader{json}, value);
}

/// A number by name; by label where the metric has one; of a histogram its sum in seconds, quantiles and buckets.
Json metrics_json(const std::vector<MetricSample>& samples) {
    Json json = Json::object();
    for (const MetricSample& each : samples) {
        const MetricRow& row = metric_row(each.metric);
        Json value = each.value;
        if (row.kind == MetricKind::histogram)
            value = Json{{"sum", each.value},
                         {"count", each.count()},
                         {"p50", each.quantile(0.5)},
                         {"p99", each.quantile(0.99)},
                         {"buckets", each.counts}};
        if (*row.label) json[row.name][each.metric == Metric::memory ? key_of(each.label) : each.label] = value;   // others are names
        else json[row.name] = value;
    }
    return json;
}

void metrics_take(const Json& json, std::vector<MetricSample>& samples) {
    for (const MetricRow& row : metric_rows) {
        const auto at = json.find(row.name);
        if (at == json.end()) continue;
        auto sample = [&](const std::string& label, const Json& value) {
            MetricSample made{row.id, label, 0, {}};
            if (row.kind == MetricKind::histogram) {
                json_take(value, "sum", made.value);
                json_take(value, "buckets", made.counts);
            } else {
                value.get_to(made.value);
            }
            samples.push_back(std::move(made));
        };
        if (*row.label)
            for (const auto& [label, value] : at->items()) sample(label, value);
        else sample("", *at);
    }
}

}   // namespace

void to_json(Json& json, const ExchangePrediction& prediction) {
    json = Json{{"exchange", prediction.exchange}};
    if (prediction.m > 0) {
        json["m"] = prediction.m;
        json["s"] = prediction.s;
    }
    if (prediction.r > 0) json["r"] = prediction.r;
    if (prediction.servers > 0) json["servers"] = prediction.servers;
    json["step_us"] = prediction.step_us;
    if (prediction.measured_us > 0) json["measured_us"] = prediction.measured_us;
}

void from_json(const Json& json, ExchangePrediction& prediction) {
    json_take(json, "exchange", prediction.exchange);
    json_take(json, "m", prediction.m);
    json_take(json, "s", prediction.s);
    json_take(json, "r", prediction.r);
    json_take(json, "servers", prediction.servers);
    json_take(json, "step_us", prediction.step_us);
    json_take(json, "measured_us", prediction.measured_us);
}

void to_json(Json& json, const ExchangeReport& report) {
    json = Json::object();
    if (report.chosen < report.predictions.size()) json = report.predictions[report.chosen];
    write(json, report);
}

void from_json(const Json& json, ExchangeReport& report) { read(json, report); }

void to_json(Json& json, const NodeTimes& node) {
    write(json, node);
    for (size_t i = 0; i < step_phases; ++i) write(json["phases"][step_phase_name(static_cast<StepPhase>(i))], node.times.phases[i]);
}

void from_json(const Json& json, NodeTimes& node) {
    read(json, node);
    if (!json.contains("phases")) return;
    for (size_t i = 0; i < step_phases; ++i)
        if (const auto at = json["phases"].find(step_phase_name(static_cast<StepPhase>(i))); at != json["phases"].end())
            read(*at, node.times.phases[i]);
}

void to_json(Json& json, const StageNode& node) {
    write(json, node);
    for (size_t i = 0; i < stage_times; ++i) json[stage_time_keys[i]] = node.news.us[i];
    json["idle"] = json_number(node.news.idle(), node.news.steps > 0);
}

void from_json(const Json& json, StageNode& node) {
    read(json, node);
    for (size_t i = 0; i < stage_times; ++i) json_take(json, stage_time_keys[i], node.news.us[i]);
}

void to_json(Json& json, const JobStatus& status) {
    json = Json{{"state", job_state_name(status.state)}, {"code", code_name(status.code)}};
    write(json, status);
    json["step_digest"] = fmt::format("{:016x}", status.step_digest);
    Json &settings = json["settings"] = Json::object(), &memory = json["memory_bytes"] = Json::object();
    for (const auto& [key, value] : status.settings) settings[key] = value;
    for (const MemoryUse& each : status.memory) memory[key_of(each.place)] = numbers_json(each.bytes);
    json["timeouts_us"] = numbers_json(status.timeouts_us);
    json["metrics"] = metrics_json(status.metrics);
}

void from_json(const Json& json, JobStatus& status) {
    std::string state, digest, code;
    json_take(json, "state", state);
    json_take(json, "code", code);
    for (Code each = Code::ok; each <= Code::unsupported; each = static_cast<Code>(static_cast<int>(each) + 1))
        if (code == code_name(each)) status.code = each;
    for (JobState each : states)
        if (state == job_state_name(each)) status.state = each;
    read(json, status);
    json_take(json, "step_digest", digest);
    status.step_digest = std::strtoull(digest.c_str(), nullptr, 16);
    if (auto settings = json.find("settings"); settings != json.end())
        for (const auto& [key, value] : settings->items())
            if (value.is_string()) status.settings.emplace_back(key, value.get<std::string>());
    status.memory.clear();
    if (auto memory = json.find("memory_bytes"); memory != json.end())
        for (const auto& [place, bytes] : memory->items())
            take_numbers(*memory, place.c_str(), status.memory.emplace_back(MemoryUse{place, {}}).bytes);
    take_numbers(json, "timeouts_us", status.timeouts_us);
    if (auto metrics = json.find("metrics"); metrics != json.end()) metrics_take(*metrics, status.metrics);
}

void to_json(Json& json, const JobDetail& detail) {
    to_json(json, detail.summary);
    json["self"] = static_cast<uint32_t>(detail.self);
    write(json, detail);
    if (!detail.folder.empty()) json["folder"] = detail.folder;
    Json curve = Json::array();
    for (const CurvePoint& each : detail.summary.status.curve)
        curve.push_back(
            {each.step, json_number(each.loss, true), json_number(each.accuracy, each.accuracy >= 0), each.seconds, each.bytes_sent});
    json["curve"] = std::move(curve);
    if (!detail.summary.status.pipeline) return;
    Json& schedule = json["schedule"] = Json::array();
    for (const StageNode& node : detail.summary.status.pipeline->nodes) {
        Json passes = Json::array();
        for (const DrawnPass& each : drawn_passes(*detail.summary.status.pipeline, node))
            passes.push_back({stage_pass_name(each.pass), each.micro_batch, each.time.begin_us, each.time.end_us});
        if (!passes.empty())
            schedule.push_back({{"node", node.node}, {"stage", node.stage}, {"step", node.news.shown}, {"passes", std::move(passes)}});
    }
}

void from_json(const Json& json, JobDetail& detail) {
    from_json(json, detail.summary);
    uint32_t self = 0;
    json_take(json, "self", self);
    detail.self = NodeId{self};
    read(json, detail);
    json_take(json, "folder", detail.folder);
    if (const auto curve = json.find("curve"); curve != json.end())
        for (const Json& each : *curve) {
            CurvePoint point{.step = each.at(0).get<uint64_t>()};
            if (each.at(1).is_number()) each.at(1).get_to(point.loss);
            if (each.at(2).is_number()) each.at(2).get_to(point.accuracy);
            if (each.size() > 4) each.at(3).get_to(point.seconds), each.at(4).get_to(point.bytes_sent);
            detail.summary.status.curve.push_back(point);
        }
    const auto schedule = json.find("schedule");
    if (schedule == json.end() || !detail.summary.status.pipeline) return;
    for (const Json& row : *schedule) {
        std::vector<StageNode>& nodes = detail.summary.status.pipeline->nodes;
        const auto node = std::ranges::find(nodes, row.at("node").get<std::string>(), &StageNode::node);
        if (node == nodes.end()) continue;
        json_take(row, "step", node->news.shown);
        for (const Json& each : row.at("passes")) node->news.passes.push_back({each.at(2).get<uint32_t>(), each.at(3).get<uint32_t>()});
    }
}

const char* verdict_name(Finding::Verdict verdict) {
    static constexpr const char* names[] = {"ok", "warning", "error"};
    return names[static_cast<size_t>(verdict)];
}

void to_json(Json& json, const Finding& finding) {
    json = Json{{"check", finding.check}, {"verdict", verdict_name(finding.verdict)}, {"text", finding.text}};
}

void from_json(const Json& json, Finding& finding) {
    std::string verdict;
    json_take(json, "check", finding.check);
    json_take(json, "verdict", verdict);
    json_take(json, "text", finding.text);
    finding.verdict = verdict == "ok" ? Finding::Verdict::ok : verdict == "warning" ? Finding::Verdict::warning : Finding::Verdict::error;
}

std::string json_text(const Json& json, int indent) { return json.dump(indent, ' ', false, Json::error_handler_t::replace); }

}   // namespace gradcast
