// Reads samples of one or several shards by offset into a registered buffer: io_uring (pread where it is refused), read ahead by a thread
// of its own.
#pragma once
#include <memory>
#include <mutex>
#include <string>

#include "datasets/augment.h"
#include "datasets/chunks.h"
#include "datasets/manifest.h"
#include "datasets/picture.h"
#include "datasets/sampler.h"
#include "datasets/shard.h"
#include "runtime/core/arena.h"
#include "runtime/core/fd.h"
#include "runtime/core/log.h"
#include "runtime/core/protocol.h"

namespace gradcast {

/// Consecutive samples of one shard.
struct Run {
    uint32_t shard = 0, count = 0;
    uint64_t sample = 0;   // within the shard
    uint64_t offset = 0;   // file offset of the first image; contiguous shards only
    uint64_t bytes = 0;
};

struct DataOptions {
    /// Use only samples with labels 0 .. classes - 1 (8 bytes of memory a sample); 0: all.
    uint32_t classes = 0;
    uint32_t side = 0;                        // of the samples that are cut out of pictures; 0: the short side of the pictures
    uint32_t side_of_pictures = 0;            // the same, but nothing where there are no pictures
    uint32_t context = 0;                     // of a text: a sample is a window of so many tokens and the one behind them
    std::vector<float> mean = {}, std = {};   // [C], in place of those of the shards; empty: those
    bool look = false;                        // a text needs no context: each token is a sample
    uint64_t inflated_max = 0;                // bytes of the cache of inflated chunks; 0: an eighth of the memory that is available
    size_t literal = 0;                       // so many bytes at the front of the pattern are a folder's name, not a pattern (file_glob())
    /// The pattern comes from a client with fewer rights: messages show nothing of the files that a wildcard matches.
    bool confidential = false;
    const std::atomic<bool>* stop = nullptr;   // set: opening ends with Code::cancelled
};

/// How training samples are drawn: from pictures, random parts are cut where `how` says so.
struct Drawn {
    const Augment* how = nullptr;       // null: the middle of each picture
    const uint64_t* epochs = nullptr;   // of each sample
};

/// The samples of all shards that match a pattern, in the order of the sorted paths, or that a manifest lists (datasets/manifest.h);
/// DataOptions::classes selects the first classes.  Labels (2 bytes a sample) and floats are in memory, images and masks stay on disk.
class DataSet {
public:
    /// So many samples that a program has (data.samples): each is an index, with one byte 0 and the label 0.
    static std::unique_ptr<DataSet> of_program(uint64_t count);
    bool of_program() const { return of_program_; }
    const DataInfo& info() const { return info_; }   // of all shards; data_open() refuses shards of unlike shape, classes, mean or std
    /// Tokens of a window without the last one; 0: no text.
    uint32_t context() const { return context_; }
    /// Number `index` in that epoch, for read() and run().  Of a text windows begin o + k context tokens after the first one, o below
    /// context by (seed, epoch); index alone is the window with o = 0.  Else it is the index.
    uint64_t in_epoch(uint64_t index, uint64_t seed, uint64_t epoch) const;
    const std::string& pattern() const { return pattern_; }
    /// SHA-256 over the digests of all shards: equal on two nodes means equal data.
    const std::string& digest() const { return digest_; }
    const std::vector<Shard>& shards() const { return shards_; }
    uint64_t sample_bytes() const { return info_.sample_bytes(); }
    /// Reads these samples: images [n, C, H, W] of info().element; labels [n], which are 0 where samples have targets; targets
    /// [n, info().targets_bytes()].  Of pictures: decoded, and cut as `drawn` says, which allocates for a moment.  augment() does the
    /// rest.  Blocks; thread-safe.  Errors name file, data set and chunk.
    Status read(std::span<const uint64_t> indices, uint8_t* images, int32_t* labels, std::byte* targets = nullptr, Drawn drawn = {}) const;
    /// Samples of that memory, which read() has filled, as a net takes them.
    Samples samples(uint32_t count, const uint8_t* images, const int32_t* labels, const std::byte* targets) const {
        return {.images = images,
                .labels = labels,
                .count = count,
                .C = info_.C,
                .H = info_.H,
                .W = info_.W,
                .mean = info_.mean.data(),
                .std = info_.std.data(),
                .element = info_.element,
                .targets = info_.targets > 0 ? targets : nullptr};
    }

    // For Loader.
    /// The longest run at the front of `indices` that one read can fetch (at most 1 GiB).
    Run run(std::span<const uint64_t> indices) const;
    void labels(std::span<const uint64_t> indices, int32_t* labels) const;
    Status targets(std::span<const uint64_t> indices, std::byte* targets) const;
    int fd(uint32_t shard) const { return fds_[shard].get(); }
    /// Some images are in stored chunks or are JPEGs: only read() can read them.
    bool chunked() const { return chunks_.used() || info_.pictures(); }

private:
    friend Status data_open(const Manifest& manifest, const std::string& name, std::unique_ptr<DataSet>* data, const DataOptions& options);
    /// A decoder with its memory.
    struct Cut {
        PictureDecoder decoder;
        std::vector<uint8_t> jpeg;
    };
    Status run_read(const Run& run, uint8_t* to) const;
    Status pictures_read(std::span<const uint64_t> indices, uint8_t* images, Drawn drawn) const;
    std::unique_ptr<Cut> cut_take() const;
    uint64_t place(uint64_t index) const { return kept_.empty() ? index : kept_[index]; }
    void keep(uint32_t classes);
    DataInfo info_;
    std::string pattern_, digest_;
    std::vector<Shard> shards_;
    std::vector<Fd> fds_;
    std::vector<uint64_t> first_;   // sample of each shard within all of them
    uint32_t context_ = 0;
    std::vector<uint64_t> kept_;   // indices of the selected samples; empty: all
    std::vector<uint16_t> labels_;
    std::vector<std::byte> targets_;   // [info_.count, info_.targets_bytes()], floats; masks stay on disk
    bool of_program_ = false;
    mutable ChunkCache chunks_;
    uint64_t jpeg_bytes_max_ = 0;   // of pictures
    mutable std::mutex cuts_mutex_;
    mutable std::vector<std::unique_ptr<Cut>> cuts_;   // that no thread uses; as many as there were threads at once
};
/// Opens the shards of a pattern or manifest; reads and checks all labels.  Errors name file, data set and chunk.
Status data_open(const std::string& pattern, std::unique_ptr<DataSet>* data, const DataOptions& options = {});
/// The same for these shards; `name` is for messages.  A shard that is listed twice, by any path, is refused.
Status data_open(const Manifest& manifest, const std::string& name, std::unique_ptr<DataSet>* data, const DataOptions& options = {});
/// A shard of `b` with the same samples as one of `a`: the same file, or a copy; null: there is none.
const Shard* data_shared(const DataSet& a, const DataSet& b);
/// SHA-256 of everything that a shard's samples depend on; its digests stand for the bytes.
std::string shard_digest(const Shard& shard);
/// shard_verify() of every shard: O(bytes).  data_verify_once() of datasets/verified.h leaves out what was verified before.
Status data_verify(const DataSet& data, const std::atomic<bool>* stop = nullptr);

/// Gives the blocks of a job, read ahead.  Its data set and its arena must outlive it.
struct Loader {
    virtual ~Loader() = default;
    /// Plans blocks `blocks` of every step >= first, in this order.  Drops what was read ahead and invalidates blocks that were not given
    /// back by done().  Trainer thread.
    virtual void plan(StepId first, std::vector<uint32_t> blocks) = 0;
    /// Blocks until the block is read, at most deadline_us.  *samples is valid until done().  Any lane.  Ask for each block of a plan once,
    /// and only when all blocks more than `ahead` places before it have been given back; lanes that take blocks in order satisfy this.
    virtual Status get(BlockId id, uint64_t deadline_us, Samples* samples) = 0;
    virtual void done(BlockId id) = 0;
    virtual uint64_t waited_us() const = 0;   // total, by get()
    virtual const char* name() const = 0;     // "io_uring" or "pread"
};
struct LoaderConfig {
    uint32_t ahead = 8;       // blocks in memory, at least one a lane
    bool threaded = true;     // false: get() reads itself (the simulator)
    bool uring = true;        // false: pread, as where the kernel refuses io_uring
    bool registered = true;   // false: not registered, as where RLIMIT_MEMLOCK refuses it
    Augment augment = {};
};
/// Plans `ahead` blocks of memory in the arena.
Status loader_plan(const DataSet& data, const Sampler& sampler, const LoaderConfig& config, Arena& arena, const Log& log,
                   std::unique_ptr<Loader>* loader);
Status loader_start(Loader& loader);   // after the arena is sealed

}   // namespace gradcast
