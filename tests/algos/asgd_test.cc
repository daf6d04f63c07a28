// Asynchronous SGD and soft synchronisation: bounds, edges where they are something else, and replays.
#include <fstream>

#include "runtime/core/fd.h"
#include "tests/algos/runs.h"

namespace gradcast {
namespace {

class AsgdTest : public AlgosTest {
protected:
    /// The log that the server has kept, as a file of its own.
    std::string log(const Run& run) {
        const std::string path = fmt::format("{}/log-{}", folder_, logs_++);
        std::filesystem::copy_file(run.folders[0] + "/replay.log", path);
        return path;
    }
    /// The staleness of all pushes.
    static std::vector<uint64_t> staleness(const std::string& path) {
        std::ifstream file(path);
        std::string line;
        while (std::getline(file, line) && !line.empty()) {
        }   // the head
        std::vector<uint64_t> all;
        for (uint64_t worker, tau; file >> worker >> tau;) all.push_back(tau);
        return all;
    }
    static std::string replay(const std::string& path) { return fmt::format("replay = \"{}\"\n", path); }
    static constexpr SimConfig restless(uint32_t n, uint64_t seed) {
        return {.seed = seed, .ranks = n, .latency_us = 400, .jitter_us = 900, .break_per_packet = 0.002};
    }

private:
    uint32_t logs_ = 0;
};

TEST_F(AsgdTest, AReplayHasTheSameDigestOnAnyNumberOfNodes) {
    for (const char* more :
         {"", "lambda = \"inverse\"\nlocal_steps = 2\nstream = \"whole\"\n", "lambda = \"exp\"\nbeta = 0.5\nmax_staleness = 1\n"}) {
        const std::string job = replaced(text("asgd", std::string("workers = 4\nupdates = 30\n") + more), "steps = 2\n", "steps = 3\n");
        const Run first = run(job, restless(4, 1), false, [](Simulator& sim) { sim.slow(2, 7); });
        ASSERT_EQ(first.digest().size(), 64u) << first.digest();
        const std::string path = log(first);
        EXPECT_EQ(staleness(path).size(), 90u);
        for (const uint32_t n : {1u, 2u, 3u, 5u})
            EXPECT_EQ(run(job + replay(path), restless(n, n)).digest(), first.digest()) << n << " " << more;
        const Run other = run(job, restless(4, 2), false, [](Simulator& sim) { sim.slow(1, 9); });
        EXPECT_NE(other.digest(), first.digest());   // the order counts
    }
}

// The parameters on one server or several: an order of pushes has one digest.
TEST_F(AsgdTest, ServersShareTheParameters) {
    const std::string adam = "kind = \"adam\"\nlr = 0.01\n";
    for (const bool of_adam : {false, true})
        for (const char* more : {"", "local_steps = 2\nmax_staleness = 1\n", "collect = 2\npull = \"wait\"\n"}) {
            const char* kind = std::string_view(more).starts_with("collect") ? "softsync" : "asgd";
            std::string job = replaced(text(kind, std::string("workers = 4\nupdates = 30\n") + more), "steps = 2\n", "steps = 3\n");
            if (of_adam && *more) continue;
            if (of_adam) job = replaced(job, "lr = 0.05\nmomentum = 0.9\n", adam);
            const std::string two = job + "servers = 2\n", three = job + "servers = 3\n";
            const Run first = run(two, restless(4, 1), false, [](Simulator& sim) { sim.slow(3, 7); });
            ASSERT_EQ(first.digest().size(), 64u) << first.digest();
            const std::string path = log(first);
            EXPECT_EQ(staleness(path).size(), 90u);
            EXPECT_EQ(run(job + replay(path), restless(3, 3)).digest(), first.digest()) << more;
            for (const uint32_t n : {1u, 5u}) EXPECT_EQ(run(two + replay(path), restless(n, n)).digest(), first.digest()) << n << more;
            EXPECT_EQ(run(three + replay(path), restless(7, 7)).digest(), first.digest()) << more;
            // And the other way round.
            const Run one = run(job, restless(4, 2), false, [](Simulator& sim) { sim.slow(1, 9); });
            EXPECT_EQ(run(two + replay(log(one)), restless(4, 3)).digest(), one.digest()) << more;
        }
    const std::vector<std::pair<std::string, std::string>> reported = run(text("asgd", "updates = 2\nservers = 2\n"), 4).ranks[0].settings;
    EXPECT_NE(std::find(reported.begin(), reported.end(), std::pair<std::string, std::string>("servers", "2")), reported.end());
    EXPECT_NE(std::find(reported.begin(), reported.end(), std::pair<std::string, std::string>("workers", "2")), reported.end());
    EXPECT_EQ(run(text("asgd", "servers = 3\n"), 3).digest(), "algorithm.servers: 3 of 3 nodes leave none to the workers");
    EXPECT_NE(run(text("softsync", "workers = 2\nupdates = 4\nservers = 2\n"), 4).digest().find("at one server"), std::string::npos);
}

TEST_F(AsgdTest, ALostServerEndsTheJobByName) {
    for (const Rank dead : {0u, 1u}) {
        const Run run =
            this->run(replaced(text("asgd", "workers = 3\nupdates = 600\nservers = 2\n"), "deadline = \"20s\"", "deadline = \"4s\""),
                      {.ranks = 4, .lost_after_us = 1'000'000}, false, [&](Simulator& sim) { sim.kill(dead, 3'000); });
        EXPECT_EQ(run.status.code, Code::peer_lost);
        const std::string name = fmt::format("rank {} (node-{})", dead, dead == 0 ? 'a' : 'b');
        for (const Rank rank : {2u, 3u}) EXPECT_NE(run.ranks[rank].error.find(name), std::string::npos) << run.ranks[rank].error;
    }
}

/// A server that loses a worker in mid-round keeps its updates, and the log says where the others have pulled anew.
TEST_F(AsgdTest, ALostWorkerCostsNoUpdate) {
    const auto survives = [](const std::string& job) { return with_job(job, "survive = true\n"); };
    uint32_t kept = 0;
    for (const auto& [kind, more] : {std::pair{"asgd", ""},
                                     {"asgd", "max_staleness = 1\nlocal_steps = 2\n"},
                                     {"softsync", "collect = 3\n"},
                                     {"softsync", "collect = 2\npull = \"wait\"\n"}})
        for (const uint64_t at_us : {5'000, 8'000}) {
            const std::string job = replaced(text(kind, std::string("workers = 4\nupdates = 30\n") + more), "steps = 2\n", "steps = 3\n");
            const Run first = run(survives(job), restless(4, 1), false, [&](Simulator& sim) { sim.kill(2, at_us); });
            const std::string& digest = first.ranks[0].digest;
            ASSERT_EQ(digest.size(), 64u) << first.ranks[0].error;
            EXPECT_EQ(first.ranks[1].digest, digest);
            EXPECT_EQ(first.ranks[3].digest, digest);
            std::string order;
            ASSERT_TRUE(file_read(first.folders[0] + "/replay.log", &order).ok());
            kept += order.find(" anew\n") != order.npos;
            const std::string path = log(first);
            for (const uint32_t n : {1u, 3u, 5u})
                EXPECT_EQ(run(job + replay(path), restless(n, n)).digest(), digest) << n << " " << more << at_us;
            if (at_us != 5'000) continue;
            EXPECT_EQ(run(job + "servers = 2\n" + replay(path), restless(5, 4)).digest(), digest) << more;
            // Also where the replay loses a node: its rounds are repeated from their beginning.
            const Run again = run(survives(job + replay(path)), restless(4, 2), false, [](Simulator& sim) { sim.kill(1, 4'000); });
            EXPECT_EQ(again.ranks[0].digest, digest) << more;
        }
    EXPECT_GT(kept, 4u);
}

// With a slow worker, whose pushes the others' pass unless they wait for it.
TEST_F(AsgdTest, StalenessIsBounded) {
    constexpr uint32_t updates = 60;
    const auto most = [&](uint32_t workers, uint32_t bound, uint32_t local_steps, uint32_t servers, uint64_t seed) {
        const std::string more = fmt::format("workers = {}\nupdates = {}\nmax_staleness = {}\nlocal_steps = {}\nservers = {}\n", workers,
                                             updates, bound, local_steps, servers);
        const Run run = this->run(replaced(text("asgd", more), "steps = 2\n", "steps = 1\n"), restless(workers + servers, seed), false,
                                  [&](Simulator& sim) { sim.slow(servers + seed % workers, 300); });
        EXPECT_TRUE(run.status.ok()) << run.status.what;
        const std::vector<uint64_t> all = staleness(log(run));
        EXPECT_EQ(all.size(), updates);
        return all.empty() ? 0 : *std::max_element(all.begin(), all.end());
    };
    for (const uint32_t workers : {2u, 4u})
        for (const uint32_t local_steps : {1u, 2u})
            for (const uint32_t servers : {1u, 2u})
                for (const uint64_t seed : {1, 2, 3}) {
                    SCOPED_TRACE(fmt::format("{} workers, {} local steps, {} servers, seed {}", workers, local_steps, servers, seed));
                    const uint64_t free = most(workers, 0, local_steps, servers, seed);
                    for (const uint32_t bound : {1u, 2u, 5u}) {
                        const uint64_t allowed = (workers - 1) * (2 * bound + 1), found = most(workers, bound, local_steps, servers, seed);
                        EXPECT_LE(found, allowed) << bound;
                        EXPECT_LE(found, free) << bound;
                        EXPECT_GT(found, 0u) << bound;
                    }
                    EXPECT_GT(free, (workers - 1) * 5u);   // what a bound of 2 does not allow
                }
}

// All nodes report the same.
TEST_F(AsgdTest, StalenessIsToldAsTheLogHasIt) {
    const Run run =
        this->run(text("asgd", "workers = 3\nupdates = 300\n"), restless(4, 3), false, [](Simulator& sim) { sim.slow(2, 300); });
    ASSERT_TRUE(run.status.ok()) << run.status.what;
    std::map<uint64_t, uint64_t> wanted;   // by the first tau of a bin
    for (const uint64_t tau : staleness(log(run))) ++wanted[tau < 16 ? tau : std::bit_floor(tau)];
    EXPECT_GE(wanted.rbegin()->first, 16u);
    for (const JobStatus& node : run.ranks) {
        std::map<uint64_t, uint64_t> reported;
        for (const StalenessBin& each : node.staleness) {
            reported[each.from] = each.pushes;
            EXPECT_EQ(each.to, each.from < 16 ? each.from : 2 * each.from - 1);
        }
        EXPECT_EQ(reported, wanted);
    }
    Staleness most;
    most.add(~0u);
    EXPECT_EQ(most.bin(Staleness::bins - 1), (StalenessBin{1u << 31, ~0u, 1}));
}

TEST_F(AsgdTest, OneWorkerIsSerialSgd) {
    for (const bool all : {false, true}) {
        const auto job = [&](const char* kind, const char* more) {
            const std::string algorithm = fmt::format("[algorithm]\nkind = \"{}\"\n{}", kind, more);
            return replaced(all ? job_text_of_all(algorithm) : job_text(algorithm), "epochs = 2\n", "steps = 3\n");
        };
        const Run asgd = run(job("asgd", "workers = 1\nupdates = 12\n"), 2), serial = run(job("serial", "local_steps = 12\n"), 3);
        ASSERT_EQ(serial.digest().size(), 64u) << serial.digest();
        EXPECT_EQ(asgd.digest(), serial.digest()) << all;
        for (const uint64_t tau : staleness(log(asgd))) EXPECT_EQ(tau, 0u);
    }
}

// Worker k computes block k of each of its steps, and the server quantises as an exchange does.
TEST_F(AsgdTest, SoftsyncOfAllIsSsgd) {
    for (const bool all : {false, true}) {
        const auto job = [&](const std::string& algorithm, const char* batch, const char* steps) {
            const std::string text = all ? job_text_of_all(algorithm) : job_text(algorithm);
            return replaced(replaced(text, "batch = 24\nblocks = 6\n", batch), "epochs = 2\n", steps);
        };
        const Run ssgd = run(job("[algorithm]\nkind = \"ssgd\"\n", "batch = 24\nblocks = 4\n", "steps = 30\n"), 2);
        ASSERT_EQ(ssgd.digest().size(), 64u) << ssgd.digest();
        const std::string soft = job("[algorithm]\nkind = \"softsync\"\nworkers = 4\nupdates = 60\nstream = \"whole\"\n",
                                     "batch = 6\nblocks = 1\n", "steps = 2\n");
        for (const uint32_t n : {1u, 3u, 5u}) EXPECT_EQ(run(soft, restless(n, n)).digest(), ssgd.digest()) << n << " " << all;
        for (const uint32_t n : {1u, 2u, 3u, 5u, 7u}) {   // the answers by multicast, but for two nodes without a worker
            SimConfig lossy = restless(n, n);
            lossy.loss = 0.02;
            EXPECT_EQ(run(soft + "exchange = \"multicast\"\n", lossy, true).digest(), ssgd.digest()) << n << " " << all;
        }
    }
}

// With an exchange that multicasts an answer goes once for all workers, and at the end of a round the server's state for all nodes.
TEST_F(AsgdTest, SoftsyncOfAllMulticastsItsAnswers) {
    const auto sent = [&](uint32_t n, uint32_t workers, uint32_t updates, const char* exchange, bool datagrams, std::string* digest) {
        const std::string job = text("softsync", fmt::format("workers = {}\nupdates = {}\n", workers, updates * workers), exchange);
        const Run run =
            this->run(replaced(replaced(job, "outputs = 16\n", "outputs = 500\n"), "steps = 2\n", "steps = 1\n"), {.ranks = n}, datagrams);
        EXPECT_TRUE(run.status.ok()) << run.status.what;
        EXPECT_TRUE(digest->empty() || *digest == run.digest());
        *digest = run.digest();
        return static_cast<double>(run.bytes_sent);
    };
    const double vector = [&] {   // of the parameters
        const Run run = this->run(replaced(text("softsync", "workers = 1\nupdates = 1\n"), "outputs = 16\n", "outputs = 500\n"), 1);
        return static_cast<double>(trained_state(run).parameters.size() * sizeof(float));
    }();
    const auto update = [&](uint32_t n, uint32_t workers, const char* exchange, bool datagrams) {
        std::string few, many;
        return (sent(n, workers, 12, exchange, datagrams, &many) - sent(n, workers, 4, exchange, datagrams, &few)) / 8 / vector;
    };
    for (const auto& [n, workers] : {std::pair{2u, 1u}, {5u, 4u}, {4u, 6u}, {9u, 8u}}) {
        EXPECT_NEAR(update(n, workers, "multicast", true), workers + 1, 0.1 * (workers + 1)) << n;
        EXPECT_NEAR(update(n, workers, "multicast", false), 2 * workers, 0.05 * workers) << n;
        EXPECT_NEAR(update(n, workers, "ring", true), 2 * workers, 0.05 * workers) << n;
    }
    // The first round, of one update by 8 workers: all pull, 8 pushes, an answer, and parameters with the optimiser's momentum.
    std::string one, same;
    EXPECT_NEAR(sent(9, 8, 1, "multicast", true, &one) / vector, 1 + 8 + 1 + 2, 1.5);
    EXPECT_NEAR(sent(9, 8, 1, "ring", true, &same) / vector, 8 + 8 + 8 + 2 * 8, 1.5);
    EXPECT_EQ(one, same);
}

// Where the answers differ the workers get their own, and the end of a round alone goes by multicast: the digest of a replay is the same.
TEST_F(AsgdTest, ReplaysOverMulticastAsOverStreams) {
    for (const char* kind : {"asgd", "softsync"}) {
        const std::string more = kind == std::string_view("asgd") ? "" : "collect = 2\npull = \"now\"\n";
        const std::string job = text(kind, "workers = 4\nupdates = 24\n" + more + "servers = 2\n", "multicast");
        SimConfig lossy = restless(5, 2);
        lossy.loss = 0.02;
        const Run first = run(job, lossy, true);
        ASSERT_EQ(first.digest().size(), 64u) << first.digest();
        const std::string path = log(first);
        EXPECT_EQ(run(job + replay(path), restless(4, 4), true).digest(), first.digest());
        EXPECT_EQ(run(job + replay(path), restless(3, 3)).digest(), first.digest());
    }
}

// A node that dies while answers are multicast ends the job by name.
TEST_F(AsgdTest, ALostNodeEndsAMulticastJobByName) {
    for (const Rank dead : {0u, 2u}) {
        const Run run =
            this->run(replaced(text("softsync", "workers = 3\nupdates = 600\n", "multicast"), "deadline = \"20s\"", "deadline = \"4s\""),
                      {.ranks = 4, .lost_after_us = 1'000'000}, true, [&](Simulator& sim) { sim.kill(dead, 3'000); });
        EXPECT_EQ(run.status.code, Code::peer_lost);
        const std::string name = fmt::format("rank {} (node-{})", dead, dead == 0 ? 'a' : 'c');
        EXPECT_NE(run.ranks[1].error.find(name), std::string::npos) << run.ranks[1].error;
    }
}

// Without momentum the sum of a worker's local gradients is what its local steps have moved it by.
TEST_F(AsgdTest, LocalStepsOfOneWorkerAreSerialSgd) {
    const auto plain = [&](const char* kind, const char* more) {
        return run(replaced(replaced(text(kind, more), "momentum = 0.9\n", ""), "steps = 2\n", "steps = 1\n"), 2);
    };
    const Run asgd = plain("asgd", "workers = 1\nupdates = 4\nlocal_steps = 3\n"), serial = plain("serial", "local_steps = 12\n");
    ASSERT_TRUE(asgd.status.ok() && serial.status.ok()) << asgd.status.what << serial.status.what;
    EXPECT_NEAR(loss(asgd), loss(serial), 1e-5 * loss(serial));
    EXPECT_EQ(asgd.ranks[1].gradients, 12u * 24u);
    EXPECT_EQ(staleness(log(asgd)).size(), 4u);
}

// All of them collected, and each waits: a step is one with the mean of all workers' mini-batches.
TEST_F(AsgdTest, SoftsyncOfAllIsSynchronous) {
    const auto plain = [&](const std::string& kind, const std::string& more, const char* steps) {
        return run(replaced(replaced(text(kind, more), "momentum = 0.9\n", ""), "steps = 2\n", steps), 3);
    };
    const Run soft = plain("softsync", "workers = 4\nupdates = 40\n", "steps = 1\n"),
              ma = plain("ma", "workers = 4\nlocal_steps = 1\n", "steps = 10\n");
    ASSERT_TRUE(soft.status.ok() && ma.status.ok()) << soft.status.what << ma.status.what;
    EXPECT_NEAR(loss(soft), loss(ma), 1e-5 * loss(ma));
    for (const uint64_t tau : staleness(log(soft))) EXPECT_EQ(tau, 0u);
}

TEST_F(AsgdTest, SoftsyncReplays) {
    for (const char* more : {"collect = 2\npull = \"wait\"\n", "collect = 3\npull = \"now\"\n"}) {
        const std::string job = text("softsync", std::string("workers = 4\nupdates = 24\n") + more);
        const Run first = run(job, restless(5, 1));
        ASSERT_EQ(first.digest().size(), 64u) << first.digest();
        const std::string path = log(first);
        for (const uint32_t n : {1u, 3u}) EXPECT_EQ(run(job + replay(path), restless(n, n)).digest(), first.digest()) << n << " " << more;
    }
}

// As an audit of a stretch does.
TEST_F(AsgdTest, AReplayBeginsFromACheckpoint) {
    const std::string job = with_job(text("asgd", "workers = 3\nupdates = 12\n"), "checkpoint_every = 1\ncheckpoint_keep = 9\n");
    const Run first = run(job, restless(4, 1));
    ASSERT_EQ(first.digest().size(), 64u) << first.digest();
    const auto kept = checkpoints(first);
    ASSERT_TRUE(kept.contains(1));
    EXPECT_EQ(run(job + replay(log(first)), {.ranks = 2}, false, {}, from(kept.at(1))).digest(), first.digest());
}

TEST_F(AsgdTest, TheyLearn) {
    for (const char* kind : {"asgd", "softsync"}) {
        const Run run =
            this->run(replaced(job_text(fmt::format("[algorithm]\nkind = \"{}\"\n", kind)), "momentum = 0.9", "momentum = 0.5"), 4);
        ASSERT_TRUE(run.status.ok()) << run.status.what;
        EXPECT_EQ(run.ranks[0].steps, 2u);
        EXPECT_GT(run.ranks[0].accuracy, 0.7) << kind;
    }
}

// Staleness scales gradients, and no running statistics.
TEST_F(AsgdTest, BatchNormLearnsUnderStaleness) {
    const std::string job = job_text_of_all("[algorithm]\nkind = \"asgd\"\nworkers = 4\nlambda = \"inverse\"\nlocal_steps = 2\n");
    const Run run = this->run(replaced(replaced(job, "momentum = 0.9", "momentum = 0.5"), "epochs = 2", "epochs = 10"), 5);
    ASSERT_TRUE(run.status.ok()) << run.status.what;
    EXPECT_GT(run.ranks[0].accuracy, 0.7);
}

TEST_F(AsgdTest, BadLogsAndSettingsAreRefused) {
    const std::string job = text("asgd", "workers = 2\nupdates = 6\n");
    const Run run = this->run(job, 2);
    ASSERT_TRUE(run.status.ok()) << run.status.what;
    std::string whole;
    ASSERT_TRUE(file_read(run.folders[0] + "/replay.log", &whole).ok());
    const std::string head = whole.substr(0, whole.find("\n\n") + 2), path = folder_ + "/bad.log";
    const auto with = [&](const std::string& content, const std::string& of = "") {
        EXPECT_TRUE(file_write(path, content).ok());
        return this->run((of.empty() ? job : of) + replay(path), 2).digest();
    };
    EXPECT_EQ(with(whole), run.digest());
    EXPECT_EQ(with(head + "0 0\n7 0\n"), path + ": push 2 is no worker and its staleness");
    EXPECT_EQ(with(head + "0 0\n"),
              path + ": has 1 pushes, the job makes 12: a node that was away or behind has a part, take another one's log");
    std::string same = head;
    for (int i = 0; i < 12; ++i) same += "0 0\n";
    EXPECT_NE(with(same).find("the replay log has a push of worker 0 that it cannot have made"), std::string::npos) << with(same);
    EXPECT_EQ(with("gradcast asgd seed 1 batch 24 workers 2\n0 0\n"),
              path + ": a replay log of version 1, which does not say all of its job, and this is version 2: train anew");
    EXPECT_EQ(with("\x7f"
                   "ELF"),
              path +
                  ": begins with \"\x7f"
                  "ELF\", not with \"gradcast replay 2\"");
    EXPECT_NE(with(replaced(whole, "kernel set = ", "kernel set = x")).find(": of another job: kernel set is x"), std::string::npos);
    EXPECT_EQ(with(head.substr(0, head.find("algorithm.kind")) + "\n0 0\n"),
              path + ": of another job: algorithm.kind is not set there and asgd here");
    EXPECT_EQ(with(replaced(whole, "data = ", "layer 5 = relu\ndata = ")).find(": of another job: layer 5 is relu there and not set here"),
              path.size());

    // Each setting that the result depends on.
    const auto of = [&](const std::string& kind, const std::string& more) { return text(kind, "workers = 2\nupdates = 6\n" + more); };
    const auto differs = [&](const std::string& other, const std::string& what) {
        EXPECT_EQ(with(whole, other), path + ": of another job: " + what);
    };
    const auto changed = [&](const char* from, const char* to) { return replaced(job, from, to); };
    differs(text("asgd", "workers = 3\nupdates = 6\n"), "algorithm.workers is 2 there and 3 here");
    differs(text("asgd", "workers = 2\nupdates = 8\n"), "algorithm.updates is 6 there and 8 here");
    differs(of("asgd", "local_steps = 2\n"), "algorithm.local_steps is 1 there and 2 here");
    differs(of("asgd", "stream = \"whole\"\n"), "algorithm.stream is parts there and whole here");
    differs(of("asgd", "lambda = \"inverse\"\n"), "algorithm.lambda is none there and inverse here");
    differs(of("asgd", "max_staleness = 2\n"), "algorithm.max_staleness is 0 there and 2 here");
    differs(of("softsync", "collect = 1\npull = \"now\"\n"), "algorithm.kind is asgd there and softsync here");
    differs(changed("batch = 24", "batch = 12"), "job.batch is 24 there and 12 here");
    differs(changed("[data]", "seed = 5\n[data]"), "job.seed is 1 there and 5 here");
    differs(changed("lr = 0.05", "lr = 0.25"), "optimiser.lr is 0.05 there and 0.25 here");
    differs(changed("lr = 0.05", "lr = 0.05\nschedule = \"cosine\""), "optimiser.schedule is constant there and cosine here");
    differs(changed("outputs = 16", "outputs = 17"), "layer 1 is inner_product outputs=16 there and inner_product outputs=17 here");
    EXPECT_EQ(with(whole, changed("train.h5", "test.h5")).find(": of another job: data is "), path.size());

    const std::string exp = of("asgd", "lambda = \"exp\"\nbeta = 0.5\n"), soft = of("softsync", "collect = 2\n");
    const auto log_of = [&](const std::string& other) {
        EXPECT_TRUE(file_read(this->run(other, 2).folders[0] + "/replay.log", &whole).ok());
    };
    log_of(exp);
    differs(replaced(exp, "beta = 0.5", "beta = 0.25"), "algorithm.beta is 0.5 there and 0.25 here");
    log_of(soft);
    differs(replaced(soft, "collect = 2", "collect = 1"), "algorithm.collect is 2 there and 1 here");
    differs(soft + "pull = \"now\"\n", "algorithm.pull is wait there and now here");
    EXPECT_EQ(with(whole, replaced(soft, "collect = 2\n", "")).size(), 64u);   // which is what it takes
    EXPECT_EQ(this->run(text("softsync", "workers = 2\ncollect = 3\n"), 1).digest(),
              "algorithm.collect: 3 pushes are more than the 2 workers");
    EXPECT_EQ(this->run(text("softsync", "workers = 2\ncollect = 2\nupdates = 5\n"), 1).digest(),
              "algorithm.updates: 5 pushes of a round are no multiple of collect, 2");
}

TEST_F(AsgdTest, ALostWorkerEndsTheJobByName) {
    const Run run = this->run(replaced(text("asgd", "workers = 3\nupdates = 600\n"), "deadline = \"20s\"", "deadline = \"4s\""),
                              {.ranks = 4, .lost_after_us = 1'000'000}, false, [](Simulator& sim) { sim.kill(2, 3'000); });
    EXPECT_EQ(run.status.code, Code::peer_lost);
    EXPECT_NE(run.ranks[0].error.find("rank 2 (node-c)"), std::string::npos) << run.ranks[0].error;
}

}   // namespace
}   // namespace gradcast
