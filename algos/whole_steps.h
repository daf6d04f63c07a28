// Synchronous SGD of one rank whose device computes whole steps (Net::step_begin): nothing is exchanged.
#pragma once
#include <vector>

#include "algos/context.h"

namespace gradcast {

class WholeSteps {
public:
    /// Whether the present view and the net allow it.
    static bool possible(const Context& context) { return context.ranks == 1 && context.net.steps_ahead() > 0; }
    /// Computes context.step, and begins the next one where context.at_once says so: the device then never waits for the host.  Writes
    /// loss, digest (of parameters and optimiser state) and clipped; scales follow.  A step that was begun is ended by the next call, even
    /// if the job has been cancelled meanwhile.
    Status round(Context& context, StepRecord* record);

private:
    Status begin(Context& context, StepId step);

    StepId begun_ = 0;   // first step that was not begun
    Status next_;        // why the next one was not, although it was to be
    std::vector<Samples> blocks_;
};

}   // namespace gradcast
