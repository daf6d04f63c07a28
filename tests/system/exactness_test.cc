// The contract of transport/exchange/CODES.md, "What is computed", end to end: one job file gives one digest with any number of daemons,
// any exchange, link and protection, and the simulator computes the same bits: also where datagrams are lost, a node is slow, or one is
// killed in mid-step.
#include <algorithm>
#include <sstream>

#include "datasets/shard.h"
#include "nn/net.h"
#include "runtime/core/digest.h"
#include "runtime/job/run/engine.h"
#include "tests/daemon/processes.h"
#include "transport/exchange/exchange.h"
#include "transport/sim/sim.h"

namespace gradcast {
namespace {

/// Noise with labels, or the same with one bit of one pixel flipped.
void make_noise(const std::string& path, uint32_t count, bool flipped = false) {
    DataInfo info{count, 1, 28, 28, 10, {0.5f}, {0.5f}, "noise"};
    std::vector<uint8_t> images(info.count * 28 * 28);
    std::vector<int32_t> labels(info.count);
    for (uint32_t i = 0; i < images.size(); ++i) images[i] = static_cast<uint8_t>(splitmix64(i));
    for (uint32_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<int32_t>(i % 10);
    images[14 * 28 + 14] ^= flipped ? 0x80 : 0;
    Status status = shard_write(path, info, images.data(), labels.data());
    ASSERT_TRUE(status.ok()) << status.what;
}

struct Way {
    std::string exchange = "ring", quantiser = "auto32", protect = "auth", train = "train.h5";
    uint32_t m = 2, s = 0, steps = 4, batch = 32, r = 2;
    std::string weights = "[]";
};
const char* const all_exchanges[] = {"ring", "unicast", "multicast", "ps", "cssgd", "coded", "coded-rs"};

// 4 steps of 32 samples go through the 64 of the data set, so every one of them counts.  28 blocks: as many as cssgd needs for r = 2 of 8.
std::string way_text(const Way& way) {
    return "[job]\nseed = 3\nsteps = " + std::to_string(way.steps) + "\nbatch = " + std::to_string(way.batch) +
           "\nblocks = 28\ndeadline = \"20s\"\n[data]\ntrain = \"" + way.train +
           "\"\ntest = \"test.h5\"\n[net]\npreset = \"lenet5\"\n[optimiser]\nlr = 0.05\nmomentum = 0.9\nweight_decay = "
           "0.001\n[algorithm]\n" +
           "exchange = \"" + way.exchange + "\"\nquantiser = \"" + way.quantiser + "\"\nm = " + std::to_string(way.m) +
           "\ns = " + std::to_string(way.s) + "\nr = " + std::to_string(way.r) + "\nweights = " + way.weights +
           "\n[transport]\nprotect = \"" + way.protect + "\"\n";
}

/// Over streams, or over datagrams of which `loss` are lost.  One rank alone is the reference: nobody can be missed there.
JobStatus simulated(Way way, const std::string& folder, uint32_t n, double loss = -1, Rank slow = ~0u) {
    log_level(Level::error);
    if (n == 1) way.s = 0;
    auto simulator = Simulator::create({.ranks = n, .loss = std::max(loss, 0.0)});
    if (slow < n) simulator->slow(slow, 5);
    std::vector<std::unique_ptr<Engine>> engines(n);
    for (Rank rank = 0; rank < n; ++rank) {
        EngineConfig config;
        std::vector<JobMistake> mistakes;
        EXPECT_TRUE(job_parse(way_text(way), "job.toml", folder, &config.job, &mistakes)) << mistakes[0].text;
        for (Rank each = 0; each < n; ++each) config.roster.push_back({std::string(1, static_cast<char>('a' + each))});
        config.self = NodeId{rank};
        config.folder = folder + "/simulated-" + std::to_string(rank);
        config.lanes = 0;
        config.loader_threaded = false;
        config.datagram_bytes = loss >= 0 ? 1432 : 0;
        config.spend_us = slow < n ? 1000 : 0;
        Status status = Engine::open(config, Log(), &engines[rank]);
        EXPECT_TRUE(status.ok()) << status.what;
        if (!status.ok()) return {};
        simulator->trainer(rank, [&engine = *engines[rank]](Host& host) { return engine.run(host); });
    }
    Status status = simulator->run();
    EXPECT_TRUE(status.ok()) << status.what;
    for (const auto& engine : engines) EXPECT_EQ(engine->status().digest, engines[0]->status().digest);
    JobStatus first = engines[0]->status();
    simulator.reset();   // before the protocols that it drives
    return first;
}

struct SystemExactness : testing::Test {
    Cluster cluster{8};
    void SetUp() override {
        ASSERT_TRUE(nn_isa(isa_best()).ok());   // the daemons' own default
        make_noise(cluster.folder + "/train.h5", 64);
        make_noise(cluster.folder + "/flipped.h5", 64, true);
        make_noise(cluster.folder + "/test.h5", 50);
        for (Node& node : cluster.nodes) cluster.configure(node, "interface = \"127.0.0.1\"\n");
    }
    /// The first n daemons train.
    JobStatus trained(const Way& way, uint32_t n, std::string* job = nullptr) {
        std::vector<std::string> names;
        for (uint32_t i = 0; i < n; ++i) names.push_back(cluster[i].name);
        Json answer = cluster[0].post("/v1/jobs", Json(Submission{way_text(way), "job.toml", cluster.folder, names, 0}));
        std::string id = answer.value("id", "");
        EXPECT_NE(id, "") << answer.dump();
        if (job) *job = id;
        JobStatus status = cluster[0].ended(id);
        EXPECT_EQ(status.state, JobState::done) << status.error;
        EXPECT_EQ(status.digest.size(), 64u);
        for (uint32_t i = 1; i < n; ++i) EXPECT_EQ(cluster[i].ended(id).digest, status.digest) << names[i];
        return status;
    }
    /// On the network and in the simulator.
    void expect_same(const Way& way, uint32_t n, const JobStatus& wanted) {
        SCOPED_TRACE(way.exchange + " " + way.quantiser + " " + way.protect + " " + std::to_string(n));
        for (const JobStatus& status : {trained(way, n), simulated(way, cluster.folder, n)}) {
            EXPECT_EQ(status.digest, wanted.digest);
            EXPECT_EQ(status.step_digest, wanted.step_digest);
            EXPECT_EQ(status.kernel_set, wanted.kernel_set);
            EXPECT_EQ(status.accuracy, wanted.accuracy);
            EXPECT_EQ(status.loss, wanted.loss);
        }
    }
};

TEST_F(SystemExactness, OneDigestForAnyNumberOfDaemonsAnyExchangeAndTheSimulator) {
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    const JobStatus wanted = simulated({}, cluster.folder, 1), fixed = simulated({"unicast", "fixed"}, cluster.folder, 1);
    for (uint32_t n : {1, 2, 3, 4, 8}) {
        for (const char* exchange : all_exchanges) expect_same({.exchange = exchange, .r = std::min(n, 2u)}, n, wanted);
        for (const char* exchange : {"unicast", "multicast", "ps", "cssgd"})
            expect_same({.exchange = exchange, .quantiser = "fixed", .r = std::min(n, 2u)}, n, fixed);
    }
    EXPECT_NE(fixed.digest, wanted.digest);
    expect_same({.exchange = "cssgd", .weights = "[1, 2, 1.5, 1]"}, 4, wanted);
    for (const char* protect : {"none", "encrypt"}) expect_same({.protect = protect}, 3, wanted);
    // The comparison can fail: one bit of one of the 50,176 pixels.
    const JobStatus flipped = simulated({.train = "flipped.h5"}, cluster.folder, 1);
    EXPECT_NE(flipped.digest, wanted.digest);
    expect_same({.train = "flipped.h5"}, 4, flipped);
}

TEST_F(SystemExactness, AutoChoosesWhileTheJobRunsAndChangesNoBit) {
    cluster.nodes.resize(4);
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    for (uint32_t s : {0, 1}) {
        const Way way{.exchange = "auto", .s = s, .steps = 12};
        const JobStatus wanted = simulated({.steps = 12}, cluster.folder, 1);
        expect_same(way, 4, wanted);
        EXPECT_EQ(simulated(way, cluster.folder, 4, 0.01).digest, wanted.digest);
        std::string id, text;
        const JobStatus status = trained(way, 4, &id);
        ASSERT_TRUE(status.choice.has_value());
        ASSERT_TRUE(file_read(cluster[0].folder + "/state/jobs/" + id + "/steps.jsonl", &text).ok());
        std::istringstream lines(text);
        std::string line, last;
        while (std::getline(lines, line)) last = line;
        // What was chosen is what summed the last step.
        ASSERT_LT(status.choice->chosen, status.choice->predictions.size());
        EXPECT_EQ(Json::parse(last)["exchange"], status.choice->predictions[status.choice->chosen].exchange);
    }
}

TEST_F(SystemExactness, NeitherLossNorASlowNodeChangesABit) {
    for (const char* quantiser : {"auto32", "auto16"}) {
        const JobStatus wanted = simulated({.quantiser = quantiser, .steps = 2}, cluster.folder, 1);
        for (const char* exchange : {"multicast", "ps", "cssgd", "coded", "coded-rs"})
            for (uint32_t n : {2, 4, 8})
                for (uint32_t s : {0, 1}) {
                    const Way way{.exchange = exchange, .quantiser = quantiser, .m = n == 2 ? 1u : 2u, .s = s, .steps = 2};
                    const ExchangeKind* kind = nullptr;
                    ASSERT_TRUE(exchange_find(way.exchange, Quantiser::auto32, &kind).ok());
                    if (s > 0 && !kind->codes) continue;
                    SCOPED_TRACE(way.exchange + " " + quantiser + " " + std::to_string(n) + " s = " + std::to_string(s));
                    EXPECT_EQ(simulated(way, cluster.folder, n, 0.01).digest, wanted.digest);
                    EXPECT_EQ(simulated(way, cluster.folder, n, 0, n - 1).digest, wanted.digest);
                }
    }
}

// kill -9 in mid-step, of each rank in turn (all are reducers in coded-rs): the others go on with the next step, and end with the same
// bits.
TEST_F(SystemExactness, AKilledNodeIsMissedByNobody) {
    cluster.nodes.resize(4);
    for (const char* exchange : {"coded", "coded-rs"}) {
        const Way way{.exchange = exchange, .m = 2, .s = 1, .steps = 200};
        const JobStatus wanted = simulated(way, cluster.folder, 1);
        for (uint32_t dead : {0, 2}) {
            SCOPED_TRACE(std::string(exchange) + " without " + std::to_string(dead));
            ASSERT_NO_FATAL_FAILURE(cluster.up());
            Json answer = cluster[0].post("/v1/jobs", Json(Submission{way_text(way), "job.toml", cluster.folder, {}, 0}));
            const std::string id = answer.value("id", "");
            ASSERT_NE(id, "") << answer.dump();
            Node& other = cluster[dead == 0 ? 1 : 0];
            ASSERT_TRUE(eventually([&] { return other.step(id) >= 20; })) << other.job(id).dump() << other.process->output();
            cluster[dead].process->kill(SIGKILL), cluster[dead].process->wait();
            EXPECT_LT(other.step(id), way.steps) << "it was too late to kill anybody";
            for (uint32_t i = 0; i < 4; ++i) {
                if (i == dead) continue;
                const JobStatus status = cluster[i].ended(id);
                EXPECT_EQ(status.state, JobState::done) << status.error;
                EXPECT_EQ(status.digest, wanted.digest);
                EXPECT_EQ(status.accuracy, wanted.accuracy);
            }
            for (uint32_t i = 0; i < 4; ++i)
                if (i != dead) cluster[i].process->kill(SIGKILL), cluster[i].process->wait();
        }
    }
}

/// A node has several workers, whose pushes leave it in another order than the one answer to all of them comes.
TEST_F(SystemExactness, WorkersOfANodeShareTheAnswerOfAServer) {
    cluster.nodes.resize(4);
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    const std::string job =
        "[job]\nsteps = 20\nbatch = 8\nblocks = 1\ndeadline = \"20s\"\n[data]\ntrain = \"train.h5\"\n[[net.layers]]\nkind = "
        "\"inner_product\"\noutputs = 10\n[[net.layers]]\nkind = \"softmax_cross_entropy\"\n[optimiser]\nlr = 0.02\nmomentum = 0.5\n"
        "[algorithm]\nkind = \"softsync\"\nexchange = \"multicast\"\nworkers = 6\nupdates = 600\nstream = \"whole\"\n";
    std::string digest;
    for (const std::vector<std::string>& names : {std::vector<std::string>{"a"}, {"a", "b", "c", "d"}}) {
        const std::string id = cluster[0].submit(Submission{job, "job.toml", cluster.folder, names, 0}).value("id", "");
        const JobStatus status = cluster[0].ended(id);
        ASSERT_EQ(status.state, JobState::done) << status.error;
        if (digest.empty()) digest = status.digest;
        EXPECT_EQ(status.digest, digest);
    }
}

// A daemon that is stopped by a signal leaves its jobs to the others; where they cannot go on without it, the job is cancelled.
TEST_F(SystemExactness, ANodeThatLeavesIsMissedByNobody) {
    cluster.nodes.resize(4);
    const Way way{.exchange = "coded-rs", .m = 2, .s = 1, .steps = 300};
    const JobStatus wanted = simulated(way, cluster.folder, 1);
    for (uint32_t leaver : {0, 2}) {
        SCOPED_TRACE("without " + std::to_string(leaver));
        ASSERT_NO_FATAL_FAILURE(cluster.up());
        Json answer = cluster[0].post("/v1/jobs", Json(Submission{way_text(way), "job.toml", cluster.folder, {}, 0}));
        const std::string id = answer.value("id", "");
        ASSERT_NE(id, "") << answer.dump();
        Node& other = cluster[leaver == 0 ? 1 : 0];
        ASSERT_TRUE(eventually([&] { return other.step(id) >= 20; })) << other.job(id).dump() << other.process->output();
        cluster[leaver].process->kill(SIGTERM);
        EXPECT_EQ(cluster[leaver].process->wait(), 0) << cluster[leaver].process->output();
        EXPECT_NE(cluster[leaver].process->output().find("leaves (SIGTERM); the job goes on without it"), std::string::npos)
            << cluster[leaver].process->output();
        for (uint32_t i = 0; i < 4; ++i) {
            if (i == leaver) continue;
            const JobStatus status = cluster[i].ended(id);
            EXPECT_EQ(status.state, JobState::done) << status.error;
            EXPECT_EQ(status.digest, wanted.digest);
            ASSERT_EQ(status.losses.size(), 1u);
            EXPECT_NE(status.losses[0].find("leaves (SIGTERM)"), std::string::npos) << status.losses[0];
        }
        for (uint32_t i = 0; i < 4; ++i)
            if (i != leaver) cluster[i].process->kill(SIGKILL), cluster[i].process->wait();
    }
}

// The same with steps of about 100 ms, which is more than a scheduler's delay: whichever rank is killed, no step takes longer than two
// median steps and the delay of a busy machine.
TEST_F(SystemExactness, AKilledNodeStallsNobodyForTwoSteps) {
    cluster.nodes.resize(4);
    make_noise(cluster.folder + "/large.h5", 2048);
    for (const char* exchange : {"coded", "coded-rs"})
        for (uint32_t dead : {0, 2}) {
            bool stalled = true;
            for (int attempt = 0; stalled && attempt < 3; ++attempt) {   // a busy machine may spoil one
                stalled = false;
                SCOPED_TRACE(std::string(exchange) + " without " + std::to_string(dead));
                const Way way{.exchange = exchange, .train = "large.h5", .m = 2, .s = 1, .steps = 40, .batch = 512};
                ASSERT_NO_FATAL_FAILURE(cluster.up());
                Json answer = cluster[0].post("/v1/jobs", Json(Submission{way_text(way), "job.toml", cluster.folder, {}, 0}));
                const std::string id = answer.value("id", "");
                ASSERT_NE(id, "") << answer.dump();
                Node& other = cluster[dead == 0 ? 1 : 0];
                ASSERT_TRUE(eventually([&] { return other.step(id) >= 15; })) << other.job(id).dump() << other.process->output();
                const Json datagrams = other.job(id)["status"]["datagrams"];
                EXPECT_EQ(datagrams["peers_reached"], 3) << other.job(id).dump();
                EXPECT_EQ(datagrams["peers"], 3) << other.job(id).dump();
                cluster[dead].process->kill(SIGKILL), cluster[dead].process->wait();
                for (uint32_t i = 0; i < 4; ++i) {
                    if (i == dead) continue;
                    const JobStatus status = cluster[i].ended(id);
                    EXPECT_EQ(status.state, JobState::done) << status.error;
                    EXPECT_EQ(status.losses.size(), 1u);
                    std::string text;
                    ASSERT_TRUE(file_read(cluster[i].folder + "/state/jobs/" + id + "/steps.jsonl", &text).ok());
                    std::vector<uint64_t> us;
                    std::istringstream lines(text);
                    for (std::string line; std::getline(lines, line);) {
                        const Json step = Json::parse(line);
                        us.push_back(step["compute_us"].get<uint64_t>() + step["wait_us"].get<uint64_t>() +
                                     step["apply_us"].get<uint64_t>());
                    }
                    ASSERT_EQ(us.size(), way.steps);
                    std::vector<uint64_t> sorted(us.begin() + 1, us.end());   // without the first, which fills caches
                    std::sort(sorted.begin(), sorted.end());
                    const uint64_t median = sorted[sorted.size() / 2];
                    // 50 ms: a scheduler's delay where there are fewer cores than daemons.  On a busier machine the steps before are as
                    // slow.
                    std::vector<uint64_t> calm(us.begin() + 1, us.begin() + 14);
                    std::sort(calm.begin(), calm.end());
                    const uint64_t before = calm[10];   // a single slow step does not count
                    stalled |= sorted.back() >= std::max(2 * median + 50'000, before);
                    RecordProperty(std::string(exchange) + std::to_string(dead) + cluster[i].name,
                                   std::to_string(median) + " us, longest " + std::to_string(sorted.back()));
                }
                for (uint32_t i = 0; i < 4; ++i)
                    if (i != dead) cluster[i].process->kill(SIGKILL), cluster[i].process->wait();
            }
            EXPECT_FALSE(stalled) << "in three attempts";
        }
}

// One bit of one sample flips in mid-job, in the file of one node.  The next gradient of that sample differs from that of the other nodes
// that compute the block.  An outvoted node is evicted; without spare nodes the job ends and names it.
TEST_F(SystemExactness, AFlippedBitOfOneNodesDataIsFoundAndTheNodeNamed) {
    cluster.nodes.resize(4);
    constexpr uint32_t wrong = 2;
    Shard shard;
    for (uint32_t s : {0, 1}) {
        SCOPED_TRACE("s = " + std::to_string(s));
        // Each daemon works in its own folder, so this is another file for each.
        Way way{.exchange = "coded-rs", .train = "train.h5", .m = 2, .s = s, .steps = 300};
        const JobStatus wanted = simulated(way, cluster.folder, 1);
        way.train = "/proc/self/cwd/train.h5";
        for (Node& node : cluster.nodes) make_noise(node.folder + "/train.h5", 64);
        ASSERT_TRUE(shard_open(cluster[wrong].folder + "/train.h5", &shard).ok());
        ASSERT_NO_FATAL_FAILURE(cluster.up());
        Json answer = cluster[0].post("/v1/jobs", Json(Submission{way_text(way), "job.toml", cluster.folder, {}, 0}));
        const std::string id = answer.value("id", "");
        ASSERT_NE(id, "") << answer.dump();
        ASSERT_TRUE(eventually([&] { return cluster[0].step(id) >= 20; })) << cluster[0].job(id).dump() << cluster[0].process->output();
        Fd file(::open(shard.path.c_str(), O_RDWR | O_CLOEXEC));
        const auto at = static_cast<off_t>(shard.samples_offset + 14 * 28 + 14);   // of the first sample, in the middle
        uint8_t pixel = 0;
        ASSERT_EQ(::pread(file.get(), &pixel, 1, at), 1);
        pixel ^= 0x80;
        const uint64_t before = cluster[0].step(id);   // no rank is two steps behind
        ASSERT_EQ(::pwrite(file.get(), &pixel, 1, at), 1);
        for (uint32_t i = 0; i < 4; ++i) {
            const JobStatus status = cluster[i].ended(id);
            if (s == 1 && i != wrong) {
                EXPECT_EQ(status.state, JobState::done) << status.error;
                EXPECT_EQ(status.digest, wanted.digest);
                EXPECT_EQ(status.accuracy, wanted.accuracy);
                ASSERT_EQ(status.losses.size(), 1u);
            } else {
                EXPECT_EQ(status.state, JobState::failed);
            }
            const std::string line = s == 1 && i != wrong ? status.losses[0] : status.error;
            const size_t step = line.find("step ");
            ASSERT_NE(step, std::string::npos) << line;
            EXPECT_GE(std::stoul(line.substr(step + 5)) + 2, before) << line;
            EXPECT_NE(line.find("rank 2 (c) computed blocks "), std::string::npos) << line;
        }
        for (Node& node : cluster.nodes) node.process->kill(SIGKILL), node.process->wait();
    }
}

TEST_F(SystemExactness, EpollGivesTheSame) {
    cluster.nodes.resize(3);
    for (Node& node : cluster.nodes) cluster.configure(node, "link = \"epoll_tcp\"\ninterface = \"127.0.0.1\"\n");
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    const JobStatus wanted = simulated({}, cluster.folder, 1);
    for (const char* exchange : all_exchanges) expect_same({.exchange = exchange}, 3, wanted);
    EXPECT_EQ(trained({}, 3).path, "epoll_tcp");
}

}   // namespace
}   // namespace gradcast
