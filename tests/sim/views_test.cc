// Whole jobs of synchronous SGD in the simulator that lose nodes: the others go on, with the digest of a quiet run.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "algos/dispatch.h"
#include "datasets/shard.h"
#include "runtime/core/rng.h"
#include "runtime/job/checkpoint.h"
#include "runtime/job/engine.h"
#include "tests/sim/seeds.h"
#include "transport/link/sim.h"

namespace gradcast {
namespace {

constexpr uint64_t D = 4'000'000;
constexpr uint32_t steps = 6;

struct Folder {
    std::string path;
    ~Folder() { std::filesystem::remove_all(path); }
};

const std::string& folder() {
    static const Folder made_once{[] {
        // Hundreds of jobs, whose files are synced: in memory where that can be.
        const std::string place = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm/" : ::testing::TempDir();
        const std::string made = place + "gradcast-views-" + std::to_string(getpid());
        std::filesystem::create_directories(made);
        for (const auto& [name, count] : {std::pair{"train.h5", 240u}, std::pair{"test.h5", 60u}}) {
            constexpr uint32_t side = 8;
            std::vector<uint8_t> images(count * side * side);
            std::vector<int32_t> labels(count);
            for (uint32_t i = 0; i < count; ++i) {
                labels[i] = static_cast<int32_t>(i % 4);
                for (uint32_t p = 0; p < side * side; ++p)
                    images[i * side * side + p] =
                        static_cast<uint8_t>(random4(Purpose::test, 3, i, p)[0] % 100 + (p / 16 == i % 4 ? 90 : 0));
            }
            const DataInfo info{count, 1, side, side, 4, {0.3f}, {0.2f}, "stripes"};
            const Status status = shard_write(made + "/" + name, info, images.data(), labels.data());
            EXPECT_TRUE(status.ok()) << status.what;
        }
        return made;
    }()};
    return made_once.path;
}

struct Lossy {
    SimConfig sim_config;
    std::string exchange = "ring", options;
    bool survive = true, datagrams = false;
    uint32_t change_every = 0;
    std::vector<std::pair<Rank, uint64_t>> kills;   // when
    std::unique_ptr<Simulator> sim;
    std::vector<std::unique_ptr<Engine>> engines;

    explicit Lossy(uint32_t ranks, uint64_t seed = 1) { sim_config.ranks = ranks, sim_config.seed = seed; }
    std::string own_folder(Rank rank) const { return fmt::format("{}/job{}", folder(), rank); }

    void run() {
        log_level(Level::error);
        JobConfig job;
        std::vector<JobMistake> mistakes;
        const std::string text = fmt::format(
            "[job]\nseed = 7\nsteps = {}\nevaluate = 2\ncheckpoint_every = 2\nbatch = 24\nblocks = 6\ndeadline = \"4s\"\nsurvive = "
            "{}\n[data]\n"
            "train = \"{}/train.h5\"\ntest = \"{}/test.h5\"\n[net]\n[[net.layers]]\nkind = \"inner_product\"\noutputs = "
            "16\n[[net.layers]]\n"
            "kind = \"relu\"\n[[net.layers]]\nkind = \"inner_product\"\noutputs = 4\n[[net.layers]]\nkind = "
            "\"softmax_cross_entropy\"\n[optimiser]\nlr = 0.05\nmomentum = 0.9\n[algorithm]\n"
            "exchange = \"{}\"\n{}",
            steps, survive, folder(), folder(), exchange, options);
        ASSERT_TRUE(job_parse(text, "job.toml", "/", &job, &mistakes)) << mistakes.front().text;
        sim = Simulator::create(sim_config);
        std::vector<Member> roster(sim_config.ranks);
        for (Rank r = 0; r < sim_config.ranks; ++r) roster[r].name = fmt::format("node{}", r);
        for (Rank r = 0; r < sim_config.ranks; ++r) {
            EngineConfig config;
            config.job = job, config.roster = roster, config.self = NodeId{r}, config.folder = own_folder(r);
            std::filesystem::remove_all(config.folder);
            config.lanes = 0, config.loader_threaded = false, config.spend_us = 100, config.change_every = change_every;
            config.datagram_bytes = datagrams ? 1432 : 0;
            const Status status = Engine::open(config, Log(), &engines.emplace_back());
            ASSERT_TRUE(status.ok()) << status.what;
            if (Protocol* views = engines[r]->views()) sim->attach(r, static_cast<uint16_t>(Channel::view), views);
            sim->trainer(r, [this, r](Host& host) { return engines[r]->run(host); });
        }
        for (const auto& [rank, at_us] : kills) sim->kill(rank, at_us);
        (void)sim->run();
    }
    bool killed(Rank rank) const {
        return std::any_of(kills.begin(), kills.end(), [&](const auto& each) { return each.first == rank; });
    }
    /// Before the job has begun nobody may be missing: then all end by name.
    bool began() const {
        for (Rank r = 0; r < sim_config.ranks; ++r)
            if (std::string(sim->result(r).what).find("has not started") == std::string::npos && !killed(r)) return true;
        return false;
    }
    /// All that were not killed have ended well, with this digest.
    void expect(const std::string& digest) {
        for (Rank r = 0; r < sim_config.ranks; ++r) {
            if (killed(r)) continue;
            EXPECT_TRUE(sim->result(r).ok()) << "rank " << r << ": " << sim->result(r).what;
            EXPECT_EQ(engines[r]->status().digest, digest) << "rank " << r;
            EXPECT_EQ(engines[r]->status().step, steps);
        }
    }
};

struct Quiet {
    std::string digest;
    uint64_t us = 0;
};
const Quiet& quiet() {
    static const Quiet known = [] {
        Lossy alone(3);
        alone.survive = false;
        alone.run();
        alone.expect(alone.engines[0]->status().digest);
        return Quiet{alone.engines[0]->status().digest, alone.sim->now_us()};
    }();
    return known;
}

TEST(JobViews, NobodyIsLost) {
    ASSERT_EQ(quiet().digest.size(), 64u);
    for (uint32_t change_every : {0u, 2u}) {
        Lossy job(3);
        job.change_every = change_every;
        job.run();
        job.expect(quiet().digest);
    }
}

TEST(JobViews, TheOthersGoOnWithoutALostNode) {
    Lossy job(3);
    job.kills = {{1, quiet().us / 2}};
    job.run();
    job.expect(quiet().digest);
    const JobStatus status = job.engines[0]->status();
    ASSERT_EQ(status.losses.size(), 1u);
    EXPECT_NE(status.losses[0].find("without node1"), std::string::npos) << status.losses[0];
    EXPECT_LT(status.change_us, D);
}

TEST(JobViews, WithoutTheKeyALossEndsTheJob) {
    Lossy job(3);
    job.survive = false;
    job.kills = {{1, quiet().us / 2}};
    job.run();
    EXPECT_EQ(job.sim->result(0).code, Code::peer_lost);
    EXPECT_EQ(job.sim->result(2).code, Code::peer_lost);
}

/// `count` deaths of other nodes each, at any time.
void sweep(uint64_t seeds, uint32_t ranks, uint32_t count, const std::string& exchange, const std::string& options, bool datagrams) {
    uint32_t begun = 0, changed = 0;
    for_seeds(seeds, [&](uint64_t seed) {
        Lossy job(ranks, seed);
        job.exchange = exchange, job.options = options, job.datagrams = datagrams;
        job.sim_config.jitter_us = 100;
        uint64_t random = splitmix64(seed);
        for (uint32_t i = 0; i < count; ++i) {
            Rank rank = 0;
            do rank = static_cast<Rank>((random = splitmix64(random)) % ranks);
            while (job.killed(rank));
            // The second one may come before the others have agreed on the first.
            const uint64_t span_us = i == 0 ? quiet().us : 3 * D / 2;
            job.kills.emplace_back(rank, 1'000 + (i > 0 ? job.kills[0].second : 0) + (random = splitmix64(random)) % span_us);
        }
        SCOPED_TRACE(fmt::format("{} over {} ranks, seed {}, first rank {} at {} us, last rank {} at {} us", exchange, ranks, seed,
                                 job.kills.front().first, job.kills.front().second, job.kills.back().first, job.kills.back().second));
        job.run();
        if (!job.began()) return;
        job.expect(quiet().digest);
        ++begun;
        for (Rank r = 0; r < ranks; ++r)
            if (!job.killed(r) && !job.engines[r]->status().losses.empty()) {
                ++changed;
                break;
            }
    });
    EXPECT_GE(changed, begun / 2);   // the others end where the last step is done already
}

TEST(JobViews, AnyNodeAtAnyTime) {
    for (Rank rank = 0; rank < 3; ++rank)
        for (uint64_t at = 1; at < 40; ++at) {
            SCOPED_TRACE(fmt::format("rank {} at {} of 40", rank, at));
            Lossy job(3, at);
            job.kills = {{rank, quiet().us * at / 40}};
            job.run();
            if (job.began()) job.expect(quiet().digest);
            if (::testing::Test::HasFailure()) return;
        }
}

TEST(JobViews, FromSeeds) { sweep(100, 4, 1, "ring", "", false); }
TEST(JobViews, TwoNodesOneAfterTheOther) { sweep(100, 5, 2, "ring", "", false); }
TEST(JobViews, ALossThatTheExchangeCovers) { sweep(60, 4, 1, "coded-rs", "m = 2\ns = 1\n", false); }
TEST(JobViews, OverDatagrams) { sweep(40, 4, 1, "coded-rs", "m = 2\ns = 1\n", true); }
TEST(JobViews, OfEveryExchange) {
    for (const char* exchange : {"auto", "multicast", "ps", "unicast", "coded"}) sweep(6, 3, 1, exchange, "s = 0\n", false);
}

TEST(JobViews, HalfWithTheLowestGoesOn) {
    Lossy job(2);
    job.kills = {{1, quiet().us / 2}};
    job.run();
    job.expect(quiet().digest);
}

TEST(JobViews, AMinorityKeepsItsStateAndSaysSo) {
    Lossy job(2);
    job.kills = {{0, quiet().us / 2}};
    job.run();
    const Status status = job.sim->result(1);
    EXPECT_EQ(status.code, Code::peer_lost);
    EXPECT_NE(std::string(status.what).find("minority"), std::string::npos) << status.what;
    const std::vector<uint64_t> kept = checkpoints_in(job.own_folder(1));
    ASSERT_FALSE(kept.empty());
    EXPECT_EQ(kept.back(), job.engines[1]->status().step);
    EXPECT_LT(job.sim->now_us(), 3 * D);
}

}   // namespace
}   // namespace gradcast
