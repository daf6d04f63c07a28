// What people see of a job's views (ViewRecord).  All members have the same (run/view_records_spread.h).
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "runtime/job/report/job_status.h"

namespace gradcast {

constexpr size_t view_records_bytes_max = 256 * 1024;   // of the message; of more the oldest are left out

/// ViewRecord::why of a node that the others have given up: "NAME silent".
constexpr const char* why_silent = "silent";
constexpr const char* why_stuck = "without progress";
constexpr const char* why_unheard = "not heard by others";

std::vector<std::byte> view_records_write(std::vector<ViewRecord> views);
/// False where bytes are not some; *views is then anything.
bool view_records_parse(std::span<const std::byte> bytes, std::vector<ViewRecord>* views);

/// With `next` after `views`: its number and time are filled in.
std::vector<ViewRecord> view_records_with(std::vector<ViewRecord> views, ViewRecord next);
/// So many times as long as another node this one is waited for in `step`: twice as long after each view that it has left because it was
/// silent, without progress or not heard, up to 8 times; half as long after each 100 steps in which it has left none.
uint32_t view_records_patience(const std::vector<ViewRecord>& views, const std::string& name, StepId step);
constexpr StepId patience_steps = 100;
/// What to do about a node that the newest view has left for the third time because the others gave it up; "": there is none.
std::string view_records_advice(const std::vector<ViewRecord>& views);

}   // namespace gradcast
