// Reads samples of one or several shards by offset into a registered buffer: io_uring (pread where it is refused), with read-ahead on a
// thread of its own.
#pragma once
#include <memory>
#include <string>

#include "datasets/augment.h"
#include "datasets/chunks.h"
#include "datasets/manifest.h"
#include "datasets/sampler.h"
#include "datasets/shard.h"
#include "runtime/core/arena.h"
#include "runtime/core/fd.h"
#include "runtime/core/log.h"
#include "runtime/core/protocol.h"

namespace gradcast {

/// Samples side by side in one shard.
struct Run {
    uint32_t shard = 0, count = 0;
    uint64_t sample = 0;   // within the shard
    uint64_t offset = 0;   // of its image in the shard's file, where that is contiguous
    uint64_t bytes = 0;
};

struct DataOptions {
    /// Samples with labels of 0 .. classes - 1 alone, as if the shards had no others (8 bytes of memory for each); 0: all.
    uint32_t classes = 0;
    uint64_t inflated_max = 0;   // bytes of memory for chunks that have been inflated; 0: an eighth of the machine's
    /// The pattern comes from somebody who may not list what this process can: messages tell nothing of files that a wildcard finds.
    bool confidential = false;
    const std::atomic<bool>* stop = nullptr;   // ends it with Code::cancelled
};

/// The samples of all shards that match a pattern, in the order of the sorted paths, or that a manifest lists (datasets/manifest.h), or
/// those of the first classes alone.  Labels are held in memory (2 bytes a sample), images stay on disk.
class DataSet {
public:
    const DataInfo& info() const { return info_; }   // of the whole; shards that differ in shape or classes are refused by open
    const std::string& pattern() const { return pattern_; }
    /// SHA-256 over the digests of all shards: two nodes that have the same have the same data.
    const std::string& digest() const { return digest_; }
    const std::vector<Shard>& shards() const { return shards_; }
    uint64_t sample_bytes() const { return uint64_t{info_.C} * info_.H * info_.W; }
    /// Reads these samples now: images [n, C, H, W], labels [n].  Thread-safe.  Error names file, data set and chunk.
    Status read(std::span<const uint64_t> indices, uint8_t* images, int32_t* labels) const;

    // What a Loader is made of.
    /// The longest run at the front of `indices` that one read can bring (at most 1 GiB).
    Run run(std::span<const uint64_t> indices) const;
    void labels(std::span<const uint64_t> indices, int32_t* labels) const;
    int fd(uint32_t shard) const { return fds_[shard].get(); }
    /// Some images are in chunks: read() alone gives them.
    bool chunked() const { return chunks_.used(); }

private:
    friend Status data_open(const Manifest& manifest, const std::string& name, std::unique_ptr<DataSet>* data, const DataOptions& options);
    Status run_read(const Run& run, uint8_t* to) const;
    uint64_t place(uint64_t index) const { return kept_.empty() ? index : kept_[index]; }
    void keep(uint32_t classes);
    DataInfo info_;
    std::string pattern_, digest_;
    std::vector<Shard> shards_;
    std::vector<Fd> fds_;
    std::vector<uint64_t> first_;   // sample of each shard within all of them
    std::vector<uint64_t> kept_;    // which of all samples are ours; empty: they are
    std::vector<uint16_t> labels_;
    mutable ChunkCache chunks_;
};
/// Reads and checks all labels.  Errors name file, data set and chunk; a label out of range too.
Status data_open(const std::string& pattern, std::unique_ptr<DataSet>* data, const DataOptions& options = {});
/// The same of these shards; `name` is for messages.  One that is there twice, by whatever path, is refused.
Status data_open(const Manifest& manifest, const std::string& name, std::unique_ptr<DataSet>* data, const DataOptions& options = {});
/// shard_verify() of every shard.  A job does it once before it starts.
Status data_verify(const DataSet& data, const std::atomic<bool>* stop = nullptr);

/// Hands out the blocks of a job, read ahead.  Destroyed before its data set and its arena.
struct Loader {
    virtual ~Loader() = default;
    /// From here on blocks `blocks` of every step >= first are wanted, in this order.  Cancels what was read ahead; blocks not given back
    /// by done() are no longer valid.  Trainer thread.
    virtual void plan(StepId first, std::vector<uint32_t> blocks) = 0;
    /// Waits until the block is there (at most deadline_us from now).  *samples is valid until done().  Any lane.  A block is asked for
    /// once in a plan, and only when all those more than `ahead` places before it have been given back (lanes that take blocks in order do
    /// so by nature).
    virtual Status get(BlockId id, uint64_t deadline_us, Samples* samples) = 0;
    virtual void done(BlockId id) = 0;
    virtual uint64_t waited_us() const = 0;   // by get(), in all
    virtual const char* name() const = 0;     // "io_uring" or "pread"
};
struct LoaderConfig {
    uint32_t ahead = 8;       // blocks held, at least as many as there are lanes
    bool threaded = true;     // false: get() reads inline (the simulator)
    bool uring = true;        // false: as if the kernel refused io_uring
    bool registered = true;   // false: as if RLIMIT_MEMLOCK refused to register the memory
    Augment augment = {};
};
/// Plans `ahead` blocks of memory in the arena.
Status loader_plan(const DataSet& data, const Sampler& sampler, const LoaderConfig& config, Arena& arena, const Log& log,
                   std::unique_ptr<Loader>* loader);
Status loader_start(Loader& loader);   // after the arena is sealed

}   // namespace gradcast
