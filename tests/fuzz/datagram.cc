// A received super-packet into a rank's datagrams: whatever comes is dropped or lands within bounds.  The first byte chooses how the
// protocol behaves, the second the size of a datagram.  Protection is off, so that what the fuzzer makes passes the tag.
#include <algorithm>
#include <cstdint>

#include "tests/fuzz/reached.h"
#include "transport/datagram/datagram.h"

namespace {

using namespace gradcast;

constexpr uint32_t segment = 512;

struct Sink : DatagramSink {
    uint8_t mood = 0;
    uint64_t landed = 0;
    std::byte memory[segment];

    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override {
        GC_ASSERT(bytes <= segment && packet.sender < 3 && packet.sender != 0 && packet.sequence >> 48 == 0);
        fuzz_reaches(static_cast<uint32_t>(packet.type));
        const Landing landing = static_cast<Landing>((mood + ++landed) % 4);
        if (landing == Landing::place) *place = {memory, nullptr, bytes};
        return landing;
    }
    void packet(const Packet& packet) override {
        uint8_t sum = 0;
        for (uint64_t i = 0; i < packet.payload.bytes; ++i)
            sum = static_cast<uint8_t>(sum + std::to_integer<uint8_t>(packet.payload.host[i]));
        mood = static_cast<uint8_t>(mood + (sum & 1));
    }
};

}   // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < 2) return 0;
    DatagramShape shape;
    shape.route = 0x6261;
    shape.view = 1;
    shape.ranks = 3;
    shape.segment_bytes = segment;
    shape.self = 0;
    shape.protect = Protect::none;
    static DatagramReceiver* receiver = nullptr;   // its windows are large
    if (!receiver) {
        receiver = new DatagramReceiver(shape);
        receiver->attach(0x30);
        receiver->attach(datagram_channel_probe);
    }
    receiver->forget(1), receiver->key(1, Key{});
    Sink sink;
    sink.mood = data[0];
    std::vector<std::byte> bytes(size - 2);
    std::transform(data + 2, data + size, bytes.begin(), [](uint8_t each) { return std::byte{each}; });
    const size_t piece = datagram_overhead_bytes + data[1] * size_t{2};
    for (std::span<std::byte> rest = bytes; !rest.empty();) {
        const std::span one = rest.first(std::min(piece, rest.size()));
        const DatagramFault fault = receiver->take(one, sink);
        GC_ASSERT(fault < DatagramFault::kinds);
        rest = rest.subspan(one.size());
    }
    return 0;
}
