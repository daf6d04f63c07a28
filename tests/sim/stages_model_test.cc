// The model's file of a net in stages, where its writer is lost at the end of the job: another rank that lives writes it.
#include "runtime/core/channel.h"
#include "tests/sim/stages_job.h"
#include "tests/sim/views.h"
#include "transport/wire/packet.h"

namespace gradcast {
namespace {

void set(StagesJob& job, uint64_t seed, bool cut) {
    if (cut) job.parallel = "stages = 2\n";
    job.exchange = "coded-rs", job.options = "m = 1\ns = 1\n";
    job.sim.ranks = cut ? 4 + 2 * (seed % 2) : 3;
    job.sim.seed = seed;
    job.sim.lost_after_us = 300'000;
    job.sim.jitter_us = 400;
    job.steps = 3, job.tested = false;
    job.spend_us = 500;
}

/// Rank 0 is killed at any time from the last steps on: while it collects the parts, while it tells the digest, while all end.
void the_next_rank_writes_it(bool cut) {
    uint32_t elsewhere = 0, tried = 0;
    for (uint64_t seed = 1; seed <= (cut ? 2 : 1); ++seed) {
        StagesJob quiet;
        set(quiet, seed, cut);
        const Status status = quiet.run();
        ASSERT_TRUE(status.ok()) << status.what;
        const uint64_t end_us = quiet.simulator->now_us();
        for (uint64_t before_us = 100; before_us < 9'000; before_us += before_us < 1'500 ? 97 : 1'201) {
            SCOPED_TRACE(fmt::format("seed {}, rank 0 killed {} us before the end of a quiet run", seed, before_us));
            StagesJob job;
            set(job, seed, cut);
            job.before = [&](Simulator& sim) { sim.kill(0, end_us - before_us); };
            const Status ended = job.run();
            ASSERT_TRUE(ended.ok()) << ended.what;
            expect_wanted(job, {0});
            ++tried;
            elsewhere += !job.engines[1]->status().model.empty();
            if (::testing::Test::HasFailure()) return;
        }
    }
    EXPECT_GT(elsewhere, tried / 3);
}

TEST(StagesModel, TheNextRankWritesItWhereReplicasMayBeLost) { the_next_rank_writes_it(true); }
TEST(StagesModel, TheNextRankWritesItWhereRanksMayBeLost) { the_next_rank_writes_it(false); }

/// Of the mail about the model.
constexpr uint64_t digest_tag = uint64_t{5} << 61 | UINT32_MAX, word_bit = uint64_t{1} << 32;

/// Never gets what `lost` says, and tells of the first packet of the others that are about the digest.
struct PartlyDeaf final : Protocol {
    PartlyDeaf(Protocol& protocol, std::function<bool(const Packet&, uint64_t tag)> is_lost) : inner(protocol), lost(std::move(is_lost)) {}
    void on(std::span<const Event> events, Actions& actions) override { inner.on(events, actions); }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override {
        if (packet.type == PacketType::mail && lost(packet, body_of<MailBody>(packet).tag.get())) return Landing::drop;
        return inner.land(packet, bytes, place);
    }
    Protocol& inner;
    const std::function<bool(const Packet&, uint64_t tag)> lost;
};

// Rank 0 tells rank 1 alone and is lost, rank 1 tells rank 2 alone and is lost: rank 2 tells the others.
TEST(StagesModel, TheWriterIsLostAndTheRankThatItHasTold) {
    uint64_t told_us = 0, passed_us = 0;   // when rank 1 has the digest, and rank 2 that word
    for (uint32_t killed = 0; killed <= 2; ++killed) {
        SCOPED_TRACE(fmt::format("{} ranks killed", killed));
        StagesJob job;
        set(job, 1, true);
        job.sim.ranks = 6;
        std::vector<std::unique_ptr<PartlyDeaf>> deaf;
        job.wrap = [&](Rank rank, uint16_t channel, Protocol* protocol) -> Protocol* {
            if (rank == 0 || channel != mail_channel) return protocol;
            const auto lost = [&, rank](const Packet& packet, uint64_t tag) {
                const bool digest = packet.sender == 0 && tag == digest_tag;
                const bool word = packet.sender == 1 && tag >> 61 == 5 && (tag & word_bit) && !(tag & 0xffff);
                if (rank == 1 && digest && killed == 0) told_us = job.simulator->now_us();
                if (rank == 2 && word && killed == 1 && passed_us == 0) passed_us = job.simulator->now_us();
                return killed > 0 && ((digest && rank > 1) || (word && rank > 2));
            };
            return deaf.emplace_back(std::make_unique<PartlyDeaf>(*protocol, lost)).get();
        };
        job.before = [&](Simulator& sim) {
            if (killed > 0) sim.kill(0, told_us + 20);
            if (killed > 1) sim.kill(1, passed_us + 100'000);   // the others miss rank 0 before rank 1
        };
        const Status status = job.run();
        if (killed == 0) {
            ASSERT_TRUE(status.ok()) << status.what;
        } else if (killed == 2) {
            ASSERT_TRUE(status.ok()) << status.what;
            expect_wanted(job, {0, 1});
            for (Rank rank = 1; rank < 6; ++rank) EXPECT_TRUE(job.engines[rank]->status().model.empty()) << rank;
        }
        ASSERT_GT(told_us, 0u);
        if (killed > 0) {
            ASSERT_GT(passed_us, told_us);
        }
    }
}

}   // namespace
}   // namespace gradcast

namespace gradcast::views_test {
namespace {

// The job goes on in another view, where the lowest rank begins anew.
TEST(StagesModel, TheNextRankWritesItInTheNextView) {
    uint64_t end_us = 0;
    uint32_t elsewhere = 0;
    const uint32_t ranks = 4;
    for (uint64_t before_us = 0; before_us < 6'000; before_us += 113) {
        SCOPED_TRACE(fmt::format("rank 0 killed {} us before the end of a quiet run", before_us));
        Lossy job(ranks);
        job.options = "[parallel]\nstages = 2\n";
        job.sim_config.jitter_us = 300;
        if (before_us > 0) job.kills = {{0, end_us - before_us}};
        job.run();
        if (before_us == 0) end_us = job.sim->now_us();
        job.expect(quiet().digest);
        uint32_t models = 0;
        for (Rank rank = 0; rank < ranks; ++rank) {
            const std::string path = job.own_folder(rank) + "/final.h5";
            Model model;
            if (!std::filesystem::exists(path)) continue;
            const Status status = checkpoint_check(path, &model);
            EXPECT_TRUE(status.ok()) << status.what;
            EXPECT_EQ(model.digest, quiet().digest);
            ++models;
            elsewhere += rank == 1;
        }
        EXPECT_GE(models, 1u);
        if (::testing::Test::HasFailure()) return;
    }
    EXPECT_GT(elsewhere, 10u);
}

// The writer lives, and another rank dies while it tells the digest or before all have ended: the file stays as it is.
TEST(StagesModel, AWriterThatLivesWritesItOnce) {
    uint64_t end_us = 0;
    uint32_t changed = 0;
    for (uint64_t before_us = 0; before_us < 2'000; before_us += 53) {
        SCOPED_TRACE(fmt::format("rank 3 killed {} us before the end of a quiet run", before_us));
        Lossy job(4);
        job.options = "[parallel]\nstages = 2\n";
        job.sim_config.jitter_us = 300;
        if (before_us > 0) job.kills = {{3, end_us - before_us}};
        job.run();
        if (before_us == 0) end_us = job.sim->now_us();
        job.expect(quiet().digest);
        changed += job.engines[0]->status().views.size() > 1;
        Model model;
        const Status status = checkpoint_check(job.own_folder(0) + "/final.h5", &model);
        EXPECT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(model.digest, quiet().digest);
        if (::testing::Test::HasFailure()) return;
    }
    EXPECT_GT(changed, 5u);
}

}   // namespace
}   // namespace gradcast::views_test
