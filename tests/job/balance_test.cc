// Shares of the blocks that follow the measured speed of the nodes.
#include "tests/job/runs.h"

namespace gradcast {
namespace {

class BalanceTest : public RunsTest {
protected:
    std::string job(const std::string& exchange, bool balance) {
        std::string text =
            replaced(job_text(fmt::format("[algorithm]\nexchange = \"{}\"\n{}", exchange, balance ? "balance = true\n" : "")),
                     "epochs = 2\n", "steps = 40\n");
        text.replace(text.find("blocks = "), text.find('\n', text.find("blocks = ")) - text.find("blocks = "), "blocks = 16");
        return text;
    }
    Run run_slow(const std::string& text, Rank slow, double factor) {
        return run(text, 4, {}, [=](Simulator& sim) { sim.slow(slow, factor); });
    }
};

TEST_F(BalanceTest, ASlowNodeComputesFewerBlocksAndTheResultIsTheSame) {
    const std::string wanted = run(job("ring", false), 1).digest();
    ASSERT_EQ(wanted.size(), 64u) << wanted;
    for (const char* exchange : {"ring", "unicast", "multicast", "ps"}) {
        const Run equal = run_slow(job(exchange, false), 2, 4), balanced = run_slow(job(exchange, true), 2, 4);
        EXPECT_EQ(equal.digest(), wanted) << exchange;
        EXPECT_EQ(balanced.digest(), wanted) << exchange;
        ASSERT_EQ(balanced.ranks[0].views.size(), 2u) << exchange;
        EXPECT_EQ(balanced.ranks[0].views[1].why, "blocks by speed");
        EXPECT_EQ(balanced.ranks[0].views[1].first_step, 7u);
        EXPECT_LT(balanced.ranks[0].seconds, 0.6 * equal.ranks[0].seconds) << exchange;
        EXPECT_LT(balanced.ranks[2].gradients, equal.ranks[2].gradients / 2);
    }
}

TEST_F(BalanceTest, NodesOfOneSpeedKeepTheirShares) {
    const Run run = this->run(job("ring", true), 4);
    EXPECT_EQ(run.digest().size(), 64u) << run.digest();
    EXPECT_EQ(run.ranks[0].views.size(), 1u);
}

TEST_F(BalanceTest, WeightsAreWhatNodesCompute) {
    const Run run = this->run(replaced(job("ring", false), "exchange = \"ring\"\n", "exchange = \"ring\"\nweights = [1, 1, 1, 5]\n"), 4);
    EXPECT_EQ(run.digest(), this->run(job("ring", false), 1).digest());
    EXPECT_EQ(run.ranks[3].gradients, 5 * run.ranks[0].gradients);
    const Run few = this->run(replaced(job("ring", false), "exchange = \"ring\"\n", "exchange = \"ring\"\nweights = [1, 2]\n"), 4);
    EXPECT_EQ(few.digest(), "2 weights for 4 nodes: give one a node, or none");
}

}   // namespace
}   // namespace gradcast
