// Who computes wrongly, where two ranks disagree about the sum of some blocks.
#pragma once
#include <span>

#include "algos/context.h"
#include "transport/exchange/exchange.h"

namespace gradcast {

class Arbiter {
public:
    /// The two buffers have room for a step's state, net.parameters() and codec.exponents(), or are empty where no rank can be missed.
    Arbiter(Context& context, Dispatch& dispatch, Exchange& exchange, Rank self, const View& view, Buffer parameters, Buffer exponents);

    /// Before the state of context.step is written: where ranks can be missed, a conflict about this step may be found in the next.
    void keep_state();
    /// Two ranks disagree about blocks of step `at` (Exchange::conflict): the other holders have outvoted one of them, or
    /// the blocks are computed here once more, and the one whose digest differs is named.  One of the two leaves the verdict to the others,
    /// if there are any.  `found` is what is known so far, and the answer where no more can be told.  Ok: the job goes on without the wrong
    /// rank.
    Status judge(Status found, StepId at);
    /// This rank computes wrongly, and the others go on without it.
    bool outvoted() const { return outvoted_; }

private:
    Status compute_again(const Conflict& conflict, StepId at, Record* record);

    Context& context_;
    Dispatch& dispatch_;
    Exchange& exchange_;
    const Rank self_;
    const View& view_;
    std::span<float> kept_parameters_;
    std::span<int32_t> kept_exponents_;
    bool judging_ = false, outvoted_ = false;
};

}   // namespace gradcast
