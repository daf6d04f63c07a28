// A training algorithm as straight-line code, the same in the daemon and in the simulator.  One file an algorithm; a row in algorithm.cc's
// table.
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
    /// Between rounds; the same step is then repeated.
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
