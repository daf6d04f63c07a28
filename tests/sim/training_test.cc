// Whole jobs of synchronous SGD over the simulator: lenet5 on a small data set gives one digest for every number of ranks, exchange and
// network.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <string>

#include "algos/synchronous.h"
#include "datasets/shard.h"
#include "runtime/core/digest.h"
#include "runtime/job/run/engine.h"
#include "tests/sim/seeds.h"
#include "tests/sim/synced_folder.h"
#include "tests/wrapped_host.h"
#include "transport/sim/sim.h"
#include "transport/wire/packet.h"

namespace gradcast {
namespace {

constexpr uint32_t steps = 4;
constexpr uint64_t deadline_us = 4'000'000;

/// Generated images: stripes whose direction and width follow from the class, with noise.
std::string shard() {
    static const SyncedFolder folder("sim", [](const std::string& made) {
        constexpr uint32_t count = 512, side = 28;
        std::vector<uint8_t> images(count * side * side);
        std::vector<int32_t> labels(count);
        for (uint32_t i = 0; i < count; ++i) {
            labels[i] = static_cast<int32_t>(splitmix64(i) % 10);
            for (uint32_t p = 0; p < side * side; ++p) {
                uint32_t along = labels[i] % 2 ? p % side : p / side, width = 2 + static_cast<uint32_t>(labels[i]) / 2;
                images[i * side * side + p] = static_cast<uint8_t>((along / width % 2 ? 200 : 20) + splitmix64(uint64_t{i} << 32 | p) % 50);
            }
        }
        DataInfo info{count, 1, side, side, 10, {0.4f}, {0.3f}, "stripes"};
        Status status = shard_write(made + "/train.h5", info, images.data(), labels.data());
        EXPECT_TRUE(status.ok()) << status.what;
    });
    return folder.path + "/train.h5";
}

/// Wraps one rank's exchange and flips one bit.
struct Spoiler : Protocol {
    enum class What : uint8_t { own, sum } what = What::own;   // the rank's contribution before it is sent, or its copy of the sum
    StepId step = 1;
    uint32_t bucket = 0;
    Exchange* inner = nullptr;
    uint32_t spoiled = 0;
    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events)
            if (const auto* ready = event.is<Event::Ready>(); what == What::own && ready && ready->step == step && ready->bucket == bucket)
                flip(inner->plan(step, bucket).words);
        inner->on(events, actions);
        for (const Completion& c : actions.completions)
            if (what == What::sum && c.sum && c.step == step && c.id == bucket) flip(c.sum->words);
    }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override { return inner->land(packet, bytes, place); }
    void flip(Buffer words) {
        words.as<uint32_t>()[words.bytes / 8] ^= 1u << 20;
        ++spoiled;
    }
};

/// Delays the events from rank 0's trainer, and slows its computing by `stall` from its contribution to step 3 until its next event.
struct Laggard : Protocol {
    static constexpr uint64_t timer = ~uint64_t{0};
    Laggard(Protocol* protocol, Simulator& simulator, double factor) : inner(*protocol), sim(simulator), stall(factor) {}
    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events) {
            const auto* ready = event.is<Event::Ready>();
            const auto* alarm = event.is<Event::TimerExpired>();
            if (ready || event.is<Event::Command>()) {
                if (late.empty()) actions.timers.push_back({timer, actions.now_us + 75});
                late.push_back(event);
                sim.slow(0, ready && ready->step == 3 ? stall : 1);
            } else if (alarm && alarm->id == timer) {
                inner.on(late, actions);
                late.clear();
            } else {
                inner.on({&event, 1}, actions);
            }
        }
    }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override { return inner.land(packet, bytes, place); }
    Protocol& inner;
    Simulator& sim;
    const double stall;
    std::vector<Event> late;
};

/// Drops the exchange's packets from the rank's contribution to step `from` on; the job protocol's packets pass.
struct Starved : Protocol {
    Starved(Protocol* protocol, StepId step) : inner(*protocol), from(step) {}
    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events) {
            const auto* ready = event.is<Event::Ready>();
            starved |= ready && ready->step >= from;
            if (!starved || !event.is<Event::Received>()) inner.on({&event, 1}, actions);
        }
    }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override {
        return starved ? Landing::drop : inner.land(packet, bytes, place);
    }
    Protocol& inner;
    const StepId from;
    bool starved = false;
};

/// Wakes the trainer only when a sum is queued for it.
struct SleepyHost final : WrappedHost {
    using WrappedHost::WrappedHost;
    Status wait(std::vector<Completion>* out, uint64_t until_us) override {
        do {
            GC_TRY(inner.wait(out, until_us));
            for (const Completion& each : *out) awake |= each.sum != nullptr;
        } while (!awake);
        return {};
    }
    bool awake = false;
};

struct Cluster {
    SimConfig config;
    std::string exchange = "ring";
    std::string options;   // of [algorithm]
    uint32_t job_steps = steps;
    bool datagrams = false;
    uint64_t spend_us = 0;
    Spoiler* spoiler = nullptr;
    Rank spoiled = 0;
    double lags = 0;                   // rank 0: Laggard::stall
    bool sleepy = false;               // the last rank has a SleepyHost
    std::map<Rank, StepId> starving;   // Starved::from of these ranks; with datagrams
    uint32_t change_every = 0;
    bool evaluates = false;   // after each step
    std::function<void(Simulator&)> before;
    std::function<void(Rank, bool closed)> between;   // called before and after a rank closes a view

    std::unique_ptr<Simulator> sim;
    std::vector<std::unique_ptr<Engine>> engines;
    std::unique_ptr<Laggard> laggard;
    std::vector<std::unique_ptr<Starved>> starved;

    Status run() {
        JobConfig job;
        std::vector<JobMistake> mistakes;
        job.text = fmt::format(
            "[job]\nseed = 7\nsteps = {}\nbatch = 32\nblocks = 8\ndeadline = \"4s\"\n{}[data]\ntrain = \"{}\"\n{}[net]\npreset = "
            "\"lenet5\"\n"
            "[optimiser]\nlr = 0.05\nmomentum = 0.9\n[algorithm]\nexchange = \"{}\"\n{}",
            job_steps, evaluates ? "evaluate = 1\n" : "", shard(), evaluates ? "test = \"" + shard() + "\"\n" : "", exchange, options);
        std::string text = job.text;
        if (!job_parse(text, "job.toml", "/", &job, &mistakes)) return fail(Code::invalid, "{}", mistakes[0].text);
        Log log;
        log_level(Level::error);
        sim = Simulator::create(config);
        std::vector<Member> roster(config.ranks);
        for (Rank r = 0; r < config.ranks; ++r) roster[r].name = fmt::format("node{}", r);
        std::string folder = shard().substr(0, shard().rfind('/')) + "/job";
        for (Rank r = 0; r < config.ranks; ++r) {
            EngineConfig engine;
            engine.job = job;
            engine.roster = roster;
            engine.self = NodeId{r};
            engine.folder = fmt::format("{}{}", folder, r);
            engine.lanes = 0;
            engine.loader_threaded = false;
            engine.spend_us = spend_us;
            engine.datagram_bytes = datagrams ? 1432 : 0;
            engine.change_every = change_every;
            GC_TRY(Engine::open(engine, log, &engines.emplace_back()));
            sim->trainer(r, [this, r](Host& host) {
                const auto wrap = [this, r](uint16_t channel, Protocol* protocol) -> Protocol* {
                    if (channel != gradient_channel) return protocol;
                    if (spoiler && r == spoiled) {
                        spoiler->inner = static_cast<Exchange*>(protocol);
                        return spoiler;
                    }
                    if (starving.contains(r)) return starved.emplace_back(std::make_unique<Starved>(protocol, starving[r])).get();
                    if (lags == 0 || r != 0) return protocol;
                    laggard = std::make_unique<Laggard>(protocol, *sim, lags);
                    return laggard.get();
                };
                struct Between final : WrappedHost {
                    using WrappedHost::WrappedHost;
                    Status close_view(uint64_t until_us) override {
                        if (between) between(false);
                        const Status status = inner.close_view(until_us);
                        if (between) between(true);
                        return status;
                    }
                    std::function<void(bool)> between;
                } wrapped(host, wrap);
                if (between) wrapped.between = [this, r](bool closed) { between(r, closed); };
                SleepyHost late(host, wrap);
                return engines[r]->run(sleepy && r + 1 == config.ranks ? static_cast<Host&>(late) : wrapped);
            });
        }
        if (before) before(*sim);
        return sim->run();
    }
    std::string digest() const {
        std::string digest = engines[0]->status().digest;
        for (const auto& engine : engines) EXPECT_EQ(engine->status().digest, digest);
        return digest;
    }
};

/// cssgd needs r = 2 nodes, and one block for each pair of them.
bool fits(const ExchangeKind& kind, uint32_t ranks) { return kind.name != std::string_view("cssgd") || (ranks >= 2 && ranks <= 4); }

/// The digest of a single rank, which every other job must equal.
const std::string& reference() {
    static const std::string digest = [] {
        Cluster alone;
        alone.config.ranks = 1;
        Status status = alone.run();
        EXPECT_TRUE(status.ok()) << status.what;
        return alone.digest();
    }();
    return digest;
}

TEST(SlowTraining, OneDigestWhateverTheRanksTheExchangeAndTheNetwork) {
    ASSERT_EQ(reference().size(), 64u);
    for_seeds(2, [](uint64_t seed) {
        for (const ExchangeKind& kind : exchange_kinds()) {
            for (uint32_t ranks : {1u, 2u, 3u, 4u, 8u, 16u}) {
                if (!fits(kind, ranks)) continue;
                SCOPED_TRACE(fmt::format("{} over {} ranks, seed {}", kind.name, ranks, seed));
                Cluster cluster;
                cluster.exchange = kind.name;
                cluster.config.ranks = ranks;
                cluster.config.seed = seed;
                cluster.config.break_per_packet = seed % 2 ? 0.01 : 0;
                cluster.config.compute_async = seed % 2 == 0;
                cluster.config.jitter_us = 300;
                cluster.spend_us = seed % 10 * 100;
                cluster.before = [&](Simulator& sim) { sim.slow(static_cast<Rank>(splitmix64(seed) % ranks), 5); };
                Status status = cluster.run();
                ASSERT_TRUE(status.ok()) << status.what;
                EXPECT_EQ(cluster.digest(), reference());
            }
        }
    });
}

// If ranks may be missing, the sums of several steps can be complete before the slow rank begins them.
TEST(SlowTraining, ARankThatCatchesUpWaitsForTheMemoryOfItsSteps) {
    std::string wanted;
    for (const char* exchange : {"coded", "coded-rs"})
        for (double stall : {250, 300, 350, 400}) {
            SCOPED_TRACE(fmt::format("{}, {}", exchange, stall));
            Cluster cluster;
            cluster.exchange = exchange;
            cluster.options = "m = 2\ns = 1\n";
            cluster.job_steps = 10;
            cluster.config.ranks = 4;
            cluster.spend_us = 30;
            cluster.lags = stall;
            Status status = cluster.run();
            ASSERT_TRUE(status.ok()) << status.what;
            if (wanted.empty()) wanted = cluster.digest();
            EXPECT_EQ(cluster.digest(), wanted);
        }
}

// The slow rank's words are not needed until another one dies, of which only some have what it has sent.
TEST(SlowTraining, ARankThatDiesIsMissedThoughAnotherOneIsSlow) {
    std::string wanted;
    for (const char* exchange : {"coded", "coded-rs"})
        for (const char* options : {"m = 2\ns = 1\n", "m = 3\ns = 1\n"}) {
            uint64_t whole_us = 0;
            for (uint64_t at = 0; at <= 30; ++at) {
                SCOPED_TRACE(fmt::format("{} {}, at {} of 30", exchange, options, at));
                Cluster cluster;
                cluster.exchange = exchange, cluster.options = options;
                cluster.config.ranks = 4, cluster.config.seed = at + 1;
                cluster.config.lost_after_us = 50'000;
                cluster.config.jitter_us = 2'000;
                cluster.spend_us = 500;
                cluster.before = [&](Simulator& sim) {
                    sim.slow(1, 5);
                    if (at > 0) sim.kill(2, whole_us * (at + 4) / 35);   // not before the job begins
                };
                (void)cluster.run();
                if (at == 0) whole_us = cluster.sim->now_us();
                if (at == 0 && wanted.empty()) wanted = cluster.digest();
                for (Rank r : {0u, 1u, 3u}) {
                    EXPECT_TRUE(cluster.sim->result(r).ok()) << cluster.sim->result(r).what;
                    EXPECT_EQ(cluster.engines[r]->status().digest, wanted);
                }
            }
        }
}

// The starved rank is neither silent nor stuck: it reports that it waits, and the others wait for its acknowledgements.
TEST(SlowTraining, ARankThatHoldsTheOthersUpIsGivenUp) {
    Cluster alone;
    alone.config.ranks = 1;
    alone.job_steps = 12;
    ASSERT_TRUE(alone.run().ok());
    for (const char* exchange : {"coded", "coded-rs"}) {
        for (uint32_t s : {1u, 2u}) {
            SCOPED_TRACE(fmt::format("{}, s = {}", exchange, s));
            Cluster cluster;
            cluster.exchange = exchange;
            cluster.options = fmt::format("m = 2\ns = {}\n", s);
            cluster.job_steps = 12;
            cluster.config.ranks = 5;
            cluster.datagrams = true;
            cluster.starving[2] = 4;
            if (s == 2) cluster.starving[3] = 4;
            (void)cluster.run();   // fails at the rank that is given up
            for (Rank r : {0u, 1u, 4u}) {
                Status result = cluster.sim->result(r);
                ASSERT_TRUE(result.ok()) << result.what;
                EXPECT_EQ(cluster.engines[r]->status().digest, alone.digest());
                ASSERT_EQ(cluster.engines[r]->status().losses.size(), s);
                EXPECT_NE(cluster.engines[r]->status().losses[0].find("holds the others up"), std::string::npos)
                    << cluster.engines[r]->status().losses[0];
            }
            Status given_up = cluster.sim->result(2);
            EXPECT_EQ(given_up.code, Code::peer_lost);
            EXPECT_NE(std::string(given_up.what).find("the others go on without"), std::string::npos) << given_up.what;
            EXPECT_LE(cluster.sim->now_us(), 2 * deadline_us);
        }
    }
}

TEST(SlowTraining, OneRankMoreThanCanBeMissedEndsTheJobByName) {
    Cluster cluster;
    cluster.exchange = "coded-rs";
    cluster.options = "m = 2\ns = 1\n";
    cluster.job_steps = 40;
    cluster.config.ranks = 5;
    cluster.datagrams = true;
    cluster.starving[2] = 4;
    cluster.starving[3] = 20;
    (void)cluster.run();
    for (Rank r : {0u, 1u, 4u}) {
        Status result = cluster.sim->result(r);
        EXPECT_EQ(result.code, Code::deadline) << result.what;
        EXPECT_NE(std::string(result.what).find("bytes from rank 3"), std::string::npos) << result.what;
        EXPECT_EQ(std::string(result.what).find("rank 2 (node2)"), std::string::npos) << result.what;
    }
    EXPECT_LE(cluster.sim->now_us(), 3 * deadline_us);
}

/// The clock is that of the simulator, so the two rates are equal to the rounding of a microsecond.
TEST(SlowTraining, EvaluationsDoNotLowerTheRateOfTraining) {
    Cluster with, without;
    with.evaluates = true;
    for (Cluster* each : {&with, &without}) {
        each->config.ranks = 2;
        each->config.latency_us = 5000;
        each->spend_us = 1000;
        const Status status = each->run();
        ASSERT_TRUE(status.ok()) << status.what;
    }
    const JobStatus evaluated = with.engines[1]->status(), plain = without.engines[1]->status();
    EXPECT_GE(evaluated.accuracy, 0);
    EXPECT_GT(evaluated.seconds, plain.seconds + steps * 0.005);
    EXPECT_NEAR(evaluated.samples_per_second, plain.samples_per_second, 0.01 * plain.samples_per_second);
}

// A step may take longer than the deadline as long as packets arrive.
TEST(SlowTraining, SlowIsNotStuck) {
    Cluster cluster;
    cluster.config.ranks = 8;
    cluster.config.rate_bytes_per_s = 0.08e6;   // a rank sends 0.43 MB a step
    Status status = cluster.run();
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(cluster.digest(), reference());
    EXPECT_GT(cluster.sim->now_us(), steps * deadline_us);
}

// If a rank may be missing, the sums of step 0 can be complete before it learns that the job begins.
TEST(SlowTraining, SumsMayComeBeforeARankBeginsItsFirstStep) {
    for (const char* exchange : {"coded", "coded-rs", "auto"}) {
        SCOPED_TRACE(exchange);
        Cluster cluster;
        cluster.exchange = exchange;
        cluster.options = "m = 1\ns = 1\n";
        cluster.config.ranks = 3;
        cluster.sleepy = true;
        Status status = cluster.run();
        ASSERT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(cluster.digest(), reference());
    }
}

TEST(SlowTraining, OneFlippedBitInAGradientChangesTheDigest) {
    for (const ExchangeKind& kind : exchange_kinds()) {
        if (kind.name == std::string_view("cssgd")) continue;   // another holder computes the same block: the digests would differ
        Spoiler spoiler;
        Cluster cluster;
        cluster.exchange = kind.name;
        cluster.config.ranks = 4;
        cluster.spoiler = &spoiler;
        cluster.spoiled = 2;
        Status status = cluster.run();
        ASSERT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(spoiler.spoiled, 1u);
        EXPECT_NE(cluster.digest(), reference());   // equal at all ranks: each adds the same flipped words
    }
}

TEST(SlowTraining, AMulticastThatStopsIsTold) {
    Cluster alone, cluster;
    alone.config.ranks = 1;
    alone.job_steps = cluster.job_steps = 60;
    ASSERT_TRUE(alone.run().ok());
    cluster.config.ranks = 3;
    cluster.exchange = "coded-rs";
    cluster.options = "m = 2\n";
    cluster.datagrams = true;
    cluster.before = [](Simulator& sim) { sim.deafen(2, 5'000); };
    Status status = cluster.run();
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(cluster.digest(), alone.digest());
    for (Rank r : {0u, 1u}) {
        const std::vector<std::string> warnings = cluster.engines[r]->status().warnings;
        ASSERT_EQ(warnings.size(), 1u);
        EXPECT_TRUE(warnings[0].starts_with(fmt::format("multicast from node{} does not reach node2 any more", r))) << warnings[0];
    }
    EXPECT_TRUE(cluster.engines[2]->status().warnings.empty());
}

TEST(SlowTraining, RanksThatDisagreeEndInAConflict) {
    for (const ExchangeKind& kind : exchange_kinds()) {
        for (StepId step : {StepId{0}, StepId{2}, StepId{steps - 1}}) {
            SCOPED_TRACE(fmt::format("{} step {}", kind.name, step));
            Spoiler spoiler;
            spoiler.what = Spoiler::What::sum;
            spoiler.step = step;
            Cluster cluster;
            cluster.exchange = kind.name;
            cluster.config.ranks = 4;
            cluster.spoiler = &spoiler;
            cluster.spoiled = 1;
            Status status = cluster.run();
            EXPECT_EQ(spoiler.spoiled, 1u);
            EXPECT_EQ(status.code, Code::conflict) << status.what;
            for (Rank r = 0; r < 4; ++r) EXPECT_FALSE(cluster.sim->result(r).ok()) << r;
        }
    }
}

TEST(SlowTraining, AKilledRankEndsTheJobWithItsName) {
    for_seeds(4, [](uint64_t seed) {
        for (const ExchangeKind& kind : exchange_kinds()) {
            uint64_t at_us = 0;
            Rank dead = static_cast<Rank>(seed % 4);
            for (bool kill : {false, true}) {   // the first run measures the duration
                SCOPED_TRACE(fmt::format("{} seed {} rank {} killed at {} us", kind.name, seed, dead, at_us));
                Cluster cluster;
                cluster.exchange = kind.name;
                cluster.config.ranks = 4;
                cluster.config.seed = seed;
                cluster.config.lost_after_us = deadline_us;
                cluster.spend_us = 500;
                if (kill) cluster.before = [&](Simulator& sim) { sim.kill(dead, at_us); };
                Status status = cluster.run();
                EXPECT_EQ(status.ok(), !kill) << status.what;
                if (!kill) {
                    at_us = cluster.sim->now_us() * (5 + splitmix64(seed) % 90) / 100;
                    continue;
                }
                for (Rank r = 0; r < 4; ++r) {
                    if (r == dead) continue;
                    Status result = cluster.sim->result(r);
                    EXPECT_EQ(result.code, Code::peer_lost) << result.what;
                    EXPECT_NE(std::string(result.what).find(fmt::format("rank {} (node{})", dead, dead)), std::string::npos) << result.what;
                }
                EXPECT_LE(cluster.sim->now_us(), at_us + deadline_us);
            }
        }
    });
}

TEST(SlowTraining, GradientsTravelDuringTheBackwardPass) {
    for (const ExchangeKind& kind : exchange_kinds()) {
        SCOPED_TRACE(kind.name);
        Cluster cluster;
        cluster.exchange = kind.name;
        cluster.config.ranks = 4;
        cluster.config.trace = true;
        cluster.spend_us = 20'000;
        ASSERT_TRUE(cluster.run().ok());
        const std::vector<SimTrace>& trace = cluster.sim->trace();
        uint32_t last = 0;
        for (const SimTrace& t : trace)
            if (t.what == SimTrace::What::ready) last = std::max(last, t.bucket);
        ASSERT_GE(last, 1u);
        for (StepId step = 0; step < steps; ++step) {
            uint64_t slowest_us = 0;   // with cssgd ranks have unequal numbers of blocks
            for (const SimTrace& t : trace)
                if (t.what == SimTrace::What::ready && t.step == step) slowest_us = std::max(slowest_us, t.at_us);
            for (Rank r = 0; r < 4; ++r) {
                auto first = [&](SimTrace::What what, uint32_t bucket) {
                    return std::find_if(trace.begin(), trace.end(), [&](const SimTrace& t) {
                        return t.rank == r && t.what == what && t.step == step && t.bucket == bucket &&
                               (what == SimTrace::What::ready || t.type == PacketType::words);
                    });
                };
                EXPECT_LT(first(SimTrace::What::send, 0), first(SimTrace::What::ready, last));
                const auto delivered = first(SimTrace::What::deliver, 0);
                ASSERT_NE(delivered, trace.end());
                EXPECT_LT(delivered->at_us, slowest_us);
            }
        }
    }
}

// ---- changes of view ---------------------------------------------------------------------------------------------------------------

constexpr uint32_t changing_steps = 10, changing_every = 3;   // views 1 to 4

const std::string& reference_of_changes() {
    static const std::string digest = [] {
        Cluster alone;
        alone.config.ranks = 1;
        alone.job_steps = changing_steps;
        Status status = alone.run();
        EXPECT_TRUE(status.ok()) << status.what;
        return alone.digest();
    }();
    return digest;
}

struct Changing : Cluster {
    Changing(const char* kind, uint32_t ranks, uint64_t seed) {
        exchange = kind;
        job_steps = changing_steps;
        change_every = changing_every;
        config.ranks = ranks;
        config.seed = seed;
        config.jitter_us = 300;
        config.compute_async = seed % 2 == 0;
        datagrams = seed % 2;
        config.break_per_packet = seed % 4 < 2 ? 0.01 : 0;
        config.loss = datagrams ? 0.05 : 0;
        spend_us = seed % 5 * 100;
        before = [seed, ranks](Simulator& simulator) { simulator.slow(static_cast<Rank>(splitmix64(seed) % ranks), 5); };
    }
};

// `make nightly` takes more seeds.
TEST(SlowViews, AChangeOfViewChangesNoBit) {
    for_seeds(2, [](uint64_t seed) {
        for (const ExchangeKind& kind : exchange_kinds()) {
            for (uint32_t ranks : {1u, 2u, 3u, 4u, 8u}) {
                if (!fits(kind, ranks)) continue;
                SCOPED_TRACE(fmt::format("{} over {} ranks, seed {}", kind.name, ranks, seed));
                Changing cluster(kind.name, ranks, seed);
                Status status = cluster.run();
                ASSERT_TRUE(status.ok()) << status.what;
                EXPECT_EQ(cluster.digest(), reference_of_changes());
                for (const auto& engine : cluster.engines) EXPECT_EQ(engine->status().view, 4u);
            }
        }
    });
}

TEST(SlowViews, ARankThatDiesIsMissedByTheViewsAfterIt) {
    for (const char* exchange : {"coded", "coded-rs"}) {
        uint64_t ends_us = 0;
        {
            Changing cluster(exchange, 4, 1);
            cluster.options = "m = 2\ns = 1\n";
            ASSERT_TRUE(cluster.run().ok());
            ends_us = cluster.sim->now_us();
        }
        for_seeds(20, [&](uint64_t seed) {
            const Rank dead = static_cast<Rank>(splitmix64(seed) % 4);
            const uint64_t at_us = splitmix64(seed + 1000) % ends_us;
            SCOPED_TRACE(fmt::format("{} seed {} rank {} killed at {} us", exchange, seed, dead, at_us));
            Changing cluster(exchange, 4, seed);
            cluster.options = "m = 2\ns = 1\n";
            cluster.config.lost_after_us = deadline_us / 2;
            cluster.before = [&](Simulator& sim) { sim.kill(dead, at_us); };
            Status status = cluster.run();
            if (at_us < 5'000 && !status.ok()) return;   // before the job began no rank may be missing
            ASSERT_TRUE(status.ok()) << status.what;
            for (Rank r = 0; r < 4; ++r) {
                if (r == dead) continue;
                const JobStatus its = cluster.engines[r]->status();
                EXPECT_EQ(its.digest, reference_of_changes()) << r;
                EXPECT_LE(its.losses.size(), 1u) << r;
            }
        });
    }
}

// A cancel while no view is open is kept for the next view.
TEST(SlowViews, ACancelBetweenTwoViewsEndsTheJob) {
    for (bool closed : {false, true}) {
        Changing cluster("ring", 3, 2);
        cluster.between = [&cluster, closed](Rank r, bool is_closed) {
            if (r == 1 && is_closed == closed) cluster.engines[1]->cancel("cancelled between two views");
        };
        EXPECT_EQ(cluster.run().code, Code::cancelled);
        for (const auto& engine : cluster.engines) {
            EXPECT_EQ(engine->status().state, JobState::cancelled);
            EXPECT_EQ(engine->status().error, "cancelled between two views");
            EXPECT_EQ(engine->status().step, changing_every);
        }
    }
}

// ---- auto ----------------------------------------------------------------------------------------------------------------------

constexpr uint32_t auto_steps = 8;   // the choice follows the sixth

const std::string& reference_of_auto(const char* quantiser) {
    static std::map<std::string, std::string> digests;
    std::string& digest = digests[quantiser];
    if (digest.empty()) {
        Cluster alone;
        alone.exchange = "unicast";
        alone.options = fmt::format("quantiser = \"{}\"\n", quantiser);
        alone.config.ranks = 1;
        alone.job_steps = auto_steps;
        Status status = alone.run();
        EXPECT_TRUE(status.ok()) << status.what;
        digest = alone.digest();
    }
    return digest;
}

struct Auto : Cluster {
    explicit Auto(uint32_t ranks, uint32_t s = 0, const char* quantiser = "auto32") {
        exchange = "auto";
        options = fmt::format("s = {}\nquantiser = \"{}\"\n", s, quantiser);
        config.ranks = ranks;
        job_steps = auto_steps;
    }
    /// The choice, which is the same at all ranks.
    std::string choice() const {
        const std::optional<ExchangeReport> choice = engines[0]->status().choice;
        for (const auto& engine : engines) EXPECT_EQ(engine->status().choice, choice);
        return choice ? choice->predictions[choice->chosen].text() : "";
    }
    std::string why() const {
        const std::optional<ExchangeReport> choice = engines[0]->status().choice;
        return choice ? exchange_report_text(*choice) : "";
    }
};

TEST(SlowAuto, ASlowLinkGetsACodeAndSlowBlocksAreComputedOnce) {
    for (bool datagrams : {false, true}) {
        for (uint32_t ranks : {4u, 8u}) {
            SCOPED_TRACE(fmt::format("{} ranks{}", ranks, datagrams ? ", datagrams" : ""));
            Auto slow(ranks), fast(ranks);
            slow.datagrams = fast.datagrams = datagrams;
            slow.config.rate_bytes_per_s = 12.5e6;
            slow.spend_us = 10;
            fast.config.rate_bytes_per_s = 1.25e9;
            fast.spend_us = 50'000;
            for (Auto* each : {&slow, &fast}) {
                Status status = each->run();
                ASSERT_TRUE(status.ok()) << status.what;
                EXPECT_EQ(each->digest(), reference_of_auto("auto32"));
            }
            EXPECT_TRUE(slow.choice().starts_with("coded-rs m=") && slow.choice() > "coded-rs m=2") << slow.why();
            const std::string once = fast.choice();
            EXPECT_TRUE(once == "ring" || once == "multicast" || once.starts_with("ps ") || once.ends_with(" m=1 s=0")) << fast.why();
            EXPECT_LT(slow.engines[0]->status().bytes_bound, fast.engines[0]->status().bytes_bound);
        }
    }
}

// Computing takes longer while the first steps are measured, as where the network's thread needs the same core: blocks seem to be dear.
TEST(SlowAuto, WhatIsPredictedWronglyIsMeasured) {
    std::string digest;
    for (const uint32_t ranks : {1u, 4u}) {
        Auto cluster(ranks);
        cluster.job_steps = 36;
        cluster.config.rate_bytes_per_s = 12.5e6;
        cluster.spend_us = 10;
        cluster.before = [&](Simulator& sim) {
            for (Rank rank = 0; rank < cluster.config.ranks; ++rank) sim.slow(rank, 1000);
        };
        cluster.between = [&](Rank rank, bool) { cluster.sim->slow(rank, 1); };
        Status status = cluster.run();
        ASSERT_TRUE(status.ok()) << status.what;
        if (digest.empty()) digest = cluster.digest();
        EXPECT_EQ(cluster.digest(), digest);
        if (ranks == 1) continue;
        const ExchangeReport choice = *cluster.engines[0]->status().choice;
        const auto least = std::min_element(choice.predictions.begin(), choice.predictions.end(),
                                            [](const auto& a, const auto& b) { return a.step_us < b.step_us; });
        EXPECT_NE(cluster.choice(), least->text()) << cluster.why();
        uint64_t fastest = UINT64_MAX, tried = 0;
        for (const ExchangePrediction& each : choice.predictions) {
            if (each.measured_us > 0) fastest = std::min(fastest, each.measured_us), ++tried;
        }
        EXPECT_GE(tried, 2u) << cluster.why();
        EXPECT_EQ(choice.predictions[choice.chosen].measured_us, fastest) << cluster.why();
        EXPECT_TRUE(cluster.choice().starts_with("coded-rs m=")) << cluster.why();
    }
}

TEST(SlowAuto, OneDigestWhateverIsChosen) {
    for_seeds(4, [](uint64_t seed) {
        for (const char* quantiser : {"auto32", "auto16", "fixed"}) {
            for (uint32_t ranks : {1u, 2u, 3u, 5u}) {
                const bool spare = ranks > 1 && quantiser != std::string_view("fixed");   // one rank may be missing
                Auto cluster(ranks, seed % 3 == 2 && spare ? 1 : 0, quantiser);
                SCOPED_TRACE(fmt::format("{} over {} ranks, seed {}", quantiser, ranks, seed));
                cluster.config.seed = seed;
                cluster.config.jitter_us = 300;
                cluster.config.compute_async = seed % 2 == 0;
                cluster.datagrams = seed % 2;
                cluster.config.break_per_packet = seed % 4 == 0 ? 0.01 : 0;
                cluster.config.loss = seed % 4 == 1 ? 0.05 : 0;
                cluster.config.rate_bytes_per_s = seed % 3 ? 5e6 : 1e9;
                cluster.spend_us = seed % 5 * 300;
                cluster.before = [&](Simulator& sim) { sim.slow(static_cast<Rank>(splitmix64(seed) % ranks), 5); };
                Status status = cluster.run();
                ASSERT_TRUE(status.ok()) << status.what;
                EXPECT_EQ(cluster.digest(), reference_of_auto(quantiser));
                EXPECT_EQ(cluster.choice().empty(), ranks == 1);
            }
        }
    });
}

// Also in the middle of the choice, when only some ranks have the dead rank's measurements.
TEST(SlowAuto, ARankThatDiesIsMissedBeforeWhileAndAfterTheChoice) {
    uint64_t from_us = 0, to_us = 0;   // the ends of the sixth and seventh step in a run without a death
    {
        Auto cluster(4, 1);
        cluster.config.rate_bytes_per_s = 5e6;
        cluster.config.trace = true;
        cluster.spend_us = 200;
        ASSERT_TRUE(cluster.run().ok());
        for (const SimTrace& each : cluster.sim->trace()) {
            if (each.what != SimTrace::What::complete) continue;
            if (each.step == 5) from_us = each.at_us;
            if (each.step == 6) to_us = each.at_us;
        }
        ASSERT_LT(from_us, to_us);
    }
    for_seeds(20, [&](uint64_t seed) {
        const Rank dead = static_cast<Rank>(splitmix64(seed) % 4);
        const uint64_t step_us = to_us - from_us, choice_us = 1000, some = splitmix64(seed + 1000);
        const uint64_t at_us = seed % 4 ? from_us + some % choice_us : from_us - step_us / 2 + some % (3 * step_us / 2);
        SCOPED_TRACE(fmt::format("seed {} rank {} killed at {} us", seed, dead, at_us));
        Auto cluster(4, 1);
        cluster.config.rate_bytes_per_s = 5e6;
        cluster.config.seed = seed;
        cluster.config.lost_after_us = deadline_us / 2;
        cluster.spend_us = 200;
        cluster.datagrams = seed % 2;
        cluster.before = [&](Simulator& sim) { sim.kill(dead, at_us); };
        Status status = cluster.run();
        ASSERT_TRUE(status.ok()) << status.what;
        std::optional<ExchangeReport> choice;
        for (Rank r = 0; r < 4; ++r) {
            if (r == dead) continue;
            const JobStatus its = cluster.engines[r]->status();
            EXPECT_EQ(its.digest, reference_of_auto("auto32")) << r;
            if (!choice) choice = its.choice;
            EXPECT_EQ(its.choice, choice) << r;
        }
    });
}

}   // namespace
}   // namespace gradcast
