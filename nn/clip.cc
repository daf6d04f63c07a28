#include "nn/clip.h"

#include <algorithm>
#include <cmath>

#include "nn/sums.h"

namespace gradcast {
namespace {

constexpr double norm_least = 1e-6;   // added to the norm, as PyTorch does

/// Of words of 32 bits at most: halves of the squares are added apart, so that no sum overflows and the loop has no carries.
template <typename T>
void square(const T* words, uint64_t count, unsigned __int128* low) {
    uint64_t lower = 0, upper = 0;
    for (uint64_t i = 0; i < count; ++i) {
        const int64_t word = words[i];
        const auto squared = static_cast<uint64_t>(word * word);
        lower += squared & 0xffffffff;
        upper += squared >> 32;
    }
    *low = (static_cast<unsigned __int128>(upper) << 32) + lower;
}

void square(const int64_t* words, uint64_t count, unsigned __int128* low, unsigned __int128* high) {
    *low = *high = 0;
    for (uint64_t i = 0; i < count; ++i) {
        const auto word = static_cast<uint64_t>(words[i] < 0 ? -static_cast<__int128>(words[i]) : words[i]);
        const unsigned __int128 squared = static_cast<unsigned __int128>(word) * word;
        *low += static_cast<uint64_t>(squared);
        *high += static_cast<uint64_t>(squared >> 64);
    }
}

/// low + 2^64 high, rounded to double once where it has 128 bits.
double number(unsigned __int128 low, unsigned __int128 high) {
    high += low >> 64;
    if (high >> 64 == 0) return static_cast<double>(high << 64 | static_cast<uint64_t>(low));
    return static_cast<double>(high) * 0x1p64;
}

}   // namespace

NormClip::NormClip(const OptimiserConfig& config, const Layout& layout) : most_(config.clip_norm) {
    terms_.resize(layout.groups.size());
    for (uint32_t g = 0; g < layout.groups.size(); ++g) {
        const Group& group = layout.groups[g];
        if (group.statistics) continue;
        const uint32_t bucket = layout.bucket_of(group.offset);
        uint64_t at = group.place();
        const uint64_t end = at + group.count;
        const auto learns_up_to = [&](uint64_t place) {
            place = std::min(place, end);
            for (uint64_t count; at < place; at += count) {
                count = std::min(piece_most, place - at);
                pieces_.push_back({bucket, g, at - group.before, count});
            }
        };
        for (const OptimiserRange& range : config.ranges) {
            if (range.learns) continue;
            learns_up_to(range.place);
            at = std::clamp(range.place + range.count, at, std::max(at, end));
        }
        learns_up_to(end);
    }
}

std::span<const double> NormClip::terms(Lanes* lanes, const Layout& layout, std::span<const BucketSum> sums) {
    GC_ASSERT(sums.size() == layout.buckets.size());
    struct All {   // behind one pointer: a std::function of it allocates nothing
        std::vector<Piece>& pieces;
        const Layout& layout;
        const std::span<const BucketSum> sums;
        void one(uint32_t i) const {
            Piece& piece = pieces[i];
            const Sum& sum = sums[piece.bucket].sum;
            const uint64_t first = piece.offset - layout.buckets[piece.bucket].offset;
            piece.high = 0;
            switch (sum.word) {
                case Word::i16: square(sum.words.as<int16_t>() + first, piece.count, &piece.low); break;
                case Word::i32: square(sum.words.as<int32_t>() + first, piece.count, &piece.low); break;
                case Word::i64: square(sum.words.as<int64_t>() + first, piece.count, &piece.low, &piece.high); break;
            }
        }
    } const all{pieces_, layout, sums};
    if (lanes) pieces_run(*lanes, layout.elements, pieces_.size(), [&all](uint32_t, uint32_t i) { all.one(i); });
    else
        for (uint32_t i = 0; i < pieces_.size(); ++i) all.one(i);
    for (size_t i = 0; i < pieces_.size();) {
        const auto [bucket, group] = std::pair(pieces_[i].bucket, pieces_[i].group);
        unsigned __int128 low = 0, high = 0;
        for (; i < pieces_.size() && pieces_[i].group == group; ++i) low += pieces_[i].low, high += pieces_[i].high;
        const double unit = sums[bucket].units[group - layout.buckets[bucket].group];
        terms_[group] = number(low, high) * (unit * unit);
    }
    return terms_;
}

double NormClip::norm(std::span<const double> terms) {
    double squares = 0;
    for (const double term : terms) squares += term;
    return std::sqrt(squares);
}

double NormClip::factor(double norm) const { return std::min(1.0, most_ / (norm + norm_least)); }

void ScaledUnits::apply(const Layout& layout, double factor, std::span<BucketSum> sums) {
    GC_ASSERT(sums.size() == layout.buckets.size());
    for (uint32_t b = 0; b < sums.size(); ++b) {
        const Bucket& bucket = layout.buckets[b];
        for (uint32_t g = bucket.group; g < bucket.group + bucket.group_count; ++g)
            units_[g] = sums[b].units[g - bucket.group] * (layout.groups[g].statistics ? 1.0 : factor);
        sums[b].units = std::span(units_).subspan(bucket.group, bucket.group_count);
    }
}

}   // namespace gradcast
