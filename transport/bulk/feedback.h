// What transport/bulk's two ends tell one another.
//
// A transfer travels in *pieces* of at most 16 blocks of at most 128 segments.  Every piece under way has one of the sender's 256 *slots*,
// whose number stands in DataBody::reserved.  A slot is used again only when all receivers of its piece have finished it, so one bit a
// slot, which turns when a piece in it is finished, tells the sender of all finished pieces in every report, however many were lost.
#pragma once
#include "transport/bulk/bulk.h"
#include "transport/wire/packet.h"

namespace gradcast::bulk {

constexpr uint32_t slots_max = 256;
constexpr uint32_t block_segments = 128;
constexpr uint32_t piece_blocks = 16;
constexpr uint32_t piece_segments = block_segments * piece_blocks;
constexpr uint32_t count_max = 1 << 22;   // segments of a transfer
constexpr uint32_t parity_rows = 127;     // row i has the coefficients 1 / ((128 + i) ^ j)
constexpr uint64_t sequence_mask = (uint64_t{1} << 48) - 1;

enum class Feedback : uint8_t {
    credit,   // no payload
    report,   // payload: what the receiver has finished, and what it lacks
    query,    // of the sender: no payload, wants a report
};

/// PacketType::feedback
struct FeedbackBody {
    Le64 highest;   // the highest transmission number seen of you, 48 bits; above them a Feedback
    Le32 window;    // bytes that may be on their way to me beyond that
    Le32 behind;    // report: only transmissions up to highest - behind count as lost
};
static_assert(sizeof(FeedbackBody) == 16);

/// PacketType::parity.  Name of the transfer as in DataBody.
struct ParityBody {
    Le32 step;
    Le16 bucket, part;
    uint8_t phase, slot;
    uint8_t row;   // bit 7: of a record
    Le24 count;    // as in DataBody
    Le16 block;    // of the transfer; bit 15: the last one, and the rest is the length of its last segment
};
static_assert(sizeof(ParityBody) == 16);

/// A report's payload: this, `finished` and `known` (slot_bytes each, slot s is bit s % 8 of byte s / 8), then a PieceItem for each known
/// piece (as many as there is room for), each followed by BlockItems.
struct ReportHeader {
    uint8_t slot_bytes;
};
struct PieceItem {
    uint8_t slot;
    uint8_t held;   // the receiver has no room for it now: resend nothing
    Le16 done;      // bit b: block b is complete
    Le16 open;      // bit b: something of block b is there, and a BlockItem follows; nothing has been seen of other blocks
};
struct BlockItem {
    uint8_t lacks;   // packets, of any kind, until it is complete, where what came after the horizon does not count
    uint8_t plain;   // parity is of no use
    Le64 have[2];    // bit i: segment i is there or not wanted
};
static_assert(sizeof(ReportHeader) == 1 && sizeof(PieceItem) == 6 && sizeof(BlockItem) == 18);

/// Windows before anybody knows how fast datagrams arrive, and the least of all, in bytes.
constexpr uint32_t window_least = 3, window_good = 8, window_most_first = 16;   // packets
inline uint64_t window_first(const BulkConfig& config) {
    const uint64_t packet = config.segment_bytes + config.header_bytes;
    return std::clamp<uint64_t>(config.window_bytes / std::max(config.ranks - 1, 1u), window_least * packet, window_most_first * packet);
}

inline bool bit(const uint64_t* bits, uint32_t i) { return bits[i / 64] >> (i % 64) & 1; }
inline void set_bit(uint64_t* bits, uint32_t i) { bits[i / 64] |= uint64_t{1} << i % 64; }
inline void clear_bit(uint64_t* bits, uint32_t i) { bits[i / 64] &= ~(uint64_t{1} << i % 64); }
inline void flip_bit(uint64_t* bits, uint32_t i) { bits[i / 64] ^= uint64_t{1} << i % 64; }

}   // namespace gradcast::bulk
