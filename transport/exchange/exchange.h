// An exchange sums the blocks of one step over the ranks of a view: exact integers in, the same exact sum at every rank.
//
// Life of (step, bucket): the lanes add quantised blocks to the words of its targets, plan(step, bucket, target).  The trainer fills in the
// records and posts `ready`.  The exchange sends, receives and adds, and a Completion with the Sum goes to the trainer.  The Sum stays
// valid until release(step).
//
// Steps complete in order.  Where s ranks may be missing (losses_tolerated()), a bucket may complete before its `ready`, or before this
// rank has begun the step; the trainer still posts `ready` or `abandon` for it.  step_slots steps are held at once.  Packets for a step
// whose slot is still taken are answered `later`.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "runtime/core/arena.h"
#include "runtime/core/protocol.h"
#include "transport/code/codec.h"

namespace gradcast {

/// Who computes what.  Super-block k holds blocks bounds[k] .. bounds[k+1]-1 and is computed by the ranks in holders[k].
struct Placement {
    std::vector<uint32_t> bounds;
    std::vector<std::vector<Rank>> holders;
    std::vector<uint32_t> blocks_of(Rank rank) const;   // ascending
};

struct ExchangeConfig {
    const Layout* layout = nullptr;   // outlives the exchange
    Rank self = 0;
    uint32_t blocks = 0;   // B
    Quantiser quantiser = Quantiser::auto32;
    uint32_t segment_bytes = segment_bytes_stream;   // payload of one packet, the same at every rank
    uint32_t m = 1, s = 0;                           // coded, coded-rs: d = m + s, CODES.md, "The code of coded and coded-rs"
    bool words_always = false;                       // coded, coded-rs with s >= 1: words travel also where d = n, see words_travel()
    uint32_t r = 2;                                  // cssgd: nodes that share a block
    std::vector<double> weights = {};                // of blocks by rank, not where the exchange codes; none: all alike
    uint32_t servers = 1;                            // ps: ranks 0 .. servers-1 sum up
    uint32_t piece_words = 32 * 1024;                // multicast, ps, coded, coded-rs: most words encoded, sent and decoded at a time
    uint64_t deadline_us = 30'000'000;               // of the job; waits of the exchange itself are a small part of it
    StepId first_step = 0;                           // that it will sum
    DeviceWords* device = nullptr;                   // of the codec: coded and coded-rs encode there
    uint32_t cells = 1;                              // nodes of a rank: of a net in stages a rank is a replica.  For messages alone
};

/// What a user calls the ranks of an exchange: "node", or "replica" where a rank has several nodes.
inline const char* rank_name(const ExchangeConfig& config) { return config.cells > 1 ? "replica" : "node"; }
/// "1 node", "4 nodes", "2 replicas".
std::string ranks_text(const ExchangeConfig& config, uint64_t ranks);

/// Words of coded and coded-rs travel: a rank cannot compute the whole sum by itself, or it may live and not compute its blocks.
inline bool words_travel(const ExchangeConfig& config, uint32_t ranks) {
    return config.m + config.s < ranks || (config.words_always && config.s > 0);
}
/// ExchangeConfig::weights are one a rank and above 0, or none.
Status weights_check(const ExchangeConfig& config, uint32_t ranks);
/// Where the ranks' shares of the blocks end, from 0 on: in proportion to the weights, equal without.
std::vector<uint32_t> block_bounds(uint32_t blocks, uint32_t ranks, std::span<const double> weights);

/// Returns C(n, k), the number of super-blocks if k of n ranks share each; or any number above binomial_max if it exceeds binomial_max.
uint64_t binomial(uint64_t n, uint64_t k);
constexpr uint64_t binomial_max = 65536;

/// Two ranks that hold the same blocks sent different digests of their words: one of them computes or stores wrong values.
struct Conflict {
    StepId step = 0;
    uint32_t bucket = 0;
    uint32_t first_block = 0, end_block = 0;   // first_block .. end_block - 1
    Rank ranks[2] = {0, 0};
    uint64_t digests[2] = {0, 0};
    bool outvoted = false;   // all other holders agree with ranks[0], so ranks[1] is wrong
    bool spoiled = true;     // a sum of the step may contain wrong words; if not, the exchange goes on once the wrong rank is lost
};

/// Protocol methods, install and release run on the network thread (or before it starts); place and plan on any.
struct Exchange : Protocol {
    virtual Placement place(const View& view, std::span<const uint32_t> samples_of_block) const = 0;
    /// Plans its arena for the view; `arena` must be sealed before the first event.  Between steps only.
    virtual Status install(const View& view, Arena& arena) = 0;
    /// Number of accumulators of a bucket at this rank: one for each super-block it holds if the exchange codes, else one.
    virtual uint32_t targets() const { return 1; }
    /// The accumulator of one of the rank's own blocks.
    virtual uint32_t target_of(uint32_t block) const { return (void)block, 0; }
    virtual Plan plan(StepId step, uint32_t bucket, uint32_t target = 0) = 0;
    /// Any thread: the memory of plan() may be written, because the step that used it before has ended.  Always true where no rank may be
    /// missing.  With s >= 1 several steps may be summed without this rank, so it must ask.
    virtual bool begun(StepId step) const { return (void)step, true; }
    /// Any thread: all buckets of `step` are complete, at every rank that lives, so its remaining blocks need not be computed (s >= 1).
    virtual bool summed(StepId step) const { return (void)step, false; }
    virtual void release(StepId step) = 0;   // the step is stable
    /// Any thread: the number of packets of words and records received.
    virtual uint64_t arrivals() const { return 0; }
    /// Any thread.
    /// Returns the rank whose packet completed the newest summed step.  Returns this rank if the step waited for nobody.
    virtual Rank waited_for() const { return 0; }
    /// After a completion of Code::conflict: the ranks, if they are known.  Valid until release(step).
    virtual const Conflict* conflict(StepId step) const { return (void)step, nullptr; }
    /// How many ranks may be lost (Event::PeerLost) without an error: s.
    virtual uint32_t losses_tolerated() const { return 0; }
};

/// An order to an exchange, sent as a command_event.
struct ExchangeCommand {
    /// All buckets of the step are complete, and ready or abandoned.  Comes before Ready of step + step_slots.
    struct Release {
        StepId step = 0;
    };
    /// Asks for a completion of Code::deadline that says what the first waiting bucket lacks; none if no bucket waits.
    struct Explain {
        StepId step = 0;
    };
    /// There will be no Ready, and no lane writes the bucket's words any more.  Its sum is complete, or others complete it (s >= 1).
    struct Abandon {
        StepId step = 0;
        uint32_t bucket = 0;
    };
    /// The rank computes wrong values: it is treated as lost, but its words of other buckets still count.
    struct Expel {
        Rank rank = 0;
        Status status = {};
    };
    std::variant<Release, Explain, Abandon, Expel> what;
};

struct Cost;
struct CostWire;

/// All that others know of an exchange.
struct ExchangeKind {
    const char* name;
    const char* summary;
    std::unique_ptr<Exchange> (*create)(const ExchangeConfig&);
    bool fixed = false;       // allows the quantiser `fixed`
    bool datagrams = false;   // multicasts: goes through transport/bulk where there are datagrams
    bool codes = false;       // takes m and s: a rank computes m + s super-blocks, and s ranks may be lost
    bool shares = false;      // takes r: r ranks compute a block, so there are at least two
    bool serves = false;      // takes servers
    bool weighs = false;      // takes weights
    bool balances = false;    // its weights may follow the measured speed of the ranks
    /// Returns what rank config.self of n sends, receives and computes.  install() must accept the configuration.  See cost.h.
    Cost (*cost)(const ExchangeConfig& config, uint32_t n, const CostWire& wire);
    /// Returns the configurations that `auto` may choose for n ranks, in place of the job's m, s, r and servers.  The quantiser is one that
    /// the exchange allows.  Null: `auto` never chooses the exchange.
    std::vector<ExchangeConfig> (*candidates)(const ExchangeConfig& job, uint32_t n) = nullptr;
};
/// To add an exchange, write its file, which ends with its row, and list the row in exchange.cc.
std::span<const ExchangeKind> exchange_kinds();
/// Those with the trait, as "coded-rs or coded".
std::string exchange_names(bool ExchangeKind::*trait);
/// Error: lists the names, or says which quantiser to use.
Status exchange_find(std::string_view name, Quantiser quantiser, const ExchangeKind** kind);

}   // namespace gradcast
