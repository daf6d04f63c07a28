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
    const auto expect = [&](const char* kind, const std::string& more, WorkerCounts wanted) {
        const std::vector<WorkerCounts> one = counts(kind, more, 1);
        ASSERT_EQ(one.size(), kind == std::string_view("serial") ? 1u : 4u) << kind;
        for (wanted.worker = 0; wanted.worker < one.size(); ++wanted.worker) EXPECT_EQ(one[wanted.worker], wanted) << kind;
        EXPECT_EQ(counts(kind, more, 3), one) << kind;
    };
    for (const char* kind : {"ma", "diloco", "fedprox", "admm"})
        expect(kind, four, {.rounds = 2, .last_round = 2, .samples = 144, .gradients = 144});
    expect("serial", "local_steps = 3\n", {.rounds = 2, .last_round = 2, .samples = 144, .gradients = 144});
    expect("gd", "workers = 4\n", {.rounds = 2, .last_round = 2, .samples = 300, .gradients = 300});
    expect("dane", four, {.rounds = 2, .last_round = 2, .samples = 144, .gradients = 444});   // and the anchors
    const std::string chosen = four + "validation = 100\n";
    expect("soup", chosen, {.rounds = 2, .last_round = 2, .samples = 144, .gradients = 144, .forwards = 200});
    expect("de", chosen, {.rounds = 2, .last_round = 2, .samples = 144, .gradients = 144, .forwards = 400});   // and its trials
    expect("rg", chosen, {.rounds = 2, .last_round = 2, .samples = 144, .gradients = 144});                    // all models at every node
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

// Each rank computes blocks of its own, of no worker.
TEST_F(CountsTest, AreOfWorkersAlone) { EXPECT_TRUE(this->run(text("ssgd"), 2).ranks[0].workers.empty()); }

TEST_F(CountsTest, AreToldOfSomeWorkersOnly) {
    const Run run =
        this->run(replaced(replaced(text("ma", "workers = 300\nlocal_steps = 1\n"), "batch = 24\nblocks = 6", "batch = 1\nblocks = 1"),
                           "steps = 2", "steps = 1"),
                  1);
    ASSERT_TRUE(run.status.ok()) << run.status.what;
    EXPECT_EQ(run.ranks[0].workers.size(), workers_told_max);
    EXPECT_EQ(run.ranks[0].gradients, 300u);
}

}   // namespace
}   // namespace gradcast
