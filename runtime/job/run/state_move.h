// The state that training goes on from, on its way from the ranks that have it to those that need it, in pieces, by mail.
#pragma once
#include <functional>
#include <span>

#include "runtime/job/run/session.h"

namespace gradcast {

/// A rank that has elements of a state, in its own state or in a file.
struct StateSource {
    Rank rank = 0;
    StateRuns runs;   // of the whole state
    static constexpr uint32_t any = ~0u;
    /// The cell of JobParts::cut whose state it is, and to whose ranks it goes.  any: to all that have some of it.
    uint32_t cell = any;
};

/// All ranks that send or receive call it, in a session that is open.  What a source has goes to the ranks that have the same part of the
/// state, or keep it, and for which `receives` is true; a source keeps what it has in its own state.  receives: of a rank and a stage of
/// JobParts::cut, 0 where the net is whole.  read: at a source, elements that are not in its state.  Error: also a source that is lost;
/// what came is torn then.
Status state_move(Context& context, Session& session, JobParts& parts, std::span<const StateSource> sources,
                  const std::function<bool(Rank, uint32_t stage)>& receives,
                  const std::function<Status(StateVector, uint64_t place, std::span<std::byte> to)>& read);

/// For a net in stages: moves the state of a stage from the ranks that compute it to the rank that keeps it.
Status state_to_buddies(Context& context, Session& session, JobParts& parts);

}   // namespace gradcast
