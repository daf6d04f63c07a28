// Every exchange over the simulator: the exact sum at every rank, for every number of ranks, layout, delay and break.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <string>

#include "runtime/core/arena.h"
#include "runtime/core/digest.h"
#include "tests/sim/seeds.h"
#include "transport/exchange/cost.h"
#include "transport/sim/sim.h"
#include "transport/wire/packet.h"

namespace gradcast {
namespace {

constexpr uint16_t exchange_channel = 1;
constexpr uint64_t exchange_deadline_us = 60'000'000;

struct Random {
    uint64_t state;
    uint64_t next() { return splitmix64(state += 0x9E3779B97F4A7C15); }
    uint64_t below(uint64_t limit) { return next() % limit; }
    template <size_t N>
    uint64_t one_of(const uint64_t (&values)[N]) {
        return values[below(N)];
    }
};

/// Groups of odd sizes, cut into buckets from the end, as a backward pass does.
Layout layout_random(Random& random, uint32_t elements_max) {
    Layout layout;
    uint64_t groups = 1 + random.below(7);
    for (uint64_t g = 0; g < groups; ++g) {
        uint64_t count = 1 + random.below(random.below(3) ? 200 : elements_max);
        layout.groups.push_back({layout.elements, count, "layer" + std::to_string(g)});
        layout.elements += count;
    }
    for (uint32_t end = static_cast<uint32_t>(groups); end > 0;) {
        uint32_t first = end - 1 - static_cast<uint32_t>(random.below(std::min(end, 3u)));
        uint64_t offset = layout.groups[first].offset, last = end == groups ? layout.elements : layout.groups[end].offset;
        layout.buckets.push_back({offset, last - offset, first, end - first});
        end = first;
    }
    return layout;
}

/// One job of a few steps over one exchange.  A block's contribution to an element is a function of (seed, step, block, element), so each
/// rank checks alone.
struct Job {
    SimConfig config;
    const ExchangeKind* kind = nullptr;
    Quantiser quantiser = Quantiser::auto32;
    Layout layout;
    uint32_t blocks = 8, steps = 3, segment_bytes = segment_bytes_stream;
    uint64_t spend_us = 0;   // before each bucket is ready
    uint64_t stray = 0;      // 1 + the rank whose state digest differs in the last step; 0: none
    std::function<void(Simulator&)> before;

    struct Node {
        Arena arena;
        std::unique_ptr<Exchange> exchange;
        std::vector<uint32_t> own;
        uint64_t checked = 0;   // number of checked sums
    };
    View view;
    std::map<StepId, std::vector<int64_t>> expected_;
    std::deque<Node> nodes;
    std::unique_ptr<Simulator> sim;

    /// Up to 2^27-1 for auto32 at B = 8, all of int32 for `fixed`.
    int64_t value(StepId step, uint32_t block, uint64_t element) const {
        uint64_t bits = splitmix64(config.seed ^ splitmix64(step << 40 ^ uint64_t{block} << 32 ^ element));
        int64_t limit = quantiser == Quantiser::fixed ? INT32_MAX : (INT32_MAX - 1) / 2 / blocks;
        return static_cast<int64_t>(bits % static_cast<uint64_t>(2 * limit + 1)) - limit;
    }
    float maximum(StepId step, uint32_t block, uint32_t group) const {
        return static_cast<float>(splitmix64(step * 131 + block * 7 + group) % 1000);
    }
    int64_t loss(StepId step, uint32_t block, uint32_t bucket) const {
        return static_cast<int64_t>(splitmix64(step + block * 99 + bucket) % 100000) - 50000;
    }

    void fill(Node& node, StepId step, uint32_t b, Rank self) {
        const Bucket& bucket = layout.buckets[b];
        Plan plan = node.exchange->plan(step, b);
        ASSERT_EQ(plan.words.bytes, bucket.count * word_bytes(plan.word));
        for (uint64_t i = 0; i < bucket.count; ++i) {
            int64_t sum = 0;
            for (uint32_t block : node.own) sum += value(step, block, bucket.offset + i);
            if (plan.word == Word::i32) plan.words.as<int32_t>()[i] = static_cast<int32_t>(sum);
            else plan.words.as<int64_t>()[i] = sum;
        }
        Record& record = *plan.record;
        record.state = 1000 + step + (stray == self + 1 && step + 1 == steps ? 1 : 0), record.loss = 0,
        record.clipped = node.own.size() * (b + 1);
        ASSERT_EQ(record.maxima.size(), bucket.group_count);
        for (uint32_t g = 0; g < bucket.group_count; ++g) {
            record.maxima[g] = 0;
            for (uint32_t block : node.own) record.maxima[g] = std::max(record.maxima[g], maximum(step, block, bucket.group + g));
        }
        for (uint32_t block : node.own) record.loss += loss(step, block, b);
    }

    /// The sum over all blocks of the step's elements, computed once for all ranks.
    const std::vector<int64_t>& expected_of(StepId step) {
        std::vector<int64_t>& expected = expected_[step];
        if (!expected.empty()) return expected;
        expected.resize(layout.elements);
        for (uint32_t block = 0; block < blocks; ++block)
            for (uint64_t i = 0; i < layout.elements; ++i) expected[i] += value(step, block, i);
        return expected;
    }

    void check(Node& node, const Sum& sum) {
        const Bucket& bucket = layout.buckets[sum.bucket];
        const int64_t* all = expected_of(sum.step).data() + bucket.offset;
        ASSERT_EQ(sum.words.bytes, bucket.count * word_bytes(sum.word));
        uint64_t wrong = 0;
        for (uint64_t i = 0; i < bucket.count; ++i) {
            wrong += all[i] != (sum.word == Word::i32 ? sum.words.as<int32_t>()[i] : sum.words.as<int64_t>()[i]);
        }
        EXPECT_EQ(wrong, 0u) << "elements of step " << sum.step << " bucket " << sum.bucket;
        ASSERT_EQ(sum.maxima.size(), bucket.group_count);
        for (uint32_t g = 0; g < bucket.group_count; ++g) {
            float expected = 0;
            for (uint32_t block = 0; block < blocks; ++block) expected = std::max(expected, maximum(sum.step, block, bucket.group + g));
            EXPECT_EQ(sum.maxima[g], expected);
        }
        int64_t expected = 0;
        for (uint32_t block = 0; block < blocks; ++block) expected += loss(sum.step, block, sum.bucket);
        EXPECT_EQ(sum.loss, expected);
        EXPECT_EQ(sum.clipped, uint64_t{blocks} * (sum.bucket + 1));
        EXPECT_EQ(sum.state, 1000 + sum.step);
        ++node.checked;
    }

    Status train(Rank self, Host& host) {
        Node& node = nodes[self];
        std::vector<Completion> out;
        for (StepId step = 0; step < steps; ++step) {
            for (uint32_t b = 0; b < layout.buckets.size(); ++b) {
                if (spend_us) host.spend(spend_us);
                fill(node, step, b, self);
                host.post(exchange_channel, {Event::Ready{step, b}});
            }
            std::vector<const Sum*> sums(layout.buckets.size());
            for (size_t have = 0; have < sums.size();) {
                out.clear();
                GC_TRY(host.wait(&out, host.now_us() + exchange_deadline_us));
                for (const Completion& c : out) {
                    GC_TRY(c.status);
                    EXPECT_EQ(c.step, step);
                    EXPECT_EQ(c.channel, exchange_channel);
                    EXPECT_EQ(sums.at(c.id), nullptr) << "bucket " << c.id << " completed twice";
                    sums.at(c.id) = c.sum;
                    ++have;
                }
            }
            for (const Sum* sum : sums) check(node, *sum);
            // The sums of this step prove that every rank has applied the previous one: it is stable.
            if (step > 0) host.post(exchange_channel, command_event<ExchangeCommand>({ExchangeCommand::Release{step - 1}}));
        }
        return {};
    }

    // r = 1: one target, as fill() expects.
    ExchangeConfig exchange_config(Rank self) const {
        return {.layout = &layout, .self = self, .blocks = blocks, .quantiser = quantiser, .segment_bytes = segment_bytes, .r = 1};
    }
    uint64_t bytes_bound(Rank self) const {
        return static_cast<uint64_t>(cost_of_rank(kind->name, exchange_config(self), config.ranks, {}).words_sent);
    }

    Status run() {
        if (kind->datagrams) config.segment_bytes = segment_bytes;   // streams cut Sends by themselves
        sim = Simulator::create(config);
        view.members.resize(config.ranks);
        std::vector<uint32_t> samples(blocks, 3);
        for (Rank r = 0; r < config.ranks; ++r) {
            Node& node = nodes.emplace_back();
            node.exchange = kind->create(exchange_config(r));
            node.own = node.exchange->place(view, samples).blocks_of(r);
            GC_TRY(node.exchange->install(view, node.arena));
            GC_TRY(node.arena.seal());
            sim->attach(r, exchange_channel, node.exchange.get());
            sim->trainer(r, [this, r](Host& host) { return train(r, host); });
        }
        if (before) before(*sim);
        return sim->run();
    }

    /// The most that one rank may send: the bound, plus heads and tags of each part of each bucket, one record each way, and rounding to a
    /// word.
    uint64_t bytes_allowed(Rank rank) const {
        uint64_t bytes = bytes_bound(rank);
        if (kind->datagrams) bytes *= config.ranks;   // a multicast counts once for datagrams
        for (const Bucket& bucket : layout.buckets)
            bytes += 2 * (config.ranks - 1) *
                     ((bucket.count * 8 / segment_bytes + 2) * 64 + 64 + sizeof(RecordHeader) + 4 * bucket.group_count + 8);
        return bytes * steps;
    }
    void expect_all_checked() const {
        for (Rank r = 0; r < config.ranks; ++r) EXPECT_EQ(nodes[r].checked, steps * layout.buckets.size()) << "rank " << r;
    }
};

/// A job that follows from the seed.
void job_random(uint64_t seed, uint32_t ranks, uint32_t elements_max, const ExchangeKind& kind, Job* job) {
    Random random{seed * 1000 + ranks};
    job->kind = &kind;
    job->layout = layout_random(random, elements_max);
    job->quantiser = kind.fixed && random.below(3) == 0 ? Quantiser::fixed : Quantiser::auto32;
    job->blocks = 1 + static_cast<uint32_t>(random.below(2 * ranks + 2));
    if (kind.name == std::string_view("cssgd")) job->blocks = std::max(job->blocks, ranks);
    job->steps = 2 + static_cast<uint32_t>(random.below(4));
    job->segment_bytes = static_cast<uint32_t>(random.one_of({1024, 4096, 65536, 262144}));
    job->spend_us = random.one_of({0, 50, 1000});
    job->config.seed = seed;
    job->config.ranks = ranks;
    job->config.jitter_us = random.one_of({0, 20, 500});
    job->config.latency_us = random.one_of({1, 50, 400});
    job->config.rate_bytes_per_s = static_cast<double>(random.one_of({12'500'000, 125'000'000, 1'250'000'000}));
    job->config.break_per_packet = static_cast<double>(random.one_of({0, 0, 5, 30})) * 1e-3;
    job->config.window_bytes = random.one_of({3000, 65536, 1 << 20});
    job->config.batch_us = random.one_of({0, 3, 200});
    job->config.compute_async = random.below(2);
    job->config.compute_ns_per_word = random.one_of({1, 20});
    Rank slow = static_cast<Rank>(random.below(ranks));
    double factor = static_cast<double>(random.one_of({1, 3, 20}));
    job->before = [slow, factor](Simulator& sim) { sim.slow(slow, factor); };
}

void sweep(std::initializer_list<uint32_t> all_ranks, uint64_t seeds, uint32_t elements_max) {
    for_seeds(seeds, [&](uint64_t seed) {
        for (const ExchangeKind& kind : exchange_kinds()) {
            for (uint32_t ranks : all_ranks) {
                SCOPED_TRACE(fmt::format("{} over {} ranks, seed {}", kind.name, ranks, seed));
                Job job;
                job_random(seed, ranks, elements_max, kind, &job);
                Status status = job.run();
                ASSERT_TRUE(status.ok()) << status.what;
                job.expect_all_checked();
                for (Rank r = 0; r < ranks && job.config.break_per_packet == 0; ++r) {
                    EXPECT_LE(job.sim->bytes_sent(r), job.bytes_allowed(r));
                    EXPECT_GE(job.sim->bytes_sent(r), job.bytes_bound(r) * job.steps);
                }
                if (::testing::Test::HasFailure()) return;
            }
        }
    });
}

TEST(ExchangeSim, FewRanks) { sweep({1, 2, 3, 4, 5}, 6, 3000); }
TEST(SlowExchangeSim, EveryNumberOfRanksToTwelve) { sweep({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 4, 20000); }
TEST(SlowExchangeSim, ManyRanks) { sweep({16, 32, 64}, 2, 2000); }

/// The first bucket is sent while the last is still being computed, at every rank.
TEST(ExchangeSim, BucketsTravelDuringTheBackwardPass) {
    for (const ExchangeKind& kind : exchange_kinds()) {
        SCOPED_TRACE(kind.name);
        Job job;
        Random random{5};
        job_random(1, 4, 3000, kind, &job);
        while (job.layout.buckets.size() < 3) job.layout = layout_random(random, 3000);
        job.config.trace = true;
        job.config.break_per_packet = 0;
        job.config.rate_bytes_per_s = 125e6;
        job.blocks = 8;
        job.spend_us = 5000;
        job.before = {};
        Status status = job.run();
        ASSERT_TRUE(status.ok()) << status.what;
        uint32_t last = static_cast<uint32_t>(job.layout.buckets.size()) - 1;
        for (Rank r = 0; r < 4; ++r) {
            for (StepId step = 0; step < job.steps; ++step) {
                auto find = [&](SimTrace::What what, uint32_t bucket) {
                    auto it = std::find_if(job.sim->trace().begin(), job.sim->trace().end(), [&](const SimTrace& t) {
                        return t.rank == r && t.what == what && t.step == step && t.bucket == bucket &&
                               (what != SimTrace::What::send || t.type == PacketType::words);
                    });
                    return it - job.sim->trace().begin();
                };
                EXPECT_LT(find(SimTrace::What::send, 0), find(SimTrace::What::ready, last));
                EXPECT_LT(find(SimTrace::What::deliver, 0), find(SimTrace::What::ready, last));
                EXPECT_LT(find(SimTrace::What::complete, 0), find(SimTrace::What::ready, last));
            }
        }
    }
}

/// Ranks that computed a step from different states must not be summed: a conflict is reported, and no rank gets all sums of that step.
TEST(ExchangeSim, DifferentStatesAreAConflict) {
    for (const ExchangeKind& kind : exchange_kinds()) {
        for (uint32_t ranks : {2u, 3u, 6u}) {
            SCOPED_TRACE(fmt::format("{} over {} ranks", kind.name, ranks));
            Job job;
            job_random(3, ranks, 2000, kind, &job);
            job.stray = 2;
            Status status = job.run();
            EXPECT_EQ(status.code, Code::conflict) << status.what;
            for (Rank r = 0; r < ranks; ++r) {
                EXPECT_FALSE(job.sim->result(r).ok());
                EXPECT_EQ(job.nodes[r].checked, (job.steps - 1) * job.layout.buckets.size());
            }
        }
    }
}

}   // namespace
}   // namespace gradcast
