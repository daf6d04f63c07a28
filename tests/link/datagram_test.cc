// Datagrams of a link, over both backends: on lo, in a group that the test's process id picks.
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "runtime/core/fd.h"
#include "tests/link/crier.h"

namespace gradcast {
namespace {

constexpr uint64_t wait_us = 20'000'000;
constexpr uint32_t segment = 1424;

std::string test_group(bool ipv6 = false) {
    static uint32_t number = 0;
    JobId job{};
    const uint32_t id = static_cast<uint32_t>(getpid());
    std::memcpy(job.data(), &id, sizeof id);
    ++number;
    return multicast_group(job, number, ipv6, static_cast<uint16_t>(20000 + (id + number) % 20000));
}

/// n ranks with datagrams, and what they have written to their logs.
struct Company {
    std::vector<Node> nodes;
    std::vector<std::unique_ptr<Crier>> criers;
    std::vector<std::string> addresses;
    Company(uint32_t n) : nodes(n), addresses(n) {
        for (Rank rank = 0; rank < n; ++rank) {
            nodes[rank].listen(rank);
            addresses[rank] = nodes[rank].listener->address();
        }
    }
    LinkConfig config(LinkKind kind, Protect protect, Rank rank, const std::string& group) {
        LinkConfig config = test_config(kind, protect, rank, addresses);
        config.datagrams.interface = "lo", config.datagrams.group = group, config.datagrams.segment_bytes = segment;
        return config;
    }
};

using Kind = std::tuple<LinkKind, Protect>;
class Datagram : public testing::TestWithParam<Kind> {
public:
    static LinkKind kind() { return std::get<0>(GetParam()); }
    static Protect protect() { return std::get<1>(GetParam()); }
    struct Options {
        Landing landing = Landing::place;
        std::string group = test_group();
        std::function<void(LinkConfig&)> change = {};
        std::function<std::string(Rank)> group_of = {};
        std::vector<std::string> texts = {};               // out
        std::vector<uint64_t> own = {}, bytes_sent = {};   // out
    };
    void cry(uint32_t n, const std::vector<Cry>& cries, Options&& options) { cry(n, cries, options); }
    void cry(uint32_t n, const std::vector<Cry>& cries, Options& options) {
        Company company(n);
        for (Rank rank = 0; rank < n; ++rank) {
            LinkConfig config = company.config(kind(), protect(), rank, options.group_of ? options.group_of(rank) : options.group);
            if (options.change) options.change(config);
            ASSERT_TRUE(company.nodes[rank].open(config).ok());
            EXPECT_STREQ(company.nodes[rank].driver->datagrams_name(), kind() == LinkKind::uring_tcp ? "uring_udp" : "epoll_udp");
            std::vector<Cry> own = cries;
            std::erase_if(own, [&](const Cry& each) { return each.to == static_cast<int>(rank); });
            company.criers.push_back(std::make_unique<Crier>(rank, n, own, options.landing));
            uint64_t expected = 0;
            for (const Cry& each : cries) expected += each.to < 0 || each.to == static_cast<int>(rank) ? n - 1 : 0;
            company.criers.back()->expect(expected);
            company.nodes[rank].driver->attach_datagrams(5, company.criers.back().get());
        }
        for (Node& node : company.nodes) node.start();
        Event go;
        go.kind = Event::Kind::command;
        for (Node& node : company.nodes) node.driver->host().post(5, go);
        for (Rank rank = 0; rank < n; ++rank) {
            std::vector<Completion> completions;
            Status status = company.nodes[rank].driver->host().wait(&completions, clock_us() + wait_us);
            const auto& dropped = company.nodes[rank].driver->counters().datagrams_dropped;
            std::string faults;
            for (size_t i = 1; i < dropped.size(); ++i)
                if (dropped[i]) faults += fmt::format(" {} {}", dropped[i].load(), datagram_fault_name(static_cast<DatagramFault>(i)));
            EXPECT_TRUE(status.ok()) << status.what << " at rank " << rank << ": " << company.nodes[rank].driver->datagrams_text()
                                     << faults;
        }
        for (Node& node : company.nodes) node.stop();
        for (Rank rank = 0; rank < n; ++rank) {
            const LinkCounters& counters = company.nodes[rank].driver->counters();
            EXPECT_EQ(company.criers[rank]->duplicates, 0u);
            EXPECT_EQ(counters.datagrams_unsent, 0u);
            options.texts.push_back(company.nodes[rank].driver->datagrams_text());
            options.own.push_back(counters.datagrams_dropped[static_cast<size_t>(DatagramFault::own)]);
            options.bytes_sent.push_back(counters.bytes_sent);
        }
    }
};

TEST_P(Datagram, EverySizeArrivesWholeAtEverybody) {
    std::vector<Cry> cries;
    for (uint32_t bytes : {0u, 1u, 3u, 15u, 16u, 17u, 511u, 1023u, 1024u, 1025u, segment - 1, segment})
        for (int again = 0; again < 3; ++again) cries.push_back({bytes});
    for (Landing landing : {Landing::place, Landing::lease}) {
        Options options{.landing = landing};
        cry(3, cries, options);
        EXPECT_EQ(options.texts[0].find("multicast 239."), 0u) << options.texts[0];
        EXPECT_NE(options.texts[0].find("on lo reaches 2 of 2 at 1424 bytes"), std::string::npos) << options.texts[0];
        EXPECT_GE(options.own[0], cries.size());   // on lo the group gives back what was sent to it
    }
}

std::string kind_name(const testing::TestParamInfo<Kind>& info) {
    static constexpr const char* protects[] = {"none", "auth", "encrypt"};
    return std::string(link_name(std::get<0>(info.param))) + "_" + protects[static_cast<int>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(, Datagram,
                         testing::Combine(testing::Values(LinkKind::uring_tcp, LinkKind::epoll_tcp),
                                          testing::Values(Protect::auth, Protect::encrypt, Protect::none)),
                         kind_name);

}   // namespace
}   // namespace gradcast
