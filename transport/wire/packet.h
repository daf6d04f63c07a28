// A packet on a stream: header, 16-byte body by type, payload, 16-byte tag over all of it.  Datagrams: see DatagramHeader.
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
    Le32 job, view;   // job: the first 4 bytes of the id, for routing; the key is bound to the full id
    Le16 channel, sender;
    Le32 length, reserved;   // length: of the payload; reserved must be 0
    Le64 sequence;           // the nonce: link stream (16 bits), counter (48 bits); used once under a key
};
static_assert(sizeof(PacketHeader) == 32 && alignof(PacketHeader) == 1 && offsetof(PacketHeader, sequence) == 24);

/// A datagram: this header, a 12-byte tag over all the rest (96 bits, the shortest tag that NIST SP 800-38D section 5.2.1.2 allows without
/// limits of use), payload.  These 40 bytes come with every 1.4 kB, so the header is short: UDP tells the length, and `route` stands for
/// job and view.
struct DatagramHeader {
    uint8_t kind;   // datagram_magic | PacketType
    uint8_t channel;
    Le16 sender, route;
    Le48 sequence;   // Send::sequence; the nonce is channel and sequence
    std::array<std::byte, 16> body;
};
static_assert(sizeof(DatagramHeader) == 28 && alignof(DatagramHeader) == 1);
constexpr uint8_t datagram_magic = 0xD0;   // magic and version, the upper half of `kind`
constexpr uint32_t datagram_tag_bytes = 12;
constexpr uint32_t datagram_overhead_bytes = sizeof(DatagramHeader) + datagram_tag_bytes;
constexpr uint32_t datagram_wire_bytes = datagram_overhead_bytes + 42;   // with UDP, IP and Ethernet headers
/// A hash of job (as in PacketHeader) and view.  The tag detects collisions.
constexpr uint16_t datagram_route(uint32_t job, uint32_t view) {
    const uint32_t both = job ^ view * 0x9E3779B1u;
    return static_cast<uint16_t>(both ^ both >> 16);
}

enum class Phase : uint8_t {
    reduce = 1,       // words to the rank that sums them; records to all
    gather = 2,       // sums, from a rank that has them
    again = 3,        // like reduce, but to all: the part's reducer is lost or late (transport/exchange/coded.h)
    want = 4,         // an empty record that asks for `again`; `part` is the reducer
    reply = 5,        // like again, to a rank that had no memory for it before
    want_reply = 6,   // like want: asks for `again` and `reply`
    complete = 7,     // an empty record: the sender has all sums of the step
};

/// PacketType::words and ::record (and parity of these).  A part of a bucket (part 0 is the whole bucket if the exchange does not cut it)
/// travels as packets 0 .. count-1 of segment bytes each, the last one shorter.  transport/bulk checks `count`; on streams it is 0, because
/// it follows from the layout.
struct DataBody {
    Le32 step;
    Le16 bucket, part;
    uint8_t phase;
    uint8_t reserved;   // used by transport/bulk, else 0
    Le24 index, count;
};
static_assert(sizeof(DataBody) == 16);

/// Messages of at most so many bytes are small: each is one packet, and goes unasked (transport/mail.h).
constexpr uint32_t mail_early_bytes = 1024;
/// PacketType::mail: the fragment at `offset` of a message of `total` bytes.
struct MailBody {
    Le64 tag;
    Le32 offset, total;
};
static_assert(sizeof(MailBody) == 16);

enum class MailWord : uint32_t {
    ask = 1,    // value: the tag of a large message, whose receive its sender has posted
    room = 2,   // value: how many small messages the receives of its sender have taken, which others may follow
};
/// PacketType::mail_word: from the receiver of messages to their sender.
struct MailWordBody {
    Le64 value;
    Le32 kind, reserved;
};
static_assert(sizeof(MailWordBody) == 16);

/// PacketType::edge.  The value of a key travels as packets 0, 1, ... of segment bytes each, the last one shorter.
struct EdgeBody {
    Le32 step, block;
    uint8_t gradient;   // 1: a gradient, 0: a value
    uint8_t reserved;
    Le24 index;
    Le16 edge;
    uint8_t reserved_too;
};
static_assert(sizeof(EdgeBody) == 16 && offsetof(EdgeBody, index) == offsetof(DataBody, index));

enum class EdgeWord : uint8_t {
    ask = 1,       // the sender has memory of so many bytes for this key
    size = 2,      // the value that was asked for has so many bytes, which differ from the ask's, and does not come
    abandon = 3,   // the sender has abandoned the block: edge, gradient and bytes are 0
    gone = 4,      // the answer to abandon: nothing of the block comes after this word
};
/// PacketType::edge_word.
struct EdgeWordBody {
    Le32 step, block;
    Le16 edge;
    uint8_t gradient, kind;
    Le32 bytes;
};
static_assert(sizeof(EdgeWordBody) == 16);

/// PacketType::job: runtime/mesh, runtime/view and runtime/job/run define `kind` and `value`.
struct JobBody {
    Le32 kind, reserved;
    Le64 value;
};
static_assert(sizeof(JobBody) == 16);

/// PacketType::ack: the number of packets that its sender has received from its receiver since the stream's first connection.
struct AckBody {
    Le64 received, reserved;
};
static_assert(sizeof(AckBody) == 16);

/// PacketType::key, on a stream: the sender's key and address for its datagrams (payload: KeyPayload), or the acknowledgement of the
/// receiver's (no payload).
struct KeyBody {
    uint8_t kind, family;   // kind: 1 a key, 2 an acknowledgement; family: 0 IPv4, 1 IPv6, 2 RDMA
    Le16 port;              // RDMA: the LID
    Le32 segment_bytes;     // of the sender's datagrams
    Le32 view;              // that the key is for; 0: the link's own datagrams and channels without a view
    Le32 place;             // network_place() of the sender; RDMA: its queue pair
};
static_assert(sizeof(KeyBody) == 16);
struct KeyPayload {
    std::array<uint8_t, 16> key, address;   // an IPv4 address is in the first 4 bytes; RDMA: the GID
};

/// PacketType::probe.  As a datagram: one of the `count` packets of a stage's train.  On a stream, back to the train's sender: `count`
/// packets arrived, at rate_mbit (0: too fast to measure).  On a stream with a payload: it tests whether large packets pass, and the
/// stream's acknowledgement is the answer.
struct ProbeBody {
    Le32 round;
    Le16 stage, count;
    Le32 rate_mbit, train;   // train: its number, the same in all its packets
};
static_assert(sizeof(ProbeBody) == 16);

/// The payload of PacketType::record with ring and unicast: this, then the maxima of the bucket's groups (float32 each).
struct RecordHeader {
    Le64 state;   // digest of the state that the sender computed from
    Le64 loss;    // int64, in units of 2^-20
    Le64 valid;   // positions whose label counts
    Le64 clipped;
};
static_assert(sizeof(RecordHeader) == 32);
/// If several ranks hold a super-block (exchange/coded.h, cssgd.cc), the payload is: state (Le64), one HeldRecord for each super-block of
/// the sender, the maxima.
struct HeldRecord {
    Le64 digest, loss, valid;
    Le32 clipped;    // saturates at 2^32 - 1
    Le32 diverged;   // 1 + the first block whose gradient has NaN or Inf; 0: none
};
static_assert(sizeof(HeldRecord) == 32);

/// Calls each(piece) for the packets of a Send of words, record or edge.  Only the last one carries the ticket: links complete tickets in
/// order.
template <typename Each>
void cut(const Send& send, uint32_t segment_bytes, Each each) {
    const bool may = send.type == PacketType::words || send.type == PacketType::record || send.type == PacketType::edge;
    if (send.payload.bytes <= segment_bytes || !may) return each(send);
    DataBody body = std::bit_cast<DataBody>(send.body);   // EdgeBody has its index at the same place
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

/// Why these 32 bytes are not a valid packet of the job; null: they are.  Looks at the header alone.
const char* packet_invalid(const PacketHeader& header, uint32_t job, uint32_t ranks);

/// Why a datagram was dropped.
enum class DatagramFault : uint8_t {
    none,
    truncated,   // or too long
    magic,       // not a gradcast datagram
    route,       // of another job
    view,        // of an older or newer view than the open one
    sender,      // of no rank of the view
    own,         // an own multicast that came back: no error
    type,        // of a type or channel that does not use datagrams
    no_key,      // the sender's key is not known yet
    replayed,    // a duplicate, or too old to tell
    tag,         // forged or damaged
    no_room,     // land() said later
    kinds,
};
const char* datagram_fault_name(DatagramFault fault);
/// Checks the header alone.
DatagramFault datagram_fault(std::span<const std::byte> bytes, uint16_t route, uint32_t ranks, Rank self, uint32_t segment_bytes);

}   // namespace gradcast
