// The end of a step: sums are applied in pieces by all lanes, and copies of weights are made anew.
#include <algorithm>

#include "nn/cpu/net.h"

namespace gradcast::cpu {
namespace {

constexpr uint64_t apply_chunk = 512;          // elements that become float at a time, in the first-level cache
constexpr uint64_t apply_alone = 128 * 1024;   // elements of a net that one thread updates

}   // namespace

void CpuNet::refresh_layer(uint32_t lane, size_t layer) {
    OneThread one;
    for (const Operation& operation : copies_[layer].refresh)
        GC_ASSERT(operation(frame_of(lane, 0)).ok());   // no block is running: the lane's scratch is free
}

uint64_t CpuNet::digest() {
    uint64_t sum = 0;
    for (const Layout::Run& run : runs_) sum += digest64(parameters().subspan(run.offset, run.count), run.place);
    return sum;
}

void CpuNet::refresh() {
    for (size_t layer : copied_) refresh_layer(0, layer);
}

void CpuNet::apply_piece(Piece& piece, Optimiser& optimiser, const BucketSum& from) {
    const Bucket& bucket = layout_.buckets[piece.bucket];
    const Sum& sum = from.sum;
    GC_ASSERT(sum.bucket == piece.bucket && from.units.size() == bucket.group_count);
    GC_ASSERT(sum.words.bytes >= bucket.count * word_bytes(sum.word));
    const double unit = from.units[piece.group - bucket.group];
    float gradient[apply_chunk];
    piece.digest = 0;
    for (uint64_t i = 0, count = 0; i < piece.count; i += count) {
        const uint64_t offset = piece.offset + i, word = offset - bucket.offset, place = offset + layout_.groups[piece.group].before;
        count = std::min(apply_chunk - place % digest_row, piece.count - i);   // whole rows of the digest
        switch (sum.word) {
            case Word::i16: kernels_.dequantise_i16(gradient, sum.words.as<int16_t>() + word, count, unit); break;
            case Word::i32: kernels_.dequantise_i32(gradient, sum.words.as<int32_t>() + word, count, unit); break;
            case Word::i64: kernels_.dequantise_i64(gradient, sum.words.as<int64_t>() + word, count, unit); break;
        }
        const std::span<float> values = parameters().subspan(offset, count);
        if (statistics_ && piece.bucket == 0) {
            for (uint64_t j = 0; j < count; ++j) values[j] += statistics_share * (gradient[j] - values[j]);
            piece.digest += digest64(values, place);   // their optimiser state stays 0
        } else {
            piece.digest += optimiser.update(offset, values, {gradient, count});
        }
    }
}

Status CpuNet::apply(Lanes& lanes, Optimiser& optimiser, std::span<const BucketSum> sums, uint64_t* digest) {
    GC_ASSERT(sums.size() == layout_.buckets.size() && lanes.count() <= memory_.size());
    const bool alone = lanes.count() == 1 || layout_.elements < apply_alone;
    auto run = [&lanes, alone](size_t items, const std::function<void(uint32_t, uint32_t)>& task) {
        if (!alone) return lanes.run(static_cast<uint32_t>(items), task);
        for (uint32_t i = 0; i < items; ++i) task(0, i);
    };
    struct Step {   // behind one pointer: a std::function of it allocates nothing
        CpuNet& net;
        Optimiser& optimiser;
        const std::span<const BucketSum> sums;
    } const step{*this, optimiser, sums};
    run(pieces_.size(), [&step](uint32_t, uint32_t i) {
        Piece& piece = step.net.pieces_[i];
        step.net.apply_piece(piece, step.optimiser, step.sums[piece.bucket]);
    });
    run(copied_.size(), [this](uint32_t lane, uint32_t i) { refresh_layer(lane, copied_[i]); });
    *digest = 0;
    for (const Piece& piece : pieces_) *digest += piece.digest;
    return {};
}

}   // namespace gradcast::cpu
