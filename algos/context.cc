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
    applied.digest = state = digest(step, net.digest() + optimiser.digest(net.layout().whole()));
    record = applied;
    progress.step.store(step, std::memory_order_relaxed);
    progress.advance();
}

WorkerTurn::WorkerTurn(Context& context, uint32_t worker)
    : context_(context),
      worker_(worker),
      begin_us_(context.host.now_us()),
      samples_(context.samples),
      gradients_(context.gradients),
      forwards_(context.forwards) {}

WorkerTurn::~WorkerTurn() {
    context_.workers_did.turn(worker_, context_.step,
                              {.samples = context_.samples - samples_,
                               .gradients = context_.gradients - gradients_,
                               .forwards = context_.forwards - forwards_,
                               .compute_us = context_.host.now_us() - begin_us_});
}

}   // namespace gradcast
