// A rank that computes wrongly, in whole jobs: one bit of its sums is flipped in one step.  The other holders of its blocks find it in
// that step (transport/exchange/CODES.md, "Holders agree"): of three holders two outvote the third, which then counts as lost; where two
// disagree another rank computes the blocks again, and the job ends and names the wrong one.
#include <unistd.h>

#include <filesystem>

#include "algos/synchronous.h"
#include "runtime/core/fd.h"
#include "runtime/job/run/engine.h"
#include "tests/job/noise.h"
#include "tests/link/fixture.h"
#include "tests/wrapped_host.h"
#include "transport/sim/sim.h"

namespace gradcast {
namespace {

constexpr uint32_t ranks = 4;
constexpr StepId step_wrong = 3;

/// Stands before a rank's exchange: flips one bit of what it has added up, and announces another digest, as a rank does that has computed
/// that; or one that has found NaN.
struct Spoiler : Protocol {
    Exchange* inner = nullptr;
    bool spoiled = false, nan = false;
    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events) {
            const auto* ready = event.is<Event::Ready>();
            if (!ready || ready->step != step_wrong || ready->bucket != 0) continue;
            const Plan plan = inner->plan(step_wrong, 0);
            plan.words.as<int32_t>()[0] ^= 1 << 9;
            ++plan.record->digest;
            if (nan) {
                plan.record->maxima[0] = INFINITY;
                plan.record->diverged = 1;
            }
            spoiled = true;
        }
        inner->on(events, actions);
    }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override { return inner->land(packet, bytes, place); }
};

struct Way {
    const char* exchange;
    uint32_t m, s;
};

class WrongRank : public ::testing::Test {
protected:
    void SetUp() override {
        log_level(Level::warn);
        folder_ = ::testing::TempDir() + "gradcast_wrong_" + std::to_string(getpid()) + "_" +
                  ::testing::UnitTest::GetInstance()->current_test_info()->name();
        std::filesystem::remove_all(folder_);
        ASSERT_TRUE(make_directories(folder_).ok());
        for (const char* name : {"/train.h5", "/test.h5"}) write_noise(folder_ + name, 96);
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    EngineConfig config(const Way& way, Rank self) {
        EngineConfig config;
        std::vector<JobMistake> mistakes;
        const std::string text = fmt::format(
            "[job]\nsteps = 8\nbatch = 24\nblocks = 8\ndeadline = \"8s\"\nevaluate = 4\n[data]\ntrain = \"train.h5\"\ntest = "
            "\"test.h5\"\n[net]\n"
            "[[net.layers]]\nkind = \"inner_product\"\noutputs = 16\n[[net.layers]]\nkind = \"relu\"\n[[net.layers]]\nkind = "
            "\"inner_product\"\noutputs = 4\n[[net.layers]]\nkind = \"softmax_cross_entropy\"\n[optimiser]\nlr = {}\nmomentum = 0.9\n"
            "[algorithm]\nexchange = \"{}\"\nm = {}\ns = {}\n",
            rate_, way.exchange, way.m, way.s);
        EXPECT_TRUE(job_parse(text, "job.toml", folder_, &config.job, &mistakes)) << mistakes[0].text;
        for (Rank rank = 0; rank < ranks; ++rank) config.roster.push_back({test_identity(rank).name, {}, 1});
        config.self = NodeId{self};
        config.folder = fmt::format("{}/job-{}", folder_, self);
        return config;
    }

    /// Nobody is wrong where `wrong` is no rank.
    std::vector<JobStatus> simulated(const Way& way, Rank wrong, bool nan = false) {
        auto simulator = Simulator::create({.ranks = ranks});
        std::vector<std::unique_ptr<Engine>> engines(ranks);
        Spoiler spoiler;
        spoiler.nan = nan;
        for (Rank rank = 0; rank < ranks; ++rank) {
            EngineConfig c = config(way, rank);
            c.lanes = 0;
            c.loader_threaded = false;
            c.spend_us = 100;
            Status status = Engine::open(c, Log(), &engines[rank]);
            EXPECT_TRUE(status.ok()) << status.what;
            if (!status.ok()) return {};
            simulator->trainer(rank, [&spoiler, &engine = *engines[rank], spoils = rank == wrong](Host& host) {
                WrappedHost wrapped(host, [&](uint16_t channel, Protocol* protocol) -> Protocol* {
                    if (!spoils || channel != gradient_channel) return protocol;
                    spoiler.inner = static_cast<Exchange*>(protocol);
                    return &spoiler;
                });
                return engine.run(wrapped);
            });
        }
        (void)simulator->run();
        EXPECT_EQ(spoiler.spoiled, wrong < ranks);
        std::vector<JobStatus> statuses;
        for (auto& engine : engines) statuses.push_back(engine->status());
        simulator.reset();
        return statuses;
    }

    /// In the status, and in the job's log at that rank.
    void expect_said(Rank rank, const std::string& in, const std::string& what) {
        std::string log;
        ASSERT_TRUE(file_read(fmt::format("{}/job-{}/log", folder_, rank), &log).ok());
        EXPECT_NE(in.find(what), std::string::npos) << "rank " << rank << " says: " << in;
        EXPECT_NE(log.find(what), std::string::npos) << "rank " << rank << " logs: " << log;
    }
    std::string folder_, rate_ = "0.01";
};

TEST_F(WrongRank, AnOutvotedRankIsMissedByNobody) {
    for (const Way& way : {Way{"coded", 2, 1}, {"coded-rs", 2, 1}, {"coded-rs", 3, 1}, {"coded", 2, 2}, {"coded-rs", 2, 2}}) {
        const std::vector<JobStatus> right = simulated(way, ranks);
        ASSERT_EQ(right[0].state, JobState::done) << right[0].error;
        for (uint32_t i = 0; i < 2 * ranks; ++i) {
            const Rank wrong = i / 2;
            const bool nan = i % 2;
            SCOPED_TRACE(fmt::format("{} m = {} s = {} rank {}{}", way.exchange, way.m, way.s, wrong, nan ? " finds NaN" : ""));
            const std::vector<JobStatus> statuses = simulated(way, wrong, nan);
            const std::string line = fmt::format("step {}, bucket 0: rank {} (node{}) computed blocks ", step_wrong + 1, wrong, wrong);
            for (Rank rank = 0; rank < ranks; ++rank) {
                const JobStatus& each = statuses[rank];
                if (rank == wrong) {
                    EXPECT_EQ(each.state, JobState::failed);
                    expect_said(rank, each.error, line);
                    continue;
                }
                EXPECT_EQ(each.state, JobState::done) << each.error;
                EXPECT_EQ(each.digest, right[0].digest);
                EXPECT_EQ(each.accuracy, right[0].accuracy);
                ASSERT_EQ(each.losses.size(), 1u);
                expect_said(rank, each.losses[0], line);
            }
        }
    }
}

TEST_F(WrongRank, EndsTheJobWithItsNameWhereItCannotBeMissed) {
    for (const Way& way : {Way{"coded", 2, 0},
                           {"coded-rs", 2, 0},
                           {"coded", 1, 1},
                           {"coded-rs", 1, 1},
                           {"coded", 3, 0},
                           {"coded-rs", 3, 0},
                           {"coded", 1, 2},
                           {"coded", 4, 0},
                           {"cssgd", 1, 0}})
        for (uint32_t i = 0; i < 2 * ranks; ++i) {
            const Rank wrong = i / 2;
            const bool nan = i % 2;
            SCOPED_TRACE(fmt::format("{} m = {} s = {} rank {}{}", way.exchange, way.m, way.s, wrong, nan ? " finds NaN" : ""));
            const std::vector<JobStatus> statuses = simulated(way, wrong, nan);
            for (Rank rank = 0; rank < ranks; ++rank) {
                EXPECT_EQ(statuses[rank].state, JobState::failed);
                EXPECT_EQ(statuses[rank].error, statuses[0].error);
                expect_said(rank, statuses[rank].error,
                            fmt::format("step {}, bucket 0: rank {} (node{}) computed blocks ", step_wrong + 1, wrong, wrong));
            }
        }
}

// What all holders find is true (transport/exchange/CODES.md, "Quantisation").
TEST_F(WrongRank, ADivergenceThatAllHoldersFindEndsTheJobWithStepLayerAndBlock) {
    for (const Way& way : {Way{"coded", 2, 1}, {"coded-rs", 1, 1}, {"coded", 4, 0}, {"cssgd", 1, 0}, {"ring", 1, 0}}) {
        SCOPED_TRACE(way.exchange);
        rate_ = "1e30";
        const std::vector<JobStatus> statuses = simulated(way, ranks);
        for (Rank rank = 0; rank < ranks; ++rank) {
            EXPECT_EQ(statuses[rank].state, JobState::failed);
            EXPECT_EQ(statuses[rank].error, statuses[0].error);
            expect_said(rank, statuses[rank].error, "diverged: rank ");
            expect_said(rank, statuses[rank].error, ": the gradient of layer fc");
            expect_said(rank, statuses[rank].error, " in block ");
            expect_said(rank, statuses[rank].error, ": lower the learning rate, or look at the data");
        }
    }
}

}   // namespace
}   // namespace gradcast
