// Synchronous SGD of one rank whose device computes whole steps (Net::step_begin): nothing is exchanged.
#pragma once
#include <vector>

#include "algos/context.h"

namespace gradcast {

class WholeSteps {
public:
    /// Whether the present view and the net allow it.
    static bool possible(const Context& context) { return context.ranks == 1 && context.net->steps_ahead() > 0; }
    /// Computes context.step and writes its loss, clipped, and the digest of parameters and optimiser state.  If context.at_once is set, it
    /// also begins the next step before it waits, so that the device does not wait for the host.  The next call ends that step, even if the
    /// job has been cancelled meanwhile.  Errors: of the loader, of Port::poll(), Code::diverged.
    Status round(Context& context, StepRecord* record);

private:
    Status begin(Context& context, StepId step);

    StepId begun_ = 0;   // the step after the newest one that was begun
    Status next_;        // why the next step could not be begun; the next call returns it
    std::vector<Samples> blocks_;
};

}   // namespace gradcast
