// Datagrams of drivers over both backends, on lo, in groups that follow from the process id.  Tests that need root run in a network
// namespace of their own thread.
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/udp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/core/fd.h"
#include "runtime/core/net/interface.h"
#include "runtime/core/net/socket.h"
#include "tests/link/crier.h"
#include "tests/link/namespace.h"

namespace gradcast {
namespace {

constexpr size_t kinds = static_cast<size_t>(DatagramFault::kinds);

std::string test_group(bool ipv6 = false) {
    static uint32_t number = 0;
    JobId job{};
    const uint32_t id = static_cast<uint32_t>(getpid());
    std::memcpy(job.data(), &id, sizeof id);
    ++number;
    return multicast_group(job, number, ipv6, static_cast<uint16_t>(20000 + (id * 31 + number) % 20000));
}
bool holds(const std::string& text, const std::string& what) { return text.find(what) != std::string::npos; }

/// n ranks with datagrams.
struct Company {
    std::vector<Node> nodes;
    std::vector<std::unique_ptr<Crier>> criers;
    std::vector<std::string> addresses;
    explicit Company(uint32_t n) : nodes(n), criers(n), addresses(n) {
        for (Rank rank = 0; rank < n; ++rank) listen(rank);
    }
    ~Company() {
        for (Node& node : nodes) node.stop();
    }
    uint32_t n() const { return static_cast<uint32_t>(nodes.size()); }
    void listen(Rank rank) {
        nodes[rank].listen(rank);
        addresses[rank] = nodes[rank].listener->address();
    }
    LinkConfig config(LinkKind kind, Protect protect, Rank rank, const std::string& group) {
        LinkConfig config = test_config(kind, protect, rank, addresses);
        config.datagrams.interface = "lo";
        config.datagrams.group = group;
        config.datagrams.segment_bytes = datagram_bytes;
        return config;
    }
    void open(Rank rank, const LinkConfig& config, const std::vector<Cry>& cries, uint64_t expected, Landing landing = Landing::place) {
        ASSERT_TRUE(nodes[rank].log.open(log_path(rank), "").ok());
        const Status status = nodes[rank].open(config);
        ASSERT_TRUE(status.ok()) << status.what;
        EXPECT_STREQ(nodes[rank].driver->datagrams_name(), config.kind == LinkKind::uring_tcp ? "uring_udp" : "epoll_udp");
        criers[rank] = std::make_unique<Crier>(rank, n(), cries, landing);
        criers[rank]->expect(expected, !cries.empty());
        nodes[rank].driver->attach_datagrams(5, criers[rank].get());
    }
    void go(Rank rank) { nodes[rank].driver->host().post(5, command_event(0)); }
    void await(Rank rank) {
        std::vector<Completion> completions;
        const Status status = nodes[rank].driver->host().wait(&completions, clock_us() + link_wait_us);
        std::string faults;
        for (size_t i = 1; i < kinds; ++i)
            if (const uint64_t count = dropped(rank, static_cast<DatagramFault>(i)))
                faults += fmt::format(", {} {}", count, datagram_fault_name(static_cast<DatagramFault>(i)));
        EXPECT_TRUE(status.ok()) << status.what << " at rank " << rank << ": " << text(rank) << faults;
    }
    std::string text(Rank rank) { return datagrams_text(nodes[rank].driver->datagrams_found().value()); }
    /// Waits until the log holds `what`.
    void await_text(Rank rank, const std::string& what) {
        for (uint64_t until = clock_us() + link_wait_us; clock_us() < until && !holds(text(rank), what);) ::usleep(1000);
        EXPECT_TRUE(holds(text(rank), what)) << text(rank) << " at rank " << rank << " where \"" << what << "\" was expected";
    }
    void await_log(Rank rank, const std::string& what) {
        for (uint64_t until = clock_us() + link_wait_us; clock_us() < until && !holds(said(rank), what);) ::usleep(1000);
        EXPECT_TRUE(holds(said(rank), what)) << said(rank) << "\nwhere \"" << what << "\" was expected";
    }
    std::string said(Rank rank) {
        std::string text;
        EXPECT_TRUE(file_read(log_path(rank), &text).ok());
        return text;
    }
    uint64_t dropped(Rank rank, DatagramFault fault) {
        return nodes[rank].driver->counters().datagrams_dropped[static_cast<size_t>(fault)];
    }

private:
    std::string log_path(Rank rank) {
        static std::atomic<uint32_t> number{0};
        if (logs_.size() < n()) logs_.resize(n());
        if (logs_[rank].empty()) logs_[rank] = testing::TempDir() + fmt::format("datagrams.{}.{}.log", getpid(), ++number);
        return logs_[rank];
    }
    std::vector<std::string> logs_;
};

using Kind = std::tuple<LinkKind, Protect>;

class Datagrams : public testing::TestWithParam<Kind> {
public:
    static LinkKind kind() { return std::get<0>(GetParam()); }
    static Protect protect() { return std::get<1>(GetParam()); }
    /// n ranks that send all datagrams to each other; they keep running afterwards.
    static void talk(Company& company, const std::vector<Cry>& cries, Landing landing = Landing::place,
                     const std::string& group = test_group(), const std::function<void(LinkConfig&)>& change = {}) {
        for (Rank rank = 0; rank < company.n(); ++rank) {
            LinkConfig config = company.config(kind(), protect(), rank, group);
            if (change) change(config);
            std::vector<Cry> own = cries;
            std::erase_if(own, [&](const Cry& each) { return each.to == static_cast<int>(rank); });
            uint64_t expected = 0;
            for (const Cry& each : cries) expected += each.to < 0 || each.to == static_cast<int>(rank) ? company.n() - 1 : 0;
            company.open(rank, config, own, expected, landing);
            if (testing::Test::HasFatalFailure()) return;
        }
        for (Rank rank = 0; rank < company.n(); ++rank) company.nodes[rank].start(), company.go(rank);
        for (Rank rank = 0; rank < company.n(); ++rank) company.await(rank);
        for (Rank rank = 0; rank < company.n(); ++rank) {
            EXPECT_EQ(company.criers[rank]->duplicates, 0u);
            EXPECT_EQ(company.nodes[rank].driver->counters().datagrams_unsent, 0u);
        }
    }
};

/// Makes the kernel refuse UDP_SEGMENT and UDP_GRO to this thread and its children.
void refuse_to_cut() {
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_setsockopt, 0, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SOL_UDP, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])), BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, UDP_SEGMENT, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOPROTOOPT),          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    sock_fprog filter{std::size(program), program};
    ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

/// Tests that do not depend on the protection.
class DatagramVerdicts : public Datagrams {};

TEST_P(Datagrams, EverySizeArrivesWholeAtEverybody) {
    std::vector<Cry> cries;
    for (uint32_t bytes : {0u, 1u, 3u, 15u, 16u, 17u, 511u, 1023u, 1024u, 1025u, datagram_bytes - 1, datagram_bytes})
        for (int again = 0; again < 3; ++again) cries.push_back({bytes});
    for (Landing landing : {Landing::place, Landing::lease}) {
        Company company(3);
        talk(company, cries, landing);
        EXPECT_EQ(company.text(0).find("multicast 239."), 0u) << company.text(0);
        EXPECT_TRUE(holds(company.text(0), "on lo reaches 2 of 2 at 1432 bytes")) << company.text(0);
        EXPECT_GT(company.dropped(0, DatagramFault::own), 0u);                 // on lo the group loops the rank's own datagrams back
        EXPECT_LT(company.nodes[0].driver->counters().bytes_sent, 250'000u);   // counted once, not once a receiver; 130'000 are probes
    }
}

TEST_P(Datagrams, BatchesOfMixedSizesAndReceivers) {
    std::vector<Cry> cries;
    uint64_t random = 3;
    for (int run = 0; run < 60; ++run) {
        const uint32_t size = static_cast<uint32_t>(splitmix64(++random) % (datagram_bytes + 1));
        const int to = static_cast<int>(splitmix64(++random) % 8) - 4;
        for (uint64_t i = 0, count = splitmix64(++random) % 40; i < count; ++i) cries.push_back({size, to < 0 ? -1 : to});
        if (run % 3 == 0) cries.push_back({size / 2, to < 0 ? -1 : to});   // with a shorter last datagram
    }
    Company company(4);
    talk(company, cries, Landing::lease);
}

TEST_P(Datagrams, WhatIsCountedAsSentIsReceived) {
    Company company(2);
    talk(company, {{100, 0}, {100, 1}, {1400, 0}, {1400, 1}});
    uint64_t sent = 0, received = 0;
    for (uint64_t until = clock_us() + 2'000'000; clock_us() < until;) {
        sent = received = 0;
        for (Rank rank : {0u, 1u}) {
            const LinkCounters& counters = company.nodes[rank].driver->counters();
            sent += counters.bytes_sent;
            received += counters.bytes_received;
        }
        if (sent == received) break;
        ::usleep(1000);
    }
    EXPECT_EQ(sent, received);   // datagrams looped back on lo are not counted
    EXPECT_GT(company.dropped(0, DatagramFault::own), 0u);
}

TEST(DatagramsOpen, ANetworkNamespaceIsAPlace) {
    const uint32_t here = network_place();
    EXPECT_NE(here, 0u);
    EXPECT_EQ(network_place(), here);
    uint32_t there = 0;
    IN_NAMESPACE({}, [&] { there = network_place(); });
    EXPECT_NE(there, 0u);
    EXPECT_NE(there, here);
}

// Two namespaces joined by a veth pair; streams stay in the first one.
TEST_P(DatagramVerdicts, OwnMulticastsDoNotComeBackWhereNobodyElseHearsThem) {
    IN_NAMESPACE(lo_up, [] {
        Company company(2);
        const std::string group = test_group();
        auto open = [&](Rank rank) {
            const std::string device = fmt::format("veth{}", rank);
            ASSERT_EQ(std::system(fmt::format("ip addr add 10.91.0.{}/24 dev {} && ip link set {} up", rank + 1, device, device).c_str()),
                      0);
            LinkConfig config = company.config(kind(), protect(), rank, group);
            config.datagrams.interface = device;
            company.open(rank, config, std::vector<Cry>(100, Cry{datagram_bytes}), 100);
        };
        const std::string refused =
            in_namespace({fmt::format("ip link add veth1 type veth peer name veth0 netns {}", ::gettid())}, [&] { open(1); });
        ASSERT_EQ(refused, "");
        open(0);
        if (testing::Test::HasFatalFailure()) return;
        for (Rank rank : {0u, 1u}) company.nodes[rank].start(), company.go(rank);
        for (Rank rank : {0u, 1u}) {
            company.await(rank);
            EXPECT_TRUE(holds(company.text(rank), "multicast")) << company.text(rank);
            EXPECT_EQ(company.dropped(rank, DatagramFault::own), 0u);
        }
    });
}

TEST_P(Datagrams, IPv6) {
    IN_NAMESPACE(lo_and({"ip -6 route add local ff00::/8 dev lo"}), [] {
        std::vector<Cry> cries(100, Cry{datagram_bytes});
        cries.push_back({333, 1});
        Company company(3);
        talk(company, cries, Landing::place, test_group(true));
        EXPECT_EQ(company.text(0).find("multicast [ff15::"), 0u) << company.text(0);
    });
}

TEST_P(Datagrams, ByAnAddressOfTheInterface) {
    Company company(2);
    talk(company, {{100}, {1000}}, Landing::place, test_group(), [](LinkConfig& config) { config.datagrams.interface = "127.0.0.1"; });
    EXPECT_TRUE(holds(company.text(0), "on lo")) << company.text(0);
}

// Different groups, like a switch that drops the multicast.
TEST_P(DatagramVerdicts, WithoutMulticastEachGetsItsOwn) {
    Company company(3);
    const std::vector<Cry> cries(50, Cry{datagram_bytes});
    for (Rank rank = 0; rank < 3; ++rank) company.open(rank, company.config(kind(), protect(), rank, test_group()), cries, 100);
    for (Rank rank = 0; rank < 3; ++rank) company.nodes[rank].start(), company.go(rank);
    for (Rank rank = 0; rank < 3; ++rank) company.await(rank);
    EXPECT_TRUE(holds(company.text(0), "unicast on lo reaches 2 of 2 at 1432 bytes")) << company.text(0);
    EXPECT_TRUE(holds(company.text(0), " does not reach peer 'node1' (rank 1, 127.0.0.1:")) << company.text(0);
    EXPECT_TRUE(holds(company.said(0), "on lo does not reach peer 'node1' (rank 1, 127.0.0.1:")) << company.said(0);
    EXPECT_TRUE(holds(company.said(0), "each rank gets its own copy from now on")) << company.said(0);
    EXPECT_GT(company.nodes[0].driver->counters().bytes_sent, 2u * 50 * datagram_bytes);
}

// Four of ten datagrams of each train pass: the multicast reaches the peer but loses too many to be used.
TEST_P(DatagramVerdicts, AMulticastThatLosesMostIsNotTaken) {
    IN_NAMESPACE(lo_and({nft_input + "ip daddr 224.0.0.0/4 meta l4proto udp numgen random mod 10 \\< 6 drop"}), [] {
        refuse_to_cut();   // on lo a train would pass the filter as one packet
        Company company(2);
        talk(company, {{datagram_bytes}});
        EXPECT_TRUE(holds(company.text(0), "unicast on lo reaches 1 of 1 at 1432 bytes")) << company.text(0);
    });
}

TEST_P(DatagramVerdicts, WhoIsNotReachedAtAllIsNamedAndLost) {
    IN_NAMESPACE(lo_and({nft_input + "meta l4proto udp drop"}), [] {
        Company company(2);
        const std::string group = test_group();
        for (Rank rank : {0u, 1u}) {
            LinkConfig config = company.config(kind(), protect(), rank, group);
            config.deadline_us = 4'000'000;
            company.open(rank, config, {{100}}, 0);
            company.nodes[rank].start(), company.go(rank);
        }
        company.await(0);
        company.await_log(0, "no datagram reaches 127.0.0.1:");
        EXPECT_TRUE(holds(company.said(0),
                          "choose another interface, open UDP in the firewall, or do without datagrams (transport.kind = \"tcp\")"))
            << company.said(0);
        for (uint64_t until = clock_us() + link_wait_us; clock_us() < until && !holds(company.said(0), "lost peer");) ::usleep(1000);
        company.nodes[0].stop();
        EXPECT_GE(company.criers[0]->losses, 1u);
        EXPECT_TRUE(holds(company.criers[0]->last_loss, "no datagram reaches 127.0.0.1:")) << company.criers[0]->last_loss;
    });
}

// As of a job that begins with one rank, whose next view may have others.
TEST_P(DatagramVerdicts, NobodyIsLostBeforeAChannelHasDatagrams) {
    IN_NAMESPACE(lo_and({nft_input + "meta l4proto udp drop"}), [] {
        constexpr uint64_t deadline_us = 4'000'000;
        Company company(2);
        const std::string group = test_group();
        std::vector<std::unique_ptr<Crier>> streams, datagrams;
        for (Rank rank : {0u, 1u}) {
            LinkConfig config = company.config(kind(), protect(), rank, group);
            config.deadline_us = deadline_us;
            Node& node = company.nodes[rank];
            const Status status = node.open(config);
            ASSERT_TRUE(status.ok()) << status.what;
            for (auto* criers : {&streams, &datagrams}) {
                criers->push_back(std::make_unique<Crier>(rank, 2, std::vector<Cry>{}, Landing::place));
                criers->back()->expect(0, false);
            }
            node.driver->attach(5, streams[rank].get());
            node.start();
        }
        ::usleep(deadline_us / 4 + 2'500'000);   // of four verdicts
        EXPECT_EQ(streams[0]->losses + streams[1]->losses, 0u);
        for (Rank rank : {0u, 1u}) {
            const Attachment attachment{6, datagrams[rank].get(), true};
            company.nodes[rank].driver->host().open_view(1, {&attachment, 1});
        }
        for (uint64_t until = clock_us() + link_wait_us; clock_us() < until && streams[0]->losses == 0;) ::usleep(1000);
        for (Node& node : company.nodes) node.stop();
        EXPECT_GE(streams[0]->losses, 1u);
        EXPECT_TRUE(holds(streams[0]->last_loss, "no datagram reaches 127.0.0.1:")) << streams[0]->last_loss;
    });
}

// A stream that stands still brings no address for datagrams.
TEST_P(DatagramVerdicts, WhereOnlySmallPacketsPassTheStreamSaysSo) {
    IN_NAMESPACE(lo_and({"ip link set lo mtu 1500", nft_input + "ip length '>' 1000 drop"}), [] {
        Company company(2);
        const std::string group = test_group();
        for (Rank rank : {0u, 1u}) {
            LinkConfig config = company.config(kind(), protect(), rank, group);
            config.deadline_us = 4'000'000;
            company.open(rank, config, {{100}}, 0);
            company.nodes[rank].start(), company.go(rank);
        }
        for (uint64_t until = clock_us() + link_wait_us; clock_us() < until && !holds(company.said(0), "lost peer");) ::usleep(1000);
        for (uint64_t until = clock_us() + link_wait_us; clock_us() < until && !holds(company.said(1), "lost peer");) ::usleep(1000);
        for (Rank rank : {0u, 1u}) {
            company.nodes[rank].stop();
            const std::string said = fmt::format("packets of 1500 bytes from 'node{}' do not reach it, those of ", rank);
            EXPECT_TRUE(holds(company.criers[rank]->last_loss, said)) << company.criers[rank]->last_loss << company.said(rank);
            EXPECT_FALSE(holds(company.said(rank), "its log says why")) << company.said(rank);
        }
    });
}

// A bridge can forward trains and drop single datagrams of the same size.
TEST_P(DatagramVerdicts, APathThatLetsBurstsPassIsNamed) {
    IN_NAMESPACE(lo_and({nft_input + "meta l4proto udp udp length 1450-1500 drop"}), [] {
        Company company(2);
        const std::string group = test_group();
        for (Rank rank : {0u, 1u}) {
            company.open(rank, company.config(kind(), protect(), rank, group), {{100}}, 0);
            company.nodes[rank].start();
        }
        company.await_log(0, "datagrams of 1432 bytes do not reach 127.0.0.1:");
    });
}

TEST_P(DatagramVerdicts, APathOfSmallerDatagramsIsNamed) {
    IN_NAMESPACE(lo_and({nft_input + "meta l4proto udp udp length gt 1450 drop"}), [] {
        refuse_to_cut();   // on lo a train would pass the filter as one packet
        Company company(2);
        const std::string group = test_group();
        for (Rank rank : {0u, 1u}) {
            LinkConfig config = company.config(kind(), protect(), rank, group);
            config.deadline_us = 4'000'000;
            company.open(rank, config, {{100}}, 0);
            company.nodes[rank].start(), company.go(rank);
        }
        company.await_log(0, "datagrams of 1432 bytes do not reach 127.0.0.1:");
        EXPECT_TRUE(holds(company.said(0), "those of 1328 do: raise the MTU on the way to 1500")) << company.said(0);
        for (uint64_t until = clock_us() + link_wait_us; clock_us() < until && !holds(company.said(0), "lost peer");) ::usleep(1000);
        company.nodes[0].stop();
        EXPECT_TRUE(holds(company.criers[0]->last_loss, "those of 1328 do: raise the MTU on the way to 1500"))
            << company.criers[0]->last_loss;
    });
}

TEST_P(DatagramVerdicts, AnMtuThatShrinksIsNamed) {
    IN_NAMESPACE(lo_up, [] {
        Company company(2);
        const std::string group = test_group();
        for (Rank rank : {0u, 1u}) {
            company.open(rank, company.config(kind(), protect(), rank, group), {{datagram_bytes}, {datagram_bytes}, {datagram_bytes}}, 0);
            company.nodes[rank].start();
        }
        for (Rank rank : {0u, 1u}) company.await_text(rank, "reaches 1 of 1");
        ASSERT_EQ(std::system("ip link set lo mtu 1300"), 0);
        company.go(0);
        company.await(0);   // the datagrams are lost, their tickets are returned
        company.await_log(0, "do not fit interface lo any more, whose MTU is now 1300: set it to 1500 or more");
        EXPECT_EQ(company.nodes[0].driver->counters().datagrams_unsent, 3u);
        Node node;
        LinkConfig config = company.config(kind(), protect(), 0, test_group());
        EXPECT_STREQ(node.open(config).what, "datagrams of 1432 bytes do not fit interface lo, whose MTU is 1300: set it to 1500");
    });
}

// An absent peer delays others by at most the link's deadline; a peer that comes later is reached.
TEST_P(DatagramVerdicts, AnAbsentPeerIsNotWaitedForForEver) {
    Company company(3);
    const std::string group = test_group();
    for (Rank rank : {0u, 1u}) {
        LinkConfig config = company.config(kind(), protect(), rank, group);
        config.deadline_us = 1'000'000;
        company.open(rank, config, std::vector<Cry>(20, Cry{datagram_bytes}), 20);
        company.nodes[rank].start(), company.go(rank);
    }
    for (Rank rank : {0u, 1u}) company.await(rank);
    EXPECT_TRUE(holds(company.text(0), "reaches 1 of 2")) << company.text(0);
}

// Who is not here from the start holds nobody up, and is reached when it comes; also who was not known at the start.
TEST_P(DatagramVerdicts, APeerThatComesLaterIsNotWaitedFor) {
    for (const bool known : {true, false}) {
        Company company(3);
        const std::string group = test_group();
        PeerAddress later{test_identity(2), company.addresses[2]};
        later.identity.incarnation = 0;
        const auto open = [&](Rank rank, const std::vector<Cry>& cries, uint64_t expected) {
            LinkConfig config = company.config(kind(), protect(), rank, group);
            config.first = 2;
            config.survive = true;
            config.peers[2] = later;
            if (!known && rank < 2) config.peers.pop_back();
            company.open(rank, config, cries, expected);
            company.nodes[rank].start(), company.go(rank);
        };
        const uint64_t start = clock_us();
        for (Rank rank : {0u, 1u}) open(rank, std::vector<Cry>(20, Cry{datagram_bytes}), 20);
        for (Rank rank : {0u, 1u}) company.await(rank);
        EXPECT_LT(clock_us() - start, 10'000'000u) << "the deadline is 30 s";
        EXPECT_TRUE(holds(company.text(0), "reaches 1 of 1")) << company.text(0);
        for (Rank rank : {0u, 1u})
            if (!known) company.nodes[rank].driver->add(later);
        open(2, {}, 40);
        for (Rank rank : {0u, 1u, 2u}) company.await_text(rank, "reaches 2 of 2");
        company.go(0), company.go(1);
        company.await(2);
        for (Rank rank : {0u, 1u}) EXPECT_EQ(company.criers[rank]->losses, 1u) << "reported once, at the start";
    }
}

// A restarted peer has a new key and counts from the start.
TEST_P(DatagramVerdicts, ARestartedPeerIsHeardAgain) {
    Company company(2);
    const std::string group = test_group();
    auto open = [&](Rank rank, uint64_t incarnation) {
        LinkConfig config = company.config(kind(), protect(), rank, group);
        for (PeerAddress& peer : config.peers) peer.identity.incarnation = 0;
        config.self.incarnation = incarnation;
        config.deadline_us = 2'000'000;
        company.open(rank, config, std::vector<Cry>(20, Cry{datagram_bytes}), 20);
        company.nodes[rank].start();
    };
    open(0, 1), open(1, 1);
    company.go(0), company.go(1);
    company.await(0), company.await(1);
    company.nodes[1].stop();
    open(1, 2);
    company.await_text(1, "reaches 1 of 1");   // both have each other's new key
    company.go(0), company.go(1);
    company.await(1);
    for (uint64_t until = clock_us() + link_wait_us; clock_us() < until && company.dropped(0, DatagramFault::replayed) == 0;) {
        std::vector<Completion> none;
        (void)company.nodes[0].driver->host().wait(&none, clock_us() + 1000);
        if (company.nodes[0].driver->counters().packets_received > 100) break;
    }
    company.nodes[0].stop();
    EXPECT_EQ(company.criers[0]->received(), 40u);
    EXPECT_EQ(company.criers[0]->duplicates, 20u);   // the same sequence numbers under another key
}

/// A socket outside the job that receives from the group and sends to it.
struct Stranger {
    Fd fd;
    SocketAddress group;
    explicit Stranger(const std::string& text) {
        EXPECT_TRUE(address_resolve(text, false, &group).ok());
        fd = Fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        int one = 1;
        ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&group.storage), group.bytes), 0);
        ip_mreqn join{reinterpret_cast<sockaddr_in*>(&group.storage)->sin_addr, {htonl(INADDR_LOOPBACK)}, 1};
        EXPECT_EQ(::setsockopt(fd.get(), IPPROTO_IP, IP_ADD_MEMBERSHIP, &join, sizeof join), 0);
        EXPECT_EQ(::setsockopt(fd.get(), IPPROTO_IP, IP_MULTICAST_IF, &join, sizeof join), 0);
        const int room = 4 << 20;   // holds the trains of all ranks
        ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
        timeval limit{5, 0};
        ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    }
    void say(const std::vector<std::byte>& bytes) const {
        EXPECT_EQ(::sendto(fd.get(), bytes.data(), bytes.size(), 0, reinterpret_cast<const sockaddr*>(&group.storage), group.bytes),
                  static_cast<ssize_t>(bytes.size()));
    }
    /// The next datagram of this type from rank `sender`.
    std::vector<std::byte> receive(Rank sender, PacketType type) const {
        std::vector<std::byte> bytes(65536);
        for (;;) {
            const ssize_t got = ::recv(fd.get(), bytes.data(), bytes.size(), 0);
            if (got <= 0) return {};
            DatagramHeader header;
            std::memcpy(&header, bytes.data(), sizeof header);
            if (header.sender.get() != sender || header.kind != (datagram_magic | static_cast<uint8_t>(type))) continue;
            bytes.resize(static_cast<size_t>(got));
            return bytes;
        }
    }
};

TEST_P(Datagrams, ForgedReplayedAndForeignAreDroppedAndCounted) {
    Company company(3);
    const std::string group = test_group();
    Stranger stranger(group);
    talk(company, {{datagram_bytes}}, Landing::place, group);
    const std::vector<std::byte> good = stranger.receive(1, PacketType::parity);
    ASSERT_EQ(good.size(), datagram_bytes + datagram_overhead_bytes);
    const uint64_t before = company.criers[0]->received();
    std::vector<std::pair<DatagramFault, std::vector<std::byte>>> all = {
        {DatagramFault::replayed, good}, {DatagramFault::truncated, {}}, {DatagramFault::truncated, {good.begin(), good.begin() + 39}}};
    auto changed = [&](DatagramFault fault, size_t at) {
        all.emplace_back(fault, good);
        all.back().second[at] ^= std::byte{0x55};
    };
    changed(DatagramFault::magic, 0), changed(DatagramFault::type, 1), changed(DatagramFault::sender, 3), changed(DatagramFault::route, 4);
    changed(DatagramFault::tag, 9);                              // an unused sequence number
    all.back().second[sizeof(DatagramHeader)] ^= std::byte{1};   // an invalid tag
    for (auto& [fault, bytes] : all) {
        const uint64_t count = company.dropped(0, fault);
        stranger.say(bytes);
        for (uint64_t until = clock_us() + link_wait_us; clock_us() < until && company.dropped(0, fault) == count;) ::usleep(200);
        EXPECT_EQ(company.dropped(0, fault), count + 1) << datagram_fault_name(fault);
    }
    // Repeated faults cause one log line.
    const std::vector<std::byte>& foreign = all[6].second;   // as of another cluster or job: another route
    for (int i = 0; i < 250; ++i) stranger.say(foreign);
    company.await_log(0, "group " + group + " is also used by 127.0.0.1:");
    for (uint64_t until = clock_us() + link_wait_us; clock_us() < until && company.dropped(0, DatagramFault::route) < 251;) ::usleep(200);
    const std::string said = company.said(0);
    EXPECT_EQ(said.find("is also used by"), said.rfind("is also used by"));
    EXPECT_TRUE(holds(said, "(another cluster?), which costs time alone: a job that is submitted again gets another group")) << said;
    for (Node& node : company.nodes) node.stop();
    EXPECT_EQ(company.criers[0]->received(), before);
}

TEST_P(DatagramVerdicts, ALandingOfLaterLosesIt) {
    Company company(2);
    const std::string group = test_group();
    for (Rank rank : {0u, 1u}) {
        company.open(rank, company.config(kind(), protect(), rank, group), {{datagram_bytes}, {datagram_bytes}}, 0, Landing::later);
        company.nodes[rank].start(), company.go(rank);
    }
    for (Rank rank : {0u, 1u}) company.await(rank);
    for (uint64_t until = clock_us() + link_wait_us; clock_us() < until && company.dropped(0, DatagramFault::no_room) < 2;) ::usleep(200);
    EXPECT_EQ(company.dropped(0, DatagramFault::no_room), 2u);
}

TEST_P(DatagramVerdicts, AKernelThatDoesNotCutThem) {
    std::thread([] {
        refuse_to_cut();
        Company company(3);
        talk(company, std::vector<Cry>(100, Cry{datagram_bytes}));
        EXPECT_TRUE(holds(company.text(0), "no GSO, no GRO")) << company.text(0);
        EXPECT_TRUE(holds(company.said(0), "the kernel cannot cut datagrams itself (UDP_SEGMENT")) << company.said(0);
    }).join();
}

TEST_P(DatagramVerdicts, ACappedReceiveBufferIsSaidOnce) {
    std::thread([] {
        __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
        __user_cap_data_struct none[2]{};
        ASSERT_EQ(::syscall(SYS_capset, &header, none), 0);   // for this thread: no SO_RCVBUFFORCE
        Company company(1);
        LinkConfig config = company.config(kind(), protect(), 0, test_group());
        config.datagrams.socket_bytes = 1 << 29;
        company.open(0, config, {}, 0);
        const std::string said = company.said(0);
        EXPECT_TRUE(holds(said, "KiB instead of 524288 KiB, so bursts may be lost: sysctl -w net.core.rmem_max=536870912")) << said;
        EXPECT_EQ(said.find("rmem_max"), said.rfind("rmem_max"));
    }).join();
}

INSTANTIATE_TEST_SUITE_P(, Datagrams,
                         testing::Combine(testing::Values(LinkKind::uring_tcp, LinkKind::epoll_tcp),
                                          testing::Values(Protect::auth, Protect::encrypt, Protect::none)),
                         kind_name);
INSTANTIATE_TEST_SUITE_P(, DatagramVerdicts,
                         testing::Combine(testing::Values(LinkKind::uring_tcp, LinkKind::epoll_tcp), testing::Values(Protect::auth)),
                         kind_name);

TEST(DatagramsOpen, MistakesInTheirConfiguration) {
    Company company(1);
    auto mistake = [&](const std::string& interface, const std::string& group, const std::string& expected, Code code = Code::invalid) {
        LinkConfig config = company.config(LinkKind::epoll_tcp, Protect::auth, 0, group);
        config.datagrams.interface = interface;
        std::unique_ptr<Driver> driver;
        const Status status = driver_open(config, Log(), &driver);
        EXPECT_EQ(status.code, code);
        EXPECT_TRUE(holds(status.what, expected)) << status.what;
    };
    const std::string group = test_group();
    mistake("", group, "no interface is chosen for datagrams: name one of lo");
    mistake("loo", group, "there is no interface \"loo\" here, did you mean \"lo\": one of lo");
    mistake("nonsense0", group, "there is no interface \"nonsense0\" here: one of lo");
    mistake("203.0.113.77", group, "203.0.113.77 is not an address of this machine, which has 127.0.0.1");
    mistake("2001:db8::77", group, "2001:db8::77 is not an address of this machine");
    mistake("lo", "10.1.2.3:4712", "'10.1.2.3:4712' is not a multicast group: choose one of 239.192.0.0/14 or ff15::/16");
    mistake("lo", "239.192.1.2", "is not an address: write host:port");
    mistake("lo", "239.192.1.2:0", "the multicast group '239.192.1.2:0' has no port");
    {
        const Fd other(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));   // owns the port
        sockaddr_in any{};
        any.sin_family = AF_INET;
        socklen_t bytes = sizeof any;
        ASSERT_EQ(::bind(other.get(), reinterpret_cast<sockaddr*>(&any), bytes), 0);
        ASSERT_EQ(::getsockname(other.get(), reinterpret_cast<sockaddr*>(&any), &bytes), 0);
        const std::string taken = fmt::format("239.192.1.2:{}", ntohs(any.sin_port));
        mistake("lo", taken,
                "cannot bind to the multicast group " + taken + " (if another program has its port: ss -ulnp tells which): Address already",
                Code::node_io);
    }
    std::unique_ptr<Driver> driver;
    LinkConfig config = company.config(LinkKind::epoll_tcp, Protect::auth, 0, group);
    config.datagrams.segment_bytes = 0;
    ASSERT_TRUE(driver_open(config, Log(), &driver).ok());
    EXPECT_STREQ(driver->datagrams_name(), "");
    EXPECT_FALSE(driver->datagrams_found().has_value());
}

TEST(DatagramsOpen, InterfacesThatCannot) {
    IN_NAMESPACE(lo_and({"ip link add veth7 type veth peer name veth8"}), [] {
        Company company(1);
        auto mistake = [&](const std::string& group) {
            LinkConfig config = company.config(LinkKind::epoll_tcp, Protect::auth, 0, group);
            config.datagrams.interface = "veth7";
            std::unique_ptr<Driver> driver;
            return std::string(driver_open(config, Log(), &driver).what);
        };
        EXPECT_EQ(mistake(test_group()), "interface veth7 is down: ip link set veth7 up, or choose another");
        ASSERT_EQ(std::system("ip link set veth7 up && ip link set veth8 up && ip addr add 10.9.9.9/24 dev veth8"), 0);
        EXPECT_EQ(mistake(test_group()),
                  "interface veth7 has no IPv4 address: give it one, or choose another (or give an address of the other family)");
    });
}

}   // namespace
}   // namespace gradcast
