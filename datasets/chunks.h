// Shards whose images are stored in chunks of samples, deflated or not: a chunk is read by offset, inflated by the thread that wants it,
// and kept.  HDF5 says where the chunks are when a shard is opened and is not asked again.
#pragma once
#include <isa-l/igzip_lib.h>

#include <memory>
#include <mutex>
#include <vector>

#include "datasets/shard.h"

namespace gradcast {

/// For one thread at a time.
class Inflater {
public:
    Inflater() : state_(std::make_unique<inflate_state>()) {}
    void reserve(const Shard& shard);   // from then on read() of its chunks allocates nothing
    /// A whole chunk: out [chunk_samples * bytes of a sample].  The error names file, data set and chunk.
    Status read(const Shard& shard, int fd, uint64_t chunk, uint8_t* out);

private:
    std::unique_ptr<inflate_state> state_;
    std::vector<uint8_t> stored_;
};

/// Inflated chunks, as many as a bound on memory allows.  A shuffled epoch wants every chunk as often as any other, so what is thrown out
/// when there is no room is simply what came first; what does fit is inflated once.
class ChunkCache {
public:
    ChunkCache() = default;
    ChunkCache(ChunkCache&&) = delete;
    ~ChunkCache();
    /// Takes its memory, at most `bytes_max` (but one chunk in any case).  Shards without chunks are passed over.
    Status open(const std::vector<Shard>& shards, uint64_t bytes_max);
    bool used() const { return memory_ != nullptr; }
    /// Samples sample .. sample + count - 1 of a shard that has chunks.  Thread-safe, allocates nothing.
    Status read(const Shard& shard, uint32_t shard_index, int fd, uint64_t sample, uint64_t count, uint8_t* out);

private:
    static constexpr uint32_t nowhere = UINT32_MAX;
    /// Its chunks are every stripes_.size()-th of all, so that threads seldom wait for each other.
    struct Stripe {
        std::mutex mutex;
        Inflater inflater;
        uint8_t* slots = nullptr;
        std::vector<uint32_t> held;   // the chunk in each slot, or nowhere
        uint32_t next = 0;            // slot to be filled
    };
    uint8_t* memory_ = nullptr;
    uint64_t bytes_ = 0, slot_bytes_ = 0;
    std::vector<uint64_t> first_;   // chunk of each shard, among all
    std::vector<uint32_t> slot_;    // of each chunk, within its stripe; guarded by the stripe's mutex
    std::vector<std::unique_ptr<Stripe>> stripes_;
};

}   // namespace gradcast
