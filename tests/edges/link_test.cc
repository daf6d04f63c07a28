// Edges over drivers and real sockets, with connections that break.
#include "tests/link/fixture.h"
#include "tests/link/proxy.h"
#include "tests/mail/buffer.h"
#include "transport/edges/edges.h"

namespace gradcast {
namespace {

class EdgesLink : public testing::TestWithParam<LinkKind> {};

// Three ranks send values of all sizes to each other, in opposite orders, while connections break; blocks 3, 9, ... are abandoned by rank 1
// after they are posted.
TEST_P(EdgesLink, ValuesPassWhole) {
    constexpr uint32_t ranks = 3, blocks = 40;
    constexpr uint64_t sizes[] = {0, 1, 1000, 70'000, segment_bytes_stream, segment_bytes_stream + 1, 900'000};
    auto bytes_of = [&](Rank from, Rank to, uint32_t block) { return sizes[(from * 3 + to * 5 + block) % std::size(sizes)]; };
    auto gone = [](uint32_t block) { return block % 6 == 3; };
    std::vector<std::unique_ptr<Protocol>> protocols;   // must outlive the drivers
    std::vector<std::vector<std::byte>> memory;         // likewise
    memory.reserve(ranks * ranks * blocks * 2);
    std::vector<Node> nodes(ranks);
    std::vector<std::string> addresses(ranks);
    std::vector<std::unique_ptr<Proxy>> proxies;
    for (Rank rank = 0; rank < ranks; ++rank) {
        nodes[rank].listen(rank);
        proxies.push_back(std::make_unique<Proxy>(nodes[rank].listener->address(), [](uint64_t connection) {
            Harm harm;
            if (connection < 3) harm.cut_after = 1'500'000 + 1'000'003 * connection;
            return harm;
        }));
        addresses[rank] = proxies.back()->address();
    }
    for (Rank rank = 0; rank < ranks; ++rank) {
        ASSERT_TRUE(nodes[rank].open(test_config(GetParam(), Protect::auth, rank, addresses)).ok());
        protocols.push_back(edges_protocol(rank, ranks, segment_bytes_stream));
        nodes[rank].driver->attach(edge_channel, protocols[rank].get());
    }
    for (Node& node : nodes) node.start();
    std::map<std::pair<Rank, uint64_t>, std::vector<std::byte>*> places;
    for (Rank rank = 0; rank < ranks; ++rank) {
        Edges edges(nodes[rank].driver->host(), edge_channel);
        for (uint32_t at = 0; at < blocks; ++at)
            for (Rank other = 0; other < ranks; ++other) {
                if (other == rank) continue;
                const uint32_t to = rank == 0 ? at : blocks - 1 - at, from = rank == 2 ? at : blocks - 1 - at;
                auto& value = memory.emplace_back(bytes_of(rank, other, to));
                fill(value, other, rank, to);
                edges.send(other, {0, to}, buffer_of(value), 2 * (to * ranks + other));
                auto& place = memory.emplace_back(bytes_of(other, rank, from));
                places[{rank, 2 * (from * ranks + other) + 1}] = &place;
                edges.receive(other, {0, from}, buffer_of(place), 2 * (from * ranks + other) + 1);
            }
        for (uint32_t block = 0; rank == 1 && block < blocks; ++block)
            if (gone(block)) edges.abandon(0, block);
    }
    uint64_t cancelled = 0;
    for (Rank rank = 0; rank < ranks; ++rank)
        for (size_t left = 2 * blocks * (ranks - 1); left > 0;) {
            std::vector<Completion> completions;
            const Status status = nodes[rank].driver->host().wait(&completions, clock_us() + link_wait_us);
            ASSERT_TRUE(status.ok()) << status.what << ", " << left << " of rank " << rank << " are open";
            for (const Completion& each : completions) {
                --left;
                const uint64_t place = each.id / 2;
                const auto block = static_cast<uint32_t>(place / ranks);
                const auto other = static_cast<Rank>(place % ranks);
                if (!each.status.ok()) {
                    ASSERT_TRUE(each.status.code == Code::cancelled && gone(block) && (rank == 1 || other == 1)) << each.status.what;
                    ++cancelled;
                } else if (each.id % 2) {
                    std::vector<std::byte> expected(bytes_of(other, rank, block));
                    fill(expected, rank, other, block);
                    ASSERT_EQ(*places.at({rank, each.id}), expected);
                }
            }
        }
    for (Node& node : nodes) node.stop();
    for (const auto& proxy : proxies) EXPECT_TRUE(proxy == proxies[0] || proxy->connections() > 1);
}

INSTANTIATE_TEST_SUITE_P(Kinds, EdgesLink, testing::Values(LinkKind::uring_tcp, LinkKind::epoll_tcp),
                         [](const auto& kind) { return std::string(link_name(kind.param)); });

}   // namespace
}   // namespace gradcast
