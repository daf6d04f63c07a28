// Nodes that join jobs in the simulator, and jobs by logical workers that outlive faults while one joins.
#include "tests/sim/views.h"

namespace gradcast::views_test {
namespace {

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
    EXPECT_EQ(status.views[1].joined, std::vector<std::string>{"node3"});
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
    uint32_t begun = 0, changed = 0, joined = 0, excluded = 0;
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
            excluded += !job.sim->result(r).ok();   // with peer_lost or deadline: see expect_one_line()
        }
        // A node that dies while one joins in the first moments ends the job, by name.
        EXPECT_TRUE(ended > 0 || lines_in(job.own_folder(seen)).empty());
        changed += job.engines[seen]->status().views.size() > 1;
        joined += job.sim->result(members).ok();
    });
    EXPECT_LE(excluded, 1 + begun / 50);   // whose packets did not reach the others while they agreed, as at the end of the job
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

}   // namespace
}   // namespace gradcast::views_test
