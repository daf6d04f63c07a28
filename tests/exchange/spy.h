// Wraps a protocol and counts its sends and allocations.
#pragma once
#include <bit>
#include <cstdint>

#include "runtime/core/protocol.h"

namespace gradcast {

inline thread_local bool allocations_counted = false;
inline thread_local uint64_t allocations = 0;

class Spy : public Protocol {
public:
    explicit Spy(Protocol& protocol) : protocol_(protocol) {}

    void on(std::span<const Event> events, Actions& actions) override {
        const size_t before = actions.sends.size();
        if (batches == 0)
            actions.sends.reserve(4096), actions.computes.reserve(4096), actions.completions.reserve(64), actions.timers.reserve(64);
        for (const Event& event : events)
            if (const auto* it = event.is<Event::Received>(); it && it->packet->type == PacketType::words)
                taken_bytes += it->packet->payload.bytes;
        allocations_counted = ++batches > quiet_after && quiet_after != 0;
        protocol_.on(events, actions);
        allocations_counted = false;
        for (size_t i = before; i < actions.sends.size(); ++i) {
            const Send& send = actions.sends[i];
            uint64_t receivers = 0;
            for (uint32_t w = 0; send.to.bits && w < words; ++w) receivers += static_cast<uint64_t>(std::popcount(send.to.bits[w]));
            if (!send.to.bits) receivers = 1;
            (send.type == PacketType::words ? words_bytes : record_bytes) += receivers * send.payload.bytes;
            if (send.type == PacketType::words) once_bytes += send.payload.bytes;
        }
    }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override {
        allocations_counted = quiet_after != 0 && batches > quiet_after;
        Landing landing = protocol_.land(packet, bytes, place);
        allocations_counted = false;
        laters += landing == Landing::later;
        drops += landing == Landing::drop;
        return landing;
    }

    uint32_t words = 1;                                           // of a RankSet: (ranks + 63) / 64
    uint64_t words_bytes = 0, record_bytes = 0, once_bytes = 0;   // payload sent; once: words, a multicast counted once
    uint64_t taken_bytes = 0;                                     // words received
    uint64_t laters = 0, drops = 0;
    uint64_t quiet_after = 0, batches = 0;   // allocations are counted from that batch on

private:
    Protocol& protocol_;
};

}   // namespace gradcast
