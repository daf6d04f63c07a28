// n ranks with a trainer each run one exchange over the simulator, and compare with plain sums.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/arena.h"
#include "runtime/core/digest.h"
#include "runtime/core/rng.h"
#include "tests/exchange/spy.h"
#include "transport/bulk/bulk.h"
#include "transport/exchange/cost.h"
#include "transport/sim/sim.h"

namespace gradcast {

/// Draws a number below `count` from the seed for `what`; each stream has numbers of its own.
struct Pick {
    uint32_t stream;
    uint32_t operator()(uint64_t seed, uint32_t what, uint32_t count) const {
        return random4(Purpose::test, seed, stream, what)[0] % count;
    }
};
constexpr Pick pick_exchange{77}, pick_coded{78}, pick{79};
inline uint32_t choose(uint32_t n, uint32_t k) { return k > n ? 0 : k == 0 ? 1 : choose(n - 1, k - 1) * n / k; }

struct WorldConfig {
    SimConfig sim;
    std::string exchange = "ring";
    Quantiser quantiser = Quantiser::auto32;
    uint32_t blocks = 8, steps = 4, segment_bytes = 64;
    std::vector<uint64_t> buckets = {40, 300, 7, 1};   // elements
    uint64_t flip_seed = 0;                            // not 0: seed of other random words for block 0 in step 2, unlike the reference
    Rank other_state = ~0u;                            // this rank computes step 2 from another state
    uint64_t spend_us = 20;                            // maximum per bucket
    uint64_t deadline_us = 60'000'000;
    uint32_t m = 1, s = 0, r = 2, servers = 1, piece_words = 32 * 1024;
    std::vector<double> weights = {};
    bool bulk = false;   // over datagrams
    uint64_t stall_us = 20'000;
    bool abandons = false;                                 // trainers skip buckets that are complete without them
    Rank faulty = ~0u;                                     // this rank's first non-empty super-block has a flipped bit in step 2
    bool goes_on = false;                                  // trainers give up an outvoted rank
    std::function<bool(Rank, const Packet&)> loses = {};   // with bulk: true drops the datagram at that rank
};

/// Stands between the simulator and bulk and drops datagrams.
struct Loser : Protocol {
    Loser(Protocol& protocol, Rank rank, const std::function<bool(Rank, const Packet&)>& chosen)
        : inner(protocol), self(rank), loses(chosen) {}
    void on(std::span<const Event> events, Actions& actions) override { inner.on(events, actions); }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override {
        return loses && loses(self, packet) ? Landing::drop : inner.land(packet, bytes, place);
    }
    Protocol& inner;
    const Rank self;
    const std::function<bool(Rank, const Packet&)>& loses;
};

inline Layout layout_make(const std::vector<uint64_t>& buckets) {
    Layout layout;
    for (uint64_t count : buckets) layout.elements += count;
    uint64_t end = layout.elements;
    uint32_t group = 0;
    for (uint64_t count : buckets) {
        end -= count;
        uint32_t groups = count > 10 ? 2 : 1;
        layout.buckets.push_back({end, count, group, groups});
        layout.groups.push_back({end, groups == 2 ? count / 3 : count, "layer" + std::to_string(group)});
        if (groups == 2) layout.groups.push_back({end + count / 3, count - count / 3, "layer" + std::to_string(group + 1)});
        group += groups;
    }
    return layout;
}

class World {
public:
    explicit World(const WorldConfig& config) : config_(config), layout_(layout_make(config.buckets)) {
        for (Rank r = 0; r < config.sim.ranks; ++r) view_.members.push_back({"node" + std::to_string(r), {}, 1});
        const ExchangeKind* kind = nullptr;
        Status found = exchange_find(config.exchange, config.quantiser, &kind);
        EXPECT_TRUE(found.ok()) << found.what;
        SimConfig sim = config.sim;
        if (kind->datagrams) sim.segment_bytes = config.segment_bytes;   // ring and unicast cut for themselves
        simulator_ = Simulator::create(sim);
        const std::vector<uint32_t> samples(config.blocks, 1);
        for (Rank r = 0; r < config.sim.ranks; ++r) {
            arenas_.push_back(std::make_unique<Arena>());
            exchanges_.push_back(kind->create(exchange_config(r)));
            Status status = exchanges_[r]->install(view_, *arenas_[r]);
            spies_.push_back(std::make_unique<Spy>(*exchanges_[r]));
            if (config.bulk) {
                BulkConfig bulk;
                bulk.self = r;
                bulk.ranks = config.sim.ranks;
                bulk.segment_bytes = config.segment_bytes;
                bulk.stall_us = config.stall_us;
                bulks_.push_back(bulk_create(bulk, *spies_[r], *arenas_[r], &counters_));
                losers_.push_back(std::make_unique<Loser>(*bulks_[r], r, config_.loses));
            }
            if (status.ok()) status = arenas_[r]->seal();
            EXPECT_TRUE(status.ok()) << status.what;
            own_.push_back(exchanges_[r]->place(view_, samples).blocks_of(r));
            if (config.bulk) simulator_->attach_datagrams(r, 1, losers_[r].get());
            else simulator_->attach(r, 1, spies_[r].get());
            simulator_->trainer(r, [this, r](Host& host) { return train(host, r); });
        }
    }

    ExchangeConfig exchange_config(Rank rank) const {
        return {.layout = &layout_,
                .self = rank,
                .blocks = config_.blocks,
                .quantiser = config_.quantiser,
                .segment_bytes = config_.segment_bytes,
                .m = config_.m,
                .s = config_.s,
                .r = config_.r,
                .weights = config_.weights,
                .servers = config_.servers,
                .piece_words = config_.piece_words};
    }
    Cost cost(Rank rank, const CostWire& wire = {}) const {
        return cost_of_rank(config_.exchange, exchange_config(rank), config_.sim.ranks, wire);
    }
    Status run() { return simulator_->run(); }
    Simulator& simulator() { return *simulator_; }
    Exchange& exchange(Rank rank) { return *exchanges_[rank]; }
    Spy& spy(Rank rank) { return *spies_[rank]; }
    uint64_t wrong() const { return wrong_; }   // words of sums that differ from the reference
    bool agree() const { return agree_; }       // all ranks got the same sums
    StepId done(Rank rank) { return done_[rank]; }
    uint64_t abandoned(Rank rank) { return abandoned_[rank]; }   // number of buckets
    const BulkCounters& counters() const { return counters_; }

private:
    static constexpr uint64_t state_good = 0x1234;

    // The word that `block` contributes: any value up to the limit.
    int64_t word(StepId step, uint32_t block, uint64_t element, bool reference) const {
        const uint64_t seed = config_.flip_seed && !reference && step == 2 && block == 0 ? config_.flip_seed : config_.sim.seed;
        auto random = random4(Purpose::test, seed, step * blocks_max + block, static_cast<uint32_t>(element));
        const int64_t limit = quantise_limit(config_.quantiser, config_.blocks);
        if (random[2] % 8 == 0) return random[3] % 2 ? limit : -limit;
        return static_cast<int64_t>((uint64_t{random[0]} << 31 | random[1] >> 1) % static_cast<uint64_t>(2 * limit + 1)) - limit;
    }
    float maximum(StepId step, uint32_t block, uint32_t group) const {
        return uniform(random4(Purpose::test, config_.sim.seed + 1, step * blocks_max + block, group)[0]);
    }
    int64_t loss(StepId step, uint32_t block) const {
        return static_cast<int32_t>(random4(Purpose::test, config_.sim.seed + 2, step, block)[0]);
    }

    // Adds each of the rank's own blocks to its target, as a codec does.
    void contribute(Host& host, Rank rank, StepId step, uint32_t bucket) {
        const Bucket& range = layout_.buckets[bucket];
        bool flip = rank == config_.faulty && step == 2 && bucket == 0;
        for (uint32_t target = 0; target < exchanges_[rank]->targets(); ++target) {
            const Plan plan = exchanges_[rank]->plan(step, bucket, target);
            ASSERT_EQ(plan.words.bytes, range.count * word_bytes(plan.word));
            Record& record = *plan.record;
            record.state = state_good + step + (rank == config_.other_state && step == 2 ? 1 : 0);
            record.loss = 0;
            record.clipped = 0;
            record.digest = 0;
            record.blocks = 0;
            std::fill(record.maxima.begin(), record.maxima.end(), 0.0f);
            std::vector<uint32_t> blocks;
            for (uint32_t block : own_[rank])
                if (exchanges_[rank]->target_of(block) == target) blocks.push_back(block);
            for (uint64_t i = 0; i < range.count; ++i) {
                int64_t sum = 0;
                for (uint32_t block : blocks) sum += word(step, block, range.offset + i, false);
                if (flip && !blocks.empty()) {
                    sum ^= 4;
                    flip = false;
                }
                record.digest += (splitmix64(range.offset + i) | 1) * static_cast<uint64_t>(sum);
                ASSERT_TRUE(plan.word == Word::i64 ||
                            (plan.word == Word::i16 ? static_cast<int16_t>(sum) : static_cast<int32_t>(sum)) == sum);
                std::memcpy(plan.words.host + i * word_bytes(plan.word), &sum, word_bytes(plan.word));
            }
            for (uint32_t block : blocks) {
                record.loss += loss(step, block);
                record.clipped += block + step;
                ++record.blocks;
                for (uint32_t g = 0; g < range.group_count; ++g)
                    record.maxima[g] = std::max(record.maxima[g], maximum(step, block, range.group + g));
            }
        }
        host.post(1, {Event::Ready{step, bucket}});
    }

    void check(StepId step, const Sum& sum, Rank rank) {
        const Bucket& range = layout_.buckets[sum.bucket];
        ASSERT_EQ(sum.step, step);
        ASSERT_EQ(sum.word, config_.quantiser == Quantiser::fixed    ? Word::i64
                            : config_.quantiser == Quantiser::auto16 ? Word::i16
                                                                     : Word::i32);
        ASSERT_EQ(sum.words.bytes, range.count * word_bytes(sum.word));
        std::vector<int64_t>& first = sums_[{step, sum.bucket}];
        for (uint64_t i = 0; i < range.count; ++i) {
            const int64_t have = sum.word == Word::i32   ? sum.words.as<int32_t>()[i]
                                 : sum.word == Word::i16 ? sum.words.as<int16_t>()[i]
                                                         : sum.words.as<int64_t>()[i];
            if (first.size() < range.count) {
                int64_t want = 0;
                for (uint32_t block = 0; block < config_.blocks; ++block) want += word(step, block, range.offset + i, true);
                wrong_ += have != want;
                first.push_back(have);
            } else if (have != first[i]) {
                agree_ = false;
            }
        }
        int64_t losses = 0;
        uint64_t clipped = 0;
        for (uint32_t block = 0; block < config_.blocks; ++block) {
            losses += loss(step, block);
            clipped += block + step;
        }
        EXPECT_EQ(sum.loss, losses) << "rank " << rank << " step " << step << " bucket " << sum.bucket;
        EXPECT_EQ(sum.clipped, clipped);
        EXPECT_EQ(sum.state, state_good + step);
        ASSERT_EQ(sum.maxima.size(), range.group_count);
        for (uint32_t g = 0; g < range.group_count; ++g) {
            float want = 0;
            for (uint32_t block = 0; block < config_.blocks; ++block) want = std::max(want, maximum(step, block, range.group + g));
            EXPECT_EQ(sum.maxima[g], want);
        }
    }

    Status train(Host& host, Rank rank) {
        std::map<Rank, Status> expelled;       // in this step: may still owe packets
        std::vector<Completion> completions;   // of this step, and of steps that are complete without this rank
        const auto buckets = static_cast<uint32_t>(layout_.buckets.size());
        for (StepId step = 0; step < config_.steps; ++step) {
            for (uint32_t b = 0; b < buckets; ++b) {
                if (config_.spend_us) host.spend(random4(Purpose::test, config_.sim.seed + 3, step * 64 + b, rank)[0] % config_.spend_us);
                if (config_.abandons) (void)host.wait(&completions, host.now_us());
                if (config_.abandons && std::any_of(completions.begin(), completions.end(), [&](const Completion& each) {
                        return each.sum && each.step == step && each.id == b;
                    })) {
                    host.post(1, command_event<ExchangeCommand>({ExchangeCommand::Abandon{step, b}}));
                    ++abandoned_[rank];
                } else {
                    contribute(host, rank, step, b);
                }
            }
            for (uint32_t missing = buckets; missing > 0;) {
                for (const Completion& each : completions) {
                    if (config_.goes_on && each.status.code == Code::conflict) {
                        const Conflict* conflict = exchanges_[rank]->conflict(each.step);
                        if (!conflict->outvoted || conflict->spoiled || conflict->ranks[1] == rank) return each.status;
                        const Rank wrong = conflict->ranks[1];
                        expelled[wrong] = each.status;
                        host.post(1, command_event<ExchangeCommand>({ExchangeCommand::Expel{wrong}}));
                        continue;
                    }
                    GC_TRY(each.status);
                    if (each.step < step || !each.sum || each.sum->bucket != each.id)
                        return fail(Code::conflict, "a completion of another step");
                    if (each.step > step) continue;
                    check(step, *each.sum, rank);
                    --missing;
                }
                std::erase_if(completions, [&](const Completion& each) { return each.step == step || !each.sum; });
                if (missing == 0) break;
                if (Status status = host.wait(&completions, host.now_us() + config_.deadline_us); !status.ok()) {
                    host.post(1, command_event<ExchangeCommand>({ExchangeCommand::Explain{step}}));
                    if (status.code == Code::deadline) GC_TRY(host.wait(&completions, host.now_us() + 1000));
                    return completions.empty() ? status : completions.back().status;
                }
            }
            if (step > 0) host.post(1, command_event<ExchangeCommand>({ExchangeCommand::Release{step - 1}}));
            done_[rank] = step + 1;
            for (auto& [wrong, status] : expelled) host.post(1, {Event::PeerLost{wrong, status}});
            expelled.clear();
        }
        return {};
    }

    const WorldConfig config_;
    const Layout layout_;
    View view_;
    std::vector<std::unique_ptr<Arena>> arenas_;
    std::vector<std::unique_ptr<Exchange>> exchanges_;
    std::vector<std::unique_ptr<Spy>> spies_;
    std::vector<std::vector<uint32_t>> own_;
    std::map<std::pair<StepId, uint32_t>, std::vector<int64_t>> sums_;
    std::map<Rank, StepId> done_;
    std::map<Rank, uint64_t> abandoned_;
    std::vector<std::unique_ptr<Protocol>> bulks_, losers_;
    BulkCounters counters_;   // of all ranks
    uint64_t wrong_ = 0;
    bool agree_ = true;
    std::unique_ptr<Simulator> simulator_;   // last member: its threads end first
};

}   // namespace gradcast
