// What /v1/metrics answers: the metrics of the jobs that run at a node, and what it knows of jobs and nodes.
#pragma once
#include <string>
#include <vector>

#include "runtime/control/backend.h"

namespace gradcast {

enum class MetricsFormat : uint8_t { prometheus, open_metrics };   // text 0.0.4, OpenMetrics 1.0.0
const char* metrics_content_type(MetricsFormat format);
/// Text from outside (names) is escaped.  Of each job that runs, one series a value; ended jobs are counted by state alone.
std::string metrics_text(const std::vector<JobSummary>& jobs, const std::vector<NodeInfo>& nodes, MetricsFormat format);

}   // namespace gradcast
