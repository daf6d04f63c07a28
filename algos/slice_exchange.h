// What the slice groups of a stage tell each other in the middle of a pass (nn/slice_link.h), over edges.
//
//     call(): receives of all points of the pass --> the pass fills a room --> sends to the other groups --> waits for theirs
//
// Where sizes follow from the samples (SlicePoint::varies()), exchange() posts the receives.
//
// Each lane calls on its own thread.  A lane that waits takes completions for all lanes, one lane at a time: the trainer is lane 0
// meanwhile, and takes none.
//
// All ranks of a slice group must make the same calls in the same order: the blocks of a call are the same, and calls of a lane ascend.
//
// A step may end in the middle of a pass, because nobody needs the rest of it or a rank of the replica is lost.  All passes then end with
// `stop`, and what is under way is abandoned at both ends (algos/pipeline.h).
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "algos/dispatch.h"
#include "algos/grid/grid.h"
#include "nn/net.h"
#include "runtime/core/arena.h"
#include "transport/edges/edges.h"

namespace gradcast {

struct Context;

class SliceExchange final : public SliceLink {
public:
    /// Tickets of transfers have this bit.
    static constexpr uint64_t tickets = uint64_t{1} << 62;

    /// For a rank of a grid with several slice groups.  The net is planned.  names: of layers; errors name by `own` who waits.
    SliceExchange(Net& net, const Grid& grid, Rank self, std::span<const std::string> names, std::string own);
    void plan(Arena& arena, uint32_t lanes);
    /// In a new view.
    void open(Context& context, Dispatch& dispatch);
    /// The most bytes that this rank sends for a block of `samples` samples: of rows of an embedding it may be fewer.
    uint64_t bytes_sent(uint32_t samples) const;

    // Trainer thread, while no lane runs.
    /// Before the passes of a step.  A wait lasts `wait_us` at most, and asks `needless`: true ends all passes.  Nothing is under way.
    void begin(StepId step, uint64_t wait_us, std::function<bool()> needless);
    /// Until all that was sent is with the others.
    Status drain();
    /// The passes of this step have ended early.
    bool stopped() const { return stopped_; }
    /// The status of a pass that ends early.
    static constexpr Status stop = {Code::cancelled, 0, "the rest of the step is not needed"};
    static bool is_stop(const Status& status) { return status.code == stop.code && std::string_view(status.what) == stop.what; }
    /// Blocks, as in keys, of which something is under way.
    std::vector<uint32_t> under_way() const;
    /// The error of the first transfer that is under way; ok: none is.
    Status overdue();
    /// That lanes have waited, the longest of them, since the last call of this.
    uint64_t take_waited_us();

    // On the thread of a lane.
    enum class Call : uint8_t { forward, backward, evaluation };
    /// Before each pass: of blocks of `samples` samples in all, the first of which has the number `block` in keys.
    void call(uint32_t lane, uint32_t block, uint32_t samples, Call call);
    /// A pass has failed: all waits end with this.
    void fail(const Status& status);
    Status room(uint32_t lane, size_t point, Buffer* to) override;
    Status exchange(uint32_t lane, size_t point, std::span<const uint64_t> sizes) override;
    Buffer received(uint32_t lane, size_t point, uint32_t group) override;

    /// From within Dispatch::collect().
    Status take(const Completion& completion);

private:
    struct Place {
        uint64_t offset = 0, bytes = 0;   // in a lane's memory
    };
    struct Point {
        SlicePoint of;
        Place room;
        std::vector<Place> come;   // by group
    };
    enum class Fate : uint8_t { free, open, done };
    struct Transfer {
        Fate fate = Fate::free;
        uint32_t block = 0;   // as in its key
    };
    struct Lane {
        uint32_t block = 0, samples = 0;
        Call call{};
        uint64_t waited_us = 0;
    };

    size_t index(uint32_t lane, size_t point, uint32_t group, bool comes) const {
        return ((lane * points_.size() + point) * groups_ + group) * 2 + comes;
    }
    Buffer at(uint32_t lane, const Place& place, uint64_t bytes) const { return memory_.part(lane * lane_bytes_ + place.offset, bytes); }
    uint64_t bytes(const Lane& lane, size_t point, uint32_t group) const {
        return net_.slice_bytes(point, group, lane.samples, lane.call != Call::evaluation);
    }
    bool open_any(uint32_t lane, size_t point, bool comes) const;
    void post(uint32_t lane, size_t point, uint32_t group, bool comes, Buffer memory);
    /// Until none of the lane's transfers at this point is open: those that come, or those that go.
    Status wait(uint32_t lane, size_t point, bool comes);
    Status overdue(uint32_t lane, size_t point, bool comes);

    Net& net_;
    const std::vector<Rank> ranks_;   // by slice group
    const uint32_t groups_, own_;
    const std::vector<std::string> names_;
    const std::string own_text_;
    std::vector<Point> points_;
    uint64_t lane_bytes_ = 0;
    Buffer memory_;
    Context* context_ = nullptr;
    Dispatch* dispatch_ = nullptr;
    StepId step_ = 0;
    uint64_t wait_us_ = 0;
    std::function<bool()> needless_;

    std::mutex mutex_;   // of what follows; no lane holds it while it takes completions
    std::condition_variable changed_;
    std::vector<Lane> lanes_;   // each is its lane's but for waited_us
    std::vector<Transfer> transfers_;
    bool taking_ = false;    // some lane takes completions
    bool stopped_ = false;   // the present step has ended early
    Status failed_;
    Status missing_;   // the answer to Edges::explain()
};

}   // namespace gradcast
