#include "algos/context.h"

#include "algos/cells.h"
#include "runtime/core/digest.h"

namespace gradcast {

uint64_t scales_digest(std::span<const int32_t> exponents, std::span<const Layout::Run> groups, uint64_t behind) {
    uint64_t digest = 0;
    for (const Layout::Run& run : groups)
        digest += digest64({reinterpret_cast<const uint32_t*>(exponents.data()) + run.offset, run.count}, behind + run.place);
    return digest;
}

uint64_t Context::part(uint64_t model) const {
    const Layout& layout = net->layout();
    const std::span<const int32_t> exponents = codec->exponents();
    const uint64_t behind = layout.whole() + (layout.elements > 0 ? optimiser->state_size() / layout.elements * layout.whole() : 0);
    const Layout::Run all{0, exponents.size(), 0};
    return model + scales_digest(exponents, cells ? groups : std::span(&all, 1), behind);
}

uint64_t Context::digest(StepId next, uint64_t model) const { return part(model) + splitmix64(next); }

Status Context::digest(StepId next, uint64_t model, uint64_t* whole) const {
    if (cells) return cells->state(next, part(model), whole);
    *whole = digest(next, model);
    return {};
}

void Context::round_done(StepRecord applied) {
    applied.step = step++;
    applied.digest = state = digest(step, net->digest() + optimiser->digest(net->layout().whole()));
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
