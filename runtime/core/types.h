// What folders hand one another.  Words: a *node* is a machine's place in the roster of a job, a *rank* its number in a view; a *block* is
// the unit of samples and of determinism; a *group* is one layer's parameters, which share a quantiser scale; a *bucket* is a run of groups
// that travels together.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace gradcast {

using Rank = uint32_t;
/// A node's index in the roster of a job: never changes, never used for another.  A session alone knows which rank it has in its view.
enum class NodeId : uint32_t {};
using StepId = uint64_t;   // 0, 1, … over the whole job; below 2^32

struct BlockId {
    StepId step;
    uint32_t block;   // 0 .. B-1 within the step
};

/// Memory registered once (with io_uring, verbs, CUDA), passed by value, never owned.  `device` is null on the CPU.
struct Buffer {
    std::byte* host = nullptr;
    void* device = nullptr;
    uint64_t bytes = 0;
    uint32_t region = 0;   // index of the registration, 0 = not registered

    Buffer part(uint64_t offset, uint64_t size) const {
        return {host ? host + offset : nullptr, device ? static_cast<char*>(device) + offset : nullptr, size, region};
    }
    template <typename T>
    T* as() const {
        return reinterpret_cast<T*>(host);
    }
};

/// One rank, or several.  `bits` (bit r of word r / 64) belongs to the protocol and lives as long as the view; null means just `rank`.
struct RankSet {
    Rank rank = 0;
    const uint64_t* bits = nullptr;
};
/// The bits of ranks 0 .. n-1 without `self`.
inline std::vector<uint64_t> ranks_but(Rank self, uint32_t n) {
    std::vector<uint64_t> bits((n + 63) / 64);
    for (Rank rank = 0; rank < n; ++rank)
        if (rank != self) bits[rank / 64] |= uint64_t{1} << rank % 64;
    return bits;
}

struct Member {
    std::string name;
    std::array<uint8_t, 16> uuid{};
    uint64_t incarnation = 0;
};

struct View {
    uint32_t number = 1;
    std::vector<Member> members;   // by rank
    uint32_t n() const { return static_cast<uint32_t>(members.size()); }
};

/// The flat parameter vector, float32: layer after layer in the net's order, in a layer weight [K,C,R,S] (or [K,C]) then bias [K].
struct Group {
    uint64_t offset, count;    // elements
    std::string layer;         // name for errors: "conv2"
    bool statistics = false;   // no gradient but what a block has found out (batch norm): auto32, whatever the quantiser
};
struct Bucket {
    uint64_t offset, count;        // elements; bucket 0 is the *end* of the vector, whose gradient is ready first
    uint32_t group, group_count;   // its groups: Layout::groups[group .. group + group_count)
};
struct Layout {
    uint64_t elements = 0;
    std::vector<Group> groups;     // ascending offsets
    std::vector<Bucket> buckets;   // in the order in which the backward pass completes them
};

/// A sample that a device holds (ResidentImages), by its index in the data set; its random changes are keyed by the epoch.
struct SamplePlace {
    uint64_t index;
    uint32_t epoch;
};
struct ResidentImages;   // runtime/core/device.h

/// A block's samples on the way from a data set to a net.  Memory belongs to the data set's reader, valid as its header says.
struct Samples {
    const uint8_t* images = nullptr;   // [count, C, H, W]
    const int32_t* labels = nullptr;   // [count], 0 .. classes-1
    uint32_t count = 0;
    uint32_t C = 0, H = 0, W = 0;
    const float* mean = nullptr;   // [C]; a pixel becomes (x / 255 - mean) / std
    const float* std = nullptr;    // [C]
    // Where the net's device holds the data set, in place of `images`:
    const SamplePlace* places = nullptr;   // [count]
    ResidentImages* resident = nullptr;
};

/// What a lane computes, up to so many at a time.
struct Block {
    BlockId id;
    Samples samples;
};
constexpr uint32_t together_most = 16;

/// Some of a gradient: elements that follow one another, in memory in rows that are `apart` from each other.
struct GradientPart {
    const float* x;
    uint64_t count;   // of a row
    uint32_t rows = 1;
    uint64_t apart = 0;
};
/// Gives a bucket's gradients of the blocks that are computed together bit by bit: piece(i, first) those of block i from element `first`
/// on, of each block as many, valid until the next call.  All are to be taken, in order, and the same of each block before what comes next.
using GradientPiece = std::function<GradientPart(uint32_t block, uint64_t first)>;

enum class Word : uint8_t { i16, i32, i64 };
inline uint32_t word_bytes(Word word) { return word == Word::i16 ? 2 : word == Word::i32 ? 4 : 8; }

/// The exact integer sum of one bucket over all B blocks, signed words, and what travelled with it.
struct Sum {
    StepId step = 0;
    uint32_t bucket = 0;
    Word word = Word::i32;
    Buffer words;                    // [bucket.count]
    std::span<const float> maxima;   // [bucket.group_count]: max |x| over all blocks before clipping, by group
    uint64_t state = 0;              // digest of the state all ranks computed this step from
    int64_t loss = 0;                // sum of the loss over all samples, in units of 2^-20
    uint64_t clipped = 0;            // elements clipped
    uint32_t diverged = 0;           // 1 + a block whose gradient holds NaN or Inf: all its holders say so, and a maximum is Inf
};

}   // namespace gradcast
