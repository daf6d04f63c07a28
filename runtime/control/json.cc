#include "runtime/control/json.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

namespace gradcast {
namespace {

constexpr JobState states[] = {JobState::preparing, JobState::running, JobState::done, JobState::failed, JobState::cancelled};

Json number_or_null(double value, bool known) { return known && std::isfinite(value) ? Json(value) : Json(nullptr); }

template <typename T>
void take(const Json& json, const char* key, T& value) {
    if (auto at = json.find(key); at != json.end() && !at->is_null()) at->get_to(value);
}

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

template <typename T>
Json object_or_null(const std::optional<T>& value) {
    return value ? Json(*value) : Json(nullptr);
}
template <typename T>
void take_optional(const Json& json, const char* key, std::optional<T>& value) {
    if (auto at = json.find(key); at != json.end() && !at->is_null()) value = at->template get<T>();
}

}   // namespace

void to_json(Json& json, const DatagramsFound& found) {
    json = Json{{"probed", found.probed},
                {"multicast", found.multicast},
                {"group", found.group},
                {"interface", found.interface},
                {"datagram_bytes", found.bytes},
                {"peers", found.peers},
                {"peers_reached", found.reached},
                {"rate_mbit_per_s", number_or_null(found.rate_mbit, found.rate_mbit > 0)},
                {"gso", found.gso},
                {"gro", found.gro},
                {"without_multicast", found.without_multicast}};
}

void from_json(const Json& json, DatagramsFound& found) {
    take(json, "probed", found.probed);
    take(json, "multicast", found.multicast);
    take(json, "group", found.group);
    take(json, "interface", found.interface);
    take(json, "datagram_bytes", found.bytes);
    take(json, "peers", found.peers);
    take(json, "peers_reached", found.reached);
    take(json, "rate_mbit_per_s", found.rate_mbit);
    take(json, "gso", found.gso);
    take(json, "gro", found.gro);
    take(json, "without_multicast", found.without_multicast);
}

void to_json(Json& json, const ExchangePrediction& prediction) {
    json = Json{{"exchange", prediction.exchange}};
    if (prediction.m > 0) {
        json["m"] = prediction.m;
        json["s"] = prediction.s;
    }
    if (prediction.r > 0) json["r"] = prediction.r;
    if (prediction.servers > 0) json["servers"] = prediction.servers;
    json["step_us"] = prediction.step_us;
}

void from_json(const Json& json, ExchangePrediction& prediction) {
    take(json, "exchange", prediction.exchange);
    take(json, "m", prediction.m);
    take(json, "s", prediction.s);
    take(json, "r", prediction.r);
    take(json, "servers", prediction.servers);
    take(json, "step_us", prediction.step_us);
}

void to_json(Json& json, const ExchangeReport& report) {
    json = Json::object();
    if (report.chosen < report.predictions.size()) json = report.predictions[report.chosen];
    json.update(Json{{"chosen", report.chosen},
                     {"predictions", report.predictions},
                     {"block_us", report.block_us},
                     {"wait_us", report.wait_us},
                     {"latency_us", report.latency_us}});
}

void from_json(const Json& json, ExchangeReport& report) {
    take(json, "chosen", report.chosen);
    take(json, "predictions", report.predictions);
    take(json, "block_us", report.block_us);
    take(json, "wait_us", report.wait_us);
    take(json, "latency_us", report.latency_us);
}

void to_json(Json& json, const ViewRecord& view) {
    json = Json{{"number", view.number},
                {"first_step", view.first_step},
                {"began_unix", view.began_unix},
                {"members", view.members},
                {"came", view.came},
                {"left", view.left},
                {"why", view.why},
                {"stood_us", view.stood_us}};
}

void from_json(const Json& json, ViewRecord& view) {
    take(json, "number", view.number);
    take(json, "first_step", view.first_step);
    take(json, "began_unix", view.began_unix);
    take(json, "members", view.members);
    take(json, "came", view.came);
    take(json, "left", view.left);
    take(json, "why", view.why);
    take(json, "stood_us", view.stood_us);
}

void to_json(Json& json, const NodeTimes& node) {
    json = Json{{"node", node.node}, {"steps", node.times.steps}, {"blocks", node.times.blocks}};
    for (size_t i = 0; i < step_phases; ++i) {
        const PhaseTimes& each = node.times.phases[i];
        json["phases"][step_phase_name(static_cast<StepPhase>(i))] = {
            {"recent_us", each.recent}, {"p50_us", each.p50}, {"p99_us", each.p99}};
    }
}

void from_json(const Json& json, NodeTimes& node) {
    take(json, "node", node.node);
    take(json, "steps", node.times.steps);
    take(json, "blocks", node.times.blocks);
    if (!json.contains("phases")) return;
    for (size_t i = 0; i < step_phases; ++i) {
        const auto at = json["phases"].find(step_phase_name(static_cast<StepPhase>(i)));
        if (at == json["phases"].end()) continue;
        take(*at, "recent_us", node.times.phases[i].recent);
        take(*at, "p50_us", node.times.phases[i].p50);
        take(*at, "p99_us", node.times.phases[i].p99);
    }
}

void to_json(Json& json, const Straggler& straggler) {
    json = Json{{"node", straggler.node},
                {"phase", straggler.phase},
                {"us", straggler.us},
                {"others_us", straggler.others_us},
                {"advice", straggler.advice}};
}

void from_json(const Json& json, Straggler& straggler) {
    take(json, "node", straggler.node);
    take(json, "phase", straggler.phase);
    take(json, "us", straggler.us);
    take(json, "others_us", straggler.others_us);
    take(json, "advice", straggler.advice);
}

namespace {

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
        if (*row.label) json[row.name][each.label] = value;
        else json[row.name] = value;
    }
    return json;
}

void metrics_take(const Json& json, std::vector<MetricSample>& samples) {
    for (size_t i = 0; i < metric_count; ++i) {
        const MetricRow& row = metric_rows[i];
        const auto at = json.find(row.name);
        if (at == json.end()) continue;
        auto sample = [&](const std::string& label, const Json& value) {
            MetricSample made{static_cast<Metric>(i), label, 0, {}};
            if (row.kind == MetricKind::histogram) {
                take(value, "sum", made.value);
                take(value, "buckets", made.counts);
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

void to_json(Json& json, const JobStatus& status) {
    Json memory = Json::object();
    for (const MemoryUse& each : status.memory) memory[key_of(each.place)] = numbers_json(each.bytes);
    Json settings = Json::object();
    for (const auto& [key, value] : status.settings) settings[key] = value;
    json = Json{{"state", job_state_name(status.state)},
                {"error", status.error},
                {"code", code_name(status.code)},
                {"goes_on", status.goes_on},
                {"losses", status.losses},
                {"warnings", status.warnings},
                {"step", status.step},
                {"steps", status.steps},
                {"epoch", status.epoch},
                {"epochs", status.epochs},
                {"checkpoint", status.checkpoint},
                {"resumed", status.resumed},
                {"settings", settings},
                {"gradients", status.gradients},
                {"forwards", status.forwards},
                {"loss", number_or_null(status.loss, status.step > 0)},
                {"accuracy", number_or_null(status.accuracy, status.accuracy >= 0)},
                {"test_loss", number_or_null(status.test_loss, status.test_loss >= 0)},
                {"digest", status.digest},
                {"step_digest", fmt::format("{:016x}", status.step_digest)},
                {"seconds", status.seconds},
                {"samples_per_second", status.samples_per_second},
                {"bytes_sent", status.bytes_sent},
                {"bytes_received", status.bytes_received},
                {"bytes_bound", status.bytes_bound},
                {"load_wait_us", status.load_wait_us},
                {"exchange_wait_us", status.exchange_wait_us},
                {"kernel_set", status.kernel_set},
                {"path", status.path},
                {"choice", object_or_null(status.choice)},
                {"datagrams", object_or_null(status.datagrams)},
                {"timeouts_us", numbers_json(status.timeouts_us)},
                {"view", status.view},
                {"views", status.views},
                {"change_us", status.change_us},
                {"memory_bytes", memory},
                {"metrics", metrics_json(status.metrics)},
                {"times", status.times},
                {"stragglers", status.stragglers},
                {"model", status.model}};
}

void from_json(const Json& json, JobStatus& status) {
    std::string state, digest, code;
    take(json, "state", state);
    take(json, "code", code);
    for (Code each = Code::ok; each <= Code::unsupported; each = static_cast<Code>(static_cast<int>(each) + 1))
        if (code == code_name(each)) status.code = each;
    for (JobState each : states)
        if (state == job_state_name(each)) status.state = each;
    take(json, "error", status.error);
    take(json, "goes_on", status.goes_on);
    take(json, "losses", status.losses);
    take(json, "warnings", status.warnings);
    take(json, "step", status.step);
    take(json, "steps", status.steps);
    take(json, "epoch", status.epoch);
    take(json, "epochs", status.epochs);
    take(json, "checkpoint", status.checkpoint);
    take(json, "resumed", status.resumed);
    if (auto settings = json.find("settings"); settings != json.end())
        for (const auto& [key, value] : settings->items())
            if (value.is_string()) status.settings.emplace_back(key, value.get<std::string>());
    take(json, "gradients", status.gradients);
    take(json, "forwards", status.forwards);
    take(json, "loss", status.loss);
    take(json, "accuracy", status.accuracy);
    take(json, "test_loss", status.test_loss);
    take(json, "digest", status.digest);
    take(json, "step_digest", digest);
    status.step_digest = std::strtoull(digest.c_str(), nullptr, 16);
    take(json, "seconds", status.seconds);
    take(json, "samples_per_second", status.samples_per_second);
    take(json, "bytes_sent", status.bytes_sent);
    take(json, "bytes_received", status.bytes_received);
    take(json, "bytes_bound", status.bytes_bound);
    take(json, "load_wait_us", status.load_wait_us);
    take(json, "exchange_wait_us", status.exchange_wait_us);
    take(json, "kernel_set", status.kernel_set);
    take(json, "path", status.path);
    take_optional(json, "choice", status.choice);
    take_optional(json, "datagrams", status.datagrams);
    take(json, "view", status.view);
    take(json, "views", status.views);
    take(json, "change_us", status.change_us);
    if (auto memory = json.find("memory_bytes"); memory != json.end())
        for (const auto& [place, bytes] : memory->items())
            take_numbers(*memory, place.c_str(), status.memory.emplace_back(MemoryUse{place, {}}).bytes);
    take_numbers(json, "timeouts_us", status.timeouts_us);
    if (auto metrics = json.find("metrics"); metrics != json.end()) metrics_take(*metrics, status.metrics);
    take(json, "times", status.times);
    take(json, "stragglers", status.stragglers);
    take(json, "model", status.model);
}

void to_json(Json& json, const JobSummary& summary) {
    json = Json{{"id", summary.id},
                {"name", summary.name},
                {"submitted_unix", summary.submitted_unix},
                {"nodes", summary.nodes},
                {"status", summary.status}};
}

void from_json(const Json& json, JobSummary& summary) {
    take(json, "id", summary.id);
    take(json, "name", summary.name);
    take(json, "submitted_unix", summary.submitted_unix);
    take(json, "nodes", summary.nodes);
    take(json, "status", summary.status);
}

void to_json(Json& json, const JobDetail& detail) {
    to_json(json, detail.summary);
    json.update(Json{{"self", static_cast<uint32_t>(detail.self)},
                     {"started", detail.started},
                     {"algorithm", detail.algorithm},
                     {"exchange", detail.exchange},
                     {"quantiser", detail.quantiser},
                     {"protect", detail.protect},
                     {"batch", detail.batch},
                     {"blocks", detail.blocks}});
    if (!detail.folder.empty()) json["folder"] = detail.folder;
    Json curve = Json::array();
    for (const CurvePoint& each : detail.summary.status.curve)
        curve.push_back(
            {each.step, number_or_null(each.loss, true), number_or_null(each.accuracy, each.accuracy >= 0), each.seconds, each.bytes_sent});
    json["curve"] = std::move(curve);
}

void from_json(const Json& json, JobDetail& detail) {
    from_json(json, detail.summary);
    uint32_t self = 0;
    take(json, "self", self);
    detail.self = NodeId{self};
    take(json, "started", detail.started);
    take(json, "folder", detail.folder);
    if (const auto curve = json.find("curve"); curve != json.end())
        for (const Json& each : *curve) {
            CurvePoint point{.step = each.at(0).get<uint64_t>()};
            if (each.at(1).is_number()) each.at(1).get_to(point.loss);
            if (each.at(2).is_number()) each.at(2).get_to(point.accuracy);
            if (each.size() > 4) each.at(3).get_to(point.seconds), each.at(4).get_to(point.bytes_sent);
            detail.summary.status.curve.push_back(point);
        }
    take(json, "algorithm", detail.algorithm);
    take(json, "exchange", detail.exchange);
    take(json, "quantiser", detail.quantiser);
    take(json, "protect", detail.protect);
    take(json, "batch", detail.batch);
    take(json, "blocks", detail.blocks);
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
    take(json, "check", finding.check);
    take(json, "verdict", verdict);
    take(json, "text", finding.text);
    finding.verdict = verdict == "ok" ? Finding::Verdict::ok : verdict == "warning" ? Finding::Verdict::warning : Finding::Verdict::error;
}

void to_json(Json& json, const NodeInfo& node) {
    json = Json{{"name", node.name}, {"address", node.address},   {"uuid", node.uuid},      {"version", node.version},
                {"self", node.self}, {"alive", node.alive},       {"jobs", node.jobs},      {"why", node.why},
                {"isa", node.isa},   {"draining", node.draining}, {"hinders", node.hinders}};
}

void from_json(const Json& json, NodeInfo& node) {
    take(json, "name", node.name);
    take(json, "address", node.address);
    take(json, "uuid", node.uuid);
    take(json, "version", node.version);
    take(json, "self", node.self);
    take(json, "alive", node.alive);
    take(json, "jobs", node.jobs);
    take(json, "why", node.why);
    take(json, "isa", node.isa);
    take(json, "draining", node.draining);
    take(json, "hinders", node.hinders);
}

void to_json(Json& json, const Submission& submission) {
    json = Json{{"text", submission.text},   {"path", submission.path},   {"base", submission.base},
                {"nodes", submission.nodes}, {"count", submission.count}, {"bench", submission.bench}};
}

void from_json(const Json& json, Submission& submission) {
    take(json, "text", submission.text);
    take(json, "path", submission.path);
    take(json, "base", submission.base);
    take(json, "nodes", submission.nodes);
    take(json, "count", submission.count);
    take(json, "bench", submission.bench);
}

std::string json_text(const Json& json, int indent) { return json.dump(indent, ' ', false, Json::error_handler_t::replace); }

}   // namespace gradcast
