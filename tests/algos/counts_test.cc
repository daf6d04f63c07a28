// What each logical worker has computed.
#include "tests/algos/runs.h"

namespace gradcast {
namespace {

using CountsTest = AlgosTest;

/// By worker, over all nodes; times left out, as they follow the clock.
std::vector<WorkerCounts> counts_of(const std::vector<JobStatus>& nodes) {
    std::map<uint32_t, WorkerCounts> all;
    for (const JobStatus& node : nodes)
        for (const WorkerCounts& each : node.workers) {
            WorkerCounts& sum = all[each.worker];
            sum.worker = each.worker;
            sum.rounds += each.rounds;
            sum.last_round = std::max(sum.last_round, each.last_round);
            sum.samples += each.samples;
            sum.gradients += each.gradients;
            sum.forwards += each.forwards;
            sum.turns += each.turns;
            EXPECT_GT(each.compute_us, 0u);
        }
    std::vector<WorkerCounts> list;
    for (const auto& [worker, counts] : all) list.push_back(counts);
    return list;
}

// Two rounds of four workers, a part of 150 of the 600 samples each, mini-batches of 24.
TEST_F(CountsTest, OfAWorkerAreTheSameOnAnyNumberOfNodes) {
    const std::string four = "workers = 4\nlocal_steps = 3\n";
    const auto counts = [&](const char* kind, const std::string& more, uint32_t n) {
        const Run run = this->run(text(kind, more), n);
        EXPECT_TRUE(run.status.ok()) << kind << ": " << run.status.what;
        return counts_of(run.ranks);
    };
    const auto expect = [&](const char* kind, const std::string& more, WorkerCounts wanted, uint64_t turns = 1) {
        wanted.turns = turns * wanted.rounds;
        const std::vector<WorkerCounts> one = counts(kind, more, 1);
        ASSERT_EQ(one.size(), kind == std::string_view("serial") ? 1u : 4u) << kind;
        for (wanted.worker = 0; wanted.worker < one.size(); ++wanted.worker) EXPECT_EQ(one[wanted.worker], wanted) << kind;
        EXPECT_EQ(counts(kind, more, 3), one) << kind;
    };
    for (const char* kind : {"ma", "diloco", "fedprox", "admm"})
        expect(kind, four, {.rounds = 2, .last_round = 2, .samples = 144, .gradients = 144});
    expect("serial", "local_steps = 3\n", {.rounds = 2, .last_round = 2, .samples = 144, .gradients = 144});
    expect("gd", "workers = 4\n", {.rounds = 2, .last_round = 2, .samples = 300, .gradients = 300});
    expect("dane", four, {.rounds = 2, .last_round = 2, .samples = 144, .gradients = 444}, 2);   // and the anchors
    const std::string chosen = four + "validation = 100\n";
    expect("soup", chosen, {.rounds = 2, .last_round = 2, .samples = 144, .gradients = 144, .forwards = 200});
    expect("de", chosen, {.rounds = 2, .last_round = 2, .samples = 144, .gradients = 144, .forwards = 400}, 2);   // and its trials
    expect("rg", chosen, {.rounds = 2, .last_round = 2, .samples = 144, .gradients = 144});   // all models at every node
}

// What was computed in a round that is repeated counts as computed, not as trained on.
TEST_F(CountsTest, OfARepeatedRound) {
    const std::string job = replaced(text("ma", "workers = 8\nlocal_steps = 4\n"), "steps = 2\n", "steps = 8\n");
    const std::string survives = with_job(replaced(job, "deadline = \"20s\"", "deadline = \"4s\""), "survive = true\n");
    const double us = run(survives, 4).ranks[0].seconds * 1e6;
    uint64_t lost = 0;   // gradients
    for (const double at : {0.3, 0.5, 0.7}) {
        const Run run = this->run(survives, {.ranks = 4, .lost_after_us = 2'000'000}, false,
                                  [&](Simulator& sim) { sim.kill(2, static_cast<uint64_t>(at * us)); });
        std::map<uint32_t, uint64_t> rounds;   // by worker, at all nodes
        for (const Rank rank : {0u, 1u, 2u, 3u}) {
            if (rank != 2) {
                ASSERT_EQ(run.ranks[rank].digest.size(), 64u) << run.status.what;
            }
            uint64_t samples = 0;
            for (const WorkerCounts& each : run.ranks[rank].workers) {
                EXPECT_EQ(each.samples, each.rounds * 4 * 24);
                EXPECT_GE(each.gradients, each.samples);
                rounds[each.worker] += each.rounds;
                samples += each.samples;
                lost += each.gradients - each.samples;
            }
            EXPECT_EQ(samples, run.ranks[rank].samples);
        }
        EXPECT_EQ(rounds.size(), 8u);
        for (const auto& [worker, all] : rounds) {   // the lost node may have announced its last round or not
            EXPECT_LE(all, 8u) << worker;
            EXPECT_GE(all, 7u) << worker;
        }
    }
    EXPECT_GT(lost, 0u);
}

TEST_F(CountsTest, BytesAreSharedByTurns) {
    WorkerAccounts accounts(4);
    accounts.share_bytes(0, 100, 50);   // nobody has computed: the node's alone
    for (const uint32_t worker : {0u, 1u, 1u}) accounts.turn(worker, 1, {.samples = 5, .gradients = 5});
    accounts.share_bytes(1, 100, 2);
    EXPECT_EQ(accounts.all()[0], (WorkerCounts{.rounds = 1, .last_round = 2, .samples = 5, .gradients = 5, .turns = 1, .bytes_sent = 33}));
    EXPECT_EQ(accounts.all()[1].bytes_sent, 67u);
    EXPECT_EQ(accounts.all()[0].bytes_received + accounts.all()[1].bytes_received, 2u);
    EXPECT_EQ(accounts.all()[2], WorkerCounts{});
    // Round 2 fails after worker 0, and is repeated without it.
    for (const uint32_t worker : {0u, 3u}) accounts.turn(worker, 2, {.samples = 5, .gradients = 5});
    uint64_t samples = 25;
    accounts.take_back(2, &samples);
    EXPECT_EQ(samples, 15u);
    EXPECT_EQ(accounts.all()[0], (WorkerCounts{.rounds = 1, .last_round = 2, .samples = 5, .gradients = 10, .turns = 1, .bytes_sent = 33}));
    accounts.turn(3, 2, {.samples = 5, .gradients = 5});
    accounts.share_bytes(2, 10, 10);
    EXPECT_EQ(accounts.all()[0].bytes_sent, 33u);
    EXPECT_EQ(
        accounts.all()[3],
        (WorkerCounts{
            .worker = 3, .rounds = 1, .last_round = 3, .samples = 5, .gradients = 10, .turns = 1, .bytes_sent = 10, .bytes_received = 10}));
}

TEST_F(CountsTest, OfWorkersAndTheirServer) {
    const Run run = this->run(text("asgd", "workers = 4\nupdates = 20\nlocal_steps = 2\n"), 3);
    ASSERT_TRUE(run.status.ok()) << run.status.what;
    uint64_t samples = 0;
    for (const WorkerCounts& each : counts_of(run.ranks)) {
        samples += each.samples;
        EXPECT_EQ(each.samples, each.gradients);
    }
    EXPECT_EQ(samples, 2u * 20u * 2u * 24u);
    EXPECT_TRUE(run.ranks[0].workers.empty());
    EXPECT_EQ(run.ranks[1].workers.size(), 2u);
}

// Each rank computes blocks of its own, of no worker; a block of several ranks is trained on once.
TEST_F(CountsTest, OfSsgdAreThoseOfNodes) {
    for (const char* more : {"", "m = 2\ns = 1\n"}) {
        const Run run = this->run(text("ssgd", more, *more ? "coded-rs" : "ring"), 3);
        ASSERT_TRUE(run.status.ok()) << run.status.what;
        uint64_t samples = 0, gradients = 0;
        for (const JobStatus& each : run.ranks) {
            EXPECT_TRUE(each.workers.empty());
            samples += each.samples;
            gradients += each.gradients;
        }
        EXPECT_EQ(samples, 2u * 24u);
        EXPECT_EQ(gradients, (*more ? 3u : 1u) * samples);
    }
}

TEST_F(CountsTest, AreToldOfSomeWorkersOnly) {
    const Run run =
        this->run(replaced(replaced(text("ma", "workers = 300\nlocal_steps = 1\n"), "batch = 24\nblocks = 6", "batch = 1\nblocks = 1"),
                           "steps = 2", "steps = 1"),
                  1);
    ASSERT_TRUE(run.status.ok()) << run.status.what;
    EXPECT_EQ(run.ranks[0].workers.size(), workers_reported_max);
    EXPECT_EQ(run.ranks[0].gradients, 300u);
}

}   // namespace
}   // namespace gradcast
