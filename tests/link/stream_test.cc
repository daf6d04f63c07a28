// Sender and Receiver joined by a byte pipe that is cut at random: exactly once, in order, every byte.
#include "transport/stream/stream.h"

#include <gtest/gtest.h>

#include <deque>
#include <set>

#include "tests/link/fixture.h"

namespace gradcast {
namespace {

constexpr uint32_t segment = 100'000;

struct CheckingSink : ReceiverSink {
    Sender* sender = nullptr;
    uint64_t random = 1, packets = 0, expected = 0, drops = 0;
    std::vector<uint32_t> sizes;
    std::vector<std::byte> memory = std::vector<std::byte>(segment);
    std::set<uint32_t> tickets;
    bool only_place = false;

    bool known(uint16_t channel, uint32_t) override { return channel == 3; }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override {
        EXPECT_TRUE(only_place || bytes == sizes[body_of<MailBody>(packet).tag.get()]);
        switch (only_place ? 0 : splitmix64(++random) % 8) {
            case 0:
            case 1: *place = {memory.data(), nullptr, bytes}; return Landing::place;
            case 2: return Landing::later;
            case 3:
                ++drops;
                ++expected;
                return Landing::drop;   // of a whole stream: not asked again
            default: return Landing::lease;
        }
    }
    void packet(const Packet& packet) override {
        uint64_t index = body_of<MailBody>(packet).tag.get();
        EXPECT_EQ(index, expected++);
        ASSERT_EQ(packet.payload.bytes, sizes[index]);
        uint64_t wrong = 0;
        for (uint64_t i = 0; i < packet.payload.bytes; ++i) wrong += packet.payload.host[i] != content(1, 0, index, i);
        EXPECT_EQ(wrong, 0u);
        ++packets;
    }
    bool ack(uint64_t received) override {
        return sender->acked(received, [&](uint32_t ticket) { EXPECT_TRUE(tickets.insert(ticket).second); });
    }
};

StreamConfig config_of(Protect protect, Rank self, uint64_t packets_per_key) {
    StreamConfig config;
    config.job = 5;
    config.view = 2;
    config.self = self;
    config.peer = 1 - self;
    config.ranks = 2;
    config.segment_bytes = segment;
    config.protect = protect;
    config.packets_per_key = packets_per_key;
    return config;
}

// One end: its Sender and its Receiver.
struct End {
    InlinePool pool;
    Sender sender;
    Receiver receiver;
    CheckingSink sink;
    std::vector<std::vector<std::byte>> payloads;
    size_t queued = 0;
    End(Protect protect, Rank self, uint64_t packets_per_key = packets_per_key_default)
        : sender(config_of(protect, self, packets_per_key), pool), receiver(config_of(protect, self, packets_per_key)) {
        sink.sender = &sender;
    }
    void queue(size_t count) {
        for (; count-- && queued < payloads.size(); ++queued) {
            MailBody body{};
            body.tag.set(queued);
            Send send;
            send.type = PacketType::mail;
            send.channel = 3;
            send.body = body_bytes(body);
            send.payload = {payloads[queued].data(), nullptr, payloads[queued].size()};
            ASSERT_TRUE(sender.push(send, static_cast<uint32_t>(queued)));
        }
    }
};

// Moves up to `limit` bytes; returns how many.
uint64_t carry(End& from, End& to, uint64_t limit) {
    if (from.sender.idle() && from.sender.ack_sent() == from.receiver.delivered()) return 0;
    auto vectors = from.sender.batch(from.receiver.delivered());
    std::vector<std::byte> bytes;
    for (const iovec& each : vectors)
        bytes.insert(bytes.end(), static_cast<std::byte*>(each.iov_base), static_cast<std::byte*>(each.iov_base) + each.iov_len);
    bytes.resize(std::min<uint64_t>(bytes.size(), limit));
    from.sender.wrote(bytes.size());
    uint64_t carried = bytes.size();
    for (std::span<std::byte> rest(bytes); !rest.empty() || to.receiver.blocked();) {
        const char* why = to.receiver.parse(to.sink);
        EXPECT_EQ(why, nullptr) << why;
        if (to.receiver.blocked() || rest.empty()) continue;
        iovec place[2];
        uint32_t count = to.receiver.space(place);
        uint64_t got = 0;
        for (uint32_t i = 0; i < count && !rest.empty(); ++i) {
            size_t take = std::min(place[i].iov_len, rest.size());
            std::memcpy(place[i].iov_base, rest.data(), take);
            rest = rest.subspan(take);
            got += take;
        }
        to.receiver.received(got);
    }
    const char* why = to.receiver.parse(to.sink);
    EXPECT_EQ(why, nullptr) << why;
    return carried;
}

TEST(Stream, ExactlyOnceThroughEveryCut) {
    int cuts_all = 0;
    for (uint64_t run = 0; run < 30; ++run) {
        Protect protect = static_cast<Protect>(run % 3);
        // Every other run has a new key each 7 packets.
        const uint64_t packets_per_key = run % 2 ? 7 : packets_per_key_default;
        End a(protect, 0, packets_per_key), b(protect, 1, packets_per_key);
        uint64_t random = run * 1000;
        for (End* end : {&a, &b}) {
            for (uint64_t i = 0; i < 200; ++i) {
                uint64_t size = splitmix64(++random);
                end->payloads.emplace_back(size % 5 == 0 ? 0 : size % 5 == 1 ? size / 8 % segment : size / 8 % 2000);
                fill(end->payloads.back(), 1, 0, i);
            }
            for (auto& payload : end->payloads) (end == &a ? b : a).sink.sizes.push_back(static_cast<uint32_t>(payload.size()));
        }
        a.sink.random = run + 7;
        b.sink.random = run + 9;
        int cuts = 0;
        for (int turn = 0;; ++turn) {
            ASSERT_LT(turn, 10000);
            if (turn == 0 || splitmix64(++random) % 10 == 0) {   // a new connection: both sides exchange their counts
                ++cuts;
                Key key{static_cast<uint8_t>(cuts)}, back{static_cast<uint8_t>(cuts), 1};
                ASSERT_TRUE(a.sink.ack(b.receiver.delivered()));
                ASSERT_TRUE(b.sink.ack(a.receiver.delivered()));
                a.sender.restart(key, a.receiver.delivered()), b.receiver.restart(key, {});
                b.sender.restart(back, b.receiver.delivered()), a.receiver.restart(back, {});
                // A dropped packet may be asked for again.
                a.sink.expected = a.receiver.delivered();
                b.sink.expected = b.receiver.delivered();
            }
            a.queue(splitmix64(++random) % 20), b.queue(splitmix64(++random) % 20);
            uint64_t moved = carry(a, b, splitmix64(++random) % 60000);
            moved += carry(b, a, splitmix64(++random) % 60000);
            if (moved == 0 && a.sender.acknowledged() && b.sender.acknowledged() && a.queued == 200 && b.queued == 200) break;
        }
        EXPECT_EQ(a.receiver.delivered(), 200u);
        EXPECT_EQ(b.receiver.delivered(), 200u);
        EXPECT_EQ(a.sink.tickets.size(), 200u);
        EXPECT_EQ(b.sink.tickets.size(), 200u);
        cuts_all += cuts;
    }
    EXPECT_GT(cuts_all, 100);
}

// No key seals more packets than it may: the other side's next key opens what comes then, and only it does.
TEST(Stream, KeysAreReplacedAsPacketsPass) {
    End a(Protect::encrypt, 0, 4), b(Protect::encrypt, 1, 4), stays(Protect::encrypt, 1);
    for (uint64_t i = 0; i < 9; ++i) {
        a.payloads.emplace_back(100);
        fill(a.payloads.back(), 1, 0, i);
        b.sink.sizes.push_back(100), stays.sink.sizes.push_back(100);
    }
    b.sink.only_place = stays.sink.only_place = true;
    a.sender.restart(Key{1}, 0), b.receiver.restart(Key{1}, {}), stays.receiver.restart(Key{1}, {});
    for (uint64_t i = 0; i < 9; ++i) {
        a.queue(1);
        std::vector<std::byte> bytes;
        for (const iovec& each : a.sender.batch(0))
            bytes.insert(bytes.end(), static_cast<std::byte*>(each.iov_base), static_cast<std::byte*>(each.iov_base) + each.iov_len);
        a.sender.wrote(bytes.size());
        EXPECT_EQ(a.sender.key_epoch(), i / 4);
        for (End* end : {&b, &stays}) {
            iovec place[2];
            const char* why = nullptr;
            for (std::span<std::byte> rest(bytes); !rest.empty() && !why;) {
                end->receiver.space(place);
                const size_t take = std::min(place[0].iov_len, rest.size());
                std::memcpy(place[0].iov_base, rest.data(), take);
                rest = rest.subspan(take);
                end->receiver.received(take);
                why = end->receiver.parse(end->sink);
            }
            if (end == &b) {
                EXPECT_EQ(why, nullptr) << i;
            } else if (i == 4) {
                EXPECT_STREQ(why, "a packet with a wrong tag");
            }
        }
        EXPECT_EQ(b.sink.packets, i + 1);
    }
    EXPECT_EQ(stays.sink.packets, 4u);
}

// A tagged packet with any single bit flipped is refused.
TEST(Stream, FlippedBitsAreRefused) {
    End a(Protect::auth, 0);
    a.payloads.emplace_back(40);
    fill(a.payloads[0], 1, 0, 0);
    a.sender.restart(Key{}, 0);
    a.queue(1);
    std::vector<std::byte> good;
    for (const iovec& each : a.sender.batch(0))
        good.insert(good.end(), static_cast<std::byte*>(each.iov_base), static_cast<std::byte*>(each.iov_base) + each.iov_len);
    ASSERT_EQ(good.size(), packet_head_bytes + 40 + tag_bytes);
    for (size_t bit = 0; bit <= good.size() * 8; ++bit) {
        End b(Protect::auth, 1);
        b.sink.sizes = {40};
        b.sink.only_place = true;
        auto bytes = good;
        bool flipped = bit < good.size() * 8;
        if (flipped) bytes[bit / 8] ^= std::byte(1 << bit % 8);
        if (bit / 32 == 4) continue;   // the length: the receiver would wait for more bytes
        b.receiver.restart(Key{}, bytes);
        const char* why = b.receiver.parse(b.sink);
        EXPECT_EQ(b.sink.packets, flipped ? 0u : 1u);
        EXPECT_EQ(why != nullptr, flipped) << bit;
    }
}

TEST(Stream, AcknowledgementsThatCannotBe) {
    End a(Protect::auth, 0);
    a.payloads.resize(5);
    a.sender.restart(Key{}, 0);
    a.queue(5);
    EXPECT_FALSE(a.sink.ack(1));   // nothing was sent yet
    a.sender.batch(0);
    EXPECT_TRUE(a.sink.ack(3));
    EXPECT_FALSE(a.sink.ack(2));
    EXPECT_FALSE(a.sink.ack(6));
    EXPECT_TRUE(a.sink.ack(5));
}

TEST(Stream, QueueHasABound) {
    End a(Protect::none, 0);
    Send send;
    send.type = PacketType::mail;
    for (uint64_t i = 0; i < Sender::queue_max; ++i) ASSERT_TRUE(a.sender.push(send, ticket_none));
    EXPECT_FALSE(a.sender.push(send, ticket_none));
}

TEST(Packet, HeadersThatCannotBe) {
    PacketHeader good{};
    good.magic.set(packet_magic);
    good.version = packet_version;
    good.type = static_cast<uint8_t>(PacketType::words);
    good.job.set(7);
    good.sender.set(3);
    good.length.set(400);
    EXPECT_EQ(packet_invalid(good, 7, 4), nullptr);
    EXPECT_NE(packet_invalid(good, 8, 4), nullptr);
    EXPECT_NE(packet_invalid(good, 7, 3), nullptr);
    auto bad = [&](auto change) {
        PacketHeader header = good;
        change(header);
        return packet_invalid(header, 7, 4) != nullptr;
    };
    EXPECT_TRUE(bad([](PacketHeader& h) { h.magic.set(0x6368); }));
    EXPECT_TRUE(bad([](PacketHeader& h) { h.version = 2; }));
    EXPECT_TRUE(bad([](PacketHeader& h) { h.type = 0; }));
    EXPECT_TRUE(bad([](PacketHeader& h) { h.type = 7; }));
    EXPECT_TRUE(bad([](PacketHeader& h) { h.reserved.set(1); }));
    EXPECT_TRUE(bad([](PacketHeader& h) { h.length.set(401); }));
    EXPECT_TRUE(bad([](PacketHeader& h) { h.length.set(segment_bytes_stream + 4); }));
    EXPECT_TRUE(bad([](PacketHeader& h) { h.sequence.set(uint64_t{1} << 48); }));
    EXPECT_TRUE(bad([](PacketHeader& h) { h.type = static_cast<uint8_t>(PacketType::ack); }));
    EXPECT_TRUE(bad([](PacketHeader& h) { h.type = static_cast<uint8_t>(PacketType::record), h.length.set(0); }));
    EXPECT_TRUE(bad([](PacketHeader& h) { h.type = static_cast<uint8_t>(PacketType::record), h.length.set(26); }));
    EXPECT_FALSE(bad([](PacketHeader& h) { h.type = static_cast<uint8_t>(PacketType::record), h.length.set(28); }));
    EXPECT_FALSE(bad([](PacketHeader& h) { h.length.set(segment_bytes_stream); }));
}

}   // namespace
}   // namespace gradcast
