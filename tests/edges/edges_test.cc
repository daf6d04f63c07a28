// One protocol by hand: what it says, takes and refuses.
#include "transport/edges/edges.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>

#include "runtime/core/rng.h"
#include "tests/mail/buffer.h"
#include "transport/wire/packet.h"

namespace gradcast {
namespace {

constexpr uint32_t segment = 4096;

/// A Host that hands every event straight to the protocol of rank 1 of 4.
struct Direct : Host {
    std::unique_ptr<Protocol> protocol = edges_protocol(1, 4, segment);
    Actions actions;
    void on(const Event& event) {
        actions.clear();
        protocol->on({&event, 1}, actions);
    }
    uint64_t now_us() override { return 0; }
    void post(uint16_t, const Event& event) override { on(event); }
    Status wait(std::vector<Completion>*, uint64_t) override { return {}; }
    void open_view(uint32_t, std::span<const Attachment>) override {}
    Status close_view(uint64_t) override { return {}; }
};

Packet packet_of(Rank from, PacketType type, std::array<std::byte, 16> body) {
    Packet packet;
    packet.type = type;
    packet.sender = from;
    packet.view = 1;
    packet.body = body;
    return packet;
}
Packet piece(Rank from, const EdgeKey& key, uint32_t index) {
    EdgeBody body{};
    body.step.set(key.step);
    body.block.set(key.block);
    body.edge.set(key.edge);
    body.gradient = key.gradient;
    body.index.set(index);
    return packet_of(from, PacketType::edge, body_bytes(body));
}
EdgeWordBody word_of(const EdgeKey& key, EdgeWord kind, uint32_t bytes) {
    EdgeWordBody body{};
    body.step.set(key.step);
    body.block.set(key.block);
    body.edge.set(key.edge);
    body.gradient = key.gradient;
    body.kind = static_cast<uint8_t>(kind);
    body.bytes.set(bytes);
    return body;
}

struct EdgesByHand : ::testing::Test {
    Direct host;
    Edges edges{host, edge_channel};
    Actions& actions = host.actions;
    const EdgeKey key{7, 2, 3, true};
    const std::array<uint64_t, 1> others{0b1101};

    Landing land(Packet& packet, uint64_t bytes, std::byte fill = std::byte{5}) {
        const Landing landing = host.protocol->land(packet, bytes, &packet.payload);
        if (landing == Landing::place) {
            EXPECT_EQ(packet.payload.bytes, bytes);
            if (bytes > 0) std::memset(packet.payload.host, std::to_integer<int>(fill), bytes);
        }
        return landing;
    }
    void arrive(const Packet& packet) { host.on({Event::Received{&packet}}); }
    Landing deliver(Packet packet, uint64_t bytes, std::byte fill = std::byte{5}) {
        const Landing landing = land(packet, bytes, fill);
        actions.clear();
        if (landing == Landing::place || landing == Landing::lease) arrive(packet);
        return landing;
    }
    void hear(Rank from, EdgeWord kind, const EdgeKey& of, uint32_t bytes = 0) {
        EXPECT_EQ(deliver(packet_of(from, PacketType::edge_word, body_bytes(word_of(of, kind, bytes))), 0), Landing::lease);
    }
    void sent(const Send& send, Status status = {}) { host.on({Event::Sent{send.ticket, status}}); }
    void lost(Rank rank) { host.on({Event::PeerLost{rank, fail(Code::peer_lost, "rank {} is lost: no answer in 30 s", rank)}}); }
    void up(Rank rank) { host.on({Event::PeerUp{rank}}); }

    static bool is_word(const Send& send, EdgeWord kind, const EdgeKey& of, uint32_t bytes) {
        return send.type == PacketType::edge_word && send.payload.bytes == 0 && send.ticket == 0 &&
               send.body == body_bytes(word_of(of, kind, bytes));
    }
    bool said(Rank to, EdgeWord kind, const EdgeKey& of, uint32_t bytes = 0) {
        return actions.sends.size() == 1 && actions.sends[0].to.rank == to && !actions.sends[0].to.bits &&
               is_word(actions.sends[0], kind, of, bytes);
    }
    bool said_to_all(const EdgeKey& block) {
        return actions.sends.size() == 1 && actions.sends[0].to.bits && *actions.sends[0].to.bits == others[0] &&
               is_word(actions.sends[0], EdgeWord::abandon, block, 0);
    }
    bool completed(uint64_t ticket, Code code) {
        return actions.completions.size() == 1 && actions.completions[0].id == ticket && actions.completions[0].status.code == code;
    }
    std::string why() { return actions.completions.empty() ? "" : actions.completions[0].status.what; }
    bool quiet() { return actions.completions.empty() && actions.sends.empty(); }
    std::string explained(uint64_t ticket) {
        edges.explain(ticket);
        return completed(ticket, Code::deadline) ? why() : "";
    }
};

TEST_F(EdgesByHand, AReceiveAsksAndTheValueLandsInItsMemory) {
    std::vector<std::byte> place(10000);
    edges.receive(0, key, buffer_of(place), 1);
    EXPECT_TRUE(actions.completions.empty() && said(0, EdgeWord::ask, key, 10000));
    for (uint32_t index : {0u, 1u}) {
        Packet packet = piece(0, key, index);
        EXPECT_EQ(land(packet, segment), Landing::place);
        EXPECT_EQ(packet.payload.host, place.data() + index * segment);
        arrive(packet);
        EXPECT_TRUE(quiet());
    }
    EXPECT_EQ(deliver(piece(0, key, 2), 10000 - 2 * segment), Landing::place);
    EXPECT_TRUE(completed(1, Code::ok));
    EXPECT_EQ(place, std::vector<std::byte>(10000, std::byte{5}));
    EXPECT_EQ(deliver(piece(0, key, 2), 10000 - 2 * segment), Landing::drop);
}

TEST_F(EdgesByHand, AnEmptyValueComesToo) {
    edges.receive(0, key, {}, 1);
    EXPECT_EQ(deliver(piece(0, key, 0), 0), Landing::place);
    EXPECT_TRUE(completed(1, Code::ok));
}

TEST_F(EdgesByHand, ASendGoesWhenItIsAskedFor) {
    std::vector<std::byte> value(10000), other(10);
    edges.send(0, key, buffer_of(value), 1);
    EXPECT_TRUE(quiet());
    hear(2, EdgeWord::ask, key, 10000);   // another rank
    hear(0, EdgeWord::ask, {8, 2, 3, true}, 10000);
    hear(0, EdgeWord::ask, {7, 1, 3, true}, 10000);
    hear(0, EdgeWord::ask, {7, 2, 4, true}, 10000);
    hear(0, EdgeWord::ask, {7, 2, 3, false}, 10);
    EXPECT_TRUE(quiet());
    hear(0, EdgeWord::ask, key, 10000);
    ASSERT_EQ(actions.sends.size(), 1u);   // the link cuts it
    const Send send = actions.sends[0];
    EXPECT_TRUE(send.type == PacketType::edge && send.to.rank == 0 && !send.to.bits && send.payload.host == value.data());
    uint32_t next = 0;
    cut(send, segment, [&](const Send& each) { EXPECT_EQ(each.body, piece(0, key, next++).body); });
    EXPECT_EQ(next, 3u);
    edges.send(0, {7, 2, 3, false}, buffer_of(other), 2);   // asked for before
    ASSERT_EQ(actions.sends.size(), 1u);
    const Send second = actions.sends[0];
    sent(second);
    EXPECT_TRUE(completed(2, Code::ok));
    sent(send, fail(Code::peer_lost, "rank 0 is lost"));
    EXPECT_TRUE(completed(1, Code::peer_lost));
}

TEST_F(EdgesByHand, SizesThatDifferAreAConflictAtBoth) {
    std::vector<std::byte> memory(10000);
    edges.send(0, key, buffer_of(memory), 1);
    hear(0, EdgeWord::ask, key, 9999);
    EXPECT_TRUE(completed(1, Code::conflict) && said(0, EdgeWord::size, key, 10000));
    EXPECT_EQ(why(),
              "edge 3 of step 7, block 2 (gradient) has 9999 bytes at rank 0 and 10000 at rank 1: the ranks do not run the same job");
    edges.receive(2, key, buffer_of(memory), 2);
    hear(2, EdgeWord::size, key, 12);
    EXPECT_TRUE(completed(2, Code::conflict) && actions.sends.empty());
    EXPECT_EQ(why(), "edge 3 of step 7, block 2 (gradient) has 12 bytes at rank 2 and 10000 at rank 1: the ranks do not run the same job");
    hear(2, EdgeWord::size, key, 12);   // of none
    EXPECT_TRUE(quiet());
}

TEST_F(EdgesByHand, AbandonEndsWhatHasNotBegun) {
    std::vector<std::byte> memory(10000), place(10000);
    const EdgeKey block{7, 2}, begun{7, 2, 4}, other{7, 3, 3};
    edges.receive(0, key, buffer_of(memory), 1);
    edges.receive(0, begun, buffer_of(place), 2);
    edges.receive(0, other, buffer_of(memory), 3);
    edges.send(2, key, buffer_of(memory), 4);
    hear(2, EdgeWord::ask, begun, 10000);
    edges.send(2, begun, buffer_of(memory), 5);
    ASSERT_EQ(actions.sends.size(), 1u);
    const Send under_way = actions.sends[0];
    deliver(piece(0, begun, 0), segment);
    edges.abandon(7, 2);
    EXPECT_TRUE(said_to_all(block));
    ASSERT_EQ(actions.completions.size(), 2u);
    for (const Completion& each : actions.completions) {
        EXPECT_TRUE((each.id == 1 || each.id == 4) && each.status.code == Code::cancelled);
        EXPECT_STREQ(each.status.what, "step 7, block 2 was abandoned by rank 1");
    }
    sent(under_way);
    EXPECT_TRUE(completed(5, Code::ok));
    EXPECT_EQ(deliver(piece(0, key, 0), segment), Landing::drop);
    deliver(piece(0, begun, 1), segment);
    deliver(piece(0, begun, 2), 10000 - 2 * segment);
    EXPECT_TRUE(completed(2, Code::ok));
    edges.receive(0, {7, 2, 9}, buffer_of(memory), 6);   // posted later
    EXPECT_TRUE(completed(6, Code::cancelled) && actions.sends.empty());
    hear(0, EdgeWord::ask, {7, 2, 10}, 10000);
    edges.send(0, {7, 2, 10}, buffer_of(memory), 7);
    EXPECT_TRUE(completed(7, Code::cancelled) && actions.sends.empty());
    deliver(piece(0, other, 0), segment);   // another block goes on
    deliver(piece(0, other, 1), segment);
    deliver(piece(0, other, 2), 10000 - 2 * segment);
    EXPECT_TRUE(completed(3, Code::ok));
}

TEST_F(EdgesByHand, WhatIsLandingIsUnderWay) {
    std::vector<std::byte> memory(100);
    edges.receive(0, key, buffer_of(memory), 1);
    Packet packet = piece(0, key, 0);
    ASSERT_EQ(land(packet, 100), Landing::place);
    edges.abandon(7, 2);
    EXPECT_TRUE(actions.completions.empty());
    arrive(packet);
    EXPECT_TRUE(completed(1, Code::ok));
    // What only seemed to be one, because its tag was wrong, ends when the sender has nothing to come.
    edges.receive(0, {8, 0}, buffer_of(memory), 2);
    packet = piece(0, {8, 0}, 0);
    ASSERT_EQ(land(packet, 100), Landing::place);
    edges.abandon(8, 0);
    EXPECT_TRUE(actions.completions.empty());
    hear(2, EdgeWord::gone, {8, 0});
    EXPECT_TRUE(quiet());
    hear(0, EdgeWord::gone, {9, 0});
    edges.receive(0, {9, 0}, buffer_of(memory), 3);
    hear(0, EdgeWord::gone, {9, 0});   // of a block that this rank has not abandoned
    EXPECT_TRUE(quiet());
    hear(0, EdgeWord::gone, {8, 0});
    EXPECT_TRUE(completed(2, Code::cancelled));
}

TEST_F(EdgesByHand, TheOtherSideOfAnAbandonedBlockIsCancelled) {
    std::vector<std::byte> memory(100);
    const EdgeKey block{7, 2};
    edges.receive(0, key, buffer_of(memory), 1);
    hear(0, EdgeWord::ask, {7, 2, 5}, 100);
    edges.send(0, {7, 2, 4}, buffer_of(memory), 2);
    edges.send(2, {7, 2, 4}, buffer_of(memory), 3);
    edges.send(0, {7, 3, 4}, buffer_of(memory), 4);
    hear(0, EdgeWord::abandon, block);
    EXPECT_TRUE(said(0, EdgeWord::gone, block));
    ASSERT_EQ(actions.completions.size(), 2u);
    for (const Completion& each : actions.completions) {
        EXPECT_TRUE((each.id == 1 || each.id == 2) && each.status.code == Code::cancelled);
        EXPECT_STREQ(each.status.what, "step 7, block 2 was abandoned by rank 0");
    }
    edges.send(0, {7, 2, 5}, buffer_of(memory), 5);   // later ones
    EXPECT_TRUE(completed(5, Code::cancelled) && actions.sends.empty());
    edges.receive(0, {7, 2, 6}, buffer_of(memory), 6);
    EXPECT_TRUE(completed(6, Code::cancelled) && actions.sends.empty());
    hear(2, EdgeWord::ask, {7, 2, 4}, 100);   // with another rank all goes on
    EXPECT_EQ(actions.sends.size(), 1u);
    hear(0, EdgeWord::ask, {7, 3, 4}, 100);
    EXPECT_EQ(actions.sends.size(), 1u);
}

TEST_F(EdgesByHand, RemembersAbandonedBlocksWithinBounds) {
    std::vector<std::byte> memory(100);
    for (uint32_t i = 0; i <= edges_abandoned_max; ++i) {
        hear(0, EdgeWord::abandon, {i, 0});
        hear(0, EdgeWord::abandon, {i, 0});
        edges.abandon(i, 1);
    }
    edges.receive(0, {1, 0}, buffer_of(memory), 1);
    EXPECT_TRUE(completed(1, Code::cancelled));
    edges.receive(0, {edges_abandoned_max, 1}, buffer_of(memory), 2);
    EXPECT_TRUE(completed(2, Code::cancelled));
    edges.receive(0, {0, 0}, buffer_of(memory), 3);   // the oldest
    EXPECT_TRUE(said(0, EdgeWord::ask, {0, 0}, 100));
    edges.receive(0, {0, 1}, buffer_of(memory), 4);
    EXPECT_TRUE(said(0, EdgeWord::ask, {0, 1}, 100));
}

TEST_F(EdgesByHand, ARankThatIsLostEndsItsTransfers) {
    std::vector<std::byte> memory(10000);
    edges.abandon(1, 1);
    edges.receive(0, key, buffer_of(memory), 1);
    deliver(piece(0, key, 0), segment);
    Packet landing = piece(0, key, 1);
    ASSERT_EQ(land(landing, segment), Landing::place);
    edges.send(0, {7, 3}, buffer_of(memory), 2);
    edges.receive(2, key, buffer_of(memory), 3);
    hear(0, EdgeWord::ask, {7, 4}, 10000);
    hear(0, EdgeWord::abandon, {7, 5});
    lost(0);
    ASSERT_EQ(actions.completions.size(), 2u);
    for (const Completion& each : actions.completions) EXPECT_TRUE(each.id <= 2 && each.status.code == Code::peer_lost);
    edges.send(0, {7, 4}, buffer_of(memory), 4);
    EXPECT_TRUE(completed(4, Code::peer_lost) && actions.sends.empty());
    edges.receive(0, {7, 4}, buffer_of(memory), 5);
    EXPECT_TRUE(completed(5, Code::peer_lost) && actions.sends.empty());
    lost(0);
    EXPECT_TRUE(quiet());
    up(0);   // it hears of what it cannot know
    EXPECT_TRUE(said(0, EdgeWord::abandon, {1, 1}));
    edges.send(0, {7, 4}, buffer_of(memory), 6);
    EXPECT_TRUE(quiet());
    edges.receive(0, {7, 5}, buffer_of(memory), 7);
    EXPECT_TRUE(said(0, EdgeWord::ask, {7, 5}, 10000));
    hear(0, EdgeWord::ask, {7, 6}, 10000);
    up(0);   // a second time: what was said counts
    EXPECT_TRUE(quiet());
    edges.send(0, {7, 6}, buffer_of(memory), 8);
    EXPECT_EQ(actions.sends.size(), 1u);
}

TEST_F(EdgesByHand, KeepsABoundedNumberOfAsks) {
    std::vector<std::byte> memory(100);
    const uint32_t most = edges_receives(4);
    const auto key_of = [](uint32_t i) { return EdgeKey{i, 0}; };
    host.actions.clear();
    for (uint32_t i = 0; i <= most; ++i) hear(0, EdgeWord::ask, key_of(i), 100);
    edges.send(0, key_of(most), buffer_of(memory), 1);
    EXPECT_TRUE(actions.sends.empty());
    edges.send(0, key_of(0), buffer_of(memory), 2);
    EXPECT_EQ(actions.sends.size(), 1u);
    hear(2, EdgeWord::ask, key_of(0), 100);   // another rank has its own
    edges.send(2, key_of(0), buffer_of(memory), 3);
    EXPECT_EQ(actions.sends.size(), 1u);
    for (uint32_t i = 0; i < most; ++i) edges.receive(0, key_of(i), buffer_of(memory), i);
    edges.receive(0, key_of(most), buffer_of(memory), 4);   // so a rank does not post more
    EXPECT_TRUE(completed(4, Code::node_memory) && actions.sends.empty());
    EXPECT_EQ(why(), fmt::format("edge 0 of step {}, block 0 (value) of rank 0: {} receives are posted already: post fewer at a time", most,
                                 most));
}

TEST_F(EdgesByHand, ExplainsWhatIsMissing) {
    std::vector<std::byte> memory(10000);
    edges.receive(0, key, buffer_of(memory), 1);
    EXPECT_EQ(
        explained(1),
        "edge 3 of step 7, block 2 (gradient) from rank 0 is missing: 0 of 10000 bytes are here, and rank 0 has not begun to send it");
    deliver(piece(0, key, 0), segment);
    EXPECT_EQ(explained(1),
              "edge 3 of step 7, block 2 (gradient) from rank 0 is missing: 4096 of 10000 bytes are here, and rank 0 has begun to send it");
    edges.send(2, {7, 2, 3}, buffer_of(memory), 2);
    EXPECT_EQ(explained(2),
              "edge 3 of step 7, block 2 (value) to rank 2 waits: 0 of 10000 bytes are sent, because rank 2 has not posted its "
              "receive");
    hear(2, EdgeWord::ask, {7, 2, 3}, 10000);
    const Send send = actions.sends[0];
    EXPECT_EQ(explained(2),
              "edge 3 of step 7, block 2 (value) to rank 2 is on its way: rank 2 has not acknowledged all of its 10000 bytes");
    sent(send);
    deliver(piece(0, key, 1), segment);
    deliver(piece(0, key, 2), 10000 - 2 * segment);
    for (uint64_t ticket : {1u, 2u, 3u}) {
        edges.explain(ticket);
        EXPECT_TRUE(quiet());
    }
}

TEST_F(EdgesByHand, ACopyOverwritesNothing) {
    std::vector<std::byte> place(2 * segment);
    edges.receive(0, key, buffer_of(place), 1);
    Packet first = piece(0, key, 0), copy = piece(0, key, 0);
    ASSERT_EQ(land(first, segment, std::byte{1}), Landing::place);
    ASSERT_EQ(land(copy, segment, std::byte{2}), Landing::place);   // it could be the same packet over the next connection
    EXPECT_TRUE(copy.payload.host < place.data() || copy.payload.host >= place.data() + place.size());
    arrive(first);
    arrive(copy);
    EXPECT_EQ(deliver(piece(0, key, 0), segment, std::byte{3}), Landing::drop);
    // The connection broke in the middle of the second packet, of which the next one brings all.
    Packet broken = piece(0, key, 1), whole = piece(0, key, 1);
    ASSERT_EQ(land(broken, segment, std::byte{4}), Landing::place);
    ASSERT_EQ(land(whole, segment, std::byte{5}), Landing::place);
    arrive(whole);
    EXPECT_TRUE(completed(1, Code::ok));
    std::vector<std::byte> expected(segment, std::byte{1});
    expected.resize(2 * segment, std::byte{5});
    EXPECT_EQ(place, expected);
}

// The link writes to a place that was given: a word that comes with it does not free the memory.
TEST_F(EdgesByHand, NothingEndsWhileTheLinkWritesThere) {
    std::vector<std::byte> place(100);
    edges.receive(0, key, buffer_of(place), 1);
    Packet word = packet_of(0, PacketType::edge_word, body_bytes(word_of({7, 2}, EdgeWord::abandon, 0))), packet = piece(0, key, 0);
    ASSERT_EQ(land(word, 0), Landing::lease);
    ASSERT_EQ(land(packet, 100), Landing::place);
    arrive(word);
    EXPECT_TRUE(actions.completions.empty());
    arrive(packet);
    EXPECT_TRUE(completed(1, Code::cancelled));
    edges.receive(2, key, buffer_of(place), 2);
    packet = piece(2, key, 0);
    ASSERT_EQ(land(packet, 100), Landing::place);   // of a connection that broke
    word = packet_of(2, PacketType::edge_word, body_bytes(word_of(key, EdgeWord::size, 99)));
    ASSERT_EQ(land(word, 0), Landing::lease);
    arrive(word);
    EXPECT_TRUE(completed(2, Code::conflict));
}

TEST_F(EdgesByHand, RefusesWhatCannotBe) {
    std::vector<std::byte> place(10000), value(10000);
    edges.receive(0, key, buffer_of(place), 1);
    edges.send(0, key, buffer_of(value), 2);
    auto refused = [&](Packet packet, uint64_t bytes) {
        EXPECT_EQ(land(packet, bytes), Landing::drop);
        std::vector<std::byte> payload(bytes);
        packet.payload = buffer_of(payload);
        arrive(packet);
        EXPECT_TRUE(quiet());
    };
    refused(piece(1, key, 0), segment);   // from ourselves
    refused(piece(4, key, 0), segment);   // from nobody
    refused(piece(2, key, 0), segment);   // from a rank that was not asked
    refused(piece(0, key, 1), segment);   // before its turn
    refused(piece(0, key, 3), 0);         // beyond the end
    refused(piece(0, key, 0xFFFFFF), segment);
    for (uint64_t bytes : {uint64_t{0}, uint64_t{segment - 1}, uint64_t{segment + 1}}) refused(piece(0, key, 0), bytes);
    for (EdgeKey other : {EdgeKey{8, 2, 3, true}, EdgeKey{7, 1, 3, true}, EdgeKey{7, 2, 4, true}, EdgeKey{7, 2, 3, false}})
        refused(piece(0, other, 0), segment);
    for (size_t at : {8u, 9u, 15u}) {   // gradient, the reserved bytes
        Packet packet = piece(0, key, 0);
        packet.body[at] = std::byte{2};
        refused(packet, segment);
    }
    Packet packet = piece(0, key, 0);
    packet.type = PacketType::words;
    refused(packet, segment);
    auto word = [&](const EdgeWordBody& body) { return packet_of(0, PacketType::edge_word, body_bytes(body)); };
    refused(word(word_of(key, EdgeWord::ask, 10000)), 8);   // a word has no payload
    for (EdgeWord kind : {EdgeWord{0}, EdgeWord{5}, EdgeWord{255}}) refused(word(word_of(key, kind, 10000)), 0);
    for (EdgeWord kind : {EdgeWord::abandon, EdgeWord::gone}) {
        refused(word(word_of({7, 2, 0, true}, kind, 0)), 0);
        refused(word(word_of({7, 2, 1}, kind, 0)), 0);
        refused(word(word_of({7, 2}, kind, 1)), 0);
    }
    EdgeWordBody body = word_of(key, EdgeWord::ask, 10000);
    body.gradient = 2;
    refused(word(body), 0);
    for (uint32_t index : {0u, 1u}) EXPECT_EQ(deliver(piece(0, key, index), segment), Landing::place);
    refused(piece(0, key, 2), segment);   // longer than the rest
    EXPECT_EQ(deliver(piece(0, key, 2), 10000 - 2 * segment), Landing::place);
    EXPECT_TRUE(completed(1, Code::ok));
}

// Packets and words of all kinds from ranks that lie, between posts.  A packet's memory is written until the next one of its rank lands,
// unless its connection breaks.  Memory is written only while its receive is open, and each transfer completes at most once.
TEST_F(EdgesByHand, NoiseDoesNoHarm) {
    struct Open {
        std::vector<std::byte> place, before;
        Rank from;
        EdgeKey key;
    };
    struct Landed {
        Packet packet;
        std::byte fill;
        bool whole = false;
        void write() {
            if (!std::exchange(whole, true) && packet.payload.bytes > 0)
                std::memset(packet.payload.host, std::to_integer<int>(fill), packet.payload.bytes);
        }
    };
    std::vector<std::byte> value(9000);
    std::map<uint64_t, Open> open;      // by ticket
    std::map<uint64_t, bool> sending;   // by ticket: the link has it
    std::vector<Send> with_link;
    std::vector<Open> ended;
    std::vector<Landed> landed;   // in the order of events
    uint64_t posted = 0, good = 0, explained = 0, again = 0;
    auto look = [&] {
        for (const Send& each : actions.sends)
            if (each.type == PacketType::edge) with_link.push_back(each);
        for (const Completion& each : actions.completions) {
            const auto found = open.find(each.id);
            ASSERT_EQ((found != open.end()) + sending.count(each.id), 1u) << each.id;
            if (each.status.code == Code::deadline) {
                ++explained;
                continue;
            }
            good += each.status.ok();
            if (sending.erase(each.id) > 0) continue;
            found->second.before = found->second.place;
            ended.push_back(std::move(found->second));
            open.erase(found);
        }
        actions.clear();
    };
    auto arrive_first = [&] {
        Landed first = landed.front();
        landed.erase(landed.begin());
        first.write();
        arrive(first.packet);
        look();
    };
    for (uint32_t i = 0; i < 100'000; ++i) {
        const auto a = random4(Purpose::test, 5, i, 0), b = random4(Purpose::test, 5, i, 1);
        const EdgeKey some{i / 500 + a[0] % 2, a[1] % 2, 0, a[3] % 2 == 1};
        const Rank rank = b[0] % 4;
        const uint32_t sizes[] = {0, 10, segment, segment + 1, 9000};
        const uint32_t bytes = sizes[b[1] % 5];
        switch (b[2] % 16) {
            case 0:
            case 1: {   // a key comes once; here again when no other transfer is open
                if (rank == 1 || std::any_of(open.begin(), open.end(), [&](const auto& each) { return each.second.from == rank; })) break;
                Open& place = open[++posted] = {std::vector<std::byte>(bytes), {}, rank, some};
                edges.receive(rank, some, buffer_of(place.place), posted);
                break;
            }
            case 2:
                if (rank == 1) break;
                sending[++posted] = true;
                edges.send(rank, some, {value.data(), nullptr, bytes}, posted);
                break;
            case 3: edges.explain(posted - std::min<uint64_t>(b[3] % 16, posted)); break;
            case 4:
                if (b[3] % 100 == 0) edges.abandon(some.step, some.block);
                if (with_link.empty()) break;
                look();
                sent(with_link.front());
                with_link.erase(with_link.begin());
                break;
            case 5:
                if (b[3] % 100 > 1 || rank == 1) break;
                std::erase_if(landed, [&](const Landed& each) { return each.packet.sender == rank; });
                b[3] % 2 ? lost(rank) : up(rank);
                break;
            default: {
                const bool word = b[2] % 16 < 8, of_block = b[3] % 4 >= 2;
                Packet packet = piece(rank, some, b[3] % 4);
                uint32_t length = word ? 0 : std::min(bytes, segment);
                const auto mine = std::find_if(open.begin(), open.end(), [&](const auto& each) { return each.second.from == rank; });
                if (!word && mine != open.end() && b[3] >> 4 & 7) {   // mostly what is awaited
                    const uint64_t size = mine->second.place.size(), at = uint64_t{b[3] % 4} * segment;
                    packet = piece(rank, mine->second.key, b[3] % 4);
                    length = at < size ? static_cast<uint32_t>(std::min<uint64_t>(size - at, segment)) : 0;
                }
                if (word)
                    packet = packet_of(rank, PacketType::edge_word,
                                       body_bytes(word_of(of_block ? EdgeKey{some.step, some.block} : some, EdgeWord(1 + b[3] % 4),
                                                          of_block ? 0 : bytes)));
                if (word && of_block && b[3] >> 8 & 3) break;   // few, as they end much
                if ((b[3] >> 10 & 31) == 0) packet.body[b[3] >> 16 & 15] = std::byte(b[3] >> 24);
                for (size_t at = 0; at < landed.size(); ++at) {
                    if (landed[at].packet.sender != rank || landed[at].whole) continue;
                    if (b[3] >> 15 & 1) landed.erase(landed.begin() + static_cast<ptrdiff_t>(at));   // broken; repeated or not
                    else landed[at].write();
                    break;
                }
                const Landing landing = host.protocol->land(packet, length, &packet.payload);
                if (landing == Landing::drop) break;
                ASSERT_EQ(landing, word ? Landing::lease : Landing::place);
                const bool own = std::any_of(open.begin(), open.end(), [&](const auto& each) {
                    const auto& place = each.second.place;
                    return packet.payload.host >= place.data() && packet.payload.host + packet.payload.bytes <= place.data() + place.size();
                });
                again += !word && !own && packet.payload.bytes > 0;
                landed.push_back({packet, std::byte(b[3] >> 24)});
                const size_t left = b[3] >> 16 & 3;
                while (landed.size() > left) arrive_first();
                break;
            }
        }
        look();
        if (ended.size() > 16) ended.erase(ended.begin(), ended.begin() + 8);
        for (const Open& each : ended) ASSERT_EQ(each.place, each.before) << "at " << i;
    }
    EXPECT_TRUE(good > 300 && explained > 300 && again > 30) << good << " " << explained << " " << again;
}

}   // namespace
}   // namespace gradcast
