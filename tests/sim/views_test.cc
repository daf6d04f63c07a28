// Whole jobs in the simulator that lose nodes: the others go on, with the digest of a quiet run.
#include "tests/sim/views.h"

namespace gradcast::views_test {
namespace {

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

/// Its blocks take 0.4 D, so it is not given up, and the other one gets no packet of its sum for more than D.
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
    const std::vector<CheckpointHere> kept = checkpoints_in(job.own_folder(1));
    ASSERT_FALSE(kept.empty());
    EXPECT_EQ(kept.back().steps, job.engines[1]->status().step);
    EXPECT_LT(job.sim->now_us(), 3 * D);

    // The job goes on from there, on other nodes too.
    Model model;
    ModelVectors state;
    const std::string& path = kept.back().path;
    ASSERT_TRUE(checkpoint_read(path, &model, &state).ok());
    Lossy rest(3);
    rest.resume = {.on = true, .steps = model.step, .state = model.state, .holders = {NodeId{1}}, .paths = {path}, .notes = {}};
    rest.run();
    rest.expect(quiet().digest);
}

}   // namespace
}   // namespace gradcast::views_test
