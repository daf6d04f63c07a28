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
                {"dropped", numbers_json(status.dropped)},
                {"timeouts_us", numbers_json(status.timeouts_us)},
                {"view", status.view},
                {"views", status.views},
                {"change_us", status.change_us},
                {"memory_bytes", memory},
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
    take_numbers(json, "dropped", status.dropped);
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
}

void from_json(const Json& json, JobDetail& detail) {
    from_json(json, detail.summary);
    uint32_t self = 0;
    take(json, "self", self);
    detail.self = NodeId{self};
    take(json, "started", detail.started);
    take(json, "folder", detail.folder);
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
