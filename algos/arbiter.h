// Finds the rank that computes wrongly when two ranks disagree about the sum of some blocks.
#pragma once
#include <span>

#include "algos/port.h"

namespace gradcast {

class Arbiter final : public Judge {
public:
    /// self, view: of the exchange.  view_ranks: as Port's.  The buffers hold a step's state, net.parameters() and codec.exponents(); they
    /// are empty if no rank may be missing, or this rank cannot compute blocks by itself.
    Arbiter(Context& context, Dispatch& dispatch, Exchange& exchange, Rank self, const View& view, std::vector<Rank> view_ranks,
            Buffer parameters, Buffer exponents);

    /// Before the state of context.step is overwritten: if ranks may be missing, a conflict of this step can appear in the next one.
    void keep_state();
    /// Resolves a conflict of step `at` (Exchange::conflict).  Either the other holders have outvoted one of the two ranks, or this rank
    /// computes the blocks again and names the rank whose digest differs.  A party to the conflict leaves the verdict to other ranks, if
    /// there are any.  `found` is the conflict, and the result if no culprit can be named.  Ok: the job goes on without that rank.
    Status judge(Status found, StepId at) override;
    /// This rank computes wrongly, and the job goes on without it.
    bool outvoted() const { return outvoted_; }

private:
    Status compute_again(const Conflict& conflict, StepId at, Record* record);

    Context& context_;
    Dispatch& dispatch_;
    Exchange& exchange_;
    const Rank self_;
    const View& view_;
    const std::vector<Rank> view_ranks_;
    std::span<float> kept_parameters_;
    std::span<int32_t> kept_exponents_;
    bool judging_ = false, outvoted_ = false;
};

}   // namespace gradcast
