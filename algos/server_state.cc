#include "algos/server_state.h"

#include <algorithm>

namespace gradcast {

void ServerState::plan(const AlgorithmPlan& plan) {
    elements_ = plan.net.layout().elements;
    slots_ = plan.state_size / elements_;
    const uint64_t bytes = (elements_ + plan.state_size + plan.scales) * sizeof(float);
    plan.arena.plan("server", elements_ * sizeof(float), &w_);
    plan.arena.plan("server", bytes, &packed_);
    plan.arena.plan("state before the round", bytes, &kept_);
}

/// with(w), with(the optimiser's state), with(the scales).
template <typename With>
void ServerState::whole(Context& context, With with) const {
    with(std::as_writable_bytes(w()));
    with(std::as_writable_bytes(context.optimiser->state()));
    with(std::as_writable_bytes(context.codec->exponents()));
}

void ServerState::keep(Context& context) {
    whole(context, [at = kept_.host](std::span<std::byte> own) mutable { at = std::ranges::copy(own, at).out; });
}

void ServerState::swap(Context& context) {
    whole(context, [at = kept_.host](std::span<std::byte> own) mutable { at = std::swap_ranges(own.begin(), own.end(), at); });
    context.optimiser->refresh();
}

Buffer ServerState::of(const Context& context, const ServerParts& parts, uint32_t s) const {
    const uint64_t bytes = (1 + slots_) * parts.count(s) * sizeof(float);
    return packed_.part((1 + slots_) * parts.first(s) * sizeof(float),
                        bytes + (parts.servers == 1 ? context.codec->exponents().size_bytes() : 0));
}

/// with(what the server has, where it is in packed_), part by part.
template <typename With>
void ServerState::each(Context& context, const ServerParts& parts, uint32_t s, With with) const {
    std::byte* at = of(context, parts, s).host;
    const auto next = [&](std::span<std::byte> own) {
        with(own, at);
        at += own.size();
    };
    next(std::as_writable_bytes(w().subspan(parts.first(s), parts.count(s))));
    for (uint64_t slot = 0; slot < slots_; ++slot)
        next(std::as_writable_bytes(context.optimiser->state().subspan(slot * elements_ + parts.first(s), parts.count(s))));
    if (parts.servers == 1) next(std::as_writable_bytes(context.codec->exponents()));
}

void ServerState::pack(Context& context, const ServerParts& parts, uint32_t s) const {
    each(context, parts, s, [](std::span<std::byte> own, std::byte* at) { std::ranges::copy(own, at); });
}

void ServerState::unpack(Context& context, const ServerParts& parts, uint32_t s) const {
    each(context, parts, s, [](std::span<std::byte> own, const std::byte* at) { std::copy_n(at, own.size(), own.begin()); });
}

}   // namespace gradcast
