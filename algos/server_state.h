// What parameter servers have between them: w, the optimiser's state and, with one server, the scales of its sums.  Kept from before a
// round, and packed for the other nodes after it.
#pragma once
#include <span>

#include "algos/algorithm.h"
#include "algos/server_parts.h"

namespace gradcast {

class ServerState {
public:
    void plan(const AlgorithmPlan& plan);
    std::span<float> w() const { return {w_.as<float>(), elements_}; }
    void keep(Context& context);
    /// With what is kept.
    void swap(Context& context);
    /// Returns the message that server s sends at the end of a round.
    Buffer of(const Context& context, const ServerParts& parts, uint32_t s) const;
    void pack(Context& context, const ServerParts& parts, uint32_t s) const;
    void unpack(Context& context, const ServerParts& parts, uint32_t s) const;

private:
    template <typename With>
    void whole(Context& context, With with) const;
    template <typename With>
    void each(Context& context, const ServerParts& parts, uint32_t s, With with) const;

    uint64_t elements_ = 0, slots_ = 0;   // slots_: values of the optimiser's state for a parameter
    Buffer w_, kept_, packed_;
};

}   // namespace gradcast
