#include "nn/cpu/kept_link.h"

#include <cstring>

#include "nn/cpu/net.h"

namespace gradcast::cpu {

Status KeptLink::exchange(uint32_t lane, size_t point, std::span<const uint64_t> bytes) {
    if (!keeps(point)) return link_->exchange(lane, point, bytes);
    if (again_) return {};
    GC_TRY(link_->exchange(lane, point, bytes));
    for (uint32_t group = 0; group < frame_->program->received[point].size(); ++group) {
        if (!points_[point].has(group, own_)) continue;
        const Buffer from = link_->received(lane, point, group), to = kept(point, group);
        GC_ASSERT(from.bytes == to.bytes);
        std::memcpy(to.host, from.host, bytes.empty() ? to.bytes : bytes[group]);
    }
    return {};
}

Buffer KeptLink::kept(size_t point, uint32_t group) const {
    const Program& program = *frame_->program;
    return {frame_->base[static_cast<size_t>(Place::slot)] + program.received[point][group], nullptr,
            program.slices[point](group, frame_->samples)};
}

}   // namespace gradcast::cpu
