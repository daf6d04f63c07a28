// Whole jobs in the simulator that lose nodes, or that nodes join: the others go on, with the digest of a quiet run.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "algos/dispatch.h"
#include "datasets/shard.h"
#include "runtime/core/rng.h"
#include "runtime/job/audit.h"
#include "runtime/job/checkpoint.h"
#include "runtime/job/engine.h"
#include "runtime/job/transcript.h"
#include "runtime/job/view_records.h"
#include "tests/sim/seeds.h"
#include "transport/link/sim.h"

namespace gradcast {
namespace {

constexpr uint64_t D = 4'000'000;
constexpr uint32_t steps_few = 6;

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
    uint32_t steps = steps_few;
    uint64_t spend_us = 100;                        // of a block's bucket
    std::string more_layers;                        // after the first
    std::vector<std::pair<Rank, uint64_t>> kills;   // when
    struct Stall {
        Rank rank;
        uint64_t from_us, to_us;
    };
    std::vector<Stall> stalls;
    struct Partition {
        std::vector<Rank> side;
        uint64_t from_us, to_us;
    };
    std::vector<Partition> partitions;
    std::vector<std::pair<Rank, double>> slow;
    std::vector<uint64_t> joins;   // when the last ranks come, which are not in the first view
    Resume resume;
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
            "{}\n{}[[net.layers]]\n"
            "kind = \"relu\"\n[[net.layers]]\nkind = \"inner_product\"\noutputs = 4\n[[net.layers]]\nkind = "
            "\"softmax_cross_entropy\"\n[optimiser]\nlr = 0.05\nmomentum = 0.9\n[algorithm]\n"
            "{}{}",
            steps, survive, folder(), folder(), more_layers.empty() ? 16 : 128, more_layers,
            exchange.empty() ? "" : fmt::format("exchange = \"{}\"\n", exchange), options);
        ASSERT_TRUE(job_parse(text, "job.toml", "/", &job, &mistakes)) << mistakes.front().text;
        sim = Simulator::create(sim_config);
        std::vector<Member> roster(sim_config.ranks);
        for (Rank r = 0; r < sim_config.ranks; ++r) roster[r].name = fmt::format("node{}", r);
        for (Rank r = 0; r < sim_config.ranks; ++r) {
            EngineConfig config;
            config.job = job;
            config.roster = roster;
            config.self = NodeId{r};
            config.folder = own_folder(r);
            config.resume = resume;
            if (!resume.on) std::filesystem::remove_all(config.folder);
            config.lanes = 0;
            config.loader_threaded = false;
            config.spend_us = spend_us;
            config.change_every = change_every;
            config.datagram_bytes = datagrams ? 1432 : 0;
            config.first_nodes = sim_config.ranks - static_cast<uint32_t>(joins.size());
            config.join = r >= config.first_nodes;
            const uint64_t at_us = config.join ? joins[r - config.first_nodes] : 0;
            const Status status = Engine::open(config, Log(), &engines.emplace_back());
            ASSERT_TRUE(status.ok()) << status.what;
            if (Protocol* views = engines[r]->views()) sim->attach(r, static_cast<uint16_t>(Channel::view), views);
            sim->trainer(r, [this, r, at_us](Host& host) {
                std::vector<Completion> none;
                (void)host.wait(&none, at_us);
                return engines[r]->run(host);
            });
        }
        for (const auto& [rank, at_us] : kills) sim->kill(rank, at_us);
        for (const Stall& each : stalls) sim->stall(each.rank, each.from_us, each.to_us);
        for (const Partition& each : partitions) sim->partition(each.side, each.from_us, each.to_us);
        for (const auto& [rank, factor] : slow) sim->slow(rank, factor);
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
            EXPECT_EQ(engines[r]->status().step, uint64_t{steps});
        }
    }
};

std::vector<StepLine> lines_in(const std::string& path) {
    std::vector<StepLine> all;
    StepLines lines;
    StepLine line;
    if (!lines.open(path + "/steps.jsonl").ok()) return all;
    for (bool got = true; got;) {
        const Status status = lines.next(&line, &got);
        EXPECT_TRUE(status.ok()) << status.what;
        if (got && status.ok()) all.push_back(line);
    }
    return all;
}

struct Quiet {
    std::string digest;
    std::vector<StepLine> lines;
    uint64_t us = 0;
};
const Quiet& quiet(uint32_t steps = steps_few) {
    static std::map<uint32_t, Quiet> known;
    if (const auto found = known.find(steps); found != known.end()) return found->second;
    Lossy alone(3);
    alone.survive = false;
    alone.steps = steps;
    alone.run();
    alone.expect(alone.engines[0]->status().digest);
    return known[steps] = {alone.engines[0]->status().digest, lines_in(alone.own_folder(0)), alone.sim->now_us()};
}
/// Of an algorithm by logical workers, on one node.
const Quiet& quiet_workers(const std::string& options, uint32_t steps) {
    static std::map<std::string, Quiet> known;
    Quiet& found = known[fmt::format("{}{}", options, steps)];
    if (!found.digest.empty()) return found;
    Lossy alone(1);
    alone.survive = false;
    alone.options = options;
    alone.steps = steps;
    alone.run();
    EXPECT_TRUE(alone.sim->result(0).ok()) << alone.sim->result(0).what;
    return found = {alone.engines[0]->status().digest, lines_in(alone.own_folder(0)), alone.sim->now_us()};
}

/// Whoever has ended well tells the same of the views, a joiner too.
void expect_the_same_views(const Lossy& job) {
    std::optional<std::vector<ViewRecord>> views;
    for (Rank r = 0; r < job.sim_config.ranks; ++r) {
        if (job.killed(r) || !job.sim->result(r).ok()) continue;
        const JobStatus status = job.engines[r]->status();
        if (!views) views = status.views;
        EXPECT_EQ(view_records_write(status.views), view_records_write(*views)) << "rank " << r;
        Transcript transcript;
        const Status read = transcript_read(job.own_folder(r) + "/transcript.json", &transcript);
        ASSERT_TRUE(read.ok()) << read.what;
        EXPECT_EQ(transcript.views.size(), views->size());
    }
    if (!views) return;
    ASSERT_FALSE(views->empty());
    EXPECT_EQ(views->front().number, 1u);
    EXPECT_EQ(views->front().members.size(), job.sim_config.ranks - job.joins.size());
    for (size_t i = 1; i < views->size(); ++i) {
        const ViewRecord &before = (*views)[i - 1], &view = (*views)[i];
        EXPECT_EQ(view.number, before.number + 1);
        EXPECT_GE(view.first_step, before.first_step);
        EXPECT_EQ(view.members.size(), before.members.size() + view.came.size() - view.left.size());
        EXPECT_FALSE(view.why.empty());
    }
}

/// Whatever a node has computed is what the quiet run has computed; whoever has ended well has its digest.
void expect_one_line(const Lossy& job, const Quiet& whole) {
    expect_the_same_views(job);
    for (Rank r = 0; r < job.sim_config.ranks; ++r) {
        for (const StepLine& line : lines_in(job.own_folder(r))) {
            ASSERT_LE(line.step, whole.lines.size());
            EXPECT_EQ(line.digest, whole.lines[line.step - 1].digest) << "rank " << r << ", step " << line.step;
            EXPECT_EQ(line.loss, whole.lines[line.step - 1].loss) << "rank " << r << ", step " << line.step;
        }
        if (job.killed(r)) continue;
        const Status& status = job.sim->result(r);
        EXPECT_TRUE(status.ok() || status.code == Code::peer_lost || status.code == Code::deadline) << "rank " << r << ": " << status.what;
        if (status.ok()) {
            EXPECT_EQ(job.engines[r]->status().digest, whole.digest) << "rank " << r;
        }
    }
}

void expect_one_line(const Lossy& job) { expect_one_line(job, quiet(job.steps)); }

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

/// Its blocks take 0.4 D, so it is not given up, and the other one hears no packet of its sum for more than D.
TEST(JobViews, ASlowNodeThatMovesIsWaitedFor) {
    for (const bool survive : {true, false}) {
        Lossy job(2);
        job.survive = survive;
        job.slow = {{1, 0.4 * static_cast<double>(D) / static_cast<double>(job.spend_us)}};
        job.run();
        if (survive) job.expect(quiet().digest);
        else EXPECT_NE(std::string(job.sim->result(0).what).find("no sum within 4 s"), std::string::npos) << job.sim->result(0).what;
        EXPECT_EQ(job.engines[0]->status().views.size(), 1u);
    }
}

/// The nodes have agreed before the trainers look up from their step, of which a bucket has failed by then.
TEST(JobViews, TheOthersComputeWhileTheyAgree) {
    constexpr uint64_t spend_us = D / 100;
    const auto prepare = [](Lossy& job) {
        job.spend_us = spend_us;
        job.sim_config.lost_after_us = 5'000;
        job.more_layers = "[[net.layers]]\nkind = \"inner_product\"\noutputs = 128\n";   // a bucket of its own
    };
    Lossy whole(3);
    prepare(whole);
    whole.run();
    const std::string digest = whole.engines[0]->status().digest;
    whole.expect(digest);
    for (Rank rank = 0; rank < 3; ++rank)
        for (uint64_t at = 4; at < 20; ++at) {
            SCOPED_TRACE(fmt::format("rank {} at {} of 20", rank, at));
            Lossy job(3, at);
            prepare(job);
            job.kills = {{rank, whole.sim->now_us() * at / 20}};
            job.run();
            job.expect(digest);
            for (Rank each = 0; each < 3; ++each)
                if (!job.killed(each)) {
                    EXPECT_LT(job.engines[each]->status().change_us, D / 4);
                }
        }
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
        job.exchange = exchange;
        job.options = options;
        job.datagrams = datagrams;
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
        expect_the_same_views(job);
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

/// Faults of any kind at fewer than half of the nodes: the others end well.
struct Faults {
    Lossy job;
    std::vector<bool> hit;
    std::string text;

    explicit Faults(uint64_t seed) : job(draw(seed, 0, 4) + 3, seed), hit(job.sim_config.ranks), seed_(seed) {
        struct Kind {
            const char *exchange, *options;
            bool datagrams;
        };
        static constexpr Kind kinds[] = {
            {"ring", "", false},    {"auto", "s = 0\n", false},           {"multicast", "", true}, {"coded-rs", "m = 2\ns = 1\n", false},
            {"unicast", "", false}, {"coded-rs", "m = 1\ns = 1\n", true}, {"ps", "", false}};
        const Kind& kind = kinds[next(std::size(kinds))];
        job.exchange = kind.exchange;
        job.options = kind.options;
        job.datagrams = kind.datagrams;
        job.steps = 14;   // `auto` chooses after some
        job.sim_config.jitter_us = 100;
        job.sim_config.lost_after_us = next(2) ? 5'000 : D / 2;   // a connection that is refused; a host that is gone
        job.sim_config.break_per_packet = next(4) == 0 ? 0.002 : 0;
        text = fmt::format("{} over {} ranks", kind.exchange, hit.size());
        const uint32_t most = (job.sim_config.ranks - 1) / 2;
        const uint64_t first_us = 1'000 + next(quiet(job.steps).us);
        for (uint32_t count = 1 + next(most); count > 0; --count) {
            Rank rank = 0;
            do rank = static_cast<Rank>(next(hit.size()));
            while (hit[rank]);
            hit[rank] = true;
            // Some in the middle of what the first one leads to.
            static constexpr uint64_t later_us[] = {0, 5'000, D / 4, D / 2};
            uint64_t at_us = first_us;
            if (job.kills.size() + job.stalls.size() + job.partitions.size() > 0)
                at_us += next(3) == 0 ? next(2 * D) : later_us[next(std::size(later_us))] + next(D / 16);
            fault(rank, at_us);
        }
        if (next(3) == 0) {
            const Rank rank = static_cast<Rank>(next(hit.size()));
            job.slow.emplace_back(rank, 20);
            text += fmt::format(", rank {} is slow", rank);
        }
    }

private:
    static uint32_t draw(uint64_t seed, uint64_t at, uint64_t below) {
        return static_cast<uint32_t>(random4(Purpose::test, seed, 9, at)[0] % below);
    }
    uint32_t next(uint64_t below) { return draw(seed_, ++drawn_, below); }
    void fault(Rank rank, uint64_t at_us) {
        static constexpr uint64_t long_us[] = {D / 8, 3 * D / 4, 3 * D, 40 * D};
        const uint64_t to_us = at_us + long_us[next(std::size(long_us))];
        switch (next(3)) {
            case 0: job.kills.emplace_back(rank, at_us), text += fmt::format(", rank {} dies at {} us", rank, at_us); break;
            case 1:
                job.stalls.push_back({rank, at_us, to_us});
                text += fmt::format(", rank {} stops from {} to {} us", rank, at_us, to_us);
                break;
            default:
                job.partitions.push_back({{rank}, at_us, to_us});
                text += fmt::format(", rank {} is cut off from {} to {} us", rank, at_us, to_us);
        }
    }
    const uint64_t seed_;
    uint64_t drawn_ = 0;
};

TEST(JobViews, TheOthersOutliveFaultsFromSeeds) {
    const auto one = [](uint64_t seed) {
        Faults faults(seed);
        Lossy& job = faults.job;
        SCOPED_TRACE(fmt::format("seed {}: {}", seed, faults.text));
        job.run();
        if (!job.began()) return;
        expect_one_line(job);
        for (Rank r = 0; r < faults.hit.size(); ++r)
            EXPECT_TRUE(faults.hit[r] || job.sim->result(r).ok()) << "rank " << r << ": " << job.sim->result(r).what;
    };
    for_seeds(60, one);
    one(333);   // words that come before a step that never begins hold back promises
}

/// To whom all others are late, more of them than the exchange has room for.
TEST(JobViews, ANodeThatIsCutOffFromACodedExchangeEndsByName) {
    for (const uint64_t at : {3u, 5u, 7u}) {
        Lossy job(7, at);
        job.exchange = "coded-rs";
        job.options = "m = 2\ns = 1\n";
        job.partitions = {{{2}, quiet().us * at / 10, 40 * D}};
        job.run();
        expect_one_line(job);
        for (Rank r = 0; r < 7; ++r) EXPECT_EQ(job.sim->result(r).ok(), r != 2) << job.sim->result(r).what;
    }
}

TEST(JobViews, NodesJoinWhileItRuns) {
    uint32_t joined = 0;
    const auto one = [&](uint64_t seed) {
        Lossy job(3 + seed % 3, seed);
        job.steps = 14;
        job.exchange = seed % 4 == 0 ? "auto" : "ring";
        job.sim_config.jitter_us = 100;
        const uint64_t span_us = quiet(job.steps).us;
        job.joins = {splitmix64(seed) % span_us};
        if (seed % 5 == 0) job.joins.push_back(splitmix64(seed + 1) % span_us);
        // A member may die before, after or while it comes.
        const bool dies = seed % 2 == 1 && job.joins.size() == 1 && job.sim_config.ranks > 3;
        if (dies) job.kills = {{static_cast<Rank>(seed % (job.sim_config.ranks - 1)), 1'000 + splitmix64(seed + 2) % (2 * span_us)}};
        SCOPED_TRACE(fmt::format("{} ranks, joins at {} us{}", job.sim_config.ranks, job.joins[0],
                                 dies ? fmt::format(", rank {} dies at {} us", job.kills[0].first, job.kills[0].second) : ""));
        job.run();
        if (!job.began()) return;
        expect_one_line(job);
        const uint32_t first = job.sim_config.ranks - static_cast<uint32_t>(job.joins.size());
        for (Rank r = 0; r < first; ++r)
            EXPECT_TRUE(job.killed(r) || job.sim->result(r).ok()) << "rank " << r << ": " << job.sim->result(r).what;
        for (Rank r = first; r < job.sim_config.ranks; ++r) joined += job.sim->result(r).ok();
    };
    for_seeds(30, one);
    one(38), one(284);                                      // in the first view's first moments; while the exchange is changed
    EXPECT_GT(joined, std::getenv("GC_SEED") ? 0u : 10u);   // others come when the job is done
}

TEST(JobViews, ANodeThatJoinsIsNoLoss) {
    Lossy job(4);
    job.joins = {quiet().us / 3};
    job.run();
    const JobStatus status = job.engines[0]->status();
    ASSERT_EQ(status.views.size(), 2u);
    EXPECT_EQ(status.views[1].came, std::vector<std::string>{"node3"});
    EXPECT_TRUE(status.losses.empty()) << status.losses[0];
}

/// It comes while the members end: it is taken in before that, or not at all, and all members end in one view.
TEST(JobViews, ANodeThatComesAtTheEndHoldsNobodyBack) {
    for (const char* kind : {"", "kind = \"oneshot\"\nworkers = 5\n"}) {
        Lossy alone(5);
        alone.options = kind;
        alone.run();
        const std::string digest = alone.engines[0]->status().digest;
        ASSERT_EQ(digest.size(), 64u);
        for (uint64_t at = 0; at < 60; ++at) {
            SCOPED_TRACE(fmt::format("{}at {} of 60", kind, at));
            Lossy job(6, 1 + at);
            job.options = kind;
            job.sim_config.jitter_us = 300;
            job.joins = {alone.sim->now_us() * 4 / 5 + alone.sim->now_us() * at / 60};
            job.run();
            for (Rank r = 0; r < 5; ++r) {
                EXPECT_TRUE(job.sim->result(r).ok()) << "rank " << r << ": " << job.sim->result(r).what;
                EXPECT_EQ(job.engines[r]->status().digest, digest) << "rank " << r;
            }
            expect_the_same_views(job);
            if (::testing::Test::HasFailure()) return;
        }
    }
}

/// Its connections are refused while the view with the joiner is installed: that is no error of the joiner's, which would end the job.
TEST(JobViews, AMemberDiesWhileANodeComes) {
    uint32_t joined = 0;
    for (uint64_t at = 0; at < 60; ++at) {
        SCOPED_TRACE(fmt::format("{} of 60", at));
        Lossy job(4, 1 + at);
        job.sim_config.lost_after_us = 5'000;
        job.joins = {quiet().us / 3};
        job.kills = {{static_cast<Rank>(at % 3), job.joins[0] + 100 * at}};
        job.run();
        expect_one_line(job);
        for (Rank r = 0; r < 3; ++r)
            EXPECT_TRUE(job.killed(r) || job.sim->result(r).ok()) << "rank " << r << ": " << job.sim->result(r).what;
        joined += job.sim->result(3).ok();
        if (::testing::Test::HasFailure()) return;
    }
    EXPECT_GT(joined, 30u);
}

/// Of jobs whose gradients are multicast: datagrams of the view before, and some of the next, are lost on a node that comes.
TEST(JobViews, NodesJoinOverDatagrams) {
    uint32_t joined = 0;
    for_seeds(20, [&](uint64_t seed) {
        Lossy job(3 + seed % 3, seed);
        job.steps = 14;
        job.datagrams = true;
        job.exchange = seed % 2 == 0 ? "multicast" : "coded-rs";
        job.options = seed % 2 == 0 ? "" : seed % 4 == 1 ? "m = 2\ns = 0\n" : "m = 1\ns = 1\n";
        job.sim_config.jitter_us = 100;
        job.sim_config.loss = seed % 3 == 0 ? 0.02 : 0;
        const uint64_t span_us = quiet(job.steps).us;
        job.joins = {splitmix64(seed) % span_us};
        SCOPED_TRACE(fmt::format("{} over {} ranks, joins at {} us", job.exchange, job.sim_config.ranks, job.joins[0]));
        job.run();
        if (!job.began()) return;
        expect_one_line(job);
        for (Rank r = 0; r + 1 < job.sim_config.ranks; ++r)
            EXPECT_TRUE(job.sim->result(r).ok()) << "rank " << r << ": " << job.sim->result(r).what;
        joined += job.sim->result(job.sim_config.ranks - 1).ok();
    });
    EXPECT_GT(joined, std::getenv("GC_SEED") ? 0u : 10u);
}

/// Of every algorithm by logical workers that takes survive: delays, losses, a node that dies or one that stops or both, and one that comes
/// late.
TEST(JobViews, WorkersOutliveFaultsFromSeeds) {
    static constexpr const char* kinds[] = {
        "kind = \"ma\"\nworkers = 5\nlocal_steps = 2\n",
        "kind = \"gd\"\nworkers = 5\n",
        "kind = \"dane\"\nworkers = 5\nlocal_steps = 2\nmu = 0.5\nanchor_fraction = 0.5\n",
        "kind = \"fedprox\"\nworkers = 5\nlocal_steps = 2\n",
        "kind = \"oneshot\"\nworkers = 5\nfraction = 0.3\n",
        "kind = \"de\"\nworkers = 5\nlocal_steps = 2\nvalidation = 60\n",
        "kind = \"soup\"\nworkers = 5\nlocal_steps = 2\nvalidation = 60\n",
        "kind = \"rg\"\nworkers = 5\nlocal_steps = 2\nvalidation = 60\n",
    };
    struct Way {
        const char *exchange, *options;
        bool datagrams;
    };
    static constexpr Way ways[] = {{"ring", "", false},
                                   {"multicast", "", true},
                                   {"coded-rs", "m = 2\ns = 1\n", true},
                                   {"unicast", "", false},
                                   {"coded-rs", "m = 1\ns = 1\n", false},
                                   {"ps", "", false},
                                   {"auto", "s = 0\n", false}};
    uint32_t begun = 0, changed = 0, joined = 0, left_out = 0;
    for_seeds(5 * std::size(kinds), [&](uint64_t seed) {
        const std::string options = kinds[seed % std::size(kinds)];
        auto draw = [seed, drawn = uint64_t{0}](uint64_t below) mutable { return random4(Purpose::test, seed, 10, ++drawn)[0] % below; };
        const Way& way = ways[draw(std::size(ways))];
        Lossy job(static_cast<uint32_t>(4 + draw(4)), seed);
        job.steps = 8;
        job.exchange = way.exchange;
        job.options = options + way.options;
        job.datagrams = way.datagrams;
        job.sim_config.jitter_us = 300;
        job.sim_config.loss = way.datagrams ? 0.02 : 0;
        job.sim_config.break_per_packet = draw(2) ? 0.002 : 0;
        job.sim_config.lost_after_us = draw(2) ? 5'000 : D / 2;
        const Quiet& whole = quiet_workers(options, job.steps);
        const uint64_t span_us = whole.us;
        job.joins = {draw(span_us / 4)};   // 5 nodes take a fifth of the time of one
        const Rank members = job.sim_config.ranks - 1, dead = static_cast<Rank>(draw(members));
        const Rank stops = static_cast<Rank>((dead + 1 + draw(members - 1)) % members);
        const uint64_t dies_us = 1'000 + draw(2 * span_us), stops_us = 1'000 + draw(2 * span_us);
        static constexpr uint64_t long_us[] = {D / 8, D / 2, 3 * D};
        const uint64_t ends_us = stops_us + long_us[draw(std::size(long_us))];
        // Fewer than half are hit.
        if (members > 4 || draw(3) > 0) job.kills = {{dead, dies_us}};
        if (members > 4 || job.kills.empty()) job.stalls.push_back({stops, stops_us, ends_us});
        std::string text =
            fmt::format("{}{} over {} ranks, the last of which joins at {} us", options, way.exchange, members + 1, job.joins[0]);
        for (const auto& [rank, at_us] : job.kills) text += fmt::format(", rank {} dies at {} us", rank, at_us);
        for (const auto& each : job.stalls) text += fmt::format(", rank {} stops from {} to {} us", each.rank, each.from_us, each.to_us);
        SCOPED_TRACE(text);
        job.run();
        if (!job.began()) return;
        expect_one_line(job, whole);
        Rank seen = 0;
        uint32_t ended = 0;
        ++begun;
        for (Rank r = 0; r < members; ++r) {
            ended += job.sim->result(r).ok();
            if (job.killed(r) || (r == stops && !job.stalls.empty())) continue;
            seen = r;
            left_out += !job.sim->result(r).ok();   // with peer_lost or deadline: see expect_one_line()
        }
        // A node that dies while one joins in the first moments ends the job, by name.
        EXPECT_TRUE(ended > 0 || lines_in(job.own_folder(seen)).empty());
        changed += job.engines[seen]->status().views.size() > 1;
        joined += job.sim->result(members).ok();
    });
    EXPECT_LE(left_out, 1 + begun / 50);   // whom the others did not hear while they agreed, as at the end of the job
    EXPECT_GT(changed, std::getenv("GC_SEED") ? 0u : 20u);
    EXPECT_GT(joined, std::getenv("GC_SEED") ? 0u : 20u);
}

/// The state of an algorithm that has not begun is a joiner's too.
TEST(JobViews, ANodeJoinsDifferentialEvolutionBeforeItsFirstRound) {
    uint32_t before = 0;
    for (const uint64_t at_us : {0, 200, 400, 600, 800}) {
        Lossy job(4);
        job.options = "kind = \"de\"\nworkers = 5\nlocal_steps = 2\nvalidation = 60\n";
        job.joins = {at_us};
        job.run();
        job.expect(quiet_workers(job.options, job.steps).digest);
        before += job.engines[0]->status().views.back().first_step == 1 && job.engines[0]->status().views.size() > 1;
    }
    EXPECT_GT(before, 0u);
}

/// A member that was behind gets the state of another: its steps.jsonl has a gap, which an audit passes over.
TEST(JobViews, AGapInTheRecordsIsNoFault) {
    uint32_t found = 0;
    for (uint64_t seed = 1; seed <= 400 && found == 0; ++seed) {
        Lossy job(4, seed);
        job.sim_config.jitter_us = 100;
        job.kills = {{static_cast<Rank>(seed % 4), 1'000 + splitmix64(seed) % quiet().us}};
        job.run();
        if (!job.began()) continue;
        for (Rank r = 0; r < 4; ++r) {
            const std::string path = job.own_folder(r);
            if (job.killed(r) || lines_in(path).size() == steps_few) continue;
            SCOPED_TRACE(fmt::format("seed {}, rank {}", seed, r));
            ++found;
            AuditFolder folder_read;
            Status status = audit_read(path, "/", &folder_read);
            ASSERT_TRUE(status.ok()) << status.what;
            ASSERT_FALSE(folder_read.notes.empty());
            for (const std::string& note : folder_read.notes) EXPECT_TRUE(note.ends_with(" logged them")) << note;
            Transcript transcript;
            status = transcript_read(path + "/transcript.json", &transcript);
            ASSERT_TRUE(status.ok()) << status.what;
            EXPECT_EQ(audit_transcript(folder_read, transcript, {}), std::vector<std::string>());
            AuditResult result;
            AuditConfig audit;
            audit.scratch = folder() + "/audit";
            status = audit_stretch(folder_read, audit, &result);
            EXPECT_TRUE(status.ok()) << status.what;
            EXPECT_EQ(result.finding, "");
            EXPECT_EQ(result.compared, lines_in(path).size());
        }
    }
    EXPECT_GT(found, 0u);
}

TEST(JobViews, HalfWithTheLowestGoesOn) {
    Lossy job(2);
    job.kills = {{1, quiet().us / 2}};
    job.run();
    job.expect(quiet().digest);
    const std::vector<std::string> losses = job.engines[0]->status().losses;
    ASSERT_EQ(losses.size(), 1u);
    EXPECT_TRUE(losses[0].starts_with("1 node goes on after step ")) << losses[0];
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

    // The job goes on from there, on other nodes too.
    Model model;
    ModelVectors state;
    const std::string path = checkpoint_path(job.own_folder(1), kept.back());
    ASSERT_TRUE(checkpoint_read(path, &model, &state).ok());
    Lossy rest(3);
    rest.resume = {.on = true, .steps = model.step, .state = model.state, .holder = NodeId{1}, .path = path, .notes = {}};
    rest.run();
    rest.expect(quiet().digest);
}

/// Parameter servers that lose nodes, and that others join.
void servers_from_seeds(const std::string& options, const std::string& digest, uint64_t span_us, bool multicast = false) {
    uint32_t changed = 0, joined = 0;
    for_seeds(24, [&](uint64_t seed) {
        Lossy job(4 + seed % 3, seed);
        job.exchange = multicast ? "multicast" : "";
        job.options = options;
        job.sim_config.jitter_us = 100;
        if (multicast) job.datagrams = true, job.sim_config.loss = 0.01;
        if (seed % 3 == 0) job.joins = {splitmix64(seed + 1) % span_us};
        const Rank members = job.sim_config.ranks - static_cast<Rank>(job.joins.size());
        const uint64_t first_us = 1'000 + splitmix64(seed) % span_us;
        job.kills = {{static_cast<Rank>(seed % members), first_us}};
        if (members > 4) job.kills.emplace_back((seed + 1 + seed % 2) % members, first_us + splitmix64(seed + 2) % (3 * D / 2));
        SCOPED_TRACE(fmt::format("{}: {} members of {}, rank {} is lost at {} us, rank {} at {} us", options, members, job.sim_config.ranks,
                                 seed % members, first_us, job.kills.back().first, job.kills.back().second));
        job.run();
        if (!job.began()) return;
        std::optional<std::string> reached;
        std::map<uint64_t, uint64_t> lines;   // digests by step
        for (Rank r = 0; r < job.sim_config.ranks; ++r) {
            if (job.killed(r) || (r >= members && !job.sim->result(r).ok())) continue;
            EXPECT_TRUE(job.sim->result(r).ok()) << "rank " << r << ": " << job.sim->result(r).what;
            const JobStatus status = job.engines[r]->status();
            if (!reached) reached = digest.empty() ? status.digest : digest;
            EXPECT_EQ(status.digest, *reached) << "rank " << r;
            EXPECT_EQ(status.step, uint64_t{job.steps});
            changed += r == 0 && status.views.size() > 1;
            joined += r >= members;
            for (const StepLine& line : lines_in(job.own_folder(r)))
                EXPECT_EQ(lines.try_emplace(line.step, line.digest).first->second, line.digest) << "rank " << r << ", step " << line.step;
        }
        expect_the_same_views(job);
        // The order that a member has kept repeats the training, on one node.  Who was behind has got what it lacked, but for the last
        // round.
        bool whole = false;
        for (Rank r = 0; r < members && reached; ++r) {
            if (job.killed(r)) continue;
            std::string order;
            ASSERT_TRUE(file_read(job.own_folder(r) + "/replay.log", &order).ok());
            const auto pushes = std::count(order.begin() + static_cast<ptrdiff_t>(order.find("\n\n")), order.end(), '\n') - 2;
            EXPECT_GE(pushes, 12 * (job.steps - 1)) << "rank " << r;
            if (pushes < 12 * job.steps || std::exchange(whole, true)) continue;
            AuditFolder kept;
            Status status = audit_read(job.own_folder(r), "/", &kept);
            ASSERT_TRUE(status.ok()) << status.what;
            AuditResult result;
            AuditConfig audit;
            audit.scratch = folder() + "/audit";
            status = audit_stretch(kept, audit, &result);
            EXPECT_TRUE(status.ok()) << status.what;
            EXPECT_EQ(result.finding, "") << "rank " << r;
            EXPECT_EQ(result.compared, kept.lines.size());
        }
        EXPECT_TRUE(whole || !job.joins.empty());   // of the last round a node that has joined may have it alone
    });
    EXPECT_GT(changed, std::getenv("GC_SEED") ? 0u : 8u);
    EXPECT_GT(joined, std::getenv("GC_SEED") ? 0u : 2u);
}

TEST(JobViews, ServersOfEachPush) {
    const std::string options = "kind = \"asgd\"\nworkers = 4\nupdates = 12\n";
    Lossy whole(4);
    whole.exchange = "", whole.options = options;
    whole.run();
    whole.expect(whole.engines[0]->status().digest);
    for (const char* servers : {"", "servers = 2\n"}) servers_from_seeds(options + servers, "", whole.sim->now_us());
}

/// All workers' nodes die at once; and where the server does, nobody goes on.
TEST(JobViews, ServersThatVoteNeedNoWorker) {
    const auto lose = [](const std::string& servers, const std::vector<Rank>& dead, const auto& check) {
        Lossy job(5);
        job.exchange = "";
        job.options = "kind = \"asgd\"\nworkers = 4\nupdates = 12\nservers_vote = true\n" + servers;
        for (const Rank rank : dead) job.kills.emplace_back(rank, 3'000);
        job.run();
        check(job);
    };
    const auto lives = [](Rank first, Rank last) {
        return [=](const Lossy& job) {
            for (Rank r = first; r <= last; ++r) {
                const JobStatus status = job.engines[r]->status();
                EXPECT_TRUE(job.sim->result(r).ok()) << job.sim->result(r).what;
                EXPECT_EQ(status.step, uint64_t{job.steps});
                EXPECT_EQ(status.digest, job.engines[first]->status().digest);
                EXPECT_EQ(status.views.size(), 2u);
            }
        };
    };
    lose("", {1, 2, 3, 4}, lives(0, 0));
    lose("servers = 2\n", {1, 2, 3, 4}, lives(0, 0));
    lose("servers = 3\n", {0, 3, 4}, lives(1, 2));
    lose("", {0}, [](const Lossy& job) {
        for (Rank r = 1; r < 5; ++r) {
            EXPECT_EQ(job.sim->result(r).code, Code::peer_lost);
            EXPECT_NE(std::string(job.sim->result(r).what).find("it has not heard enough servers"), std::string::npos)
                << job.sim->result(r).what;
        }
    });
}

TEST(JobViews, AServerThatSumsExactlyHasOneDigest) {
    const std::string options = "kind = \"softsync\"\nworkers = 4\nupdates = 12\npull = \"wait\"\nstream = \"whole\"\n";
    Lossy whole(1);
    whole.exchange = "", whole.options = options;
    whole.run();
    const std::string digest = whole.engines[0]->status().digest;
    ASSERT_EQ(digest.size(), 64u) << whole.sim->result(0).what;
    for (const bool multicast : {false, true}) servers_from_seeds(options, digest, whole.sim->now_us(), multicast);
}

}   // namespace
}   // namespace gradcast
