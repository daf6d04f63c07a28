// Shards whose images are stored in chunks of samples, deflated or not.  A chunk is read by offset, inflated by the thread that needs it,
// and cached.  Offsets come from Shard::chunks; HDF5 is not called here.
#pragma once
#include <isa-l/igzip_lib.h>

#include <memory>
#include <mutex>
#include <vector>

#include "datasets/shard.h"

namespace gradcast {

/// Reads one stored chunk.  One thread at a time.
class Inflater {
public:
    Inflater() : state_(std::make_unique<inflate_state>()) {}
    void reserve(const Shard& shard);   // read() of its chunks does not allocate afterwards
    /// A whole chunk: out [chunk_samples * bytes of a sample].  The error names file, data set and chunk.
    Status read(const Shard& shard, int fd, uint64_t chunk, uint8_t* out);

private:
    std::unique_ptr<inflate_state> state_;
    std::vector<uint8_t> stored_;
};

/// Inflated chunks, up to a bound on memory.  First in, first out: a shuffled epoch reads all chunks equally often, so no other order
/// hits more.
class ChunkCache {
public:
    ChunkCache() = default;
    ChunkCache(ChunkCache&&) = delete;
    ~ChunkCache();
    /// Takes its memory: at most `bytes_max`, at least one chunk.  Shards without chunks are ignored.
    Status open(const std::vector<Shard>& shards, uint64_t bytes_max);
    bool used() const { return memory_ != nullptr; }
    /// Samples sample .. sample + count - 1 of a shard that has chunks.  Thread-safe, allocates nothing.
    Status read(const Shard& shard, uint32_t shard_index, int fd, uint64_t sample, uint64_t count, uint8_t* out);

private:
    static constexpr uint32_t nowhere = UINT32_MAX;
    /// Holds chunks i, i + stripes, i + 2 stripes, …; one lock a stripe keeps threads apart.
    struct Stripe {
        std::mutex mutex;
        Inflater inflater;
        uint8_t* slots = nullptr;
        std::vector<uint32_t> held;   // the chunk in each slot, or nowhere
        uint32_t next = 0;            // slot to fill next
    };
    uint8_t* memory_ = nullptr;
    uint64_t bytes_ = 0, slot_bytes_ = 0;
    std::vector<uint64_t> first_;   // number of each shard's first chunk
    std::vector<uint32_t> slot_;    // by chunk: its slot in its stripe; guarded by the stripe's mutex
    std::vector<std::unique_ptr<Stripe>> stripes_;
};

}   // namespace gradcast
