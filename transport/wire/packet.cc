#include "transport/wire/packet.h"

namespace gradcast {

const char* packet_invalid(const PacketHeader& header, uint32_t job, uint32_t ranks) {
    uint32_t length = header.length.get();
    if (header.magic.get() != packet_magic) return "not a gradcast packet";
    if (header.version != packet_version) return "a packet of a version that was not agreed";
    if (header.type < static_cast<uint8_t>(PacketType::ack) || header.type > static_cast<uint8_t>(PacketType::mail))
        return "a packet of unknown type";
    if (header.job.get() != job) return "a packet of another job";
    if (header.sender.get() >= ranks) return "a packet whose sender is out of range";
    if (header.reserved.get() != 0) return "a packet whose reserved bytes are not 0";
    if (length > segment_bytes_stream) return "a packet that is too long";
    if (header.sequence.get() >> 48 != 0) return "a packet of an unknown link stream";   // one so far
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
        case PacketType::job:
        case PacketType::mail: break;
    }
    return nullptr;
}

}   // namespace gradcast
