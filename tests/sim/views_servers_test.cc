// Parameter servers in the simulator that lose nodes, and that others join.
#include "tests/sim/views.h"

namespace gradcast::views_test {
namespace {

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
}   // namespace gradcast::views_test
