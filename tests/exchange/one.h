// One rank's exchange without a network: the test drives it.
#pragma once
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/exchange/world.h"
#include "transport/wire/packet.h"

namespace gradcast {

struct One {
    Layout layout = layout_make({7, 300});
    View view;
    Arena arena;
    std::unique_ptr<Exchange> exchange;
    Actions actions;
    uint64_t placed = 0;
    explicit One(const char* name, Rank self = 1, uint32_t n = 3, uint32_t blocks = 3, uint32_t m = 1, uint32_t s = 0) {
        for (uint32_t r = 0; r < n; ++r) view.members.push_back({"node" + std::to_string(r), {}, 1});
        const ExchangeKind* kind = nullptr;
        EXPECT_TRUE(exchange_find(name, Quantiser::auto32, &kind).ok());
        exchange = kind->create({.layout = &layout, .self = self, .blocks = blocks, .segment_bytes = 64, .m = m, .s = s});
        EXPECT_TRUE(exchange->install(view, arena).ok());
        EXPECT_TRUE(arena.seal().ok());
    }
    void on(Event event) {
        actions.clear();
        exchange->on({&event, 1}, actions);
    }
    void ready(uint32_t bucket) { on({Event::Ready{0, bucket}}); }
    /// As a driver: calls land(), fills the place, delivers the event.  Returns the result of land().
    Landing deliver(Packet packet, uint64_t bytes, uint8_t fill = 1) {
        actions.clear();
        Landing landing = exchange->land(packet, bytes, &packet.payload);
        if (landing != Landing::place) return landing;
        EXPECT_EQ(packet.payload.bytes, bytes);
        EXPECT_GE(packet.payload.host, arena.whole().host);
        EXPECT_LE(packet.payload.host + bytes, arena.whole().host + arena.whole().bytes);
        ++placed;
        std::memset(packet.payload.host, fill, bytes);
        on({Event::Received{&packet}});
        return landing;
    }
    /// land() refuses the packet, and its event would change nothing.
    void refused(Packet packet, uint64_t bytes, const char* why, Landing as = Landing::drop) {
        EXPECT_EQ(deliver(packet, bytes), as) << why;
        std::vector<std::byte> memory(bytes);
        packet.payload = {memory.data(), nullptr, bytes};
        on({Event::Received{&packet}});
        EXPECT_TRUE(silent()) << why;
    }
    bool silent() const {
        return actions.sends.empty() && actions.computes.empty() && actions.completions.empty() && actions.timers.empty();
    }
};

inline Packet packet_make(PacketType type, Rank sender, StepId step, uint32_t bucket, uint32_t part, uint32_t index,
                          Phase phase = Phase::reduce) {
    Packet packet;
    packet.type = type;
    packet.sender = sender;
    packet.view = 1;
    DataBody body{};
    body.step.set(static_cast<uint32_t>(step));
    body.bucket.set(static_cast<uint16_t>(bucket));
    body.part.set(static_cast<uint16_t>(part));
    body.index.set(index);
    body.phase = static_cast<uint8_t>(phase);
    packet.body = body_bytes(body);
    return packet;
}

/// Applies change(packet, body) to a copy.
template <typename Change>
Packet changed(Packet packet, Change change) {
    DataBody body = body_of<DataBody>(packet);
    change(packet, body);
    packet.body = body_bytes(body);
    return packet;
}

}   // namespace gradcast
