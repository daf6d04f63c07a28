// Jobs of the algorithms by logical workers, in the simulator.
#pragma once
#include "algos/algorithm.h"
#include "tests/job/runs.h"
#include "transport/exchange/exchange.h"

namespace gradcast {

/// Pictures of one row whose labels are targets in steps of 1/32.
inline DataInfo regression(uint32_t samples, uint32_t features, uint32_t levels) {
    return {.count = samples,
            .C = 1,
            .H = 1,
            .W = features,
            .classes = levels,
            .mean = {0.5f},
            .std = {0.25f},
            .source = "test",
            .target_scale = 0.03125f};
}

class AlgosTest : public RunsTest {
protected:
    AlgosTest() {   // hundreds of jobs, whose files are synced: in memory where that can be
        if (::access("/dev/shm", W_OK) == 0) place_ = "/dev/shm/";
    }
    Run run(const std::string& text, const SimConfig& network, bool datagrams = false, const std::function<void(Simulator&)>& meddle = {},
            const Resume& resume = {}) {
        return RunsTest::run(text, network, {.resume = resume, .meddle = meddle, .datagrams = datagrams, .spend_us = 20});
    }
    Run run(const std::string& text, uint32_t n) { return run(text, SimConfig{.ranks = n}); }

    /// Eight steps a worker in two rounds, unless `more` says otherwise.
    std::string text(const std::string& kind, const std::string& more = "", const std::string& exchange = "ring") {
        const bool mail = kind == "asgd" || kind == "softsync" || kind == "serial";   // they take no exchange
        const std::string line = mail && exchange == "ring" ? "" : fmt::format("exchange = \"{}\"\n", exchange);
        return replaced(job_text(fmt::format("[algorithm]\nkind = \"{}\"\n{}{}", kind, line, more)), "epochs = 2\n", "steps = 2\n");
    }
    /// One digest whatever the number of nodes, the exchange, the losses and the seed of the network.  `all`: every exchange.
    void one_digest(const std::string& kind, const std::string& more, bool all = false) {
        const std::string wanted = run(text(kind, more), 1).digest();
        ASSERT_EQ(wanted.size(), 64u) << wanted;
        for (uint32_t n = 2; n < 10; ++n) EXPECT_EQ(run(text(kind, more), n).digest(), wanted) << n;
        for (const ExchangeKind& each : exchange_kinds()) {
            if (!all) break;
            EXPECT_EQ(run(text(kind, more, each.name), each.name == std::string_view("cssgd") ? 2 : 3).digest(), wanted) << each.name;
        }
        for (const uint64_t seed : {1, 2}) {
            const SimConfig lossy{.seed = seed, .ranks = 4, .jitter_us = 300, .loss = 0.02, .break_per_packet = 0.002};
            EXPECT_EQ(run(text(kind, more + "m = 2\ns = 1\n", "coded-rs"), lossy, true).digest(), wanted) << seed;
            EXPECT_EQ(run(text(kind, more, "multicast"), lossy, true).digest(), wanted) << seed;
        }
    }
    /// The model file of a run.
    static ModelVectors trained_state(const Run& run) {
        Model model;
        ModelVectors all;
        std::string path;
        for (const JobStatus& each : run.ranks)
            if (!each.model.empty()) path = each.model;
        EXPECT_TRUE(checkpoint_read(path, &model, &all).ok()) << run.status.what;
        return all;
    }
    double loss(const Run& run) const { return run.ranks[0].test_loss; }
};

}   // namespace gradcast
