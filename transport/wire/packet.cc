#include "transport/wire/packet.h"

namespace gradcast {

const char* packet_invalid(const PacketHeader& header, uint32_t job, uint32_t ranks) {
    if (header.magic.get() != packet_magic) return "not a gradcast packet";
    if (header.version != packet_version) return "a version that was not agreed";
    if (header.type < static_cast<uint8_t>(PacketType::ack) || header.type > static_cast<uint8_t>(PacketType::mail)) return "unknown type";
    if (header.job.get() != job) return "another job";
    if (header.sender.get() >= ranks) return "sender out of range";
    if (header.reserved.get() != 0) return "reserved bytes are not 0";
    if (header.length.get() > segment_bytes_stream) return "too long";
    return nullptr;
}

}   // namespace gradcast
