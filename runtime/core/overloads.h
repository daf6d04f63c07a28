// For std::visit: one handler for each alternative of a variant, all of which the compiler demands.
//
//   std::visit(Overloads{[&](const Event::Sent& it) { … }, [](const OneOf<Event::Ready, Event::PeerUp> auto&) {}, …}, event.what);
#pragma once
#include <concepts>

namespace gradcast {

template <typename... Handlers>
struct Overloads : Handlers... {
    using Handlers::operator()...;
};

/// Alternatives that share a handler: those that a protocol does not need.
template <typename T, typename... Alternatives>
concept OneOf = (std::same_as<T, Alternatives> || ...);

}   // namespace gradcast
