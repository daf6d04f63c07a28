#include "transport/wire/packet.h"

namespace gradcast {

const char* packet_invalid(const PacketHeader& header, uint32_t job, uint32_t ranks) {
    uint32_t length = header.length.get();
    if (header.magic.get() != packet_magic) return "not a gradcast packet";
    if (header.version != packet_version) return "a packet of a version that was not agreed";
    if (header.type < static_cast<uint8_t>(PacketType::ack) || header.type > static_cast<uint8_t>(PacketType::edge_word))
        return "a packet of unknown type";
    if (header.job.get() != job) return "a packet of another job";
    if (header.sender.get() >= ranks) return "a packet whose sender is out of range";
    if (header.reserved.get() != 0) return "a packet whose reserved bytes are not 0";
    if (length > segment_bytes_stream) return "a packet that is too long";
    if (header.sequence.get() >> 48 != 0) return "a packet of an unknown link stream";   // only stream 0 exists
    switch (static_cast<PacketType>(header.type)) {
        case PacketType::ack:
            if (length != 0 || header.channel.get() != 0) return "an acknowledgement with a payload or channel";
            break;
        case PacketType::record:
            if (length == 0 || length % 4 != 0) return "a record of a wrong length";
            break;
        case PacketType::words:
            if (length % 2 != 0) return "words of a wrong length";
            break;
        case PacketType::parity:
        case PacketType::feedback: return "a packet of datagrams on a stream";
        case PacketType::key:
            if (length > sizeof(KeyPayload) || header.channel.get() != 0) return "a packet about datagrams of a wrong length or channel";
            break;
        case PacketType::probe:
            if (header.channel.get() != 0) return "a probe with a channel";
            break;
        case PacketType::datagram:
            if (length < datagram_overhead_bytes || header.channel.get() != 0) return "a datagram of a wrong length or channel";
            break;
        case PacketType::mail_word:
            if (length != 0) return "a word about mail with a payload";
            break;
        case PacketType::edge_word:
            if (length != 0) return "a word about edges with a payload";
            break;
        case PacketType::job:
        case PacketType::mail:
        case PacketType::edge: break;
    }
    return nullptr;
}

const char* datagram_fault_name(DatagramFault fault) {
    static constexpr const char* names[] = {
        "none",    "truncated",       "of another kind", "of another job", "of another view",  "of no member",
        "our own", "of a wrong type", "before its key",  "replayed",       "with a wrong tag", "without room"};
    static_assert(std::size(names) == static_cast<size_t>(DatagramFault::kinds));
    return names[static_cast<size_t>(fault)];
}

DatagramFault datagram_fault(std::span<const std::byte> bytes, uint16_t route, uint32_t ranks, Rank self, uint32_t segment_bytes) {
    if (bytes.empty()) return DatagramFault::truncated;
    if ((bytes[0] & std::byte{0xF0}) != std::byte{datagram_magic}) return DatagramFault::magic;
    if (bytes.size() < datagram_overhead_bytes || bytes.size() > datagram_overhead_bytes + segment_bytes) return DatagramFault::truncated;
    DatagramHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    if (header.route.get() != route) return DatagramFault::route;
    if (header.sender.get() >= ranks) return DatagramFault::sender;
    if (header.sender.get() == self) return DatagramFault::own;
    const size_t length = bytes.size() - datagram_overhead_bytes;
    switch (static_cast<PacketType>(header.kind & 0x0F)) {
        case PacketType::record: return length == 0 || length % 4 != 0 ? DatagramFault::truncated : DatagramFault::none;
        case PacketType::words: return length % 2 != 0 ? DatagramFault::truncated : DatagramFault::none;
        case PacketType::parity:
        case PacketType::feedback:
        case PacketType::probe: return DatagramFault::none;
        default: return DatagramFault::type;
    }
}

}   // namespace gradcast
