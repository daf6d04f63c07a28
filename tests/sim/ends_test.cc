// Jobs over stages that are ended at any time, by a cancel at one node or by a SIGTERM at all of them: what the nodes leave is enough to go
// on from, and the result has the digest of a run that was never ended.
#include "algos/grid/schedule.h"
#include "tests/sim/alarm.h"
#include "tests/sim/views.h"

namespace gradcast::views_test {
namespace {

constexpr uint32_t steps_most = 10, steps_many = 80;
const std::vector<uint32_t> small = {8, 8, 8, 4};

/// A job that is ended; the same text for all, but for the nodes.
struct Ended : Lossy {
    std::vector<std::unique_ptr<Alarm>> alarms;
    explicit Ended(uint32_t ranks, uint64_t seed = 1) : Lossy(ranks, seed) {
        widths = small;
        steps = steps_most;
        checkpoint_every = 1000;   // none but those of the end
    }
    void at(Rank rank, uint64_t us, std::function<void()> what) {
        alarms.push_back(std::make_unique<Alarm>(us, std::move(what)));
        before.push_back([this, rank, alarm = alarms.back().get()] { sim->attach(rank, Alarm::channel, alarm); });
    }
    /// As SIGTERM does.
    void leave(Rank rank, uint64_t us) {
        at(rank, us, [this, rank] { engines[rank]->leave(fmt::format("node{} leaves", rank)); });
    }
    void cancel(Rank rank, uint64_t us) {
        at(rank, us, [this, rank] { engines[rank]->cancel("cancelled"); });
    }

    /// What the nodes have left of the newest state of which they have all parts; its cells are in *cells.  0: of none.
    uint64_t newest(std::vector<std::pair<Rank, std::string>>* files) const {
        std::map<std::pair<uint64_t, uint32_t>, std::map<uint32_t, std::pair<Rank, std::string>>> all;
        for (Rank rank = 0; rank < sim_config.ranks; ++rank)
            for (const CheckpointName& each : checkpoint_files(own_folder(rank)))
                all[{each.steps, each.cells}].emplace(each.cell, std::pair(rank, checkpoint_path(own_folder(rank), each)));
        uint64_t steps_newest = 0;
        for (const auto& [key, parts] : all) {
            if (parts.size() != key.second || key.first <= steps_newest) continue;
            steps_newest = key.first;
            files->clear();
            for (const auto& [cell, file] : parts) files->push_back(file);
        }
        return steps_newest;
    }
};

/// Of a whole run on one node, by what decides the bits.
const Quiet& whole_run(const std::string& optimiser, uint32_t steps) {
    static std::map<std::pair<std::string, uint32_t>, Quiet> known;
    Quiet& found = known[{optimiser, steps}];
    if (!found.digest.empty()) return found;
    Ended job(1);
    job.survive = false;
    job.steps = steps;
    job.optimiser = optimiser;
    job.run();
    EXPECT_TRUE(job.sim->result(0).ok()) << job.sim->result(0).what;
    return found = {job.engines[0]->status().digest, lines_in(job.own_folder(0)), job.sim->now_us()};
}

/// The job has ended: one node goes on with what is left, to the digest of a run without an end.  True: it had something to go on with.
bool goes_on(const Ended& ended) {
    const Quiet& whole = whole_run(ended.optimiser, ended.steps);
    uint64_t known = 0, done = 0;   // steps that some rank has done; ranks that have done all
    for (Rank rank = 0; rank < ended.sim_config.ranks; ++rank) {
        known = std::max(known, ended.engines[rank]->status().step);
        done += ended.sim->result(rank).ok();
    }
    if (done > 0) return false;
    std::vector<std::pair<Rank, std::string>> files;
    const uint64_t steps = ended.newest(&files);
    EXPECT_GE(steps, known) << "what is left is older than what a rank has known to be done everywhere";
    if (steps == 0) return false;
    const std::string kept = folder() + "/kept";
    std::filesystem::remove_all(kept);
    std::filesystem::create_directories(kept);
    Ended rest(1);
    rest.survive = false;
    rest.steps = ended.steps;
    rest.optimiser = ended.optimiser;
    rest.resume = {.on = true, .steps = steps, .state = whole.lines[steps - 1].digest, .holders = {}, .paths = {}, .notes = ""};
    for (const auto& [rank, path] : files) {
        rest.resume.holders.push_back(NodeId{0});
        rest.resume.paths.push_back(kept + "/" + std::filesystem::path(path).filename().string());
        std::filesystem::copy_file(path, rest.resume.paths.back());
    }
    rest.run();
    if (::testing::Test::HasFatalFailure()) return false;
    rest.expect(whole.digest);
    return true;
}

struct EndsCase {
    const char* name;
    uint32_t ranks, stages;
    bool survive, buddy;
    const char* optimiser;
};
constexpr const char* momentum = "lr = 0.05\nmomentum = 0.9\n";
constexpr const char* clipped_momentum = "lr = 0.05\nmomentum = 0.9\nclip_norm = 0.05\n";
const EndsCase ends_cases[] = {
    {"3 stages", 3, 3, false, false, momentum},
    {"3 stages, clipped", 3, 3, false, false, clipped_momentum},
    {"2 replicas of 2 stages", 4, 2, false, false, momentum},
    {"4 stages with buddies", 4, 4, true, true, momentum},
    {"3 stages with buddies, clipped", 3, 3, true, true, clipped_momentum},
};

void set(Ended& job, const EndsCase& each, uint64_t seed) {
    job.survive = each.survive;
    job.optimiser = each.optimiser;
    job.options = fmt::format("[parallel]\nstages = {}\nbuddy = {}\nschedule = \"{}\"\n", each.stages, each.buddy,
                              pipeline_schedule_names()[seed % pipeline_schedule_names().size()]);
    job.sim_config.jitter_us = splitmix64(seed) % 4 * 100;
    if (seed % 3 == 0) job.slow = {{static_cast<Rank>(splitmix64(seed + 1) % each.ranks), 2}};
}

uint64_t quiet_us(const EndsCase& each, uint64_t seed) {
    Ended job(each.ranks, seed);
    set(job, each, seed);
    job.run();
    EXPECT_TRUE(job.sim->result(0).ok()) << job.sim->result(0).what;
    return job.sim->now_us();
}

TEST(Ends, ACancelledJobGoesOnFromItsNewestStep) {
    for (const EndsCase& each : ends_cases) {
        whole_run(each.optimiser, steps_most);   // its folder is that of rank 0
        uint32_t resumed = 0;
        const uint64_t whole_us = quiet_us(each, 1);
        for_seeds(20, [&](uint64_t seed) {
            const uint64_t at_us = 3'000 + splitmix64(seed + 17) % whole_us;
            SCOPED_TRACE(fmt::format("{}, cancelled at {} us", each.name, at_us));
            Ended job(each.ranks, seed);
            set(job, each, seed);
            job.cancel(static_cast<Rank>(splitmix64(seed + 2) % each.ranks), at_us);
            job.run();
            resumed += goes_on(job);
        });
        EXPECT_GT(resumed, 10u) << each.name;
        if (HasFailure()) return;
    }
}

// All nodes leave, nearly at once.  With `survive` some leave, and the job ends where the others cannot go on without another one.
TEST(Ends, AJobWhoseNodesAllLeaveGoesOnFromItsNewestStep) {
    for (const EndsCase& each : ends_cases) {
        whole_run(each.optimiser, steps_many);
        uint32_t resumed = 0;
        for_seeds(14, [&](uint64_t seed) {
            const uint64_t at_us = 3'000 + splitmix64(seed + 17) % 300'000;
            SCOPED_TRACE(fmt::format("{}, left from {} us on", each.name, at_us));
            Ended job(each.ranks, seed);
            set(job, each, seed);
            job.steps = steps_many;
            job.spend_us = 2'000;
            for (Rank rank = 0; rank < each.ranks; ++rank) job.leave(rank, at_us + splitmix64(seed * 8 + rank) % 5'000);
            job.sim_config.end_us = at_us + 20 * D;
            job.run();
            for (Rank rank = 0; rank < each.ranks; ++rank) {
                const Status& result = job.sim->result(rank);
                EXPECT_EQ(result.code, Code::cancelled) << "rank " << rank << ": " << result.what;
            }
            EXPECT_LT(job.sim->now_us(), at_us + 2 * D);
            if (!HasFailure()) resumed += goes_on(job);
        });
        EXPECT_GT(resumed, 7u) << each.name;
        if (HasFailure()) return;
    }
}

// The net is whole at each node.
TEST(Ends, NodesOfAWholeNetLeaveTheirStates) {
    for (const uint32_t ranks : {2u, 3u, 4u, 5u})
        for_seeds(10, [&](uint64_t seed) {
            SCOPED_TRACE(fmt::format("{} ranks", ranks));
            Ended job(ranks, seed);
            job.steps = steps_many;
            job.spend_us = 2'000;
            const uint64_t at_us = 100'000 + splitmix64(seed) % 200'000;
            for (Rank rank = 0; rank < ranks; ++rank) job.leave(rank, at_us + splitmix64(seed * 8 + rank) % 2'000);
            job.sim_config.end_us = at_us + 20 * D;
            job.run();
            EXPECT_LT(job.sim->now_us(), at_us + 2 * D);
            for (Rank rank = 0; rank < ranks; ++rank) {
                EXPECT_EQ(job.sim->result(rank).code, Code::cancelled) << job.sim->result(rank).what;
                const std::vector<CheckpointHere> here = checkpoints_in(job.own_folder(rank));
                ASSERT_EQ(here.size(), 1u);
                EXPECT_EQ(here[0].steps, job.engines[rank]->status().step);
            }
        });
}

}   // namespace
}   // namespace gradcast::views_test
