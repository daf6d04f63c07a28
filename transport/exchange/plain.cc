#include "transport/exchange/plain.h"

#include <algorithm>
#include <cmath>

namespace gradcast {
namespace {

// A record in wire form.
RecordHeader& header_of(const Buffer& record) {
    GC_ASSERT(record.host);   // the arena has been sealed
    return *record.as<RecordHeader>();
}
float* maxima_of(const Buffer& record) { return record.part(sizeof(RecordHeader), record.bytes - sizeof(RecordHeader)).as<float>(); }

}   // namespace

Status PlainExchange::plan_memory(Arena& arena) {
    plan_own(arena);

    segments_.clear();
    first_.clear();
    record_offset_.clear();
    uint64_t records = 0;
    for (uint32_t b = 0; b < layout_.buckets.size(); ++b) {
        const uint64_t count = layout_.buckets[b].count;
        for (uint32_t p = 0; p < parts_; ++p) {
            first_.push_back(static_cast<uint32_t>(segments_.size()));
            const uint64_t end = (p + 1) * count / parts_;
            uint32_t index = 0;
            for (uint64_t at = p * count / parts_; at < end; at += segment_words_)
                segments_.push_back({b, p, index++, static_cast<uint32_t>(std::min<uint64_t>(segment_words_, end - at)), at});
        }
        record_offset_.push_back(records);
        records += (n() + 1) * ((record_bytes(b) + 7) / 8 * 8);
    }
    first_.push_back(static_cast<uint32_t>(segments_.size()));

    for (Memory& memory : memory_) {
        if (n() > 1 || &memory == &memory_[0]) arena.plan("own words", layout_.elements * word_bytes(acc_word_), &memory.acc);
        if (n() > 1) arena.plan("sums", layout_.elements * word_bytes(sum_word_), &memory.sum);
        arena.plan("records", records, &memory.records);
    }
    return {};
}

void PlainExchange::cleared(uint32_t s) {
    memory_[s].recorded.assign(layout_.buckets.size() * n(), 0);
    for (uint32_t b = 0; b < layout_.buckets.size(); ++b)
        state(s, b).missing = n() == 1 ? 1 : first_[(b + 1) * parts_] - first_[b * parts_] + missing_;
    cleared_own(s);
}

Buffer PlainExchange::words_of(const Buffer& whole, Word word, const Segment& segment) const {
    return whole.part((layout_.buckets[segment.bucket].offset + segment.offset) * word_bytes(word),
                      uint64_t{segment.words} * word_bytes(word));
}

Buffer PlainExchange::target(uint32_t s, uint32_t bucket, uint32_t) {
    const Bucket& range = layout_.buckets[bucket];
    return acc(s).part(range.offset * word_bytes(acc_word_), range.count * word_bytes(acc_word_));
}

Buffer PlainExchange::record_of(uint32_t slot, uint32_t bucket, uint32_t index) const {
    const uint64_t bytes = record_bytes(bucket);
    return memory_[slot].records.part(record_offset_[bucket] + index * ((bytes + 7) / 8 * 8), bytes);
}

bool PlainExchange::valid(Arrival* a) const {
    if (a->part >= parts_) return false;
    if (a->record) return a->index == 0 && a->phase == Phase::reduce && a->bytes == record_bytes(a->bucket);
    if (a->phase != Phase::reduce && a->phase != Phase::gather) return false;
    const uint32_t first = first_[a->bucket * parts_ + a->part], end = first_[a->bucket * parts_ + a->part + 1];
    if (a->index >= end - first || a->bytes == 0 || a->bytes != uint64_t{segments_[first + a->index].words} * width(a->sender))
        return false;
    a->segment = first + a->index;
    return true;
}

void PlainExchange::contributed(uint32_t s, uint32_t b, Actions& actions) {
    const Record& own = state(s, b).own[0];
    Buffer record = record_of(s, b, n());
    RecordHeader& header = header_of(record);
    header.state.set(own.state);
    header.loss.set(static_cast<uint64_t>(own.loss));
    header.valid.set(own.valid);
    header.clipped.set(own.clipped);
    std::copy(own.maxima.begin(), own.maxima.end(), maxima_of(record));
    if (n() == 1) arrived(s, b, actions);
    else started(s, b, actions);
}

bool PlainExchange::record_add(uint32_t s, uint32_t bucket, Rank sender, Buffer into, Buffer from, Actions& actions) {
    RecordHeader &a = header_of(into), &b = header_of(from);
    const uint64_t own = state(s, bucket).own[0].state, theirs = a.state.get() == own ? b.state.get() : a.state.get();
    if (theirs != own) return refuse(s, bucket, states_differ(s, config_.self, own, sender, theirs), actions), false;
    a.loss.set(a.loss.get() + b.loss.get());
    a.valid.set(a.valid.get() + b.valid.get());
    a.clipped.set(a.clipped.get() + b.clipped.get());
    float *x = maxima_of(into), *y = maxima_of(from);
    for (uint32_t g = 0; g < layout_.buckets[bucket].group_count; ++g) {
        if (!(std::isfinite(x[g]) && x[g] >= 0 && std::isfinite(y[g]) && y[g] >= 0))
            return refuse(s, bucket, no_size(s, bucket, sender, g), actions), false;
        x[g] = std::fmax(x[g], y[g]);
    }
    return true;
}

void PlainExchange::total(uint32_t s, uint32_t b, Sum* sum) const {
    const Bucket& range = layout_.buckets[b];
    const Buffer record = n() == 1 ? record_of(s, b, n()) : total_record(s, b);
    const RecordHeader& header = header_of(record);
    const Buffer& whole = n() == 1 ? acc(s) : memory_[s].sum;
    sum->word = sum_word_;
    sum->words = whole.part(range.offset * word_bytes(sum_word_), range.count * word_bytes(sum_word_));
    sum->maxima = {maxima_of(record), range.group_count};
    sum->state = header.state.get();
    sum->loss = static_cast<int64_t>(header.loss.get());
    sum->valid = header.valid.get();
    sum->clipped = header.clipped.get();
}

std::string PlainExchange::missing_text(uint32_t s, uint32_t b) const {
    const uint32_t segments = first_[(b + 1) * parts_] - first_[b * parts_];
    return fmt::format("{} of {} segments and records ({} bytes a segment) are missing", state(s, b).missing, segments + missing_,
                       segment_words_ * word_bytes(sum_word_));
}

}   // namespace gradcast
