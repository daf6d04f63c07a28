// Adds the forward and backward passes of layers to the job's profile, as events of their lane.
#pragma once
#include "nn/net.h"
#include "runtime/core/clock.h"
#include "runtime/core/profile.h"

namespace gradcast {

struct ProfileTrace final : NetTrace {
    explicit ProfileTrace(Profile& p) : profile(p) {}
    uint64_t now_ns() override { return clock_ns(); }
    void pass(uint32_t lane, const Layer& layer, Pass pass, uint64_t begin_ns, uint64_t end_ns) override {
        const bool forward = pass == Pass::input || pass == Pass::forward;
        profile.add(lane, forward ? "forward" : "backward", pass == Pass::input ? "input" : layer_name(layer), begin_ns, end_ns);
    }
    Profile& profile;
};

}   // namespace gradcast
