// The JSON of the control plane: what the server sends and the client reads, in one place.  Keys are snake_case with their unit; digests of
// 64 bits are hex strings, because a double cannot hold them; what is not known is null.  Where a member has names of its own (time-outs,
// purposes of memory), it is an object by them: {"peer_lost": microseconds}.
//
// from_json throws nlohmann::json::exception on a wrong type and leaves absent members at their defaults.
#pragma once
#include <nlohmann/json.hpp>

#include "runtime/control/backend.h"

namespace gradcast {

using Json = nlohmann::ordered_json;

void to_json(Json& json, const DatagramsFound& found);
void from_json(const Json& json, DatagramsFound& found);
void to_json(Json& json, const ExchangePrediction& prediction);
void from_json(const Json& json, ExchangePrediction& prediction);
/// The prediction that was chosen, all predictions and what was measured, flat.
void to_json(Json& json, const ExchangeReport& report);
void from_json(const Json& json, ExchangeReport& report);
void to_json(Json& json, const ViewRecord& view);
void from_json(const Json& json, ViewRecord& view);
void to_json(Json& json, const NodeTimes& node);
void from_json(const Json& json, NodeTimes& node);
void to_json(Json& json, const WorkerCounts& counts);
void from_json(const Json& json, WorkerCounts& counts);
void to_json(Json& json, const StalenessBin& bin);
void from_json(const Json& json, StalenessBin& bin);
void to_json(Json& json, const Straggler& straggler);
void from_json(const Json& json, Straggler& straggler);
void to_json(Json& json, const JobStatus& status);
void from_json(const Json& json, JobStatus& status);
void to_json(Json& json, const JobSummary& summary);
void from_json(const Json& json, JobSummary& summary);
/// All of the summary and the rest beside it, flat.
void to_json(Json& json, const JobDetail& detail);
void from_json(const Json& json, JobDetail& detail);
void to_json(Json& json, const Finding& finding);
void from_json(const Json& json, Finding& finding);
void to_json(Json& json, const NodeInfo& node);
void from_json(const Json& json, NodeInfo& node);
void to_json(Json& json, const Submission& submission);
void from_json(const Json& json, Submission& submission);

/// One line of text; bytes that are not UTF-8 (a file name, say) become replacement characters instead of an exception.
std::string json_text(const Json& json, int indent = -1);

}   // namespace gradcast
