// Types that folders share.  Terms: a *node* is a machine's place in the roster of a job, a *rank* its number in a view; a *block* is the
// unit of samples and of determinism; a *group* is parameters of one layer, which share a quantiser scale; a *bucket* is a run of groups
// that is exchanged together.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/bits.h"
#include "runtime/core/element.h"

namespace gradcast {

using Rank = uint32_t;
/// A node's index in the roster of a job: does not change and is not reused.  A session maps it to the rank in its view.
enum class NodeId : uint32_t {};
using StepId = uint64_t;   // 0, 1, … in the whole job; below 2^32

struct BlockId {
    StepId step;
    uint32_t block;   // 0 .. B-1 within the step
};

/// A range of memory, passed by value, not owned.  `device` is null on the CPU.
struct Buffer {
    std::byte* host = nullptr;
    void* device = nullptr;
    uint64_t bytes = 0;

    Buffer part(uint64_t offset, uint64_t size) const {
        return {host ? host + offset : nullptr, device ? static_cast<char*>(device) + offset : nullptr, size};
    }
    template <typename T>
    T* as() const {
        return reinterpret_cast<T*>(host);
    }
};

/// One rank, or several: `bits` (bit r % 64 of word r / 64), which the protocol owns as long as the view lives; null: `rank` alone.
struct RankSet {
    Rank rank = 0;
    const uint64_t* bits = nullptr;
};
/// The bits of ranks 0 .. n-1 without `self`.
inline std::vector<uint64_t> ranks_but(Rank self, uint32_t n) {
    std::vector<uint64_t> bits(bit_words(n));
    for (Rank rank = 0; rank < n; ++rank)
        if (rank != self) set_bit(bits.data(), rank);
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

/// The flat parameter vector, float32: layer after layer in the net's order, in a layer weight [K,C,R,S] (or [K,C]) then bias [K].  A node
/// that computes a stage of the net owns the elements of its layers, of sliced layers those of its slices, one behind the other; an
/// element's place is its index in the vector of the whole net.
struct Group {
    uint64_t offset, count;    // elements that this node owns
    std::string layer;         // name for errors: "conv2", "fc1 slice 2 of 4"
    bool statistics = false;   // a block's statistics (batch norm), not a gradient: always auto32
    uint64_t before = 0;       // elements before it that other nodes own
    bool shared = false;       // another node that owns it stands for it: a slice group of the stage, or a stage that takes these weights
    bool by_all = false;       // all slice groups of the stage own it
    uint32_t uses = 1;         // gradients that a block has of it in all stages: one for each layer that takes these weights
    uint64_t place() const { return offset + before; }
};
struct Bucket {
    uint64_t offset, count;        // elements; bucket 0 is the *end* of the vector: its gradient is ready first
    uint32_t group, group_count;   // its groups: Layout::groups[group .. group + group_count)
};
struct Layout {
    uint64_t elements = 0;         // that this node owns
    std::vector<Group> groups;     // ascending offsets
    std::vector<Bucket> buckets;   // in the order of the backward pass
    uint64_t others = 0;           // elements that only other nodes own
    uint64_t whole() const { return elements + others; }

    /// Elements that are neighbours in both vectors.
    struct Run {
        uint64_t offset, count, place;
    };
    /// Returns the runs of all elements, or of those that this node stands for, ascending.
    std::vector<Run> runs(bool owned = true) const {
        std::vector<Run> all;
        for (const Group& group : groups)
            if (!owned && !stands_for(group)) continue;
            else if (!all.empty() && all.back().place + all.back().count == group.place()) all.back().count += group.count;
            else all.push_back({group.offset, group.count, group.place()});
        return all;
    }
    /// The group counts here in digests, files and numbers of the whole net.
    bool stands_for(const Group& group) const { return !group.shared; }
    bool stands_for(const Bucket& bucket) const { return stands_for(groups[bucket.group]); }   // its groups are alike
    /// The offset of the element at that place; none: another node owns it.
    static constexpr uint64_t none = ~uint64_t{0};
    uint64_t offset_of(uint64_t place) const {
        for (const Group& group : groups)
            if (place >= group.place() && place - group.place() < group.count) return place - group.before;
        return none;
    }
    /// Number of the bucket that has the element at that offset.
    uint32_t bucket_of(uint64_t offset) const {
        for (uint32_t b = 0; b < buckets.size(); ++b)
            if (offset >= buckets[b].offset && offset - buckets[b].offset < buckets[b].count) return b;
        return ~0u;
    }
};

/// A sample in a device's data set (ResidentImages): its index, and the epoch that keys its augmentation.
struct SamplePlace {
    uint64_t index;
    uint32_t epoch;
};
struct ResidentImages;   // runtime/core/device.h

/// A block's samples, from a data set to a net.  The loader owns the memory (datasets/reader.h: Loader).
struct Samples {
    const uint8_t* images = nullptr;   // [count, C, H, W] of `element`, in this machine's byte order
    const int32_t* labels = nullptr;   // [count], 0 .. classes-1
    uint32_t count = 0;
    uint32_t C = 0, H = 0, W = 0;
    const float* mean = nullptr;   // [C]; a pixel becomes (x / 255 - mean) / std, a value (x - mean) / std
    const float* std = nullptr;    // [C]
    // In place of `images` if the net's device holds the data set:
    const SamplePlace* places = nullptr;   // [count]
    ResidentImages* resident = nullptr;
    Element element = Element::u8;
    const std::byte* targets = nullptr;   // [count, NetSpec::targets] of NetSpec::target_element, in place of labels; null: labels count
};

/// A block to compute; a lane computes up to together_most at a time.
struct Block {
    BlockId id;
    Samples samples;
};
constexpr uint32_t together_most = 16;

/// A range of a gradient's elements, in memory as rows with a stride of `apart` elements.
struct GradientPart {
    const float* x;
    uint64_t count;   // elements of a row
    uint32_t rows = 1;
    uint64_t apart = 0;
};
/// A bucket's gradients of blocks that are computed together, in pieces: piece(i, first) is block i's from element `first` on, valid until
/// the next call.  Pieces have the same length for each block.  Take all, in order: a piece of every block before the next piece.
using GradientPiece = std::function<GradientPart(uint32_t block, uint64_t first)>;

enum class Word : uint8_t { i16, i32, i64 };
inline uint32_t word_bytes(Word word) { return word == Word::i16 ? 2 : word == Word::i32 ? 4 : 8; }

/// The exact integer sum of one bucket over all B blocks, in signed words, with the records' values.
struct Sum {
    StepId step = 0;
    uint32_t bucket = 0;
    Word word = Word::i32;
    Buffer words;                    // [bucket.count]
    std::span<const float> maxima;   // [bucket.group_count]: max |x| over all blocks before clipping, by group
    uint64_t state = 0;              // digest of the state that all ranks computed this step from
    int64_t loss = 0;                // loss summed over all samples, in units of 2^-20
    uint64_t valid = 0;              // positions of all samples whose label counts (GradientSink::valid)
    uint64_t clipped = 0;            // elements clipped
    uint32_t diverged = 0;           // 1 + a block whose gradient has NaN or Inf (a maximum is Inf then); 0: none
};

}   // namespace gradcast
