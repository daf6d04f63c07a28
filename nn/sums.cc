#include "nn/sums.h"

#include <algorithm>

#include "nn/graph/layers.h"
#include "nn/kernels.h"

namespace gradcast {
namespace {

constexpr uint64_t alone_most = 128 * 1024;   // elements that one thread updates
constexpr uint64_t chunk = 512;               // elements that become float at a time, in the first-level cache

/// (float)((double)S * unit) of elements of one group, from that offset of the layout on.
void dequantise(float* gradient, const Layout& layout, uint32_t group, const BucketSum& from, uint64_t offset, uint64_t count) {
    static const FloatKernels& kernels = float_kernels(isa_best());
    const Sum& sum = from.sum;
    const Bucket& bucket = layout.buckets[sum.bucket];
    const uint64_t word = offset - bucket.offset;
    const double unit = from.units[group - bucket.group];
    switch (sum.word) {
        case Word::i16: kernels.dequantise_i16(gradient, sum.words.as<int16_t>() + word, count, unit); break;
        case Word::i32: kernels.dequantise_i32(gradient, sum.words.as<int32_t>() + word, count, unit); break;
        case Word::i64: kernels.dequantise_i64(gradient, sum.words.as<int64_t>() + word, count, unit); break;
    }
}

/// The norms of one of the optimiser's pieces, in chunks that the piece alone determines.
void piece_look(Optimiser::Piece& piece, const Layout& layout, std::span<const BucketSum> sums, Optimiser& optimiser,
                std::span<const float> values) {
    const uint32_t b = layout.bucket_of(piece.offset);
    uint32_t group = layout.buckets[b].group;
    while (piece.offset - layout.groups[group].offset >= layout.groups[group].count) ++group;
    float gradient[chunk];
    for (uint64_t i = 0, count = 0; i < piece.count; i += count) {
        count = std::min(chunk, piece.count - i);
        dequantise(gradient, layout, group, sums[b], piece.offset + i, count);
        optimiser.look(piece, piece.offset + i, values.subspan(piece.offset + i, count), {gradient, count});
    }
}

}   // namespace

std::vector<SumPiece> sum_pieces(const Layout& layout) {
    std::vector<SumPiece> pieces;
    for (uint32_t b = 0; b < layout.buckets.size(); ++b)
        for (uint32_t g = layout.buckets[b].group, end = g + layout.buckets[b].group_count; g < end; ++g)
            for (uint64_t i = 0; i < layout.groups[g].count; i += piece_most)
                pieces.push_back({b, g, layout.groups[g].offset + i, std::min(piece_most, layout.groups[g].count - i)});
    return pieces;
}

void sum_apply(SumPiece& piece, const Layout& layout, const BucketSum& from, Optimiser& optimiser, std::span<float> values, uint64_t at) {
    const Bucket& bucket = layout.buckets[piece.bucket];
    const Sum& sum = from.sum;
    GC_ASSERT(sum.bucket == piece.bucket && from.units.size() == bucket.group_count && values.size() == piece.count);
    GC_ASSERT(sum.words.bytes >= bucket.count * word_bytes(sum.word));
    const Group& group = layout.groups[piece.group];
    float gradient[chunk];
    piece.digest = 0;
    for (uint64_t i = 0, count = 0; i < piece.count; i += count) {
        const uint64_t offset = piece.offset + i, place = offset + group.before;
        count = std::min(chunk - place % digest_row, piece.count - i);   // whole rows of the digest
        dequantise(gradient, layout, piece.group, from, offset, count);
        const std::span<float> now = values.subspan(i, count);
        if (group.statistics) {
            for (uint64_t j = 0; j < count; ++j) now[j] += statistics_share * (gradient[j] - now[j]);
            piece.digest += digest64(now, place);   // their optimiser state stays 0
        } else {
            piece.digest += optimiser.update(at + i, now, {gradient, count});
        }
    }
}

void pieces_run(Lanes& lanes, uint64_t elements, size_t count, const std::function<void(uint32_t, uint32_t)>& task) {
    if (elements >= alone_most) return lanes.run(static_cast<uint32_t>(count), task);
    for (uint32_t i = 0; i < count; ++i) task(0, i);
}

void sums_apply(Lanes& lanes, std::span<SumPiece> pieces, const Layout& layout, std::span<const BucketSum> sums, Optimiser& optimiser,
                std::span<float> values) {
    GC_ASSERT(sums.size() == layout.buckets.size() && values.size() == layout.elements);
    struct All {   // behind one pointer: a std::function of it allocates nothing
        const std::span<SumPiece> pieces;
        const Layout& layout;
        const std::span<const BucketSum> sums;
        Optimiser& optimiser;
        const std::span<float> values;
    } const all{pieces, layout, sums, optimiser, values};
    if (const std::span<Optimiser::Piece> looks = optimiser.pieces(); !looks.empty()) {
        pieces_run(lanes, layout.elements, looks.size(), [&all](uint32_t, uint32_t i) {
            piece_look(all.optimiser.pieces()[i], all.layout, all.sums, all.optimiser, all.values);
        });
        optimiser.looked();
    }
    pieces_run(lanes, layout.elements, pieces.size(), [&all](uint32_t, uint32_t i) {
        SumPiece& piece = all.pieces[i];
        sum_apply(piece, all.layout, all.sums[piece.bucket], all.optimiser, all.values.subspan(piece.offset, piece.count), piece.offset);
    });
}

}   // namespace gradcast
