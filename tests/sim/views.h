// Jobs in the simulator that lose nodes, for tests of views: how they are made and what must hold of every one.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "algos/dispatch.h"
#include "datasets/shard.h"
#include "runtime/core/rng.h"
#include "runtime/job/audit/audit.h"
#include "runtime/job/model/checkpoint_files.h"
#include "runtime/job/model/model_file.h"
#include "runtime/job/report/transcript.h"
#include "runtime/job/report/view_records.h"
#include "runtime/job/run/engine.h"
#include "tests/sim/kernels.h"
#include "tests/sim/seeds.h"
#include "tests/sim/synced_folder.h"
#include "tests/wrapped_host.h"
#include "transport/sim/sim.h"

namespace gradcast::views_test {

constexpr uint64_t D = 4'000'000;
constexpr uint32_t steps_few = 6;

inline const std::string& folder() {
    static const SyncedFolder made_once("views", [](const std::string& made) {
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
    });
    return made_once.path;
}

struct Lossy {
    SimConfig sim_config;
    std::string exchange = "ring", options, optimiser = "lr = 0.05\nmomentum = 0.9\n";
    bool survive = true, datagrams = false;
    uint32_t change_every = 0, checkpoint_every = 2;
    uint32_t steps = steps_few;
    uint64_t spend_us = 100;                        // of a block's bucket
    std::string more_layers;                        // after the first
    std::vector<uint32_t> widths = {};              // outputs of inner products in place of all layers before the loss
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
    std::function<Protocol*(Rank, uint16_t channel, Protocol*)> wrap;   // protocols of the test's own before those of sessions
    std::vector<std::function<void()>> before;                          // called before the simulator runs
    std::unique_ptr<Simulator> sim;
    std::vector<std::unique_ptr<Engine>> engines;

    explicit Lossy(uint32_t ranks, uint64_t seed = 1) { sim_config.ranks = ranks, sim_config.seed = seed; }
    std::string own_folder(Rank rank) const { return fmt::format("{}/job{}", folder(), rank); }

    std::string layers() const {
        const auto inner = [](uint32_t outputs) {
            return fmt::format("[[net.layers]]\nkind = \"inner_product\"\noutputs = {}\n", outputs);
        };
        const std::string relu = "[[net.layers]]\nkind = \"relu\"\n";
        std::string all = widths.empty() ? inner(more_layers.empty() ? 16 : 128) + more_layers + relu + inner(4) : "";
        for (const uint32_t width : widths) all += (all.empty() ? "" : relu) + inner(width);
        return all + "[[net.layers]]\nkind = \"softmax_cross_entropy\"\n";
    }
    void run() {
        log_level(Level::error);
        JobConfig job;
        std::vector<JobMistake> mistakes;
        const std::string text = fmt::format(
            "[job]\nseed = 7\nsteps = {}\nevaluate = 2\ncheckpoint_every = {}\nbatch = 24\nblocks = 6\ndeadline = \"4s\"\nsurvive = "
            "{}\n[data]\n"
            "train = \"{}/train.h5\"\ntest = \"{}/test.h5\"\n[net]\n{}[optimiser]\n{}[algorithm]\n{}{}",
            steps, checkpoint_every, survive, folder(), folder(), layers(), optimiser,
            exchange.empty() ? "" : fmt::format("exchange = \"{}\"\n", exchange), options);
        ASSERT_TRUE(job_parse(text, "job.toml", "/", &job, &mistakes)) << mistakes.front().text;
        sim = Simulator::create(sim_config);
        std::vector<Member> roster(sim_config.ranks);
        for (Rank r = 0; r < sim_config.ranks; ++r) roster[r].name = fmt::format("node{}", r);
        for (Rank r = 0; r < sim_config.ranks; ++r) {
            EngineConfig config;
            config.job = job;
            config.roster = roster;
            config.kernels_memo = &kernels_memo;
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
            if (Protocol* views = engines[r]->views()) sim->attach(r, view_channel, views);
            sim->trainer(r, [this, r, at_us](Host& host) {
                std::vector<Completion> none;
                (void)host.wait(&none, at_us);
                if (!wrap) return engines[r]->run(host);
                WrappedHost wrapped(host, [this, r](uint16_t channel, Protocol* protocol) { return wrap(r, channel, protocol); });
                return engines[r]->run(wrapped);
            });
        }
        for (const auto& [rank, at_us] : kills) sim->kill(rank, at_us);
        for (const Stall& each : stalls) sim->stall(each.rank, each.from_us, each.to_us);
        for (const Partition& each : partitions) sim->partition(each.side, each.from_us, each.to_us);
        for (const auto& [rank, factor] : slow) sim->slow(rank, factor);
        for (const auto& each : before) each();
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

inline std::vector<StepLine> lines_in(const std::string& path) {
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
inline const Quiet& quiet(uint32_t steps = steps_few) {
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
inline const Quiet& quiet_workers(const std::string& options, uint32_t steps) {
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

/// All ranks that have ended well have the same records of the views, a joiner too.
inline void expect_the_same_views(const Lossy& job) {
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
        EXPECT_EQ(view.members.size(), before.members.size() + view.joined.size() - view.departed.size());
        EXPECT_FALSE(view.why.empty());
    }
}

/// Whatever a node has computed is what the quiet run has computed; whoever has ended well has its digest.
inline void expect_one_line(const Lossy& job, const Quiet& whole) {
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

inline void expect_one_line(const Lossy& job) { expect_one_line(job, quiet(job.steps)); }

/// Before the first step, also while the first scales are computed, nobody may be missing.
inline bool has_begun(const Lossy& job) {
    return std::ranges::any_of(job.engines, [](const auto& each) { return each->status().step > 0 || each->status().views.size() > 1; });
}

/// Each rank is lost at every second of 16 moments of a quiet job, which lasts `quiet_us`; at all of them with GC_SEEDS, which `make
/// nightly` sets.  made: returns that job from a seed.
inline void expect_any_rank_at_any_time(const std::string& what, uint64_t quiet_us, const Quiet& whole,
                                        const std::function<Lossy(uint64_t)>& made) {
    uint32_t changed = 0, tried = 0;
    const uint32_t ranks = made(1).sim_config.ranks;
    const uint32_t apart = std::getenv("GC_SEEDS") ? 1 : 2;
    for (Rank rank = 0; rank < ranks; ++rank)
        for (uint64_t at = 1 + rank % apart; at < 16; at += apart) {
            SCOPED_TRACE(fmt::format("{}, rank {} at {} of 16", what, rank, at));
            Lossy job = made(at);
            job.kills = {{rank, quiet_us * at / 16}};
            job.run();
            if (!has_begun(job)) continue;
            job.expect(whole.digest);
            expect_one_line(job, whole);
            ++tried;
            changed += !job.engines[rank == 0 ? 1 : 0]->status().losses.empty();
            if (::testing::Test::HasFailure()) return;
        }
    EXPECT_GT(changed, tried / 2) << what;
}

/// Two nodes are lost: one at any time, and another one while the others agree, or soon after, or in a later view.
inline void expect_two_lost_by_chance(const std::string& what, uint64_t seed, const Quiet& whole, Lossy job) {
    const uint64_t random = splitmix64(seed);
    job.sim_config.jitter_us = random % 4 * 100;
    const Rank first = random >> 8 & 3, second = job.sim_config.ranks == 4 ? first ^ 2 : first ^ 1;
    const uint64_t at_us = 2'000 + (random >> 16) % whole.us;
    job.kills = {{first, at_us}, {second, at_us + (random >> 40) % (3 * D / 2)}};
    SCOPED_TRACE(fmt::format("{}: {} at {}, {} at {}", what, first, at_us, second, job.kills.back().second));
    job.run();
    if (has_begun(job)) expect_one_line(job, whole);
}

}   // namespace gradcast::views_test
