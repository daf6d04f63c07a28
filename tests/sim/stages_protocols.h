// Protocols of a rank that hears nothing, or lies.
#pragma once
#include <deque>

#include "runtime/core/channel.h"
#include "transport/wire/packet.h"

namespace gradcast {

/// Values and gradients do not arrive; in_steps: those of the probe block do.
struct DeafProtocol final : Protocol {
    explicit DeafProtocol(Protocol& protocol, bool in_steps = false) : inner(protocol), probe_arrives(in_steps) {}
    void on(std::span<const Event> events, Actions& actions) override { inner.on(events, actions); }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override {
        if (packet.type != PacketType::edge) return inner.land(packet, bytes, place);
        const bool probe = (body_of<EdgeBody>(packet).block.get() >> 30 & 1) > 0;   // algos/pipeline.cc
        return probe && probe_arrives ? inner.land(packet, bytes, place) : Landing::drop;
    }
    Protocol& inner;
    const bool probe_arrives;
};

inline constexpr uint64_t cells_tags = uint64_t{3} << 62;   // algos/cells.cc: and 2 * step for its sums, 2 * next step + 1 for the state

/// Flips a bit in that byte of the message of that tag.
struct LyingProtocol final : Protocol {
    LyingProtocol(Protocol& protocol, uint64_t tag, size_t byte) : inner(protocol), lies(tag), at(byte) {}
    void on(std::span<const Event> events, Actions& actions) override {
        const size_t before = actions.sends.size();
        inner.on(events, actions);
        for (size_t i = before; i < actions.sends.size(); ++i) {
            Send& send = actions.sends[i];
            if (send.type != PacketType::mail || reinterpret_cast<const MailBody*>(send.body.data())->tag.get() != lies) continue;
            auto& copy = copies.emplace_back(send.payload.host, send.payload.host + send.payload.bytes);
            copy[at] ^= std::byte{1};
            send.payload.host = copy.data();
        }
    }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override { return inner.land(packet, bytes, place); }
    Protocol& inner;
    const uint64_t lies;
    const size_t at;
    std::deque<std::vector<std::byte>> copies;   // live as long as the view
};

}   // namespace gradcast
