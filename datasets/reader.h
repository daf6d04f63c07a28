// Reads samples of one or several shards by offset into a registered buffer: io_uring (pread where it is refused), with read-ahead on a thread of its own.
#pragma once
#include <memory>
#include <string>

#include "datasets/sampler.h"
#include "datasets/shard.h"
#include "runtime/core/arena.h"
#include "runtime/core/log.h"
#include "runtime/core/protocol.h"

namespace gradcast {

/// The samples of all shards that match a pattern, in the order of the sorted paths.
class DataSet {
public:
    virtual ~DataSet() = default;
    virtual const DataInfo& info() const = 0;   // of the whole; shards that differ in shape or classes are refused by open
    virtual const std::string& pattern() const = 0;
    /// SHA-256 over the digests of all shards: two nodes that have the same have the same data.
    virtual const std::string& digest() const = 0;
    /// Reads these samples now: images [n, C, H, W], labels [n].  Thread-safe.  Error names file, data set and chunk (a label out of range too).
    virtual Status read(std::span<const uint64_t> indices, uint8_t* images, int32_t* labels) const = 0;
};
Status data_open(const std::string& pattern, std::unique_ptr<DataSet>* data);

/// Hands out the blocks of a job, read ahead.
struct Loader {
    virtual ~Loader() = default;
    /// From here on blocks `blocks` of every step >= first are wanted, in order.  Cancels what was read ahead.  Trainer thread.
    virtual void plan(StepId first, std::vector<uint32_t> blocks) = 0;
    /// Waits until the block is there (at most deadline_us from now).  *samples is valid until done().  Any lane.
    virtual Status get(BlockId id, uint64_t deadline_us, Samples* samples) = 0;
    virtual void done(BlockId id) = 0;
    virtual uint64_t waited_us() const = 0;   // by get(), in all
    virtual const char* name() const = 0;     // "io_uring" or "pread"
};
struct LoaderConfig {
    uint32_t ahead = 8;      // blocks held
    bool threaded = true;    // false: get() reads inline (the simulator)
};
Status loader_plan(const DataSet& data, const Sampler& sampler, const LoaderConfig& config, Arena& arena, const Log& log, std::unique_ptr<Loader>* loader);
Status loader_start(Loader& loader);   // after the arena is sealed

}   // namespace gradcast
