// Cauchy parity over GF(2^8), by ISA-L: k <= 128 segments can be computed from any k of them and of their 127 parity packets.
#pragma once
#include <span>
#include <vector>

#include "runtime/core/arena.h"
#include "transport/bulk/feedback.h"

namespace gradcast::bulk {

/// Encodes and decodes, with the memory for it.
class Parity {
public:
    Parity(uint32_t segment_bytes, Arena& arena);
    static constexpr uint32_t rows_at_once = 16;

    /// Pads a source that is shorter than a segment with zeros; at most one of a call.
    std::byte* padded(const Buffer& segment);
    /// Parity of rows row, row + 1, … (all below parity_rows) of all `segments` into out; at most rows_at_once.
    void encode(std::span<std::byte*> segments, uint32_t row, std::span<std::byte*> out);
    /// `there` and `missing`: numbers of segments.  `rows`: of as many parity packets as segments are missing.
    /// sources: the segments that are there, then the parity packets.  out: the missing segments, null if not wanted.
    void decode(std::span<const uint8_t> there, std::span<const uint8_t> missing, std::span<const uint8_t> rows,
                std::span<std::byte*> sources, std::span<std::byte*> out);
    std::byte* spare() { return spare_.host; }   // a segment of memory, for an output that is longer than its place

private:
    const uint32_t segment_bytes_;
    Buffer padded_, spare_, matrix_, inverse_, rows_, tables_;
};

}   // namespace gradcast::bulk
