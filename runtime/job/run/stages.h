// Where a job's net is cut, and which rank computes which stage.
#pragma once
#include "algos/pipeline.h"
#include "runtime/job/file/job_file.h"

namespace gradcast {

/// Of a job with stages, over n nodes; the rank is that of its first view.  *about becomes the key that an error is about.  Errors: more
/// stages than the net has, a layer that cannot begin one, nodes that the stages do not fill.
Status stages_plan(const JobConfig& job, const NetSpec& spec, uint32_t n, Rank self, uint32_t lanes, PipelineConfig* config,
                   std::string* about);

}   // namespace gradcast
