// Bytes of a stream into its receiver: whatever comes is refused or lands within bounds.  The first two bytes choose how the protocol
// behaves and how the bytes are cut in pieces.  Protection is off, so that packets made by the fuzzer pass the tag.
#include <algorithm>
#include <cstdint>

#include "tests/fuzz/reached.h"
#include "transport/stream/stream.h"

namespace {

using namespace gradcast;

constexpr uint32_t segment = 2048;

struct Sink : ReceiverSink {
    uint8_t mood = 0;
    uint64_t landed = 0, acknowledged = 0;
    std::byte memory[segment];

    bool known(uint16_t channel, uint32_t) override { return channel < 3; }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override {
        GC_ASSERT(bytes <= segment);
        fuzz_reaches(static_cast<uint32_t>(packet.type));
        ++landed;
        Landing landing = static_cast<Landing>((mood + landed) % 4);
        if (landing == Landing::place) *place = {memory, nullptr, bytes};
        return landing;
    }
    void packet(const Packet& packet) override {
        uint8_t sum = 0;
        for (uint64_t i = 0; i < packet.payload.bytes; ++i)
            sum = static_cast<uint8_t>(sum + std::to_integer<uint8_t>(packet.payload.host[i]));
        mood = static_cast<uint8_t>(mood + (sum & 1));
    }
    bool ack(uint64_t received) override { return received >= acknowledged && (acknowledged = received) < 1000; }
};

}   // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < 2) return 0;
    StreamConfig config;
    config.job = 0x64636261;
    config.view = 1;
    config.self = 0;
    config.peer = 1;
    config.ranks = 2;
    config.segment_bytes = segment;
    config.protect = Protect::none;
    Receiver receiver(config);
    Sink sink;
    sink.mood = data[0];
    size_t piece = 1 + data[1] * size_t{8};
    std::span rest = std::as_bytes(std::span(data, size)).subspan(2);
    size_t first = std::min(rest.size(), std::min(piece, Receiver::rest_max));
    receiver.restart(Key{}, rest.first(first));
    rest = rest.subspan(first);
    for (int idle = 0; idle < 8;) {
        if (receiver.parse(sink)) return 0;
        if (receiver.blocked()) {
            ++idle;
            continue;
        }
        if (rest.empty()) return 0;
        iovec places[2];
        uint32_t count = receiver.space(places);
        size_t got = 0;
        for (uint32_t i = 0; i < count && got < piece; ++i) {
            size_t take = std::min({places[i].iov_len, rest.size(), piece - got});
            std::copy_n(rest.begin(), take, static_cast<std::byte*>(places[i].iov_base));
            rest = rest.subspan(take);
            got += take;
            if (take < places[i].iov_len) break;
        }
        receiver.received(got);
        idle = 0;
    }
    return 0;
}
