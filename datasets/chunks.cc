#include "datasets/chunks.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/core/memory_room.h"

namespace gradcast {
namespace {

constexpr uint64_t stripes_max = 16;

const char* inflate_reason(int result) {
    switch (result) {
        case ISAL_INCORRECT_CHECKSUM: return "its checksum is wrong";
        case ISAL_END_INPUT: return "its deflate stream ends too early";
        case ISAL_OUT_OVERFLOW: return "it inflates to more than a chunk";
        case ISAL_INVALID_WRAPPER:
        case ISAL_UNSUPPORTED_METHOD:
        case ISAL_NEED_DICT: return "it does not begin as a zlib stream";
        default: return "its deflate stream is broken";
    }
}

std::string chunk_name(const Shard& shard, uint64_t chunk) {
    const uint64_t first = chunk * shard.chunk_samples, last = std::min(first + shard.chunk_samples, shard.info.count) - 1;
    return fmt::format("{}: data set {}, stored chunk {} (samples {} .. {})", shard.path, shard.samples_name, chunk, first, last);
}
Status chunk_error(const Shard& shard, uint64_t chunk, std::string_view what) {
    return fail(Code::data, "{}: {}: the file is damaged, import it again", chunk_name(shard, chunk), what);
}

}   // namespace

void Inflater::reserve(const Shard& shard) {
    for (const StoredChunk& chunk : shard.chunks)
        if (chunk.deflated) stored_.resize(std::max<size_t>(stored_.size(), chunk.bytes));
}

Status Inflater::read(const Shard& shard, int fd, uint64_t chunk, uint8_t* out) {
    const StoredChunk& stored = shard.chunks[chunk];
    if (stored.deflated && stored_.size() < stored.bytes) stored_.resize(stored.bytes);
    uint8_t* to = stored.deflated ? stored_.data() : out;
    for (uint64_t at = 0; at < stored.bytes;) {
        ssize_t got = ::pread(fd, to + at, stored.bytes - at, static_cast<off_t>(stored.offset + at));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_sys(errno, "{}: cannot read", chunk_name(shard, chunk));
        if (got == 0) return chunk_error(shard, chunk, "the file ends here");
        at += static_cast<uint64_t>(got);
    }
    if (!stored.deflated) return {};
    const uint64_t bytes = shard.chunk_bytes();
    isal_inflate_init(state_.get());
    state_->next_in = stored_.data();
    state_->avail_in = stored.bytes;
    state_->next_out = out;
    state_->avail_out = static_cast<uint32_t>(bytes);
    state_->crc_flag = ISAL_ZLIB;
    if (int result = isal_inflate_stateless(state_.get()); result != ISAL_DECOMP_OK)
        return chunk_error(shard, chunk, inflate_reason(result));
    if (state_->total_out != bytes)
        return chunk_error(shard, chunk, fmt::format("it inflates to {} bytes instead of {}", state_->total_out, bytes));
    return {};
}

ChunkCache::~ChunkCache() {
    if (memory_) ::munmap(memory_, bytes_);
}

Status ChunkCache::open(const std::vector<Shard>& shards, uint64_t bytes_max) {
    uint64_t chunks = 0;
    for (const Shard& shard : shards) {
        first_.push_back(chunks);
        chunks += shard.chunks.size();
        if (!shard.chunks.empty()) slot_bytes_ = std::max(slot_bytes_, shard.chunk_bytes());
    }
    if (chunks == 0) return {};
    slot_.assign(chunks, nowhere);
    const uint64_t room = std::clamp(bytes_max / slot_bytes_, uint64_t{1}, chunks);
    stripes_.resize(std::min(stripes_max, room));
    for (size_t i = 0; i < stripes_.size(); ++i) {
        stripes_[i] = std::make_unique<Stripe>();
        stripes_[i]->held.assign(room == chunks ? (chunks - i - 1) / stripes_.size() + 1 : room / stripes_.size(), nowhere);
        for (const Shard& shard : shards) stripes_[i]->inflater.reserve(shard);
        bytes_ += stripes_[i]->held.size() * slot_bytes_;
    }
    const std::string purpose = fmt::format("{}: a cache of inflated samples", shards[0].path);
    GC_TRY(memory_room_for(bytes_, purpose));
    // MAP_POPULATE: what a job plans afterwards sees that this memory is gone.
    void* memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) return fail_sys(errno, "{}: no memory for {} MiB", purpose, bytes_ >> 20);
    memory_ = static_cast<uint8_t*>(memory);
    for (uint8_t* at = memory_; auto& stripe : stripes_) stripe->slots = std::exchange(at, at + stripe->held.size() * slot_bytes_);
    return {};
}

Status ChunkCache::read(const Shard& shard, uint32_t shard_index, int fd, uint64_t sample, uint64_t count, uint8_t* out) {
    const uint64_t sample_bytes = shard.sample_bytes();
    for (uint64_t end = sample + count; sample < end;) {
        const uint64_t chunk = sample / shard.chunk_samples, within = sample % shard.chunk_samples;
        const uint64_t piece = std::min(shard.chunk_samples - within, end - sample) * sample_bytes;
        const uint64_t number = first_[shard_index] + chunk;
        Stripe& stripe = *stripes_[number % stripes_.size()];
        std::lock_guard lock(stripe.mutex);
        uint32_t& slot = slot_[number];
        if (slot == nowhere) {
            const uint32_t into = stripe.next;
            stripe.next = (into + 1) % static_cast<uint32_t>(stripe.held.size());
            if (uint32_t& old = stripe.held[into]; old != nowhere) {
                slot_[old] = nowhere;
                old = nowhere;
            }
            GC_TRY(stripe.inflater.read(shard, fd, chunk, stripe.slots + into * slot_bytes_));
            stripe.held[into] = static_cast<uint32_t>(number);
            slot = into;
        }
        std::memcpy(out, stripe.slots + slot * slot_bytes_ + within * sample_bytes, piece);
        out += piece;
        sample += piece / sample_bytes;
    }
    return {};
}

}   // namespace gradcast
