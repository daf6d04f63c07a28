// What no algorithm can use is refused by name, and a run that diverges leaves its last good state.
#include "tests/algos/runs.h"

namespace gradcast {
namespace {

class BadInputTest : public AlgosTest {
protected:
    std::string mistake(const std::string& text) {
        std::vector<JobMistake> mistakes;
        JobConfig job;
        EXPECT_FALSE(job_parse(text, "job.toml", folder_, &job, &mistakes));
        std::string all;
        for (const JobMistake& each : mistakes) all += each.text + "\n";
        return all;
    }
};

TEST_F(BadInputTest, NumbersOutOfRange) {
    for (const auto& [kind, more, what] :
         {std::tuple{"fedprox", "mu = -1\n", "algorithm.mu: -1 is below 0"},
          {"dane", "mu = -0.5\n", "algorithm.mu: -0.5 is below 0"},
          {"dane", "eta = 0\n", "algorithm.eta: 0 is not above 0"},
          {"dane", "anchor_fraction = 1.5\n", "algorithm.anchor_fraction: 1.5 is above 1"},
          {"admm", "rho = 0\n", "algorithm.rho: 0 is not above 0"},
          {"de", "cr = 1.5\n", "algorithm.cr: 1.5 is above 1"},
          {"de", "f = -1\n", "algorithm.f: -1 is below 0"},
          {"ma", "workers = -1\n", "algorithm.workers: -1 is below 0"},
          {"ma", "local_epochs = 0\n", "algorithm.local_epochs: 0 is not above 0"},
          {"oneshot", "fraction = 1\n", "algorithm.fraction: 1 is not below 1"},
          {"diloco", "outer_momentum = 1\n", "algorithm.outer_momentum: 1 is not below 1"},
          {"rg", "shrink = 0\n", "algorithm.shrink: 0 is not above 0"},
          {"ma", "allocation = \"eda\"\nallocation_batches = 0\n", "algorithm.allocation_batches: 0 is below 1"},
          {"asgd", "lambda = \"exp\"\nbeta = 0\n", "algorithm.beta: 0 is not above 0"},
          {"asgd", "max_staleness = -2\n", "algorithm.max_staleness: -2 is below 0"},
          {"asgd", "servers_vote = true\n", "algorithm.servers_vote: goes with survive = true in [job]"},
          {"ma", "servers_vote = true\n", "algorithm.servers_vote: goes with asgd and softsync, not ma"},
          {"softsync", "pull = \"later\"\n", "algorithm.pull: \"later\" is not one of wait, now"}})
        EXPECT_NE(mistake(text(kind, more)).find(what), std::string::npos) << mistake(text(kind, more));
    EXPECT_EQ(run(text("ma", "workers = 4\ns = 3\n", "coded-rs"), 3).status.code, Code::invalid);   // s >= n
    EXPECT_NE(run(text("ma", "workers = 4\ns = 5\n", "coded"), 3).digest().find("s = 5"), std::string::npos)
        << run(text("ma", "workers = 4\ns = 5\n", "coded"), 3).digest();
}

TEST_F(BadInputTest, ExchangesThatCannotCarryAnAlgorithm) {
    const auto with = [&](const char* kind, const std::string& more, const char* exchange) {
        const std::string all = mistake(text(kind, more, exchange));
        return all.substr(all.find("algorithm."), all.find('\n') - all.find("algorithm."));
    };
    EXPECT_EQ(with("asgd", "", "auto"),
              "algorithm.exchange: asgd sends by no exchange: leave it out, or take multicast, by which one copy of the parameters goes to "
              "all nodes");
    EXPECT_EQ(with("serial", "s = 1\n", "coded-rs"),
              "algorithm.exchange: serial sends by no exchange: leave it out, or take multicast, by which one copy of the parameters goes "
              "to all nodes");
    for (const char* key : {"exchange = \"ring\"\n", "m = 2\n", "s = 0\n", "r = 2\n", "weights = [1, 2]\n"}) {
        const std::string name = std::string(key).substr(0, std::string_view(key).find(' '));
        for (const char* kind : {"asgd", "softsync", "serial"})
            EXPECT_TRUE(with(kind, key, "ring").starts_with(fmt::format("algorithm.{}: {} sends by no exchange: leave it out", name, kind)))
                << with(kind, key, "ring");
    }
    EXPECT_TRUE(with("softsync", "s = 2\n", "ring").ends_with(" (s-softsync is collect = workers / s)"));
    EXPECT_EQ(mistake(text("softsync", "s = 2\n", "ring")).find("nothing to spare"), std::string::npos);
    EXPECT_EQ(with("serial", "quantiser = \"auto16\"\n", "ring"), "algorithm.quantiser: serial sends floats: leave it out");
    EXPECT_EQ(with("diloco", "", "auto"), "algorithm.exchange: workers of diloco have state and keep their nodes: name an exchange");
    EXPECT_EQ(with("ma", "quantiser = \"fixed\"\n", "ring"),
              "algorithm.quantiser: fixed clips what is above 10, and ma sums more than gradients: take auto32 or auto16");
    EXPECT_EQ(with("softsync", "quantiser = \"auto16\"\n", "ring"),
              "algorithm.quantiser: softsync sends floats to a server, which sums 32 bits: leave it out");
    EXPECT_EQ(with("ma", "workers = 65\nquantiser = \"auto16\"\n", "ring"),
              "algorithm.workers: 65 are too many for the quantiser auto16, 64 at most");
}

// The learning rate explodes after three rounds.
TEST_F(BadInputTest, ADivergingRunEndsByNameAndKeepsItsLastGoodState) {
    const std::string steps = "workers = 4\nlocal_steps = 4\n";
    for (const auto& [kind, more, every, advice] : {std::tuple{"ma", steps, 12, "lower the learning rate"},
                                                    {"fedprox", steps, 12, "lower the learning rate"},
                                                    {"dane", steps + "mu = 0\n", 12, "raise algorithm.mu, or lower the learning rate"},
                                                    {"dane", steps + "mu = 0.01\n", 12, "raise algorithm.mu, or lower the learning rate"},
                                                    {"diloco", steps, 12, "lower the learning rate"},
                                                    {"admm", steps + "rho = 0.3\n", 12, "lower the learning rate"},
                                                    {"gd", std::string("workers = 4\n"), 3, "lower the learning rate"},
                                                    {"de", steps + "validation = 150\n", 12, "lower the learning rate"},
                                                    {"soup", steps + "validation = 150\n", 12, "lower the learning rate"},
                                                    {"rg", steps + "validation = 150\n", 12, "lower the learning rate"},
                                                    {"serial", std::string("local_steps = 4\n"), 12, "lower the learning rate"},
                                                    {"softsync", std::string("workers = 2\nupdates = 8\n"), 12, "lower the learning rate"},
                                                    {"asgd", std::string("workers = 2\nupdates = 8\n"), 24, "lower the learning rate"}}) {
        SCOPED_TRACE(kind);
        const std::string plain =
            replaced(with_job(text(kind, more), "checkpoint_every = 1\ncheckpoint_keep = 9\n"), "steps = 2\n", "steps = 6\n");
        const std::string explodes =
            replaced(plain, "[algorithm]", fmt::format("schedule = \"step\"\ndecay_every = {}\ndecay = 1e30\n[algorithm]", every));
        const Run bad = run(explodes, 2);
        EXPECT_EQ(bad.status.code, Code::diverged) << bad.digest();
        const std::string what(bad.status.what);
        EXPECT_NE(what.find("round "), what.npos) << what;
        EXPECT_NE(what.find("NaN or Inf"), what.npos) << what;
        EXPECT_NE(what.find(advice), what.npos) << what;
        const auto kept = checkpoints(bad);
        ASSERT_FALSE(kept.empty());
        const auto& [last, path] = *kept.rbegin();
        EXPECT_GE(last, 3u);
        EXPECT_EQ(from(path).steps, last);
        if (kind == std::string_view("asgd")) continue;   // whose order follows the clock
        const Run good = run(plain, 2);
        ASSERT_TRUE(good.status.ok()) << good.status.what;
        EXPECT_EQ(fmt::format("{:016x}", from(kept.at(3)).state), digests(good.folders[0]).at(3));
    }
}

// It has no good state but that of its begin, and keeps none.
TEST_F(BadInputTest, AOneShotThatDivergesEndsByNameAndKeepsNoState) {
    const std::string job = with_job(text("oneshot", "workers = 4\n"), "checkpoint_every = 1\ncheckpoint_keep = 9\n");
    const Run bad = run(replaced(job, "lr = 0.05", "lr = 1e30"), 2);
    EXPECT_EQ(bad.status.code, Code::diverged) << bad.digest();
    const std::string what(bad.status.what);
    EXPECT_NE(what.find("round 1"), what.npos) << what;
    EXPECT_NE(what.find("NaN or Inf: lower the learning rate"), what.npos) << what;
    for (const auto& [steps, path] : checkpoints(bad)) EXPECT_EQ(steps, 0u) << path;
    for (const JobStatus& each : bad.ranks) EXPECT_EQ(each.model, "");
}

}   // namespace
}   // namespace gradcast
