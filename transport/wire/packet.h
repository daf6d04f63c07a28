// Every packet on streams: header, 16-byte body of its type, payload, 16-byte tag over all of it.  Datagrams: see DatagramHeader.
//
// 0 magic | 2 version | 3 type | 4 job | 8 view | 12 channel | 14 sender | 16 length | 20 reserved | 24 sequence | 32 body | 48 payload
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "runtime/core/le.h"
#include "runtime/core/protocol.h"

namespace gradcast {

constexpr uint16_t packet_magic = 0x6367;   // "gc"
constexpr uint8_t packet_version = 1;
constexpr uint32_t packet_head_bytes = 48;   // header and body

struct PacketHeader {
    Le16 magic;
    uint8_t version, type;
    Le32 job, view;   // job only routes (the first four bytes of its id): the key is bound to the full id
    Le16 channel, sender;
    Le32 length, reserved;   // of the payload; reserved is 0 and checked to be 0
    Le64 sequence;           // link stream 16 bits, counter 48: the nonce, never used twice under one key
};
static_assert(sizeof(PacketHeader) == 32 && alignof(PacketHeader) == 1 && offsetof(PacketHeader, sequence) == 24);

/// A datagram: this, a 12-byte tag over all the rest (96 bits, the least that NIST SP 800-38D section 5.2.1.2 allows without limits of
/// use), payload.  40 bytes before the payload, which so begins at a multiple of 8; shorter than a stream's, because they come with every
/// 1.4 kB: the length is the datagram's, and `route` stands for job and view.
struct DatagramHeader {
    uint8_t kind;   // datagram_magic and the PacketType
    uint8_t channel;
    Le16 sender, route;
    Le48 sequence;   // Send::sequence; with the channel before it the nonce
    std::array<std::byte, 16> body;
};
static_assert(sizeof(DatagramHeader) == 28 && alignof(DatagramHeader) == 1);
constexpr uint8_t datagram_magic = 0xD0;   // and the version, in the upper half of `kind`
constexpr uint32_t datagram_tag_bytes = 12;
constexpr uint32_t datagram_overhead_bytes = sizeof(DatagramHeader) + datagram_tag_bytes;
constexpr uint32_t datagram_wire_bytes = datagram_overhead_bytes + 42;   // UDP, IP and Ethernet included
/// `job` as in PacketHeader.  Mostly different for different jobs and views; what is not is told by the tag.
constexpr uint16_t datagram_route(uint32_t job, uint32_t view) {
    const uint32_t both = job ^ view * 0x9E3779B1u;
    return static_cast<uint16_t>(both ^ both >> 16);
}

enum class Phase : uint8_t {
    reduce = 1,       // words that are still to be summed up, to who sums them; records of all
    gather = 2,       // sums, from who has them
    again = 3,        // as reduce, to everybody: the part's reducer is lost or late (transport/exchange/coded.h)
    want = 4,         // a record without content: asks for `again`; `part` names the reducer
    reply = 5,        // as again, to one rank that had no room for it when it came
    want_reply = 6,   // as want: asks for `again` and for `reply`
};

/// PacketType::words and ::record (and parity, of words or a record).  A part of a bucket (the whole bucket is part 0 where an exchange
/// does not cut) travels as packets 0, 1, … count-1 of segment bytes each, the last one shorter.  `count` is checked by transport/bulk; on
/// streams, where it follows from the layout, it is 0.
struct DataBody {
    Le32 step;
    Le16 bucket, part;
    uint8_t phase;
    uint8_t reserved;   // 0 to everybody but transport/bulk
    Le24 index, count;
};
static_assert(sizeof(DataBody) == 16);

/// PacketType::mail.  Fragment at `offset` of a message of `total` bytes.
struct MailBody {
    Le64 tag;
    Le32 offset, total;
};
static_assert(sizeof(MailBody) == 16);

/// PacketType::job: `kind` and `value` as runtime/job says.
struct JobBody {
    Le32 kind, reserved;
    Le64 value;
};
static_assert(sizeof(JobBody) == 16);

/// PacketType::ack: packets delivered from the receiver of this one since the stream's first connection.
struct AckBody {
    Le64 received, reserved;
};
static_assert(sizeof(AckBody) == 16);

/// PacketType::key, on a stream: the sender's key and address for its datagrams (the payload is a KeyPayload), or that ours are here
/// (none).
struct KeyBody {
    uint8_t kind, ipv6;   // kind: 1 here they are, 2 we have yours
    Le16 port;
    Le32 segment_bytes;   // of the sender's datagrams
    Le32 view;            // whose key it is; 0: of the link's own datagrams and of channels that belong to no view
    Le32 place;           // network_place() of the sender
};
static_assert(sizeof(KeyBody) == 16);
struct KeyPayload {
    std::array<uint8_t, 16> key, address;   // an IPv4 address takes the first four bytes
};

/// PacketType::probe.  As a datagram: `count` of them make the train of a stage.  On a stream, back to who sent the train: how many came,
/// and how fast (0: too fast to tell).
struct ProbeBody {
    Le32 round;
    Le16 stage, count;
    Le32 rate_mbit, train;   // train: their number, the same in all of one
};
static_assert(sizeof(ProbeBody) == 16);

/// PacketType::record's payload with ring and unicast: this, then the maxima of the bucket's groups (float32 each).
struct RecordHeader {
    Le64 state;   // digest of the state the sender computed from
    Le64 loss;    // int64, 2^-20 units
    Le64 clipped;
};
static_assert(sizeof(RecordHeader) == 24);
/// Where super-blocks are held by several (exchange/coded.h, cssgd.cc): state (Le64), one of these for each that the sender holds, the
/// maxima.
struct HeldRecord {
    Le64 digest, loss;
    Le32 clipped;    // 2^32 - 1: that many or more
    Le32 diverged;   // 1 + the first block whose gradient holds NaN or Inf, 0: none
};
static_assert(sizeof(HeldRecord) == 24);

/// Calls each(piece) for the packets that a Send of words or record is cut in.  Only the last one carries the ticket: links complete
/// tickets in order.
template <typename Each>
void cut(const Send& send, uint32_t segment_bytes, Each each) {
    if (send.payload.bytes <= segment_bytes || (send.type != PacketType::words && send.type != PacketType::record)) return each(send);
    DataBody body = std::bit_cast<DataBody>(send.body);
    Send piece = send;
    for (uint64_t at = 0; at < send.payload.bytes; at += segment_bytes) {
        const uint64_t bytes = std::min<uint64_t>(segment_bytes, send.payload.bytes - at);
        piece.payload = send.payload.part(at, bytes);
        piece.ticket = at + bytes == send.payload.bytes ? send.ticket : 0;
        piece.body = std::bit_cast<std::array<std::byte, 16>>(body);
        each(piece);
        body.index.set(body.index.get() + 1);
    }
}

template <typename Body>
Body body_of(const Packet& packet) {
    static_assert(sizeof(Body) == 16);
    return std::bit_cast<Body>(packet.body);
}
template <typename Body>
std::array<std::byte, 16> body_bytes(const Body& body) {
    return std::bit_cast<std::array<std::byte, 16>>(body);
}

/// Why these 32 bytes cannot be a packet of (job, view): null if they can.  Bytes from the network are never asserted.
const char* packet_invalid(const PacketHeader& header, uint32_t job, uint32_t ranks);

/// Why a datagram was dropped.
enum class DatagramFault : uint8_t {
    none,
    truncated,   // or longer than agreed
    magic,       // not a datagram of ours
    route,       // of another job
    view,        // of the view before or after the open one
    sender,      // of no rank of the view
    own,         // our own, come back from the group: no fault of anybody's
    type,        // of a type or a channel that does not travel so
    no_key,      // the sender's key has not come yet
    replayed,    // seen already, or too old to tell
    tag,         // forged or damaged
    no_room,     // land() said later
    kinds,
};
const char* datagram_fault_name(DatagramFault fault);
/// Looks at the header alone.
DatagramFault datagram_fault(std::span<const std::byte> bytes, uint16_t route, uint32_t ranks, Rank self, uint32_t segment_bytes);

}   // namespace gradcast
