// Where a job's net is cut, and which rank computes which stage.
#pragma once
#include <span>

#include "algos/pipeline.h"
#include "runtime/job/file/job_file.h"

namespace gradcast {

/// Which stage a node of the job computes as long as it runs.
constexpr uint32_t stage_of(NodeId node, uint32_t stages) { return static_cast<uint32_t>(node) % stages; }

/// Of a view with these nodes, by rank.
Grid stages_grid(std::span<const NodeId> nodes, uint32_t stages);

/// Of a job with stages, which n nodes begin.  *about becomes the key that an error is about.  Errors: more
/// stages than the net has, a layer that cannot begin one, nodes that the stages do not fill.
Status stages_plan(const JobConfig& job, const NetSpec& spec, uint32_t n, NodeId self, uint32_t lanes, PipelineConfig* config,
                   std::string* about);

}   // namespace gradcast
