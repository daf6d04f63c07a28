// An edge does not wait behind the words of an exchange, nor behind large messages: its delay on a link of 100 Mbit/s that these keep full.
#include <algorithm>

#include "runtime/core/channel.h"
#include "tests/link/fixture.h"
#include "tests/link/namespace.h"
#include "transport/edges/edges.h"

namespace gradcast {
namespace {

constexpr uint32_t edge_bytes = 10'000;

/// Keeps some MiB of packets of this type queued to the other rank.
class Flood final : public Protocol {
public:
    Flood(Rank other, PacketType type) : other_(other), type_(type), bytes_(segment_bytes_stream), place_(segment_bytes_stream) {}
    void on(std::span<const Event> events, Actions& actions) override {
        MailBody of_large_message{};
        of_large_message.total.set(1 << 30);
        for (const Event& event : events) {
            uint32_t more = event.is<Event::Sent>() ? 1 : event.is<Event::PeerUp>() ? (8 << 20) / segment_bytes_stream : 0;
            while (more-- > 0)
                actions.sends.push_back({{other_},
                                         type_,
                                         type_ == PacketType::mail ? body_bytes(of_large_message) : decltype(Send::body){},
                                         {bytes_.data(), nullptr, bytes_.size()},
                                         ++tickets_});
            if (event.is<Event::Received>()) ++received;
        }
    }
    Landing land(const Packet&, uint64_t bytes, Buffer* place) override {
        *place = {place_.data(), nullptr, bytes};
        return Landing::place;
    }
    std::atomic<uint64_t> received{0};

private:
    const Rank other_;
    const PacketType type_;
    std::vector<std::byte> bytes_, place_;
    uint64_t tickets_ = 0;
};

/// Median and largest delay of `count` edges from rank 0 to rank 1, posted one after the other, from send() to the completion there.
void measure(LinkKind kind, PacketType type, bool express, uint32_t count, uint64_t* median_us, uint64_t* most_us) {
    std::vector<std::unique_ptr<Flood>> floods;   // must outlive the drivers
    std::vector<std::unique_ptr<Protocol>> protocols;
    std::vector<std::byte> value(edge_bytes), place(edge_bytes);
    std::vector<Node> nodes(2);
    std::vector<std::string> addresses;
    for (Rank rank = 0; rank < 2; ++rank) {
        nodes[rank].listen(rank);
        addresses.push_back(nodes[rank].listener->address());
    }
    const std::string port = addresses[1].substr(addresses[1].rfind(':') + 1);   // rank 0 connects
    const std::string apart = "tc filter replace dev lo parent 1: prio 1 protocol ip u32 match ip sport " + port + " 0xffff flowid 1:2";
    ASSERT_EQ(std::system(apart.c_str()), 0);
    for (Rank rank = 0; rank < 2; ++rank) {
        LinkConfig config = test_config(kind, Protect::auth, rank, addresses);
        config.packets_per_key = packets_per_key_default;
        config.express = express;
        ASSERT_TRUE(nodes[rank].open(config).ok());
        floods.push_back(std::make_unique<Flood>(1 - rank, type));
        protocols.push_back(edges_protocol(rank, 2, segment_bytes_stream));
        nodes[rank].driver->attach(gradient_channel, floods[rank].get());
        nodes[rank].driver->attach(edge_channel, protocols[rank].get());
    }
    for (Node& node : nodes) node.start();
    const uint64_t begin_us = clock_us();
    for (const uint64_t until = clock_us() + link_wait_us; floods[0]->received < 8 || floods[1]->received < 8;) {
        ASSERT_LT(clock_us(), until);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    Host &from = nodes[0].driver->host(), &to = nodes[1].driver->host();
    std::vector<uint64_t> delays;
    Edges edges[] = {{from, edge_channel}, {to, edge_channel}};
    constexpr uint32_t ahead = 4;   // receives, so that their asks are there
    for (uint32_t i = 0; i < ahead; ++i) edges[1].receive(0, {i}, {place.data(), nullptr, place.size()}, i);
    std::vector<Completion> out;
    for (uint32_t i = 0; i < count; ++i) {
        fill(value, 1, 0, i);
        const uint64_t begin = clock_us();
        edges[0].send(1, {i}, {value.data(), nullptr, value.size()}, i);
        out.clear();
        ASSERT_TRUE(to.wait(&out, clock_us() + link_wait_us).ok());
        delays.push_back(clock_us() - begin);
        ASSERT_TRUE(out.size() == 1 && out[0].id == i && out[0].status.ok());
        ASSERT_EQ(place, value);
        edges[1].receive(0, {i + ahead}, {place.data(), nullptr, place.size()}, i + ahead);
        out.clear();
        ASSERT_TRUE(from.wait(&out, clock_us() + link_wait_us).ok());
    }
    const uint64_t bytes = (floods[0]->received + floods[1]->received) * segment_bytes_stream, took_us = clock_us() - begin_us;
    for (Node& node : nodes) node.stop();
    std::sort(delays.begin(), delays.end());
    *median_us = delays[delays.size() / 2];
    *most_us = delays.back();
    const char* what = type == PacketType::mail ? "mail" : "words";
    fmt::print("{}{}: an edge behind {} takes {} us in the median, {} us at most; {} {} Mbit/s\n", link_name(kind),
               express ? ", express" : "", what, *median_us, *most_us, what, bytes * 8 / took_us);
}

class EdgesBehindWords : public testing::TestWithParam<LinkKind> {};

TEST_P(EdgesBehindWords, AnEdgeGoesFirst) {
    // Packets of an Ethernet, and a FIFO queue of 1 MiB before the link of each direction.
    std::vector<std::string> links = {"ip link set lo mtu 1500", "tc qdisc add dev lo root handle 1: htb default 1"};
    for (const char* each : {"1:1", "1:2"}) {
        links.push_back(fmt::format("tc class add dev lo parent 1: classid {} htb rate 100mbit burst 64kb", each));
        links.push_back(fmt::format("tc qdisc add dev lo parent {} pfifo_fast", each));
    }
    IN_NAMESPACE(lo_and(links), [] {
        uint64_t shared_us = 0, median_us = 0, most_us = 0;
        for (const PacketType type : {PacketType::words, PacketType::mail}) {
            measure(GetParam(), type, false, 5, &shared_us, &most_us);
            measure(GetParam(), type, true, 50, &median_us, &most_us);
            EXPECT_LT(median_us, 15'000u);
            EXPECT_GT(shared_us, 4 * median_us);   // the link was full
        }
    });
}

INSTANTIATE_TEST_SUITE_P(SlowKinds, EdgesBehindWords, testing::Values(LinkKind::uring_tcp, LinkKind::epoll_tcp),
                         [](const auto& kind) { return std::string(link_name(kind.param)); });

}   // namespace
}   // namespace gradcast
