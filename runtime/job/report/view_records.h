// What people see of a job's views (ViewRecord).  All members have the same (run/view_records_spread.h).
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "runtime/job/report/job_status.h"

namespace gradcast {

constexpr size_t view_records_bytes_max = 256 * 1024;   // of the message; the oldest are omitted where more would be needed

/// ViewRecord::why of a node that the others have evicted: "NAME silent".
constexpr const char* why_silent = "silent";
constexpr const char* why_stuck = "without progress";
constexpr const char* why_unreachable = "not heard by others";

std::vector<std::byte> view_records_write(std::vector<ViewRecord> views);
/// False where bytes are not some; *views is then anything.
bool view_records_parse(std::span<const std::byte> bytes, std::vector<ViewRecord>* views);

/// With `next` after `views`: its number and time are filled in.
std::vector<ViewRecord> view_records_with(std::vector<ViewRecord> views, ViewRecord next);
/// Returns the factor by which the node is waited for longer than others in `step`: doubled by each view that evicted it because it was
/// silent, without progress or not heard, at most 8, and halved by each 100 steps in which no view evicted it.
uint32_t view_records_patience(const std::vector<ViewRecord>& views, const std::string& name, StepId step);
constexpr StepId patience_steps = 100;
/// The way out for a node that the newest view has evicted for the third time; "": there is none.
std::string view_records_advice(const std::vector<ViewRecord>& views);

}   // namespace gradcast
