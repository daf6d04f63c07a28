// The link's test suite; parameters: backends and protections.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>

#include "runtime/core/fd.h"
#include "tests/link/chatter.h"
#include "tests/link/namespace.h"
#include "tests/link/proxy.h"

namespace gradcast {
namespace {

using Kind = std::tuple<LinkKind, Protect>;
class Link : public testing::TestWithParam<Kind> {
public:
    static LinkKind kind() { return std::get<0>(GetParam()); }
    static Protect protect() { return std::get<1>(GetParam()); }
    struct Options {
        Landing landing = Landing::lease;
        std::function<void(LinkConfig&)> change = {};
        std::function<Harm(uint64_t)> harm = {};   // by a proxy before each listener
        bool broken = false;                       // streams are expected to break
        std::shared_ptr<KeyRing> ring = {};        // of all
        uint32_t rails = 1;
        uint64_t reconnects = 0, refused = 0;   // results
    };
    /// n nodes that all send to each other; returns when every trainer has its completion.
    static void talk(uint32_t n, const std::vector<uint32_t>& sizes, Options&& options) { talk(n, sizes, options); }
    static void talk(uint32_t n, const std::vector<uint32_t>& sizes, Options& options) {
        std::vector<std::unique_ptr<Chatter>> chatters;   // must outlive the drivers
        std::vector<Node> nodes(n);
        std::vector<std::string> addresses(n);
        std::vector<std::unique_ptr<Proxy>> proxies;
        for (Rank rank = 0; rank < n; ++rank) {
            nodes[rank].listen(rank, test_keys(), options.ring);
            addresses[rank] = nodes[rank].listener->address();
            if (!options.harm) continue;
            proxies.push_back(std::make_unique<Proxy>(addresses[rank], options.harm));
            addresses[rank] = proxies.back()->address();
        }
        for (Rank rank = 0; rank < n; ++rank) {
            LinkConfig config = test_config(kind(), protect(), rank, addresses);
            config.ring = options.ring;
            if (options.change) options.change(config);
            config.rails = options.rails;
            ASSERT_TRUE(nodes[rank].open(config).ok());
            EXPECT_STREQ(nodes[rank].driver->name(), link_name(kind()));
            chatters.push_back(std::make_unique<Chatter>(rank, n, sizes, options.landing));
            chatters.back()->rails_ = config.connections() > 1;
            chatters.back()->express_ = config.express;
            nodes[rank].driver->attach(5, chatters.back().get());
        }
        for (Node& node : nodes) node.start();
        for (Node& node : nodes) node.driver->host().post(5, command_event(ChatterCommand::talk));
        for (Node& node : nodes) {
            std::vector<Completion> completions;
            Status status = node.driver->host().wait(&completions, clock_us() + link_wait_us);
            ASSERT_TRUE(status.ok()) << status.what;
            EXPECT_TRUE(completions[0].status.ok()) << completions[0].status.what;
        }
        uint64_t sent = 0, received = 0;   // equal once the last acknowledgement has arrived
        for (uint64_t until = clock_us() + 2'000'000; !options.broken && clock_us() < until;) {
            sent = received = 0;
            for (Node& node : nodes) {
                sent += node.driver->counters().bytes_sent;
                received += node.driver->counters().bytes_received;
            }
            if (sent == received) break;
            std::this_thread::yield();
        }
        EXPECT_EQ(sent, received);
        if (!options.broken && !proxies.empty()) {
            uint64_t carried = 0;
            for (auto& proxy : proxies) carried += proxy->forward() + proxy->backward();
            EXPECT_EQ(sent, carried);
        }
        for (Node& node : nodes) node.stop();
        uint64_t data = 0;
        for (uint32_t size : sizes) data += size + packet_head_bytes + tag_bytes;
        EXPECT_GE(sent, options.broken ? 0 : data * n * (n - 1));
        for (Rank rank = 0; rank < n; ++rank) {
            EXPECT_EQ(chatters[rank]->ups_, n - 1);
            options.reconnects += nodes[rank].driver->counters().reconnects;
            options.refused += nodes[rank].driver->counters().packets_refused;
        }
        EXPECT_TRUE(options.broken || (options.reconnects == 0 && options.refused == 0));
    }
};

TEST_P(Link, EverySizeArrivesWhole) {
    std::vector<uint32_t> sizes;
    for (uint32_t size : {0u, 1u, 3u, 15u, 16u, 17u, inline_bytes_max - 1, inline_bytes_max, inline_bytes_max + 1, 4096u, 16384u, 16385u,
                          65535u, 65536u, 65537u, segment_bytes_stream - 1, segment_bytes_stream})
        for (int again = 0; again < 3; ++again) sizes.push_back(size);
    for (Landing landing : {Landing::place, Landing::lease, Landing::later}) talk(2, sizes, {.landing = landing});
}

TEST_P(Link, FourTalkToEachOther) {
    std::vector<uint32_t> sizes;
    for (uint32_t i = 0; i < 200; ++i) sizes.push_back(static_cast<uint32_t>(splitmix64(i) % 3000));
    talk(4, sizes, {});
}

std::vector<uint32_t> mixed_sizes(uint32_t count) {
    std::vector<uint32_t> sizes;
    for (uint32_t i = 0; i < count; ++i)
        sizes.push_back(static_cast<uint32_t>(splitmix64(i) % 7 == 0 ? splitmix64(i + 99) % segment_bytes_stream : splitmix64(i) % 2000));
    return sizes;
}

TEST_P(Link, BytesAreCountedExactly) {
    talk(2, mixed_sizes(20), {.harm = [](uint64_t) { return Harm{}; }});
}

TEST_P(Link, SmallSocketBuffers) {
    for (Landing landing : {Landing::place, Landing::later})
        talk(2, {30'000, 3, 5000, 1000, 1, 30'000}, {.landing = landing, .change = [](LinkConfig& config) { config.socket_bytes = 8192; }});
}

TEST_P(Link, CutStreamsAreMended) {
    uint64_t random = 5;
    Options options{.landing = Landing::place,
                    .harm = [&](uint64_t i) { return i < 12 ? Harm{.cut_after = splitmix64(random + i) % 400'000} : Harm{}; },
                    .broken = true};
    talk(3, mixed_sizes(60), options);
    EXPECT_GT(options.reconnects, 3u);
}

/// A stream that is open stays under the keys that it began with, the next one has those of its time.
TEST_P(Link, KeysAreReplacedMeanwhile) {
    auto both = [](uint8_t first, uint8_t second) {
        std::vector<ClusterKey> keys = test_keys(first, fmt::format("k{}", first));
        keys.push_back(test_keys(second, fmt::format("k{}", second))[0]);
        return keys;
    };
    Options options{.landing = Landing::place, .broken = true, .ring = std::make_shared<KeyRing>(both(1, 2))};
    options.harm = [&](uint64_t i) {
        if (i < 8)
            options.ring->replace(i % 2 ? both(static_cast<uint8_t>(i + 1), static_cast<uint8_t>(i))
                                        : test_keys(static_cast<uint8_t>(i + 1), fmt::format("k{}", i + 1)));
        return i < 8 ? Harm{.cut_after = 50'000} : Harm{};
    };
    talk(2, mixed_sizes(60), options);
    EXPECT_GT(options.reconnects, 3u);
}

TEST_P(Link, FlippedBitsAreRefusedAndMended) {
    if (protect() == Protect::none) return;   // cannot detect changes
    uint64_t random = 7;
    Options options{.harm = [&](uint64_t i) { return i < 8 ? Harm{.flip_at = splitmix64(random + i) % 100'000} : Harm{}; }, .broken = true};
    talk(2, mixed_sizes(60), options);
    EXPECT_GT(options.refused, 2u);
}

struct Two {
    std::unique_ptr<Chatter> chatters[2];   // must outlive the drivers
    Node nodes[2];
    std::vector<std::string> listen() {
        for (Rank rank : {0u, 1u}) nodes[rank].listen(rank);
        return {nodes[0].listener->address(), nodes[1].listener->address()};
    }
    void open(Rank rank, const LinkConfig& config, uint32_t bytes = 10) {
        chatters[rank] = std::make_unique<Chatter>(rank, 2, std::vector<uint32_t>{bytes});
        ASSERT_TRUE(nodes[rank].open(config).ok());
        nodes[rank].driver->attach(5, chatters[rank].get());
        nodes[rank].start();
    }
    Status wait(Rank rank) {
        std::vector<Completion> completions;
        GC_TRY(nodes[rank].driver->host().wait(&completions, clock_us() + link_wait_us));
        return completions[0].status;
    }
    void go(Rank rank, ChatterCommand command = ChatterCommand::talk) { nodes[rank].driver->host().post(5, command_event(command)); }
};
bool holds(const char* text, const char* part) { return std::string(text).find(part) != std::string::npos; }

// ---- rails ----------------------------------------------------------------------------------------------------------------------

TEST_P(Link, RailsKeepTheOrder) {
    for (const auto& [rails, landing] : {std::pair{2u, Landing::place}, {3u, Landing::lease}, {rails_max, Landing::later}})
        for (const bool express : {false, true})
            talk(3, mixed_sizes(60),
                 {.landing = landing, .change = [express](LinkConfig& config) { config.express = express; }, .rails = rails});
}

TEST_P(Link, RailsThatBreakAreMended) {
    Options options{.landing = Landing::place,
                    .harm = [&](uint64_t i) { return i < 24 ? Harm{.cut_after = splitmix64(i + 11) % 400'000} : Harm{}; },
                    .broken = true,
                    .rails = 2};
    talk(3, mixed_sizes(120), options);
    EXPECT_GT(options.reconnects, 3u);
}

// The other side takes all rails for open while the last messages of their handshakes are on the way.  What it sends by the first rail
// begins to come with that message, before the second rail is open here, and goes on after it.  Nothing is refused, and no payload has a
// hole.
TEST_P(Link, ARailThatOpensFirstWaitsForTheOthers) {
    for (uint64_t at = 150; at <= 800; at += 50) {
        Options options{.landing = Landing::place,
                        .harm =
                            [&](uint64_t i) {
                                if (i == 0) return Harm{.pause_at = at, .pauses_us = {10'000, 40'000}};
                                return i == 1 ? Harm{.pause_at = at, .pauses_us = {30'000}} : Harm{};
                            },
                        .broken = true,
                        .rails = 2};
        talk(2, {1535, 1978, 813, 31860, 346, 44, 65000, 1622, 200'000, 31860, 17, 90'000}, options);
        EXPECT_EQ(options.refused, 0u) << "pause after " << at << " bytes";
    }
}

TEST_P(Link, ARailWhoseInterfaceIsDeadTakesAnother) {
    talk(2, mixed_sizes(20),
         {.change =
              [](LinkConfig& config) {
                  config.peers[1].rails = {config.peers[1].address, "127.0.0.1:1"};
              },
          .broken = true,
          .rails = 2});
}

TEST_P(Link, RailsAreAgreed) {
    Two two;
    two.nodes[1].listen(1);
    for (Rank rank : {1u, 0u}) {
        LinkConfig config = test_config(kind(), protect(), rank, {"127.0.0.1:1", two.nodes[1].listener->address()});
        config.rails = 1 + rank;
        config.deadline_us = 300'000;
        two.open(rank, config);
    }
    const Status status = two.wait(0);
    EXPECT_TRUE(holds(status.what, "'node0' has 1 rails to each peer, 'node1' 2")) << status.what;
}

// ---- peers that do not come, or go ---------------------------------------------------------------------------------------------

TEST_P(Link, PeerThatNeverComesIsLost) {
    for (Rank self : {0u, 1u}) {
        Two two;
        two.nodes[1].listen(1);   // its job is not open
        std::vector<std::string> addresses = {"127.0.0.1:1", self == 0 ? two.nodes[1].listener->address() : "127.0.0.1:1"};
        LinkConfig config = test_config(kind(), protect(), self, addresses);
        config.deadline_us = 300'000;
        uint64_t start = clock_us();
        two.open(self, config);
        Status status = two.wait(self);
        EXPECT_FALSE(status.ok());
        EXPECT_GE(clock_us() - start, 300'000u);
        EXPECT_TRUE(holds(status.what, self == 0 ? "peer 'node1' (rank 1, 127.0.0.1:"
                                                 : "peer 'node0' (rank 0, 127.0.0.1:1): it did not come within 0.3 s: is gradcastd running "
                                                   "there? Its log says why it cannot come"))
            << status.what;
        EXPECT_EQ(holds(status.what, "'node1' refuses us: it has not opened job abababab"), self == 0) << status.what;
    }
}

// The first address of a name may be dead, as IPv6 where only half of the network has it.
TEST_P(Link, AllAddressesOfANameAreTried) {
    WITH_HOSTS("::1 two\n127.0.0.1 two\n", [&] {
        Two two;
        two.nodes[1].listen(1);
        const std::string listener = two.nodes[1].listener->address();
        const std::vector<std::string> addresses = {"127.0.0.1:1", "two" + listener.substr(listener.rfind(':'))};
        for (Rank rank : {1u, 0u}) two.open(rank, test_config(kind(), protect(), rank, addresses));
        for (Rank rank : {0u, 1u}) two.go(rank);
        for (Rank rank : {0u, 1u}) EXPECT_TRUE(two.wait(rank).ok());
    });
    WITH_HOSTS("127.0.0.1 two\n", [&] {
        Two two;
        LinkConfig config = test_config(kind(), protect(), 0, {"127.0.0.1:1", "two:1"});
        config.deadline_us = 100'000;
        two.open(0, config);
        const Status status = two.wait(0);
        EXPECT_TRUE(holds(status.what, "peer 'node1' (rank 1, two:1): cannot connect to 127.0.0.1:1: Connection refused")) << status.what;
    });
}

// A smaller MTU on the way, of which no ICMP message comes: small packets pass.
const std::string drop_large = nft_input + "ip length '>' 1000 drop";

TEST_P(Link, WhereOnlySmallPacketsPassThePeerIsLostBeforeItIsSentData) {
    IN_NAMESPACE(lo_and({"ip link set lo mtu 1500", drop_large}), [] {
        Two two;
        const std::vector<std::string> addresses = two.listen();
        for (Rank rank : {0u, 1u}) {
            LinkConfig config = test_config(kind(), protect(), rank, addresses);
            config.deadline_us = 4'000'000;
            two.open(rank, config);
        }
        for (Rank rank : {0u, 1u}) {
            const std::string said = two.wait(rank).what;
            const std::string begins =
                fmt::format("peer 'node{}' (rank {}, {}): packets of 1500 bytes from 'node{}' do not reach it, those of ", 1 - rank,
                            1 - rank, addresses[1 - rank], rank);
            EXPECT_EQ(said.substr(0, begins.size()), begins);
            EXPECT_TRUE(holds(said.c_str(),
                              " bytes do: the MTU on the way is smaller than that of lo, and no ICMP tells: at both nodes ip link set dev "
                              "lo mtu M, where M is the largest for which ping -M do -s $((M - 28)) is answered, or sysctl "
                              "net.ipv4.tcp_mtu_probing=2"))
                << said;
            EXPECT_GT(std::atoi(said.c_str() + begins.size()), 100);
            EXPECT_LE(std::atoi(said.c_str() + begins.size()), 1000);
        }
    });
}

TEST_P(Link, WhereOnlySmallPacketsPassThatIsTheReasonAlsoIfThePeerIsGone) {
    IN_NAMESPACE(lo_and({"ip link set lo mtu 1500", drop_large}), [] {
        Two two;
        const std::vector<std::string> addresses = two.listen();
        for (Rank rank : {0u, 1u}) {
            LinkConfig config = test_config(kind(), protect(), rank, addresses);
            config.deadline_us = rank == 0 ? 3'000'000 : 2'000'000;
            two.open(rank, config);
        }
        ::usleep(400'000);   // both repeat their probes
        two.nodes[1].leave();
        const std::string said = two.wait(0).what;
        EXPECT_TRUE(holds(said.c_str(), "packets of 1500 bytes from 'node0' do not reach it, those of ")) << said;
    });
}

// What the message says helps.
TEST_P(Link, WithProbingByTheKernelASmallMtuIsNoLoss) {
    IN_NAMESPACE(lo_and({"ip link set lo mtu 1500", nft_input + "ip length '>' 1200 drop", "sysctl -q net.ipv4.tcp_mtu_probing=2"}), [] {
        Options options;
        talk(2, {100}, options);
        EXPECT_EQ(options.reconnects, 0u);
    });
}

TEST_P(Link, LargePacketsThatDoNotArriveAnyMoreAreNamed) {
    IN_NAMESPACE(lo_and({"ip link set lo mtu 1500", "nft list ruleset"}), [] {
        std::mutex mutex;   // outlives the network threads
        std::string warning;
        Two two;
        const std::vector<std::string> addresses = two.listen();
        for (Rank rank : {0u, 1u}) {
            LinkConfig config = test_config(kind(), protect(), rank, addresses);
            config.warn = [&](const std::string& text) {
                std::lock_guard lock(mutex);
                warning = text;
            };
            two.open(rank, config, 100'000);
        }
        for (Rank rank : {0u, 1u})
            for (const LinkCounters& counters = two.nodes[rank].driver->counters(); counters.packets_received < 2;) ::usleep(1000);
        ASSERT_EQ(std::system((drop_large).c_str()), 0);
        for (Rank rank : {0u, 1u}) two.go(rank);
        for (const uint64_t until = clock_us() + link_wait_us; clock_us() < until; ::usleep(10'000)) {
            std::lock_guard lock(mutex);
            if (!warning.empty()) break;
        }
        std::lock_guard lock(mutex);
        EXPECT_TRUE(holds(warning.c_str(), "peer 'node")) << warning;
        EXPECT_TRUE(holds(warning.c_str(),
                          "times without an answer, in packets of up to 1500 bytes: if a plain ping reaches it and ping -M do -s 1472"))
            << warning;
    });
}

TEST_P(Link, NobodyListens) {
    Two two;
    LinkConfig config = test_config(kind(), protect(), 0, {"127.0.0.1:1", "127.0.0.1:1"});
    config.deadline_us = 100'000;
    two.open(0, config);
    EXPECT_TRUE(holds(two.wait(0).what, "cannot connect: Connection refused"));
    EXPECT_EQ(two.chatters[0]->losses_, 1u);
}

// TCP alone retransmits its first packet after 1 and 3 s; the link tries again earlier.
TEST_P(Link, ALostFirstPacketIsNotWaitedFor) {
    IN_NAMESPACE(lo_and({nft_input + "tcp flags \\& '(syn|ack)' == syn numgen inc mod 4 \\< 3 drop"}), [] {
        const uint64_t start = clock_us();
        Options options;
        options.change = [](LinkConfig& config) { config.deadline_us = 2'000'000; };
        talk(2, {100}, options);
        EXPECT_LT(clock_us() - start, 2'000'000u);
    });
}

TEST_P(Link, PeerThatGoesIsLostAtTheDeadline) {
    Two two;
    two.nodes[1].listen(1);
    std::vector<std::string> addresses = {"127.0.0.1:1", two.nodes[1].listener->address()};
    two.nodes[0].listen(0);
    for (Rank rank : {0u, 1u}) {
        LinkConfig config = test_config(kind(), protect(), rank, addresses);
        config.deadline_us = 400'000;
        two.open(rank, config);
        two.go(rank);
    }
    // Both complete their exchange before one stops.
    EXPECT_TRUE(two.wait(0).ok());
    EXPECT_TRUE(two.wait(1).ok());
    two.nodes[1].stop();
    two.go(0, ChatterCommand::forget);
    EXPECT_FALSE(two.wait(0).ok());
}

// It is reported as lost at once, nobody knocks at its address, and it connects when it comes.
TEST_P(Link, PeerThatComesLaterBeginsAsLost) {
    Two two;
    two.nodes[0].listen(0);
    const std::vector<std::string> addresses = {two.nodes[0].listener->address(), "nowhere.invalid:1"};
    const auto open = [&](Rank rank) {
        LinkConfig config = test_config(kind(), protect(), rank, addresses);
        config.first = 1;
        config.survive = true;
        config.peers[1].identity.incarnation = 0;
        two.open(rank, config);
    };
    open(0);
    const Status status = two.wait(0);
    EXPECT_EQ(status.code, Code::peer_lost);
    EXPECT_TRUE(holds(status.what, "peer 'node1' (rank 1, nowhere.invalid:1): it has not come yet")) << status.what;
    two.go(0, ChatterCommand::forget);
    two.go(0, ChatterCommand::await);
    open(1);
    EXPECT_TRUE(two.wait(0).ok());
    two.go(0), two.go(1);
    EXPECT_TRUE(two.wait(0).ok());
    EXPECT_TRUE(two.wait(1).ok());
    EXPECT_EQ(two.chatters[0]->ups_, 1u);
}

TEST_P(Link, RestartProvesDeath) {
    for (bool any : {false, true}) {   // any: the mesh of daemons accepts the next incarnation, a job does not
        Two two;
        two.nodes[1].listen(1);
        std::vector<std::string> addresses = {"127.0.0.1:1", two.nodes[1].listener->address()};
        auto config_of = [&](Rank rank, uint64_t incarnation) {
            LinkConfig config = test_config(kind(), protect(), rank, addresses);
            for (PeerAddress& peer : config.peers) {
                if (!any) continue;
                peer.identity.uuid = {};
                peer.identity.incarnation = 0;
            }
            config.self.incarnation = incarnation;
            return config;
        };
        two.open(0, config_of(0, 1)), two.open(1, config_of(1, 1));
        two.go(0), two.go(1);
        EXPECT_TRUE(two.wait(0).ok());
        EXPECT_TRUE(two.wait(1).ok());
        two.nodes[1].stop();
        two.go(0, ChatterCommand::forget);
        uint64_t start = clock_us();
        two.open(1, config_of(1, 2));
        Status status = two.wait(0);
        EXPECT_TRUE(holds(status.what, "has restarted")) << status.what;
        EXPECT_LT(clock_us() - start, 10'000'000u);   // the deadline is 30 s
        if (!any) continue;
        two.go(0, ChatterCommand::forget);
        two.go(0, ChatterCommand::await);   // sends to a lost peer fail at once
        EXPECT_TRUE(two.wait(0).ok());
        two.go(0), two.go(1);
        EXPECT_TRUE(two.wait(0).ok());
        EXPECT_TRUE(two.wait(1).ok());
        EXPECT_EQ(two.chatters[0]->ups_, 2u);
    }
}

// ---- refusals: one clear line --------------------------------------------------------------------------------------------------

TEST_P(Link, RefusalsSayWhy) {
    struct {
        const char* name;
        std::function<void(LinkConfig&)> change;   // of rank 0, which connects
        const char* line;
    } cases[] = {
        {"name", [](LinkConfig& c) { c.self.name = "eve"; }, "does not expect 'eve' to connect to 'node1'"},
        {"mesh", [](LinkConfig& c) { c.self.name = "eve", c.job = {}; }, "'eve' is not a member at 'node1': the lists of members differ"},
        {"own", [](LinkConfig& c) { c.self.uuid = test_identity(1).uuid; },
         "peer 'node0' is our own identity: two daemons share the state directory of 'node1'"},
        {"twin", [](LinkConfig& c) { c.self.uuid.fill(0x77); }, "two daemons are named 'node0'"},
        {"protect", [](LinkConfig& c) { c.protect = c.protect == Protect::auth ? Protect::none : Protect::auth; }, "has protect = "},
        {"segment", [](LinkConfig& c) { c.segment_bytes = 1000; }, "'node0' sends segments of 1000 bytes, 'node1' of 262144"},
        {"rank", [](LinkConfig& c) { std::swap(c.peers[1], c.peers[2]), c.peers[1].address = "127.0.0.1:1"; },
         "the lists of members differ"},
        {"expected", [](LinkConfig& c) { c.peers[1].identity.name = "other"; }, "'node1' answers where 'other' is expected"},
        {"keys", [](LinkConfig& c) { c.keys = test_keys(99); }, "the cluster keys differ: it does not take our key 'k1'"},
    };
    for (auto& each : cases) {
        SCOPED_TRACE(each.name);
        Node nodes[2];
        nodes[1].listen(1);
        std::vector<std::string> addresses = {"127.0.0.1:1", nodes[1].listener->address(), nodes[1].listener->address()};
        LinkConfig config = test_config(kind(), protect(), 1, addresses);
        config.peers.pop_back();
        if (std::string(each.name) == "mesh") config.job = {};
        Chatter one(1, 2, {10}), zero(0, 3, {10});
        ASSERT_TRUE(nodes[1].open(config).ok());
        nodes[1].driver->attach(5, &one);
        nodes[1].start();
        config = test_config(kind(), protect(), 0, addresses);
        if (std::string(each.name) != "rank") config.peers.pop_back();
        each.change(config);
        ASSERT_TRUE(nodes[0].open(config).ok());
        nodes[0].driver->attach(5, &zero);
        uint64_t start = clock_us();
        nodes[0].start();
        std::vector<Completion> completions;
        ASSERT_TRUE(nodes[0].driver->host().wait(&completions, clock_us() + link_wait_us).ok());
        EXPECT_TRUE(holds(completions[0].status.what, each.line)) << completions[0].status.what;
        EXPECT_LT(clock_us() - start, 10'000'000u);   // long before the deadline: retrying cannot help
    }
}

TEST_P(Link, APeerThatWasGivenUpLearnsWhy) {
    Two two;
    const std::vector<std::string> addresses = two.listen();
    LinkConfig config = test_config(kind(), protect(), 1, addresses);
    config.deadline_us = 300'000;
    two.open(1, config);
    EXPECT_FALSE(two.wait(1).ok());
    two.open(0, test_config(kind(), protect(), 0, addresses));
    const Status status = two.wait(0);
    EXPECT_TRUE(holds(status.what, "'node1' refuses us: it has given up 'node0': peer 'node0' (rank 0")) << status.what;
    EXPECT_TRUE(holds(status.what, "it did not come within 0.3 s")) << status.what;
}

// ---- the driver alone ----------------------------------------------------------------------------------------------------------

TEST_P(Link, OneRankNeedsNoSocket) {
    struct Alone : Protocol {
        std::vector<int32_t> a{1, 2, 3}, b{10, 20, 30};
        std::vector<uint64_t> rang;
        int sums = 0;
        void on(std::span<const Event> events, Actions& actions) override {
            for (const Event& event : events) {
                if (event.is<Event::Command>()) {
                    actions.timers = {{1, actions.now_us + 20'000},
                                      {2, actions.now_us + 10'000},
                                      {3, actions.now_us + 5'000},
                                      {3, 0},
                                      {1, actions.now_us + 5'000}};
                    actions.computes.push_back({Kernel::add_i32, buffer(a), buffer(b), 3, 77});
                }
                if (const auto* timer = event.is<Event::TimerExpired>()) rang.push_back(timer->id);
                if (const auto* done = event.is<Event::Computed>()) sums += done->ticket == 77 && a == std::vector<int32_t>{11, 22, 33};
                if (event.is<Event::TimerExpired>() && rang.size() == 2) actions.completions.push_back({0, 9, 4, nullptr, {}});
            }
        }
        static Buffer buffer(std::vector<int32_t>& words) {
            return {reinterpret_cast<std::byte*>(words.data()), nullptr, 4 * words.size()};
        }
    } alone;
    Node node;
    ASSERT_TRUE(node.open(test_config(kind(), protect(), 0, {"127.0.0.1:1"})).ok());
    node.driver->attach(8, &alone);
    node.start();
    node.driver->host().post(8, command_event(0));
    std::vector<Completion> completions;
    ASSERT_TRUE(node.driver->host().wait(&completions, clock_us() + link_wait_us).ok());
    EXPECT_EQ(completions[0].channel, 8);
    EXPECT_EQ(completions[0].id, 9u);
    EXPECT_EQ(alone.rang, (std::vector<uint64_t>{1, 2}));
    EXPECT_EQ(alone.sums, 1);
    EXPECT_EQ(node.driver->host().wait(&completions, clock_us() + 1000).code, Code::deadline);
    node.stop();
    EXPECT_EQ(node.driver->host().wait(&completions, clock_us() + link_wait_us).code, Code::cancelled);
}

INSTANTIATE_TEST_SUITE_P(All, Link,
                         testing::Combine(testing::Values(LinkKind::uring_tcp, LinkKind::epoll_tcp),
                                          testing::Values(Protect::none, Protect::auth, Protect::encrypt)),
                         kind_name);

// ---- io_uring that is refused, the listener ------------------------------------------------------------------------------------

TEST(Driver, FallsBackToEpollWhereIoUringIsRefused) {
    std::string path = testing::TempDir() + "fallback.log";
    ::unlink(path.c_str());
    std::thread([&] {   // a filter applies to its thread only
        sock_filter program[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                                 BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
        sock_fprog filter{4, program};
        ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
        Log log;
        ASSERT_TRUE(log.open(path, "").ok());
        std::unique_ptr<Driver> driver;
        ASSERT_TRUE(driver_open(test_config(LinkKind::uring_tcp, Protect::auth, 0, {"127.0.0.1:1"}), log, &driver).ok());
        EXPECT_STREQ(driver->name(), "epoll_tcp");
    })
        .join();
    std::string text;
    ASSERT_TRUE(file_read(path, &text).ok());
    EXPECT_TRUE(holds(text.c_str(), "io_uring is refused here: Operation not permitted: using epoll instead")) << text;
}

TEST(Driver, MistakesInItsConfiguration) {
    std::unique_ptr<Driver> driver;
    LinkConfig config = test_config(LinkKind::epoll_tcp, Protect::auth, 0, {"127.0.0.1:1", "nonsense"});
    EXPECT_TRUE(holds(driver_open(config, Log(), &driver).what, "'nonsense' is not an address: write host:port or [v6]:port"));
    config.peers[1].address = "[::1]:1";
    config.rank = 2;
    EXPECT_TRUE(holds(driver_open(config, Log(), &driver).what, "cannot have rank 2"));
    config.rank = 0;
    config.segment_bytes = 0;
    EXPECT_TRUE(holds(driver_open(config, Log(), &driver).what, "segments of 0 bytes"));
}

struct Guest {
    Fd fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    explicit Guest(const std::string& address) {
        SocketAddress to;
        EXPECT_TRUE(address_resolve(address, false, &to).ok());
        EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&to.storage), to.bytes), 0);
    }
};

TEST(Socket, WhatSystemsHaveByDefaultBecomesReno) {
    auto tuned = [](const char* before) {
        const Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        char name[16] = {};
        socklen_t bytes = sizeof name - 1;
        if (::setsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, before, static_cast<socklen_t>(strlen(before))) != 0) return std::string();
        socket_tune(fd.get(), 20'000'000, 0);
        EXPECT_EQ(::getsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, name, &bytes), 0);
        return std::string(name);
    };
    EXPECT_EQ(tuned("reno"), "reno");
    for (const auto& [each, then] : {std::pair{"cubic", "reno"}, {"bbr", "reno"}, {"dctcp", "dctcp"}, {"vegas", "vegas"}}) {
        const std::string name = tuned(each);
        EXPECT_TRUE(name.empty() || name == then) << each << ": " << name;   // empty: this kernel lacks it
    }
}

TEST(Listener, SilentGuestsDoNotKeepOthersOut) {
    std::vector<std::unique_ptr<Chatter>> chatters;   // must outlive the drivers
    Node nodes[2];
    nodes[1].listen(1);
    std::list<Guest> silent;
    for (int i = 0; i < 300; ++i) silent.emplace_back(nodes[1].listener->address());
    std::vector<std::string> addresses = {"127.0.0.1:1", nodes[1].listener->address()};
    uint64_t start = clock_us();
    for (Rank rank : {0u, 1u}) {
        chatters.push_back(std::make_unique<Chatter>(rank, 2, std::vector<uint32_t>{10, 20}));
        ASSERT_TRUE(nodes[rank].open(test_config(LinkKind::uring_tcp, Protect::auth, rank, addresses)).ok());
        nodes[rank].driver->attach(5, chatters[rank].get());
        nodes[rank].start();
        nodes[rank].driver->host().post(5, command_event(ChatterCommand::talk));
    }
    for (Node& node : nodes) {
        std::vector<Completion> completions;
        ASSERT_TRUE(node.driver->host().wait(&completions, clock_us() + link_wait_us).ok());
    }
    EXPECT_LT(clock_us() - start, 4'000'000u);   // silent connections are kept for 5 s
}

TEST(Listener, DropsWhoSaysNothingAndTellsOnce) {
    std::string path = testing::TempDir() + "listener." + std::to_string(::getpid()) + ".log";
    ::unlink(path.c_str());
    Log log;
    ASSERT_TRUE(log.open(path, "").ok());
    ListenerConfig config;
    config.address = "127.0.0.1:0";
    config.self = test_identity(1);
    config.keys = test_keys();
    config.handshake_us = 50'000;
    std::unique_ptr<Listener> listener;
    ASSERT_TRUE(listener_open(config, log, &listener).ok());
    ASSERT_TRUE(listener->start([](const JobId&, std::unique_ptr<AcceptedStream>) { return false; }).ok());
    Guest first(listener->address()), second(listener->address()), html(listener->address());
    ASSERT_EQ(::send(html.fd.get(), "GET / HTTP/1.1\r\n\r\n", 18, 0), 18);
    char byte;
    for (Guest* guest : {&first, &second, &html}) EXPECT_LE(::recv(guest->fd.get(), &byte, 1, 0), 0);   // the listener closes them
    // An unknown key.
    Guest wrong(listener->address());
    Hello hello;
    hello.name = "node0";
    hello.stream = 1;
    Handshake handshake(std::make_shared<TlsContext>(test_keys(66)), Handshake::Side::connector, hello);
    ASSERT_GT(::send(wrong.fd.get(), handshake.output().data(), handshake.output().size(), 0), 0);
    std::byte answer[1000];
    ssize_t got = ::recv(wrong.fd.get(), answer, sizeof answer, 0);
    ASSERT_GT(got, 0);
    handshake.feed({answer, static_cast<size_t>(got)});
    EXPECT_TRUE(holds(handshake.status().what, "the cluster keys differ")) << handshake.status().what;
    listener.reset();
    std::string text;
    ASSERT_TRUE(file_read(path, &text).ok());
    EXPECT_TRUE(holds(text.c_str(), "said nothing in time")) << text;
    EXPECT_TRUE(holds(text.c_str(), "it does not speak TLS")) << text;
    EXPECT_TRUE(holds(text.c_str(), "is refused: the cluster keys differ: its key 'k1' is not ours")) << text;
    EXPECT_EQ(text.find("said nothing"), text.rfind("said nothing"));
}

TEST(Listener, PortInUseIsNamed) {
    ListenerConfig config;
    config.address = "127.0.0.1:0";
    config.self = test_identity(1);
    config.keys = test_keys();
    std::unique_ptr<Listener> first, second;
    ASSERT_TRUE(listener_open(config, Log(), &first).ok());
    config.address = first->address();
    Status status = listener_open(config, Log(), &second);
    EXPECT_EQ(status.sys, EADDRINUSE);
    EXPECT_TRUE(holds(status.what, ("cannot listen on " + config.address).c_str())) << status.what;
}

}   // namespace
}   // namespace gradcast
