// With NetConfig::recompute: what the other slice groups have sent in a slot's forward pass.  The slot keeps it, so a forward pass that is
// computed again exchanges nothing: the slice groups need not agree on which passes are computed again.
#pragma once
#include "nn/cpu/build.h"

namespace gradcast::cpu {

/// The link of a slot.  It keeps what forward passes receive, and passes on what evaluations and backward passes exchange.
class KeptLink final : public SliceLink {
public:
    /// Points and frame outlive this.
    void open(SliceLink* link, std::span<const SlicePoint> points, uint32_t own_group, const Frame& frame) {
        link_ = link, points_ = points, own_ = own_group, frame_ = &frame;
    }
    /// True: forward passes from now on are repetitions, which take what was kept and exchange nothing.
    void again(bool on) { again_ = on; }
    /// Memory of the own part is the link's, also where it is not sent.
    Status room(uint32_t lane, size_t point, Buffer* to) override { return link_->room(lane, point, to); }
    Status exchange(uint32_t lane, size_t point, std::span<const uint64_t> bytes) override;
    Buffer received(uint32_t lane, size_t point, uint32_t group) override {
        return keeps(point) ? kept(point, group) : link_->received(lane, point, group);
    }

private:
    bool keeps(size_t point) const { return frame_->training && !points_[point].backward(); }
    Buffer kept(size_t point, uint32_t group) const;

    SliceLink* link_ = nullptr;
    std::span<const SlicePoint> points_;
    uint32_t own_ = 0;
    const Frame* frame_ = nullptr;
    bool again_ = false;
};

}   // namespace gradcast::cpu
