// Streams and datagrams over RDMA devices: rank r uses device r modulo their number.  Where there are none, as outside tests/rdma/run, the
// tests that need them are skipped.
#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "tests/link/chatter.h"
#include "tests/link/crier.h"
#include "tests/rdma/faults.h"
#include "tests/rdma/herald.h"
#include "transport/kernel/rdma.h"

namespace gradcast {
namespace {

constexpr uint64_t wait_us = 60'000'000;   // emulated devices are slow
constexpr uint16_t channel = 5;

class Rdma_ : public testing::Test {
protected:
    void SetUp() override {
        const RdmaModule* module;
        const Status status = rdma_module(&module);
        if (!status.ok()) GTEST_SKIP() << status.what;
        std::vector<RdmaDevice> all;
        ASSERT_TRUE(module->devices(&all).ok());
        for (const RdmaDevice& each : all)
            if (each.active && !each.interface.empty()) devices.push_back(each);
        if (devices.empty()) GTEST_SKIP() << "no active RDMA device here";
        std::sort(devices.begin(), devices.end(), [](const RdmaDevice& a, const RdmaDevice& b) { return a.name < b.name; });
    }
    const RdmaDevice& device(Rank rank) const { return devices[rank % devices.size()]; }

    /// n ranks whose drivers are open but do not run.
    void open(uint32_t n, const std::function<void(LinkConfig&)>& change) {
        nodes = std::vector<Node>(n);
        for (Rank rank = 0; rank < n; ++rank) {
            nodes[rank].listen(rank);
            addresses.push_back(nodes[rank].listener->address());
        }
        for (Rank rank = 0; rank < n; ++rank) {
            LinkConfig config = test_config(LinkKind::uring_tcp, Protect::auth, rank, addresses);
            config.rdma.devices = {device(rank).name};
            change(config);
            const Status status = nodes[rank].open(config);
            ASSERT_TRUE(status.ok()) << status.what;
        }
    }
    void with_datagrams(LinkConfig& config) const {
        static const uint16_t port = static_cast<uint16_t>(20000 + getpid() % 20000);
        config.rdma.datagrams = true;
        config.datagrams.interface = device(config.rank).interface;
        config.datagrams.group = multicast_group(config.job, group_number, false, port);
        config.datagrams.segment_bytes = rdma_segment(devices[0].mtu);
    }
    void go() {
        for (Node& node : nodes) node.start();
        for (Node& node : nodes) node.driver->host().post(channel, command_event(ChatterCommand::talk));   // a Herald takes any
    }
    void await(Rank rank) {
        std::vector<Completion> completions;
        const Status status = nodes[rank].driver->host().wait(&completions, clock_us() + wait_us);
        ASSERT_TRUE(status.ok()) << status.what << " at rank " << rank << state(rank);
        EXPECT_TRUE(completions[0].status.ok()) << completions[0].status.what;
    }
    /// What a datagram link and bulk have counted.
    std::string state(Rank rank) {
        std::string text;
        const LinkCounters& counters = nodes[rank].driver->counters();
        if (const auto found = nodes[rank].driver->datagrams_found()) text = ": " + datagrams_text(*found);
        for (size_t i = 1; i < counters.datagrams_dropped.size(); ++i)
            if (const uint64_t count = counters.datagrams_dropped[i])
                text += fmt::format(", {} {}", count, datagram_fault_name(static_cast<DatagramFault>(i)));
        if (rank < heralds.size()) {
            const BulkCounters& bulk = heralds[rank]->counters;
            text += fmt::format("; {} segments to come, {} sent, {} received, {} repairs, {} lost, {} unsent", heralds[rank]->remaining(),
                                bulk.packets_sent.load(), bulk.packets_received.load(), bulk.repairs_sent.load(), bulk.lost.load(),
                                counters.datagrams_unsent.load());
        }
        return text;
    }
    void stop() {
        for (Node& node : nodes) node.stop();
    }

    std::vector<RdmaDevice> devices;
    std::vector<std::string> addresses;
    uint32_t group_number = 1;
    std::vector<std::unique_ptr<Chatter>> chatters;   // outlive the drivers
    std::vector<std::unique_ptr<Crier>> criers;
    std::vector<std::unique_ptr<Herald>> heralds;
    std::vector<Node> nodes;

    void talk(uint32_t n, const std::vector<uint32_t>& sizes, Protect protect, Landing landing, const std::vector<bool>& with = {},
              uint32_t rails = 1) {
        open(n, [&](LinkConfig& config) {
            config.protect = protect;
            config.rails = rails;
            for (uint32_t i = 1; i < rails; ++i) config.rdma.devices.push_back(device(config.rank + i * n).name);
            config.rdma.streams = with.empty() || with[config.rank];
        });
        for (Rank rank = 0; rank < n; ++rank) {
            chatters.push_back(std::make_unique<Chatter>(rank, n, sizes, landing));
            chatters[rank]->rails_ = rails > 1;
            nodes[rank].driver->attach(channel, chatters[rank].get());
            for (size_t i = 0; i < sizes.size(); ++i)   // half of the large payloads are sent from where they lie
                if (i % 2 && sizes[i] >= 4096) nodes[rank].driver->register_memory(chatters[rank]->payload(i));
        }
        go();
        for (Rank rank = 0; rank < n; ++rank) await(rank);
    }
    uint32_t streams(Rank rank) { return nodes[rank].driver->counters().rdma_streams; }
};
using Rdma = Rdma_;
using RdmaBreaks = Rdma_;
class RdmaProtect : public Rdma_, public testing::WithParamInterface<Protect> {};

std::vector<uint32_t> mixed_sizes() {
    std::vector<uint32_t> sizes;
    for (uint32_t size : {0u, 1u, 17u, inline_bytes_max, inline_bytes_max + 1, 4096u, 16384u, 32768u, 65537u, segment_bytes_stream})
        for (int again = 0; again < 2; ++again) sizes.push_back(size);
    for (uint32_t i = 0; i < 100; ++i) sizes.push_back(static_cast<uint32_t>(splitmix64(i) % 3000));
    return sizes;
}

TEST_P(RdmaProtect, StreamsGoOverConnections) {
    talk(4, mixed_sizes(), GetParam(), Landing::place);
    for (Rank rank = 0; rank < 4; ++rank) {
        EXPECT_STREQ(nodes[rank].driver->name(), "rdma_rc");
        EXPECT_EQ(streams(rank), 3u);
        EXPECT_EQ(nodes[rank].driver->counters().reconnects, 0u);
    }
    stop();
    for (Rank rank = 0; rank < 4; ++rank) EXPECT_EQ(chatters[rank]->losses_, 0u) << "ended before its peer's acknowledgement";
}
INSTANTIATE_TEST_SUITE_P(All, RdmaProtect, testing::Values(Protect::none, Protect::auth, Protect::encrypt));

TEST_F(Rdma, PacketsThatWaitAreTakenLater) {
    talk(2, mixed_sizes(), Protect::auth, Landing::later);
    EXPECT_EQ(streams(0), 1u);
}

TEST_F(Rdma, ANodeWithoutItGetsStreamsOverTcp) {
    talk(3, mixed_sizes(), Protect::auth, Landing::lease, {true, false, true});
    EXPECT_EQ(streams(0), 1u);   // to rank 2
    EXPECT_EQ(streams(1), 0u);
    EXPECT_EQ(streams(2), 1u);
}

uint64_t bytes_sent(const std::string& interface) {
    uint64_t bytes = 0;
    std::ifstream("/sys/class/net/" + interface + "/statistics/tx_bytes") >> bytes;
    return bytes;
}

TEST_F(Rdma, OneExchangeGoesOverTwoDevices) {
    if (devices.size() < 4) GTEST_SKIP() << "fewer than four RDMA devices";
    uint64_t before[4], carried[4];
    for (Rank i = 0; i < 4; ++i) before[i] = bytes_sent(device(i).interface);
    talk(2, std::vector<uint32_t>(20, segment_bytes_stream), Protect::auth, Landing::place, {}, 2);
    for (Rank i = 0; i < 4; ++i) carried[i] = bytes_sent(device(i).interface) - before[i];
    for (Rank rank = 0; rank < 2; ++rank) {
        EXPECT_EQ(streams(rank), 2u);
        const uint64_t all = carried[rank] + carried[rank + 2];
        EXPECT_GE(all, 20u * segment_bytes_stream);
        for (const Rank i : {rank, rank + 2}) EXPECT_NEAR(static_cast<double>(carried[i]), 0.5 * all, 0.1 * all) << device(i).name;
    }
}

// Cuts off the first device of rank 1, which has another one.
TEST_F(RdmaBreaks, StreamsGoOnOverTheOtherDevice) {
    if (!std::getenv("RDMA_N")) GTEST_SKIP() << "not in the VM of tests/rdma/run";
    talk(2, mixed_sizes(), Protect::auth, Landing::lease, {}, 2);
    EXPECT_EQ(streams(0) + streams(1), 4u);
    for (Node& node : nodes) node.driver->host().post(channel, command_event(ChatterCommand::forget));
    ASSERT_EQ(std::system("ip link set p2 down"), 0);
    for (Node& node : nodes) node.driver->host().post(channel, command_event(ChatterCommand::talk));
    for (Rank rank = 0; rank < 2; ++rank) await(rank);
    EXPECT_EQ(std::system("ip link set p2 up"), 0);
    EXPECT_EQ(streams(0) + streams(1), 4u);
    for (Rank rank = 0; rank < 2; ++rank) {
        EXPECT_GE(nodes[rank].driver->counters().reconnects, 1u);
        EXPECT_EQ(chatters[rank]->losses_, 0u);
    }
}

// Cuts the second device off; the streams' sockets are on lo.
TEST_F(RdmaBreaks, StreamsGoOnOverTcp) {
    if (!std::getenv("RDMA_N")) GTEST_SKIP() << "not in the VM of tests/rdma/run";
    talk(2, mixed_sizes(), Protect::auth, Landing::lease);
    EXPECT_EQ(streams(0) + streams(1), 2u);
    for (Node& node : nodes) node.driver->host().post(channel, command_event(ChatterCommand::forget));
    ASSERT_EQ(std::system("ip link set p2 down"), 0);
    for (Node& node : nodes) node.driver->host().post(channel, command_event(ChatterCommand::talk));
    for (Rank rank = 0; rank < 2; ++rank) await(rank);
    EXPECT_EQ(std::system("ip link set p2 up"), 0);
    EXPECT_EQ(streams(0) + streams(1), 0u);
    for (Rank rank = 0; rank < 2; ++rank) {
        EXPECT_GE(nodes[rank].driver->counters().reconnects, 1u);
        EXPECT_EQ(chatters[rank]->losses_, 0u);
    }
}

// The device of rank 1 reports that its link has changed, which is taken for a fatal error.
TEST_F(RdmaBreaks, AFatalErrorOfTheDevice) {
    if (!std::getenv("RDMA_N")) GTEST_SKIP() << "not in the VM of tests/rdma/run";
    talk(2, mixed_sizes(), Protect::auth, Landing::lease);
    EXPECT_EQ(streams(0) + streams(1), 2u);
    for (Node& node : nodes) node.driver->host().post(channel, command_event(ChatterCommand::forget));
    events_are_fatal = true;
    ASSERT_EQ(std::system("ip link set v2 down && ip link set v2 up"), 0);
    for (const uint64_t until = clock_us() + wait_us; streams(0) + streams(1) > 0 && clock_us() < until;) std::this_thread::yield();
    events_are_fatal = false;
    EXPECT_EQ(streams(0) + streams(1), 0u);
    for (Node& node : nodes) node.driver->host().post(channel, command_event(ChatterCommand::talk));
    for (Rank rank = 0; rank < 2; ++rank) await(rank);
    for (Rank rank = 0; rank < 2; ++rank) {
        EXPECT_GE(nodes[rank].driver->counters().reconnects, 1u);
        EXPECT_EQ(chatters[rank]->losses_, 0u);
    }
    const auto active = [] { return std::system("grep -q ACTIVE /sys/class/infiniband/rxe2/ports/1/state") == 0; };
    for (const uint64_t until = clock_us() + wait_us; !active() && clock_us() < until;) std::this_thread::yield();
    EXPECT_TRUE(active());
}

TEST_F(Rdma, DatagramsReachTheGroupAndOneRank) {
    constexpr uint32_t n = 4;
    const uint32_t full = rdma_segment(devices[0].mtu);
    for (Protect protect : {Protect::auth, Protect::encrypt}) {
        ++group_number;
        addresses.clear();
        criers.clear();
        open(n, [&](LinkConfig& config) {
            config.protect = protect;
            with_datagrams(config);
        });
        for (Rank rank = 0; rank < n; ++rank) {
            std::vector<Cry> cries;
            for (uint32_t i = 0; i < 20; ++i) {
                cries.push_back({full});
                cries.push_back({i * 7});
                cries.push_back({full, static_cast<int>((rank + 1) % n)});
            }
            criers.push_back(std::make_unique<Crier>(rank, n, cries, Landing::place));
            criers[rank]->expect(40 * (n - 1) + 20);
            nodes[rank].driver->attach_datagrams(channel, criers[rank].get());
            EXPECT_STREQ(nodes[rank].driver->datagrams_name(), "rdma_ud");
        }
        go();
        for (Rank rank = 0; rank < n; ++rank) await(rank);
        for (Rank rank = 0; rank < n; ++rank) {
            const DatagramsFound found = nodes[rank].driver->datagrams_found().value();
            EXPECT_TRUE(found.multicast && found.reached == n - 1) << datagrams_text(found);
            EXPECT_EQ(criers[rank]->duplicates, 0u);
        }
        stop();
    }
}

TEST_F(Rdma, BulkMakesDatagramsReliable) {
    constexpr uint32_t n = 4;
    const uint32_t full = rdma_segment(devices[0].mtu);
    open(n, [&](LinkConfig& config) { with_datagrams(config); });
    for (Rank rank = 0; rank < n; ++rank) {
        heralds.push_back(std::make_unique<Herald>(rank, n, full, std::vector<uint32_t>{2, full, full + 2, 300'000, 1'000'000, 0, 77'778}));
        nodes[rank].driver->attach_datagrams(channel, heralds[rank]->bulk.get());
    }
    go();
    for (Rank rank = 0; rank < n; ++rank) await(rank);
    for (Rank rank = 0; rank < n; ++rank) {
        EXPECT_EQ(heralds[rank]->remaining(), 0u);
        EXPECT_EQ(heralds[rank]->counters.deaf, 0u);
        RecordProperty("repairs", static_cast<int>(heralds[rank]->counters.repairs_sent));
    }
    stop();
}

TEST_F(Rdma, WrongDevicesAreNamed) {
    const RdmaModule* module;
    ASSERT_TRUE(rdma_module(&module).ok());
    RdmaDevice found;
    Status status = module->find("rxe99", &found);
    EXPECT_EQ(status.code, Code::invalid);
    EXPECT_NE(std::string(status.what).find("there is no RDMA device \"rxe99\" here"), std::string::npos) << status.what;
    ASSERT_TRUE(module->find(devices[0].interface, &found).ok());
    EXPECT_EQ(found.name, devices[0].name);
    if (devices.size() > 1) {
        status = module->find("", &found);
        EXPECT_NE(std::string(status.what).find("several RDMA devices are active"), std::string::npos) << status.what;
    }
}

TEST_F(Rdma, DatagramsThatDoNotFitAreRefused) {
    nodes = std::vector<Node>(1);
    LinkConfig config = test_config(LinkKind::uring_tcp, Protect::auth, 0, {"127.0.0.1:1"});
    config.rdma.devices = {device(0).name};
    with_datagrams(config);
    config.datagrams.segment_bytes += 8;
    Status status = nodes[0].open(config);
    EXPECT_NE(std::string(status.what).find("do not fit RDMA device"), std::string::npos) << status.what;
}

// By the subnet manager; and by the kernel, which has no IPv6 groups with soft-RoCE.
TEST_F(Rdma, ARefusedGroupIsNamed) {
    LinkConfig config = test_config(LinkKind::uring_tcp, Protect::auth, 0, {"127.0.0.1:1"});
    config.rdma.devices = {device(0).name};
    with_datagrams(config);
    groups_refuse = true;
    Status status = Node().open(config);
    groups_refuse = false;
    EXPECT_EQ(
        std::string(status.what),
        fmt::format("RDMA device {} is refused by group {}: see the subnet manager, or take transport.kind = \"ip\": Permission denied",
                    device(0).name, config.datagrams.group));
    if (device(0).infiniband) return;
    config.datagrams.group = "[ff15::1:2]:4712";
    status = Node().open(config);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(std::string(status.what).find("group [ff15::1:2]:4712"), std::string::npos) << status.what;
}

}   // namespace
}   // namespace gradcast
