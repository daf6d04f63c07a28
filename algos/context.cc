#include "algos/context.h"

#include "runtime/core/digest.h"

namespace gradcast {

uint64_t Context::digest(StepId next, uint64_t model) const {
    std::span<const int32_t> exponents = codec.exponents();
    return model + splitmix64(next) +
           digest64({reinterpret_cast<const uint32_t*>(exponents.data()), exponents.size()},
                    net.layout().elements + optimiser.state_size());
}

void Context::round_done(StepRecord applied) {
    applied.step = step++;
    applied.digest = state = digest(step, net.digest() + optimiser.digest(net.layout().elements));
    record = applied;
    progress.step.store(step, std::memory_order_relaxed);
    progress.advance();
}

}   // namespace gradcast
