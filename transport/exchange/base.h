// The part that all exchanges share: slots of steps, completions, and the checks on everything that comes from the network.
//
// Slot step % step_slots holds one step.  The next step takes the slot over when the trainer has released the old one and none of its
// operations is under way (`busy` counts sends without `Sent` and computes without `Computed`).  Until then packets of the new step are
// answered `later`.  The codec writes without asking, so step s is reported to the trainer only when the slot of s + 1 is not busy. Neither
// wait is endless: on every link acknowledgements come before the later packets of a peer.  Steps are reported in order.
#pragma once
#include <atomic>

#include "runtime/core/limits.h"
#include "transport/exchange/exchange.h"
#include "transport/wire/packet.h"

namespace gradcast {

/// A block has one gradient of each bucket: no weights are those of several layers.  So `fixed` words of one block fit int32.
inline bool one_gradient(const Layout& layout) {
    return std::ranges::all_of(layout.groups, [](const Group& group) { return group.uses == 1; });
}

class ExchangeBase : public Exchange {
public:
    explicit ExchangeBase(const ExchangeConfig& config) : config_(config), layout_(*config.layout) {}

    Placement place(const View& view, std::span<const uint32_t> samples_of_block) const override;
    Status install(const View& view, Arena& arena) override;
    Plan plan(StepId step, uint32_t bucket, uint32_t target) override;
    bool begun(StepId step) const override { return begun_[step % step_slots].load(std::memory_order_acquire) == step; }
    bool summed(StepId step) const override { return summed_[step % step_slots].load(std::memory_order_acquire) == step + 1; }
    void release(StepId step) override;
    uint64_t arrivals() const override { return arrivals_.load(std::memory_order_relaxed); }
    Rank waited_for() const override { return waited_for_.load(std::memory_order_relaxed); }
    void on(std::span<const Event> events, Actions& actions) override;
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override;

protected:
    /// A packet on its way in.
    struct Arrival {
        Rank sender;
        bool record;
        Phase phase;
        uint32_t slot, bucket, part, index;
        uint64_t bytes;
        uint32_t segment;   // for the derived class, set by valid()
    };
    struct BucketState {
        bool ready = false, closed = false;   // closed: ready, or abandoned
        bool complete = false, reported = false;
        uint32_t missing = 0;      // until it is complete
        std::vector<Record> own;   // by target
        std::vector<float> maxima;
        Sum sum;
    };
    struct Slot {
        StepId step = 0;
        bool released = false;
        uint32_t busy = 0, complete = 0, reported = 0;   // complete, reported: buckets
        std::vector<BucketState> buckets;
    };

    // For the derived class.
    virtual Status plan_memory(Arena& arena) = 0;                                 // its own part of install()
    virtual void cleared(uint32_t slot) = 0;                                      // a new step begins: sets `missing` of each bucket
    virtual Buffer target(uint32_t slot, uint32_t bucket, uint32_t target) = 0;   // Plan::words
    virtual Word target_word() const = 0;
    virtual bool audit() const { return false; }                                       // Plan::audit
    virtual bool valid(Arrival* arrival) const = 0;                                    // phase, part, index and size; the rest is checked
    virtual Landing wanted(const Arrival& arrival, Buffer* place) = 0;                 // land(), valid
    virtual void take(const Arrival& arrival, Buffer payload, Actions& actions) = 0;   // it has arrived; wanted() may not have been called
    virtual void contributed(uint32_t slot, uint32_t bucket, Actions& actions) = 0;    // own words and records are complete
    virtual void abandoned(uint32_t slot, uint32_t bucket, Actions& actions) { (void)slot, (void)bucket, (void)actions; }
    virtual void computed(uint32_t slot, uint32_t id, Actions& actions) = 0;
    virtual void total(uint32_t slot, uint32_t bucket, Sum* sum) const = 0;       // step and bucket are filled in
    virtual std::string missing_text(uint32_t slot, uint32_t bucket) const = 0;   // "3 of 4 segments are missing"
    /// ExchangeConfig::weights are those of ranks, which compute super-blocks alone.
    virtual bool weighs() const { return true; }
    /// True: the exchange goes on without that rank.
    virtual bool goes_on_without(Rank lost, Actions& actions) { return (void)lost, (void)actions, false; }
    virtual void timer(uint64_t id, Actions& actions) { (void)id, (void)actions; }
    /// All buckets of the step are complete here.
    virtual void all_complete(uint32_t slot, Actions& actions) { (void)actions, not_needed(slot); }
    /// Notes that the exchange needs nothing more of the step from this rank.
    void not_needed(uint32_t slot) { summed_[slot].store(slots_[slot].step + 1, std::memory_order_release); }

    uint32_t n() const { return view_.n(); }
    uint32_t blocks_of(Rank rank) const { return shares_[rank + 1] - shares_[rank]; }   // of super-block `rank`
    BucketState& state(uint32_t slot, uint32_t bucket) { return slots_[slot].buckets[bucket]; }
    const BucketState& state(uint32_t slot, uint32_t bucket) const { return slots_[slot].buckets[bucket]; }
    std::string name(Rank rank) const { return fmt::format("rank {} ({})", rank, view_.members[rank].name); }
    /// Decrements `missing`.
    void arrived(uint32_t slot, uint32_t bucket, Actions& actions);
    /// The bucket fails.  The error is reported once.
    void refuse(uint32_t slot, uint32_t bucket, Status status, Actions& actions);
    Status states_differ(uint32_t slot, Rank a, uint64_t state_a, Rank b, uint64_t state_b) const;
    Status no_size(uint32_t slot, uint32_t bucket, Rank sender, uint32_t group) const;

    struct Place {
        uint32_t bucket, part, index;
    };
    void send(uint32_t slot, PacketType type, Phase phase, const Place& at, Buffer payload, RankSet to, Actions& actions);
    /// dst and src: the words that the kernel uses.  computed() gets `id`.
    void compute(uint32_t slot, uint32_t id, Kernel kernel, Buffer dst, Buffer src, uint64_t count, Actions& actions);
    void combine(uint32_t slot, uint32_t id, Combine* combine, uint64_t count, Actions& actions);

    const ExchangeConfig config_;
    const Layout& layout_;
    View view_;
    std::array<Slot, step_slots> slots_;

private:
    std::vector<uint32_t> shares(uint32_t blocks, uint32_t ranks) const;
    Landing find(const Packet& packet, uint64_t bytes, Arrival* arrival) const;
    void command(const ExchangeCommand& command, Actions& actions);
    void explain(StepId step, Actions& actions);
    void lose(Rank rank, const Status& why, Actions& actions);
    void close(StepId step, uint32_t bucket, bool ready, Actions& actions);
    void begin(uint32_t slot, StepId step);
    void finished(uint32_t slot, Actions& actions);
    void turn(uint32_t slot);
    void report(uint32_t slot, Actions& actions);
    void report_lost(Actions& actions);
    std::string waits_for(uint32_t slot, uint32_t bucket) const;

    std::vector<uint32_t> shares_;                           // of the ranks: where their blocks end
    std::array<std::atomic<StepId>, step_slots> begun_{};    // by slot: the step
    std::array<std::atomic<StepId>, step_slots> summed_{};   // by slot: 1 + the step, see summed()
    std::atomic<uint64_t> arrivals_{0};                      // a statistic
    std::atomic<Rank> waited_for_{0};                        // likewise
    Rank last_ = 0;                                          // sender of the last packet; this rank: its own words came after it
    uint64_t tickets_ = 0;
    Status lost_;   // not ok: a rank is lost, and all open and later buckets fail
};

/// Without a code, shared blocks and servers: for a candidate of `auto`.
ExchangeConfig uncoded(const ExchangeConfig& job);

}   // namespace gradcast
