// The feedback of a receiving end of transport/bulk to a sending end.
//
// A transfer travels in *pieces* of at most 16 blocks of at most 128 segments.  Every piece under way has one of the sender's 256 *slots*,
// whose number stands in DataBody::reserved.  A slot is used again only when all receivers of its piece have finished it, so one bit a
// slot, which is flipped when a piece in it is finished, tells the sender all finished pieces in every report, even if reports were lost.
#pragma once
#include "runtime/core/bits.h"
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
    query,    // from the sender, no payload: asks for a report
};

/// PacketType::feedback
struct FeedbackBody {
    Le64 highest;   // bits 0 to 47: the highest transmission number received from this sender; above: Feedback
    Le32 window;    // bytes that may be in flight beyond `highest`
    Le32 behind;    // report: only transmissions up to highest - behind count as lost
};
static_assert(sizeof(FeedbackBody) == 16);

/// PacketType::parity.  The transfer is named as in DataBody.
struct ParityBody {
    Le32 step;
    Le16 bucket, part;
    uint8_t phase, slot;
    uint8_t row;   // bit 7: of a record
    Le24 count;    // as in DataBody
    Le16 block;    // number in the transfer; with bit 15 it is the last block, and the other bits are the length of its last segment
};
static_assert(sizeof(ParityBody) == 16);

/// A report's payload: this, `finished` and `known` (slot_bytes each, slot s is bit s % 8 of byte s / 8), then a PieceItem for each known
/// piece (as many as fit), each followed by its BlockItems.
struct ReportHeader {
    uint8_t slot_bytes;
};
struct PieceItem {
    uint8_t slot;
    uint8_t held;   // the receiver has no memory for it now: send nothing again
    Le16 done;      // bit b: block b is complete
    Le16 open;      // bit b: part of block b has arrived, and a BlockItem follows; nothing has arrived of other blocks
};
struct BlockItem {
    uint8_t lacks;   // packets of any kind that it needs; those received after the horizon do not count
    uint8_t plain;   // parity cannot repair it
    Le64 have[2];    // bit i: segment i has arrived or is not wanted
};
static_assert(sizeof(ReportHeader) == 1 && sizeof(PieceItem) == 6 && sizeof(BlockItem) == 18);

/// Windows before the arrival rate is known, and the smallest of all.
constexpr uint32_t window_least = 3, window_good = 8, window_most_first = 16;   // packets
inline uint64_t window_first(const BulkConfig& config) {
    const uint64_t packet = config.segment_bytes + config.header_bytes;
    return std::clamp<uint64_t>(config.window_bytes / std::max(config.ranks - 1, 1u), window_least * packet, window_most_first * packet);
}

}   // namespace gradcast::bulk
