// What the nodes that share the slices of a stage's layers exchange in the middle of a pass.  The net fills and reads memory; who
// implements SliceLink (algos/slice_exchange.h) carries it to the other slice groups.
#pragma once
#include <span>

#include "runtime/core/status.h"
#include "runtime/core/types.h"

namespace gradcast {

/// Columns of a sliced layer's output; of a softmax its largest inputs, then its sums of exponentials; partial sums of the gradient of a
/// sliced layer's input; of a sliced embedding the rows that the samples name.
enum class SliceTraffic : uint8_t { columns, largest, exponentials, gradients, rows };

/// A place in a pass where each slice group sends something, to all other groups or to one, and receives as much from them.
struct SlicePoint {
    static constexpr uint32_t all = ~0u;
    uint32_t layer = 0;   // number in the whole net's list
    SliceTraffic what{};
    uint32_t with = all;   // slice group
    bool operator==(const SlicePoint&) const = default;
    bool has(uint32_t group, uint32_t own) const { return group != own && (with == all || with == group); }
    bool backward() const { return what == SliceTraffic::gradients; }
    /// How much each group sends follows from the samples, which all groups know.  Net::slice_bytes() is the most.
    bool varies() const { return what == SliceTraffic::rows; }
};

/// Points are numbered as in Net::slice_points().  The lane that computes calls, in the order of the points of its pass.  All slice groups
/// must make the same calls of the net, each lane in the same order.
struct SliceLink {
    virtual ~SliceLink() = default;
    /// Memory for what this group sends at that point; to be written before exchange(), which need not follow.  May block until what the
    /// lane sent there before is with the others.
    virtual Status room(uint32_t lane, size_t point, Buffer* to) = 0;
    /// Sends it, and blocks until what the others send at this point is here.  bytes: where the point varies, what each group sends, of
    /// this one the first bytes of its room; else empty.  Error: what has ended the wait; the pass ends with it.
    virtual Status exchange(uint32_t lane, size_t point, std::span<const uint64_t> bytes) = 0;
    Status exchange(uint32_t lane, size_t point) { return exchange(lane, point, {}); }
    /// Returns what that group has sent, in memory for the most that it may send.  Valid until the lane comes to this point again.
    virtual Buffer received(uint32_t lane, size_t point, uint32_t group) = 0;
};

}   // namespace gradcast
