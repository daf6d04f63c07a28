#include "runtime/job/run/probe_block.h"

#include <cmath>
#include <cstring>

#include "runtime/core/memory_room.h"

namespace gradcast {

Status ProbeSamples::read(const JobParts& parts) {
    const DataSet& train = *parts.train;
    const DataInfo& info = train.info();
    const uint32_t count = parts.local ? parts.local->block_sizes().front() : parts.sampler->block_size(0);
    GC_TRY(memory_room_for(count * train.sample_bytes(), "the probe block"));
    images_.resize(count * train.sample_bytes());
    labels_.resize(count);
    std::vector<uint64_t> indices(count);
    parts.sampler->range(0, indices);
    GC_TRY(train.read(indices, images_.data(), labels_.data()));
    samples_ = {images_.data(), labels_.data(), count, info.C, info.H, info.W, info.mean.data(), info.std.data()};
    return {};
}

Status ProbeSink::bucket(uint32_t, BlockId, uint32_t bucket, Buffer from) {
    if (config.stop && config.stop->load(std::memory_order_relaxed)) return fail(Code::cancelled, "stopped while the job is prepared");
    std::memcpy(gradient.data() + layout.buckets[bucket].offset, from.host, from.bytes);
    return {};
}

Status ProbeSink::finite() const {
    for (const Group& group : layout.groups)
        for (uint64_t i = 0; i < group.count; ++i)
            if (!std::isfinite(gradient[group.offset + i]))
                return fail(Code::diverged, "the gradient of layer {} holds NaN or Inf before the first step: look at the data",
                            group.layer);
    return {};
}

}   // namespace gradcast
