// A training algorithm as straight-line code, the same in the daemon and in the simulator.  Each has a file of its own and a row in the
// table of algorithm.cc.
#pragma once
#include <memory>
#include <string_view>

#include "algos/context.h"

namespace gradcast {

struct Algorithm {
    virtual ~Algorithm() = default;
    /// One round (a step for ssgd).  Trainer thread.  Errors: peer_lost, cancelled, deadline, diverged, conflict; the parameters are then
    /// as before the round.
    virtual Status round(Context& context) = 0;
    /// Between rounds: what the next round needs besides parameters, optimiser state and scales, for checkpoints.  Input of restore().
    virtual std::span<const std::byte> state() { return {}; }
    /// Before the first round.  Error: the state is not one of this algorithm.
    virtual Status restore(std::span<const std::byte> state) {
        return state.empty() ? Status{} : fail(Code::data, "the state of the algorithm has {} bytes instead of none", state.size());
    }
    /// Between rounds, when the view changes; the current step is then repeated.
    virtual Status on_view(Context& context, const View& view) = 0;
};

struct AlgorithmKind {
    const char* name;
    const char* summary;
    std::unique_ptr<Algorithm> (*create)();
};
std::span<const AlgorithmKind> algorithm_kinds();
Status algorithm_find(std::string_view name, const AlgorithmKind** kind);

}   // namespace gradcast
