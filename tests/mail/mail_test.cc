#include "transport/mail.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/core/digest.h"
#include "runtime/core/limits.h"
#include "runtime/core/rng.h"
#include "tests/mail/buffer.h"
#include "tests/sim/seeds.h"
#include "transport/sim/sim.h"
#include "transport/wire/packet.h"

namespace gradcast {
namespace {

/// A message whose bytes follow from (seed, id).
std::vector<std::byte> message_make(uint64_t seed, uint32_t id, size_t bytes) {
    std::vector<std::byte> message(bytes);
    for (size_t i = 0; i < bytes; ++i) message[i] = static_cast<std::byte>(splitmix64(seed * 1000 + id + (uint64_t{i} << 32)));
    return message;
}

struct Post {
    uint64_t at_us;
    bool send;
    uint32_t id;
};
struct Letter {
    Rank from;
    std::vector<Rank> to;
    size_t bytes;
    std::vector<uint64_t> bits;
};

/// Every rank posts its sends and receives at random times, in random order; all must arrive intact.
void exchange_letters(uint64_t seed, uint32_t ranks, uint32_t segment_bytes, uint32_t count, size_t bytes_max) {
    SimConfig config;
    config.seed = seed;
    config.ranks = ranks;
    config.jitter_us = random_of(seed, 1, 0) % 100;
    config.batch_us = random_of(seed, 2, 0) % 50;
    if (seed % 2) config.break_per_packet = 0.02;
    auto simulator = Simulator::create(config);
    std::vector<Letter> letters;
    for (uint32_t id = 0; id < count; ++id) {
        Letter letter;
        letter.from = random_of(seed, id, 3) % ranks;
        const size_t sizes[] = {0,        1, 8, segment_bytes - 1, segment_bytes, segment_bytes + 1, mail_early_bytes, mail_early_bytes + 1,
                                bytes_max};
        letter.bytes = random_of(seed, id, 4) % 3 ? sizes[random_of(seed, id, 5) % 9] : random_of(seed, id, 6) % bytes_max;
        letter.bits.assign((ranks + 63) / 64, 0);
        for (Rank r = 0; r < ranks; ++r)
            if (r != letter.from && (random_of(seed, id, 7 + r) % 3 == 0 || r == (letter.from + 1) % ranks)) {
                letter.to.push_back(r);
                letter.bits[r / 64] |= uint64_t{1} << r % 64;
            }
        letters.push_back(letter);
    }
    std::vector<std::unique_ptr<Protocol>> protocols;
    std::vector<std::vector<std::vector<std::byte>>> inbox(ranks, std::vector<std::vector<std::byte>>(count));
    std::vector<std::vector<std::byte>> outbox(count);
    for (Rank r = 0; r < ranks; ++r) {
        protocols.push_back(mail_protocol(r, ranks, segment_bytes));
        simulator->attach(r, mail_channel, protocols[r].get());
        simulator->trainer(r, [&, r](Host& host) -> Status {
            Mail mail(host, mail_channel);
            std::vector<Post> posts;
            for (uint32_t id = 0; id < count; ++id) {
                const Letter& letter = letters[id];
                const bool to_me = std::find(letter.to.begin(), letter.to.end(), r) != letter.to.end();
                if (letter.from == r || to_me) posts.push_back({random_of(seed, id, 1000 + r) % 3000, letter.from == r, id});
            }
            std::sort(posts.begin(), posts.end(), [](const Post& a, const Post& b) { return a.at_us < b.at_us; });
            std::vector<bool> done(count);
            uint64_t begin = host.now_us();
            size_t remaining = posts.size();
            for (const Post& post : posts) {
                uint64_t now = host.now_us() - begin;
                if (now < post.at_us) host.spend(post.at_us - now);
                const Letter& letter = letters[post.id];
                if (post.send) {
                    outbox[post.id] = message_make(seed, post.id, letter.bytes);
                    mail.send({letter.to[0], letter.to.size() > 1 ? letter.bits.data() : nullptr}, post.id, buffer_of(outbox[post.id]),
                              post.id);
                } else {
                    inbox[r][post.id].resize(letter.bytes);
                    mail.receive(letter.from, post.id, buffer_of(inbox[r][post.id]), post.id);
                }
            }
            std::vector<Completion> completions;
            while (remaining > 0) {
                completions.clear();
                GC_TRY(host.wait(&completions, host.now_us() + 10'000'000));
                for (const Completion& each : completions) {
                    GC_TRY(each.status);
                    if (done[each.id]) return fail(Code::conflict, "message {} completed twice", each.id);
                    done[each.id] = true;
                    --remaining;
                    if (letters[each.id].from != r &&
                        inbox[r][each.id] != message_make(seed, static_cast<uint32_t>(each.id), letters[each.id].bytes))
                        return fail(Code::conflict, "message {} is not what was sent", each.id);
                }
            }
            return {};
        });
    }
    Status status = simulator->run();
    EXPECT_TRUE(status.ok()) << status.what;
}

TEST(Mail, AllArriveWhole) {
    for_seeds(60, [](uint64_t seed) { exchange_letters(seed, 2 + seed % 4, seed % 3 ? 64 : 1500, 40, 3000); });
}

TEST(Mail, BigOnesLandInPlace) {
    for_seeds(4, [](uint64_t seed) { exchange_letters(seed, 3, segment_bytes_stream, 12, 3 * segment_bytes_stream + 5); });
}

// ---- one protocol by hand ----------------------------------------------------------------------------------------------------------

struct One {
    std::unique_ptr<Protocol> protocol;
    Actions actions;
    explicit One(uint32_t segment_bytes) : protocol(mail_protocol(1, 4, segment_bytes)) {}
    void on(const Event& event) {
        actions.clear();
        protocol->on({&event, 1}, actions);
    }
};
/// A Host that hands every event straight to the protocol.
struct OneHost : Host {
    One& one;
    explicit OneHost(One& target) : one(target) {}
    uint64_t now_us() override { return 0; }
    void post(uint16_t, const Event& event) override { one.on(event); }
    Status wait(std::vector<Completion>*, uint64_t) override { return {}; }
    void open_view(uint32_t, std::span<const Attachment>) override {}
    Status close_view(uint64_t) override { return {}; }
};

Packet fragment(Rank from, uint64_t tag, uint32_t offset, uint32_t total) {
    Packet packet;
    packet.type = PacketType::mail;
    packet.sender = from;
    packet.view = 1;
    MailBody body;
    body.tag.set(tag);
    body.offset.set(offset);
    body.total.set(total);
    packet.body = body_bytes(body);
    return packet;
}

struct Fixture : ::testing::Test {
    explicit Fixture(uint32_t segment_bytes = 4096) : one(segment_bytes), host(one), mail(host, mail_channel) {}
    One one;
    OneHost host;
    Mail mail;
    std::vector<std::byte> lease;
    Landing deliver(Packet packet, uint64_t bytes) {
        Landing landing = land(packet, bytes);
        if (landing == Landing::place || landing == Landing::lease) arrive(packet);
        return landing;
    }
    Landing land(Packet& packet, uint64_t bytes) {
        Landing landing = one.protocol->land(packet, bytes, &packet.payload);
        if (landing == Landing::lease) {
            lease.assign(bytes, std::byte{5});
            packet.payload = buffer_of(lease);
        }
        if (landing == Landing::place) std::memset(packet.payload.host, 5, bytes);
        return landing;
    }
    void arrive(const Packet& packet) {
        const Event event{Event::Received{&packet}};
        one.on(event);
    }
    void take_word(Rank from, MailWord kind, uint64_t value) {
        MailWordBody body{};
        body.value.set(value);
        body.kind.set(static_cast<uint32_t>(kind));
        Packet packet = fragment(from, 0, 0, 0);
        packet.type = PacketType::mail_word;
        packet.body = body_bytes(body);
        deliver(packet, 0);
    }
    void sent(const Send& send, Status status = {}) { one.on({Event::Sent{send.ticket, status}}); }
    void lost(Rank rank) { one.on({Event::PeerLost{rank, fail(Code::peer_lost, "rank {} is lost: no answer in 30 s", rank)}}); }
    void up(Rank rank) { one.on({Event::PeerUp{rank}}); }
    static uint64_t tag_of(const Send& send) { return std::bit_cast<MailBody>(send.body).tag.get(); }
    bool said(Rank to, MailWord kind, uint64_t value) {
        if (one.actions.sends.size() != 1) return false;
        const Send& send = one.actions.sends[0];
        const auto body = std::bit_cast<MailWordBody>(send.body);
        return send.type == PacketType::mail_word && send.to.rank == to && !send.to.bits && send.payload.bytes == 0 &&
               body.kind.get() == static_cast<uint32_t>(kind) && body.value.get() == value;
    }
    bool completed(uint64_t ticket, Code code) {
        return one.actions.completions.size() == 1 && one.actions.completions[0].id == ticket &&
               one.actions.completions[0].status.code == code;
    }
};
using MailByHand = Fixture;
struct MailOfBigFragments : Fixture {
    MailOfBigFragments() : Fixture(segment_bytes_stream) {}
};

TEST_F(MailByHand, SmallOnesAreKeptAndBigOnesAreAskedFor) {
    EXPECT_EQ(deliver(fragment(0, 7, 0, mail_early_bytes), mail_early_bytes), Landing::lease);
    EXPECT_EQ(deliver(fragment(0, 8, 0, mail_early_bytes + 1), mail_early_bytes + 1), Landing::drop);
    EXPECT_EQ(deliver(fragment(0, 9, 0, 5000), 4096), Landing::drop);
    std::vector<std::byte> small(mail_early_bytes), big(mail_early_bytes + 1);
    mail.receive(0, 8, buffer_of(big), 1);
    EXPECT_TRUE(one.actions.completions.empty());
    EXPECT_TRUE(said(0, MailWord::ask, 8));
    EXPECT_EQ(deliver(fragment(0, 8, 0, mail_early_bytes + 1), mail_early_bytes + 1), Landing::lease);
    EXPECT_TRUE(completed(1, Code::ok));
    EXPECT_EQ(big[1024], std::byte{5});
    mail.receive(2, 7, buffer_of(small), 2);   // of another rank
    EXPECT_TRUE(one.actions.completions.empty() && one.actions.sends.empty());
    mail.receive(0, 7, buffer_of(small), 3);
    EXPECT_TRUE(completed(3, Code::ok));
    EXPECT_EQ(small[0], std::byte{5});
}

TEST_F(MailByHand, KeepsABoundedNumberOfSmallOnesOfEachSender) {
    const uint32_t room = mail_room(4);
    for (uint32_t i = 0; i < room; ++i) ASSERT_EQ(deliver(fragment(0, i, 0, 0), 0), Landing::lease);
    deliver(fragment(0, room, 0, 0), 0);   // of a sender that knows no bounds: forgotten
    mail.receive(0, room, {}, 1);
    EXPECT_TRUE(one.actions.completions.empty());
    deliver(fragment(0, room, 0, 0), 0);   // now it is awaited
    EXPECT_TRUE(completed(1, Code::ok));
    deliver(fragment(2, 5, 0, 0), 0);   // another sender has its own room
    mail.receive(2, 5, {}, 2);
    EXPECT_TRUE(completed(2, Code::ok));
    // Half the room is taken: the sender gets MailWord::room.
    for (uint32_t i = 0; i + 2 < room / 2; ++i) {
        mail.receive(0, i, {}, 10 + i);
        EXPECT_TRUE(completed(10 + i, Code::ok) && one.actions.sends.empty());
    }
    mail.receive(0, room / 2, {}, 3);
    EXPECT_TRUE(completed(3, Code::ok) && said(0, MailWord::room, room / 2));
}

TEST_F(MailByHand, ASenderKeepsWhatNobodyHasRoomFor) {
    const uint32_t room = mail_room(4);
    const uint64_t to_all[] = {0b1101};
    for (uint32_t i = 0; i < room; ++i) {
        mail.send({2}, i, {}, i);
        ASSERT_EQ(one.actions.sends.size(), 1u);
        ASSERT_TRUE(one.actions.completions.empty());
        sent(one.actions.sends[0]);
        ASSERT_TRUE(completed(i, Code::ok));
    }
    mail.send({0, to_all}, 5000, {}, 5000);
    mail.send({2}, 5001, {}, 5001);
    EXPECT_TRUE(one.actions.sends.empty());
    take_word(2, MailWord::room, 1);
    ASSERT_EQ(one.actions.sends.size(), 1u);
    EXPECT_EQ(tag_of(one.actions.sends[0]), 5000u);
    take_word(2, MailWord::room, ~uint64_t{0});   // more than there can be
    ASSERT_EQ(one.actions.sends.size(), 1u);
    EXPECT_EQ(tag_of(one.actions.sends[0]), 5001u);
    for (uint32_t i = 0; i + 1 < room; ++i) {
        mail.send({2}, i, {}, i);
        ASSERT_EQ(one.actions.sends.size(), 1u);
    }
    mail.send({2}, room, {}, room);
    EXPECT_TRUE(one.actions.sends.empty());
}

TEST_F(MailByHand, ASenderKeepsABigOneUntilItIsAskedFor) {
    std::vector<std::byte> memory(10000), small(10);
    const uint64_t to_all[] = {0b1101};
    take_word(0, MailWord::ask, 7);
    EXPECT_TRUE(one.actions.sends.empty());
    mail.send({0, to_all}, 7, buffer_of(memory), 42);
    ASSERT_EQ(one.actions.sends.size(), 3u);   // to rank 0, which has asked before
    std::vector<Send> sends = one.actions.sends;
    for (const Send& each : sends) EXPECT_TRUE(each.to.rank == 0 && !each.to.bits);
    mail.send({2}, 8, buffer_of(small), 43);   // does not wait for those before
    EXPECT_EQ(one.actions.sends.size(), 1u);
    take_word(2, MailWord::ask, 9);   // of another one
    take_word(2, MailWord::ask, 8);   // no large one
    EXPECT_TRUE(one.actions.sends.empty());
    take_word(2, MailWord::ask, 7);
    ASSERT_EQ(one.actions.sends.size(), 3u);
    sends.insert(sends.end(), one.actions.sends.begin(), one.actions.sends.end());
    take_word(2, MailWord::ask, 7);   // for the next one of that tag
    EXPECT_TRUE(one.actions.sends.empty());
    for (const Send& each : sends) {
        sent(each);
        EXPECT_TRUE(one.actions.completions.empty());
    }
    lost(3);   // between the send and its ask
    EXPECT_TRUE(completed(42, Code::peer_lost));
    mail.send({3}, 7, buffer_of(memory), 44);
    EXPECT_TRUE(completed(44, Code::peer_lost) && one.actions.sends.empty());
    mail.send({3}, 7, buffer_of(small), 45);
    EXPECT_TRUE(completed(45, Code::peer_lost) && one.actions.sends.empty());
    mail.send({2}, 7, buffer_of(memory), 46);
    EXPECT_EQ(one.actions.sends.size(), 3u);
}

TEST_F(MailByHand, ARankThatComesAgainIsANewOne) {
    std::vector<std::byte> memory(10000);
    take_word(2, MailWord::ask, 7);
    deliver(fragment(2, 1, 0, 10), 10);
    for (uint32_t i = 0; i < mail_room(4); ++i) mail.send({2}, i, {}, i);
    lost(2);
    up(2);
    mail.send({2}, 7, buffer_of(memory), 1);
    EXPECT_TRUE(one.actions.sends.empty());
    mail.send({2}, 8, {}, 2);
    EXPECT_EQ(one.actions.sends.size(), 1u);
    mail.receive(2, 1, {memory.data(), nullptr, 10}, 3);
    EXPECT_TRUE(one.actions.completions.empty());
    up(0);   // for the first time: what was sent before counts
    for (uint32_t i = 0; i < mail_room(4); ++i) mail.send({3}, i, {}, i);
    up(3);
    mail.send({3}, 9, {}, 4);
    EXPECT_TRUE(one.actions.sends.empty());
}

TEST_F(MailByHand, ForgetsAsksAboveTheBound) {
    std::vector<std::byte> memory(mail_early_bytes + 1);
    const uint64_t most = mail_asked_max / 4;
    for (uint64_t i = 0; i <= most; ++i) take_word(0, MailWord::ask, i);
    mail.send({0}, most, buffer_of(memory), 1);
    EXPECT_TRUE(one.actions.sends.empty());
    mail.send({0}, most - 1, buffer_of(memory), 2);
    EXPECT_EQ(one.actions.sends.size(), 1u);
    take_word(0, MailWord::ask, most);
    EXPECT_EQ(one.actions.sends.size(), 1u);
}

TEST_F(MailByHand, AWrongSizeIsAConflict) {
    std::vector<std::byte> memory(10);
    mail.receive(0, 7, buffer_of(memory), 1);
    EXPECT_EQ(deliver(fragment(0, 7, 0, 12), 12), Landing::lease);
    EXPECT_TRUE(completed(1, Code::conflict));
    EXPECT_STREQ(one.actions.completions[0].status.what,
                 "mail 0x7 of rank 0 has 12 bytes where 10 are expected: the ranks do not run the same job");
    EXPECT_EQ(memory[0], std::byte{0});
    deliver(fragment(3, 7, 0, 12), 12);   // early
    mail.receive(3, 7, buffer_of(memory), 2);
    EXPECT_TRUE(completed(2, Code::conflict));
    // Of several fragments the rest is read and forgotten.
    mail.receive(0, 8, buffer_of(memory), 3);
    EXPECT_EQ(deliver(fragment(0, 8, 0, 10000), 4096), Landing::lease);
    EXPECT_TRUE(completed(3, Code::conflict));
    EXPECT_EQ(deliver(fragment(0, 8, 4096, 10000), 4096), Landing::drop);
    EXPECT_EQ(deliver(fragment(0, 8, 8192, 10000), 10000 - 8192), Landing::drop);
}

TEST_F(MailOfBigFragments, AWrongSizeIsAConflict) {
    std::vector<std::byte> memory(100);
    mail.receive(0, 7, buffer_of(memory), 1);
    EXPECT_EQ(deliver(fragment(0, 7, 0, 1 << 20), segment_bytes_stream), Landing::place);
    EXPECT_TRUE(completed(1, Code::conflict));
    EXPECT_EQ(memory[0], std::byte{0});
    EXPECT_EQ(deliver(fragment(0, 7, segment_bytes_stream, 1 << 20), segment_bytes_stream), Landing::drop);
}

TEST_F(MailByHand, ALostRankEndsItsReceives) {
    std::vector<std::byte> memory(10);
    mail.receive(0, 7, buffer_of(memory), 1);
    lost(2);
    EXPECT_TRUE(one.actions.completions.empty());
    lost(0);
    EXPECT_TRUE(completed(1, Code::peer_lost));
    mail.receive(0, 7, buffer_of(memory), 2);
    EXPECT_TRUE(completed(2, Code::peer_lost));
    up(0);
    mail.receive(0, 7, buffer_of(memory), 3);
    EXPECT_TRUE(one.actions.completions.empty());
}

TEST_F(MailByHand, ASendEndsWhenTheLinkHasGivenAllMemoryBack) {
    std::vector<std::byte> memory(10000);
    take_word(2, MailWord::ask, 7);
    mail.send({2}, 7, buffer_of(memory), 42);
    ASSERT_EQ(one.actions.sends.size(), 3u);
    std::vector<Send> sends = one.actions.sends;
    EXPECT_EQ(sends[2].payload.bytes, 10000u - 8192);
    EXPECT_EQ(sends[2].payload.host, memory.data() + 8192);
    mail.send({3}, 7, {}, 43);
    ASSERT_EQ(one.actions.sends.size(), 1u);
    sent(one.actions.sends[0]);
    EXPECT_TRUE(completed(43, Code::ok));
    for (size_t i : {2, 0, 1}) {
        sent(sends[i], i == 0 ? fail(Code::peer_lost, "rank 2 is lost") : Status{});
        EXPECT_EQ(one.actions.completions.size(), i == 1 ? 1u : 0u);
    }
    EXPECT_TRUE(completed(42, Code::peer_lost));
}

TEST_F(MailByHand, RefusesWhatCannotBe) {
    std::vector<std::byte> memory(10000);
    mail.receive(0, 7, buffer_of(memory), 1);
    auto refused = [&](Packet packet, uint64_t bytes) {
        EXPECT_EQ(deliver(packet, bytes), Landing::drop);
        std::vector<std::byte> payload(bytes);
        packet.payload = buffer_of(payload);
        arrive(packet);
        EXPECT_TRUE(one.actions.completions.empty() && one.actions.sends.empty());
    };
    refused(fragment(1, 7, 0, 10000), 4096);   // from ourselves
    refused(fragment(4, 7, 0, 10000), 4096);   // from nobody
    refused(fragment(0, 7, 0, 10000), 4095);   // sizes that do not follow from offset and total
    refused(fragment(0, 7, 0, 10000), 0);
    refused(fragment(0, 7, 8192, 10000), 4096);
    refused(fragment(0, 7, 100, 10000), 4096);   // an offset between fragments
    refused(fragment(0, 7, 12288, 10000), 0);    // an offset beyond the end
    refused(fragment(0, 7, ~0u - 4095, 10000), 4096);
    Packet packet = fragment(0, 7, 0, 10000);
    packet.type = PacketType::words;
    refused(packet, 4096);
    MailWordBody word{};
    word.value.set(7);
    word.kind.set(static_cast<uint32_t>(MailWord::ask));
    packet.type = PacketType::mail_word;
    packet.body = body_bytes(word);
    refused(packet, 8);   // a word has no payload
    word.reserved.set(1);
    packet.body = body_bytes(word);
    refused(packet, 0);
    for (uint32_t kind : {0u, 3u, ~0u}) take_word(0, static_cast<MailWord>(kind), 7);
    mail.send({0}, 7, buffer_of(memory), 2);
    EXPECT_TRUE(one.actions.sends.empty());
    EXPECT_EQ(deliver(fragment(0, 7, 0, 10000), 4096), Landing::lease);
    EXPECT_EQ(deliver(fragment(0, 7, 0, 10000), 4096), Landing::drop);   // begun: this would be another message of that tag
    EXPECT_EQ(deliver(fragment(0, 7, 4096, 10000), 4096), Landing::lease);
    EXPECT_EQ(deliver(fragment(0, 7, 8192, 10000), 10000 - 8192), Landing::lease);
    EXPECT_TRUE(completed(1, Code::ok));
}

// Fragments and words of all kinds, between posts that fit them or do not.
TEST_F(MailByHand, NoiseDoesNoHarm) {
    std::vector<std::byte> memory(9000), message(9000);
    for (uint32_t i = 0; i < 50'000; ++i) {
        auto a = random4(Purpose::test, 3, i, 0), b = random4(Purpose::test, 3, i, 1);
        if (i % 50 == 0) mail.receive(a[0] % 2 * 2, a[1] % 4, {memory.data(), nullptr, a[2] % 9000}, i);
        if (i % 50 == 1) mail.send({a[0] % 2 * 2}, a[1] % 4, {message.data(), nullptr, a[2] % 9000}, i);
        if (i % 3 == 0) take_word(b[0] % 5, static_cast<MailWord>(b[1] % 4), b[2] % 2 ? b[2] % 8 : b[2]);
        if (i % 5000 == 0) b[3] % 2 ? lost(b[0] % 4) : up(b[0] % 4);
        const uint32_t totals[] = {0, 10, 4096, 4097, 9000, a[3]};
        const uint32_t total = totals[a[1] % 6], offset = a[2] % 4 * 4096;
        deliver(fragment(a[0] % 5, a[1] % 4, offset, total), a[3] % 3 ? std::min<uint64_t>(4096, total - offset) : a[3] % 5000);
    }
}

}   // namespace
}   // namespace gradcast
