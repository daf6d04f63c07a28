// Whole jobs over real streams, several ranks in this process, each with its threads as in the daemon: trainer, lanes, loader, network.
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "algos/synchronous.h"
#include "runtime/core/fd.h"
#include "runtime/job/run/engine.h"
#include "tests/allocations.h"
#include "tests/job/noise.h"
#include "tests/link/fixture.h"
#include "tests/wrapped_host.h"

namespace gradcast {
namespace {

constexpr uint32_t network_ranks = 2;

/// Stands before rank 1's exchange and flips one bit of its words of step 2 before they are sent.
struct WordSpoiler : Protocol {
    Exchange* inner = nullptr;
    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events)
            if (const auto* ready = event.is<Event::Ready>(); ready && ready->step == 2 && ready->bucket == 0)
                inner->plan(2, 0).words.as<uint32_t>()[5] ^= 1u << 20;
        inner->on(events, actions);
    }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override { return inner->land(packet, bytes, place); }
};

class NetworkJob : public ::testing::Test {
protected:
    void SetUp() override {
        log_level(Level::error);
        folder_ = ::testing::TempDir() + "gradcast_network_" + std::to_string(getpid()) + "_" +
                  ::testing::UnitTest::GetInstance()->current_test_info()->name();
        std::filesystem::remove_all(folder_);
        ASSERT_TRUE(make_directories(folder_).ok());
        write_noise(folder_ + "/train.h5", 240);
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    /// Trains on `network_ranks` ranks; `meanwhile` runs on this thread beside them.  The digest, the same at all ranks.
    std::string train(const char* exchange, const char* protect, LinkKind kind, uint32_t steps, WordSpoiler* spoiler = nullptr,
                      const std::function<void(const Engine&)>& meanwhile = {}) {
        std::unique_ptr<Engine> engines[network_ranks];
        Node nodes[network_ranks];   // stop before the engines, whose protocols they drive
        JobConfig job;
        std::vector<JobMistake> mistakes;
        std::string text = fmt::format(
            "[job]\nsteps = {}\ncheckpoint_keep = 0\nbatch = 24\nblocks = 6\ndeadline = \"20s\"\n[data]\ntrain = "
            "\"train.h5\"\n{}[net]\n[[net.layers]]\nkind = "
            "\"inner_product\"\noutputs = {}\n[[net.layers]]\nkind = \"relu\"\n[[net.layers]]\nkind = \"inner_product\"\noutputs = 4\n"
            "[[net.layers]]\nkind = \"softmax_cross_entropy\"\n[optimiser]\nlr = 0.01\nmomentum = 0.9\n[algorithm]\n{}{}"
            "[transport]\nprotect = \"{}\"\n{}",
            steps, tested_ ? "test = \"train.h5\"\n" : "", hidden_, *exchange ? fmt::format("exchange = \"{}\"\n", exchange) : "",
            algorithm_, protect, parallel_);
        EXPECT_TRUE(job_parse(text, "job.toml", folder_, &job, &mistakes)) << mistakes[0].text;
        std::vector<std::string> addresses;
        for (Rank rank = 0; rank < network_ranks; ++rank) nodes[rank].listen(rank), addresses.push_back(nodes[rank].listener->address());
        for (Rank rank = 0; rank < network_ranks; ++rank) {
            EngineConfig config;
            config.job = job, config.self = NodeId{rank}, config.lanes = lanes_[rank], config.change_every = change_every_,
            config.folder = fmt::format("{}/job-{}", folder_, rank);
            config.datagram_bytes = datagrams_ ? 1432 : 0;
            for (Rank each = 0; each < network_ranks; ++each)
                config.roster.push_back({test_identity(each).name + "-of-a-long-name", {}, 1});   // names allocate where they are made
            Status status = Engine::open(config, Log(), &engines[rank]);
            LinkConfig link = test_config(kind, job.protect, rank, addresses);
            if (meanwhile) link.packets_per_key = packets_per_key_default;   // a new key allocates
            if (datagrams_) link.datagrams = {.interface = "lo", .group = "239.192.77.1:4788", .segment_bytes = config.datagram_bytes};
            if (status.ok()) status = nodes[rank].open(link);
            if (status.ok()) engines[rank]->counters(&nodes[rank].driver->counters());
            EXPECT_TRUE(status.ok()) << status.what;
            if (!status.ok()) return {};
        }
        std::vector<std::thread> trainers;
        Status results[network_ranks];
        for (Rank rank = 0; rank < network_ranks; ++rank) {
            nodes[rank].start();
            trainers.emplace_back([&, rank] {
                WrappedHost host(nodes[rank].driver->host(), [&](uint16_t channel, Protocol* protocol) -> Protocol* {
                    if (!spoiler || rank != 1 || channel != gradient_channel) return protocol;
                    spoiler->inner = static_cast<Exchange*>(protocol);
                    return spoiler;
                });
                results[rank] = engines[rank]->run(host);
            });
        }
        if (meanwhile) meanwhile(*engines[0]);
        for (std::thread& trainer : trainers) trainer.join();
        for (Node& node : nodes) node.stop();
        for (Rank rank = 0; rank < network_ranks; ++rank) {
            EXPECT_TRUE(results[rank].ok()) << results[rank].what;
            EXPECT_EQ(engines[rank]->status().digest, engines[0]->status().digest);
            const JobStatus status = engines[rank]->status();
            EXPECT_EQ(status.view, change_every_ ? 1 + (steps - 1) / change_every_ : status.view);
            last_[rank] = status;
        }
        return engines[0]->status().digest;
    }

    /// Counted over all threads of both ranks.  Queues may still double a few times, and a line of the log comes once a second.
    void allocates_nothing(const char* exchange, LinkKind kind, const char* protect) {
        constexpr uint32_t windows = 20, window_steps = 20;   // on a busy machine queues grow in the first ten yet
        std::vector<uint64_t> at;
        // More steps than are watched: the end of a job allocates.
        train(exchange, protect, kind, (windows + 25) * window_steps, nullptr, [&](const Engine& engine) {
            allocations_ignored = true;   // of this thread
            at.reserve(windows + 1);
            for (uint32_t window = 2; window < windows + 3; ++window) {
                for (JobStatus status = engine.status(); status.step < window * window_steps; status = engine.status()) {
                    if (status.state != JobState::preparing && status.state != JobState::running) return;
                    std::this_thread::yield();
                }
                if (at.empty()) allocations_watch();
                at.push_back(allocations);
            }
            allocations_watched = allocations_ignored = false;
        });
        allocations_watched = allocations_ignored = false;
        ASSERT_EQ(at.size(), windows + 1);
        uint32_t quiet = 0;
        for (uint32_t i = 0; i < windows; ++i) quiet += at[i] == at[i + 1];
        EXPECT_GE(quiet, windows / 2) << exchange << " " << protect << " " << algorithm_;
        EXPECT_LT(at.back(), windows * window_steps / 4) << exchange << " " << protect << " " << algorithm_;
        if (HasFailure()) backtrace_symbols_fd(allocation_first.data(), static_cast<int>(allocation_first.size()), 2);
    }

    std::string folder_;
    uint32_t change_every_ = 0;
    bool datagrams_ = false;
    uint32_t hidden_ = 16;    // units of the first layer
    std::string algorithm_;   // more lines of its section
    std::string parallel_;    // its section
    uint32_t lanes_[network_ranks] = {2, 2};
    bool tested_ = false;
    JobStatus last_[network_ranks];   // after train()
};

TEST_F(NetworkJob, TheExchangeThatAutoChoosesChangesNoBit) {
    const std::string wanted = train("ring", "auth", LinkKind::uring_tcp, 12);
    for (LinkKind kind : {LinkKind::uring_tcp, LinkKind::epoll_tcp}) EXPECT_EQ(train("auto", "auth", kind, 12), wanted);
}

// Memory that is used after its view was closed is found here, under ASan and TSan.
TEST_F(NetworkJob, AChangeOfViewChangesNoBit) {
    const std::string wanted = train("ring", "auth", LinkKind::uring_tcp, 20);
    change_every_ = 3;
    for (const char* exchange : {"ring", "unicast", "ps", "multicast", "coded", "coded-rs", "auto"})
        for (LinkKind kind : {LinkKind::uring_tcp, LinkKind::epoll_tcp}) {
            SCOPED_TRACE(fmt::format("{} over {}", exchange, static_cast<int>(kind)));
            EXPECT_EQ(train(exchange, "auth", kind, 20), wanted);
        }
    datagrams_ = true;
    for (const char* exchange : {"multicast", "coded-rs"})
        for (LinkKind kind : {LinkKind::uring_tcp, LinkKind::epoll_tcp}) {
            SCOPED_TRACE(fmt::format("{} over datagrams, {}", exchange, static_cast<int>(kind)));
            EXPECT_EQ(train(exchange, "encrypt", kind, 20), wanted);
        }
}

// Lanes wait for the other node's columns, each on its own thread; nodes may have different numbers of lanes.
TEST_F(NetworkJob, LanesOfNodesThatShareSlicesChangeNoBit) {
    const std::string slices = "[parallel]\nslices = 2\nsliced = [\"fc1\", \"fc2\"]\n";
    tested_ = true;
    parallel_ = slices;
    const std::string wanted = train("ring", "auth", LinkKind::uring_tcp, 20);
    const double accuracy = last_[0].accuracy, loss = last_[0].test_loss;
    parallel_ = slices + "slice_groups = 2\nmicro_batch = 6\n";
    for (const auto& [first, second] : {std::pair{1u, 1u}, {2u, 2u}, {3u, 3u}, {3u, 2u}, {1u, 3u}})
        for (const LinkKind kind : {LinkKind::uring_tcp, LinkKind::epoll_tcp})
            for (const uint32_t every : {0u, 3u}) {
                SCOPED_TRACE(
                    fmt::format("{} and {} lanes, link {}, a change every {} steps", first, second, static_cast<int>(kind), every));
                lanes_[0] = first, lanes_[1] = second;
                change_every_ = every;
                EXPECT_EQ(train("ring", "auth", kind, 20), wanted);
                EXPECT_EQ(last_[1].accuracy, accuracy);
                EXPECT_EQ(last_[1].test_loss, loss);
            }
}

// A server's answers and state by multicast over real datagrams, in views that change.
TEST_F(NetworkJob, SoftsyncByMulticastChangesNoBit) {
    algorithm_ = "kind = \"softsync\"\nworkers = 2\nupdates = 8\n";
    const std::string wanted = train("", "auth", LinkKind::uring_tcp, 6);
    EXPECT_EQ(wanted.size(), 64u);
    datagrams_ = true;
    for (const uint32_t every : {0u, 2u})
        for (LinkKind kind : {LinkKind::uring_tcp, LinkKind::epoll_tcp}) {
            change_every_ = every;
            EXPECT_EQ(train("multicast", "auth", kind, 6), wanted);
        }
}

TEST_F(NetworkJob, AChangeOfViewTakesNoMoreThanTwoSteps) {
    if (!allocations_counted) GTEST_SKIP() << "a sanitizer makes everything slow";
    hidden_ = 8192;
    change_every_ = 3;
    for (bool datagrams : {false, true}) {
        datagrams_ = datagrams;
        uint64_t change_us = UINT64_MAX, step_us = 0;
        for (int i = 0; i < 5 && change_us > 2 * step_us; ++i) {   // other programs run beside this one: of six changes the median
            train("coded-rs", "auth", LinkKind::uring_tcp, 20);
            std::vector<uint64_t> changes;
            for (const ViewRecord& view : last_[0].views)
                if (!view.why.empty()) changes.push_back(view.stood_us);
            ASSERT_EQ(changes.size(), 6u);
            std::sort(changes.begin(), changes.end());
            change_us = changes[changes.size() / 2];
            step_us = static_cast<uint64_t>(last_[0].seconds * 1e6) / last_[0].steps;
        }
        EXPECT_LE(change_us, 2 * step_us) << (datagrams ? "datagrams" : "streams");
    }
}

TEST_F(NetworkJob, OneFlippedBitChangesTheDigest) {
    const std::string wanted = train("ring", "auth", LinkKind::uring_tcp, 6);
    EXPECT_EQ(wanted.size(), 64u);
    EXPECT_EQ(train("unicast", "auth", LinkKind::uring_tcp, 6), wanted);
    for (const char* exchange : {"ring", "unicast"}) {
        WordSpoiler spoiler;
        const std::string spoiled = train(exchange, "auth", LinkKind::uring_tcp, 6, &spoiler);
        EXPECT_EQ(spoiled.size(), 64u);
        EXPECT_NE(spoiled, wanted);
    }
}

TEST_F(NetworkJob, AStepAllocatesNothing) {
    if (!allocations_counted) GTEST_SKIP() << "malloc of our own: a sanitizer has taken its place";
    for (const char* exchange : {"ring", "unicast"})
        for (LinkKind kind : {LinkKind::uring_tcp, LinkKind::epoll_tcp})
            for (const char* protect : {"auth", "encrypt"}) allocates_nothing(exchange, kind, protect);
    allocations_watch();
    std::vector<int> proof(1000);   // the test can fail
    allocations_watched = false;
    EXPECT_EQ(allocations, 1u) << proof.size();
}

TEST_F(NetworkJob, WorkersShareTheBytesOfTheirNode) {
    hidden_ = 256;
    const auto shared = [&](Rank rank) {
        WorkerCounts all;
        for (const WorkerCounts& each : last_[rank].workers) {
            all.turns += each.turns;
            all.bytes_sent += each.bytes_sent;
            all.bytes_received += each.bytes_received;
        }
        // The node's bytes but for those after the last round.
        EXPECT_LE(all.bytes_sent, last_[rank].bytes_sent);
        EXPECT_GE(all.bytes_sent, last_[rank].bytes_sent * 9 / 10);
        EXPECT_LE(all.bytes_received, last_[rank].bytes_received);
        EXPECT_GE(all.bytes_received, last_[rank].bytes_received * 9 / 10);
        return all;
    };
    algorithm_ = "kind = \"ma\"\nworkers = 5\nlocal_steps = 1\n";
    train("ring", "auth", LinkKind::uring_tcp, 20);
    EXPECT_EQ(last_[0].workers.size() + last_[1].workers.size(), 5u);
    for (Rank rank = 0; rank < network_ranks; ++rank) {
        const WorkerCounts all = shared(rank);
        for (const WorkerCounts& each : last_[rank].workers) {
            EXPECT_EQ(each.turns, 20u);
            EXPECT_NEAR(static_cast<double>(each.bytes_sent * last_[rank].workers.size()), static_cast<double>(all.bytes_sent), 100.0);
        }
    }
    // The server has no worker; who pushes more often has more bytes.
    algorithm_ = "kind = \"asgd\"\nworkers = 3\nupdates = 10\n";
    train("", "auth", LinkKind::uring_tcp, 4);
    EXPECT_TRUE(last_[0].workers.empty());
    ASSERT_EQ(last_[1].workers.size(), 3u);
    const WorkerCounts all = shared(1);
    EXPECT_GE(all.turns, 40u);
    for (const WorkerCounts& each : last_[1].workers)
        EXPECT_NEAR(static_cast<double>(each.bytes_sent) / static_cast<double>(all.bytes_sent),
                    static_cast<double>(each.turns) / static_cast<double>(all.turns), 0.1);
}

TEST_F(NetworkJob, ARoundOfWorkersAllocatesNothing) {
    if (!allocations_counted) GTEST_SKIP() << "malloc of our own: a sanitizer has taken its place";
    for (const auto& [kind, more] :
         std::initializer_list<std::pair<std::string, const char*>>{{"ma", "local_steps = 1\n"},
                                                                    {"ma", "allocation = \"bsda\"\nallocation_batches = 2\n"},
                                                                    {"dane", "local_steps = 1\n"},
                                                                    {"admm", "local_steps = 1\n"},
                                                                    {"de", "local_steps = 1\nvalidation = 40\n"},
                                                                    {"rg", "local_steps = 1\nvalidation = 40\n"},
                                                                    {"asgd", "updates = 4\n"},
                                                                    {"softsync", "updates = 4\n"},
                                                                    {"serial", "local_steps = 1\n"}}) {
        algorithm_ = "kind = \"" + kind + "\"\n" + (kind == "serial" ? "" : "workers = 2\n") + more;
        allocates_nothing(kind == "asgd" || kind == "softsync" || kind == "serial" ? "" : "ring", LinkKind::uring_tcp, "auth");
    }
}

}   // namespace
}   // namespace gradcast
