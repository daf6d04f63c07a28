// The JSON of the control plane: what the server sends and the client reads, in one place.  Keys are snake_case with their unit; digests of
// 64 bits are hex strings, because a double cannot hold them; what is not known is null.  Where a member has names of its own (time-outs,
// purposes of memory), it is an object by them: {"peer_lost": microseconds}.
//
// from_json throws nlohmann::json::exception on a wrong type and leaves absent members at their defaults.
#pragma once
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "runtime/control/backend.h"

namespace gradcast {

using Json = nlohmann::ordered_json;

void to_json(Json& json, const ExchangePrediction& prediction);
void from_json(const Json& json, ExchangePrediction& prediction);
/// The prediction that was chosen, all predictions and what was measured, flat.
void to_json(Json& json, const ExchangeReport& report);
void from_json(const Json& json, ExchangeReport& report);
void to_json(Json& json, const NodeTimes& node);
void from_json(const Json& json, NodeTimes& node);
/// Omits the passes, which a job's detail has as "schedule": [{"node", "stage", "step", "passes": [["forward", micro-batch, begin_us,
/// end_us], …]}, …].
void to_json(Json& json, const StageNode& node);
void from_json(const Json& json, StageNode& node);
void to_json(Json& json, const JobStatus& status);
void from_json(const Json& json, JobStatus& status);
/// All of the summary and the rest beside it, flat.
void to_json(Json& json, const JobDetail& detail);
void from_json(const Json& json, JobDetail& detail);
void to_json(Json& json, const Finding& finding);
void from_json(const Json& json, Finding& finding);

inline Json json_number(auto value, bool known) { return known && std::isfinite(static_cast<double>(value)) ? Json(value) : Json(nullptr); }
template <typename T>
void json_take(const Json& json, const char* key, T& value) {
    if (auto at = json.find(key); at != json.end() && !at->is_null()) at->get_to(value);
}

// A struct that has fields() is written and read by them: each(key, member).

struct JsonWriter {
    void operator()(const char* key, const auto& value) const { json[key] = value; }
    void operator()(const char* key, auto value, bool known) const { json[key] = json_number(value, known); }
    template <typename T>
    void operator()(const char* key, const std::optional<T>& value) const {
        json[key] = value ? Json(*value) : Json(nullptr);
    }
    void must(const char* key, const auto& value) const { json[key] = value; }   // what is read must have it
    Json& json;
};

struct JsonReader {
    void operator()(const char* key, auto& value) const { json_take(json, key, value); }
    void operator()(const char* key, auto& value, bool) const { json_take(json, key, value); }
    template <typename T>
    void operator()(const char* key, std::optional<T>& value) const {
        if (auto at = json.find(key); at != json.end() && !at->is_null()) value = at->template get<T>();
    }
    void must(const char* key, auto& value) const { json.at(key).get_to(value); }
    const Json& json;
};

/// T is Struct, which may be const.
template <typename T, typename Struct>
concept Is = std::is_same_v<std::remove_const_t<T>, Struct>;

void fields(const auto& each, Is<DatagramsFound> auto& found) {
    each("probed", found.probed);
    each("multicast", found.multicast);
    each("group", found.group);
    each("interface", found.interface);
    each("datagram_bytes", found.bytes);
    each("peers", found.peers);
    each("peers_reached", found.reached);
    each("rate_mbit_per_s", found.rate_mbit, found.rate_mbit > 0);
    each("gso", found.gso);
    each("gro", found.gro);
    each("without_multicast", found.without_multicast);
}
void fields(const auto& each, Is<PipelineStatus> auto& pipeline) {
    each("schedule", pipeline.schedule);
    each("micro_batch", pipeline.micro_batch);
    each("own_stage", pipeline.own_stage);
    each("slice_groups", pipeline.slice_groups);
    each("micro_batches", pipeline.micro_batches);
    each("step_us", pipeline.step_us, pipeline.step_us > 0);
    each("idle_formula", pipeline.idle_formula, pipeline.idle_formula >= 0);
    each("idle_simulated", pipeline.idle_simulated);
    each("layers", pipeline.layers);
    each("nodes", pipeline.nodes);
}
void fields(const auto& each, Is<ViewRecord> auto& view) {
    each("number", view.number);
    each("first_step", view.first_step);
    each("began_unix", view.began_unix);
    each("members", view.members);
    each("came", view.joined);
    each("left", view.departed);
    each("why", view.why);
    each("stood_us", view.stood_us);
}
void fields(const auto& each, Is<Straggler> auto& straggler) {
    each("node", straggler.node);
    each("phase", straggler.phase);
    each("us", straggler.us);
    each("others_us", straggler.others_us);
    each("advice", straggler.advice);
}
void fields(const auto& each, Is<WorkerCounts> auto& counts) {
    each("worker", counts.worker);
    each("rounds", counts.rounds);
    each("last_round", counts.last_round);
    each("samples", counts.samples);
    each("gradients", counts.gradients);
    each("forwards", counts.forwards);
    each("compute_us", counts.compute_us);
    each("turns", counts.turns);
    each("bytes_sent", counts.bytes_sent);
    each("bytes_received", counts.bytes_received);
}
void fields(const auto& each, Is<StalenessBin> auto& bin) {
    each("from", bin.from);
    each("to", bin.to);
    each("pushes", bin.pushes);
}
void fields(const auto& each, Is<JobSummary> auto& summary) {
    each("id", summary.id);
    each("name", summary.name);
    each("submitted_unix", summary.submitted_unix);
    each("nodes", summary.nodes);
    each("status", summary.status);
}
void fields(const auto& each, Is<NodeInfo> auto& node) {
    each("name", node.name);
    each("address", node.address);
    each("uuid", node.uuid);
    each("version", node.version);
    each("self", node.self);
    each("alive", node.alive);
    each("jobs", node.jobs);
    each("why", node.why);
    each("isa", node.isa);
    each("draining", node.draining);
    each("hinders", node.hinders);
}
void fields(const auto& each, Is<Submission> auto& submission) {
    each("text", submission.text);
    each("path", submission.path);
    each("base", submission.base);
    each("nodes", submission.nodes);
    each("count", submission.count);
    each("force", submission.force);
    each("allow_command", submission.allow_command);
    each("copies", submission.copies);
    each("bench", submission.bench);
}

template <typename T>
concept HasFields = requires(const JsonWriter& each, const T& value) {
    fields(each, value);
};
template <HasFields T>
void to_json(Json& json, const T& value) {
    json = Json::object();
    fields(JsonWriter{json}, value);
}
template <HasFields T>
void from_json(const Json& json, T& value) {
    fields(JsonReader{json}, value);
}

/// One line of text; bytes that are not UTF-8 (a file name, say) become replacement characters instead of an exception.
std::string json_text(const Json& json, int indent = -1);

}   // namespace gradcast
