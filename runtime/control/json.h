// The JSON of the control plane: what the server sends and the client reads, in one place.  Keys are the members' names; what a double
// cannot hold or a reader would misread is told otherwise: digests of 64 bits are hex strings, an accuracy or a loss that is not known is
// null, time-outs are an object {"peer_lost": microseconds}.
//
// from_json throws nlohmann::json::exception on a wrong type and leaves absent members at their defaults.
#pragma once
#include <nlohmann/json.hpp>

#include "runtime/control/backend.h"

namespace gradcast {

using Json = nlohmann::ordered_json;

void to_json(Json& json, const JobStatus& status);
void from_json(const Json& json, JobStatus& status);
void to_json(Json& json, const JobSummary& summary);
void from_json(const Json& json, JobSummary& summary);
/// All of the summary and the rest beside it, flat.
void to_json(Json& json, const JobDetail& detail);
void from_json(const Json& json, JobDetail& detail);
void to_json(Json& json, const NodeInfo& node);
void from_json(const Json& json, NodeInfo& node);
void to_json(Json& json, const Submission& submission);
void from_json(const Json& json, Submission& submission);

/// One line of text; bytes that are not UTF-8 (a file name, say) become replacement characters instead of an exception.
std::string json_text(const Json& json, int indent = -1);

}   // namespace gradcast
