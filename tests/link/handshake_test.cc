// Two handshakes without sockets: the test moves the bytes.
#include "transport/stream/handshake.h"

#include <gtest/gtest.h>

#include "runtime/core/digest.h"
#include "tests/link/certificate.h"
#include "tests/link/fixture.h"

namespace gradcast {
namespace {

Hello hello_of(const std::string& name, uint64_t stream) {
    Hello hello;
    hello.name = name;
    hello.stream = stream;
    hello.incarnation = stream + 100;
    hello.job.fill(9);
    hello.segment_bytes = 4096;
    hello.view = 1;
    return hello;
}

struct HandshakePair {
    std::shared_ptr<TlsContext> tls_a, tls_b;
    std::unique_ptr<Handshake> a, b;     // connector, acceptor
    std::vector<std::byte> to_b, to_a;   // bytes after the handshake
    HandshakePair(const std::vector<ClusterKey>& keys_a, const std::vector<ClusterKey>& keys_b, uint32_t key = 0)
        : tls_a(std::make_shared<TlsContext>(keys_a)), tls_b(std::make_shared<TlsContext>(keys_b)) {
        a = std::make_unique<Handshake>(tls_a, Handshake::Side::connector, hello_of("a", 1), key);
        b = std::make_unique<Handshake>(tls_b, Handshake::Side::acceptor, hello_of("b", 2));
    }
    /// Moves bytes in pieces of 1..piece until neither side has output; `meddle` may change them.
    void run(size_t piece = 1000, const std::function<void(std::byte&)>& meddle = {}) {
        for (uint64_t round = 0; step(*a, *b, piece, round, meddle) | step(*b, *a, piece, round + 1, meddle); ++round) {
            if (a->state() == Handshake::State::asked) a->accept(hello_of("a", 1));
            if (b->state() == Handshake::State::asked) b->accept(hello_of("b", 2));
        }
    }
    static bool step(Handshake& from, Handshake& to, size_t piece, uint64_t round, const std::function<void(std::byte&)>& meddle) {
        if (from.output().empty()) return false;
        std::vector<std::byte> bytes(from.output().begin(), from.output().end());
        bytes.resize(std::min<size_t>(bytes.size(), 1 + splitmix64(round) % piece));
        from.wrote(bytes.size());
        for (std::byte& byte : bytes)
            if (meddle) meddle(byte);
        to.feed(bytes);
        return true;
    }
    bool done() const { return a->state() == Handshake::State::done && b->state() == Handshake::State::done; }
};

TEST(Handshake, BothGetTheSameKeysInAnyPieces) {
    for (size_t piece : {1, 2, 7, 100, 100000}) {
        HandshakePair pair(test_keys(), test_keys());
        pair.run(piece);
        ASSERT_TRUE(pair.done()) << pair.a->status().what << pair.b->status().what;
        EXPECT_EQ(pair.a->peer().name, "b");
        EXPECT_EQ(pair.b->peer().name, "a");
        Key a1, a2, b1, b2;
        pair.a->keys(&a1, &a2), pair.b->keys(&b1, &b2);
        EXPECT_EQ(a1, b1);
        EXPECT_EQ(a2, b2);
        EXPECT_NE(a1, a2);
        HandshakePair again(test_keys(), test_keys());
        again.run(piece);
        again.a->keys(&b1, &b2);
        EXPECT_NE(a1, b1);   // fresh for each connection: (EC)DHE
    }
}

TEST(Handshake, LeavesWhatFollowsAlone) {
    HandshakePair pair(test_keys(), test_keys());
    std::vector<std::byte> tail(300, std::byte{0x17});   // looks like the start of a TLS record
    for (;;) {
        HandshakePair::step(*pair.a, *pair.b, 100000, 3, {});
        if (pair.b->state() == Handshake::State::asked) pair.b->accept(hello_of("b", 2));
        HandshakePair::step(*pair.b, *pair.a, 100000, 3, {});
        if (pair.a->state() == Handshake::State::asked) break;
    }
    pair.a->accept(hello_of("a", 1));
    std::vector<std::byte> bytes(pair.a->output().begin(), pair.a->output().end());
    bytes.insert(bytes.end(), tail.begin(), tail.end());
    EXPECT_EQ(pair.b->feed(bytes), bytes.size() - tail.size());
    EXPECT_TRUE(pair.done());
}

TEST(Handshake, KeysThatDifferAreSaidOnBothSides) {
    struct {
        std::vector<ClusterKey> a, b;
        const char *at_a, *at_b;
    } cases[] = {
        {test_keys(1), test_keys(2), "the cluster keys differ: it does not take our key 'k1': give all nodes one key file",
         "the cluster keys differ: its key 'k1' is not ours: give all nodes one key file"},
        {test_keys(1, "new"), test_keys(1, "old"), "the cluster keys differ: it does not take our key 'new': give all nodes one key file",
         "the cluster keys differ: we have no key 'new': give all nodes one key file"},
    };
    for (auto& each : cases) {
        HandshakePair pair(each.a, each.b);
        pair.run();
        EXPECT_EQ(pair.a->state(), Handshake::State::failed);
        EXPECT_EQ(pair.b->state(), Handshake::State::failed);
        EXPECT_STREQ(pair.a->status().what, each.at_a);
        EXPECT_STREQ(pair.b->status().what, each.at_b);
        EXPECT_TRUE(pair.a->keys_differ());
    }
}

TEST(Handshake, AnyKeyOfTheRingIsTaken) {
    std::vector<ClusterKey> ring = {test_keys(1, "new")[0], test_keys(2, "old")[0]};
    for (uint32_t key : {0u, 1u}) {
        HandshakePair pair(ring, ring, key);
        pair.run();
        EXPECT_TRUE(pair.done());
    }
    HandshakePair rotated(ring, test_keys(2, "old"), 1);
    rotated.run();
    EXPECT_TRUE(rotated.done());
}

TEST(Handshake, RefusalsCarryTheirReason) {
    HandshakePair pair(test_keys(), test_keys());
    while (pair.b->state() != Handshake::State::asked)
        HandshakePair::step(*pair.a, *pair.b, 1000, 0, {}), HandshakePair::step(*pair.b, *pair.a, 1000, 1, {});
    pair.b->refuse(Verdict::refuse, "the moon is wrong");
    while (HandshakePair::step(*pair.b, *pair.a, 1000, 0, {})) {
    }
    EXPECT_EQ(pair.a->state(), Handshake::State::failed);
    EXPECT_STREQ(pair.a->status().what, "'b' refuses us: the moon is wrong");
    EXPECT_EQ(pair.a->verdict(), Verdict::refuse);
}

TEST(Handshake, VersionRangesThatDoNotMeet) {
    auto tls = std::make_shared<TlsContext>(test_keys());
    Hello future = hello_of("a", 1);
    future.version_min = 6;
    future.version_max = 7;
    Handshake a(tls, Handshake::Side::connector, future), b(tls, Handshake::Side::acceptor, hello_of("b", 2));
    while (HandshakePair::step(a, b, 1000, 0, {}) | HandshakePair::step(b, a, 1000, 1, {})) {
    }
    EXPECT_STREQ(b.status().what, "peer 'a' speaks versions 6..7, 'b' speaks 5..5: all nodes need one version of gradcast");
    EXPECT_STREQ(a.status().what, "'b' refuses us: peer 'a' speaks versions 6..7, 'b' speaks 5..5: all nodes need one version of gradcast");
}

// For every flipped bit: both sides end, without a crash, and never done with different keys.
TEST(Handshake, FlippedBitsNeverGoUnnoticed) {
    uint64_t total = 0;
    HandshakePair clean(test_keys(), test_keys());
    clean.run(100000, [&](std::byte&) { ++total; });
    uint64_t failed = 0;
    for (uint64_t at = 0; at < total; at += 5) {
        HandshakePair pair(test_keys(), test_keys());
        uint64_t seen = 0;
        pair.run(100000, [&](std::byte& byte) {
            if (seen++ == at) byte ^= std::byte(1 << at % 8);
        });
        if (!pair.done()) {
            ++failed;
            continue;
        }
        Key a1, a2, b1, b2;
        pair.a->keys(&a1, &a2), pair.b->keys(&b1, &b2);
        EXPECT_EQ(a1, b1);
        EXPECT_EQ(a2, b2);
    }
    EXPECT_GT(failed, total / 5 * 9 / 10);   // TLS ignores a few header bits
}

// Somebody in between who has no key answers with a certificate, which TLS allows a server that takes none of the offered keys.
TEST(Handshake, ACertificateIsNoKey) {
    Handshake a(std::make_shared<TlsContext>(test_keys()), Handshake::Side::connector, hello_of("a", 1));
    const auto context = certificate_server();
    const std::unique_ptr<SSL, decltype(&SSL_free)> server(SSL_new(context.get()), &SSL_free);
    SSL_set_bio(server.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_accept_state(server.get());
    std::vector<std::byte> bytes(1 << 16);
    for (int round = 0; round < 4; ++round) {
        BIO_write(SSL_get_rbio(server.get()), a.output().data(), static_cast<int>(a.output().size()));
        a.wrote(a.output().size());
        SSL_do_handshake(server.get());
        const int got = BIO_read(SSL_get_wbio(server.get()), bytes.data(), static_cast<int>(bytes.size()));
        if (got > 0) a.feed(std::span(bytes).first(static_cast<size_t>(got)));
    }
    EXPECT_EQ(a.state(), Handshake::State::failed);
    EXPECT_NE(std::string(a.status().what).find("it does not speak TLS 1.3 with a cluster key"), std::string::npos) << a.status().what;
    char said[64];
    EXPECT_LE(SSL_read(server.get(), said, sizeof said), 0);   // no Hello for it
}

TEST(Handshake, GarbageIsNotTls) {
    auto tls = std::make_shared<TlsContext>(test_keys());
    for (std::string text : {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "\x16\x03\x01\xff\xff", "\x15\x03\x03\x00\x02\x02\x28"}) {
        text.resize(400);
        Handshake b(tls, Handshake::Side::acceptor, hello_of("b", 2));
        b.feed(std::as_bytes(std::span(text)));
        EXPECT_EQ(b.state(), Handshake::State::failed);
        EXPECT_NE(std::string(b.status().what).find("it does not speak TLS"), std::string::npos) << b.status().what;
    }
}

TEST(Hello, ComesBackAsItWas) {
    Hello hello = hello_of("node-7.cluster", 5), back;
    hello.protect = Protect::encrypt;
    hello.rank = 3;
    hello.peer_stream = 77;
    hello.received = 1 << 20;
    hello.verdict = Verdict::later;
    hello.reason = "not yet";
    hello.uuid.fill(0x5a);
    std::vector<std::byte> bytes;
    hello_write(hello, &bytes);
    size_t used;
    for (size_t part = 0; part < bytes.size(); ++part) {
        ASSERT_EQ(hello_parse(std::span(bytes).first(part), &back, &used), nullptr);
        EXPECT_EQ(used, 0u);
    }
    ASSERT_EQ(hello_parse(bytes, &back, &used), nullptr);
    EXPECT_EQ(used, bytes.size());
    std::vector<std::byte> again;
    hello_write(back, &again);
    EXPECT_EQ(bytes, again);
}

TEST(Hello, CarriesTheEndOfAnRdmaConnection) {
    Hello hello = hello_of("b", 5);
    hello.reason = "why";
    hello.rail = 2;
    hello.rails = 3;
    hello.rdma = {0x123456, 0xabcdef, 64, 32768, 7, 5, 1, {}};
    hello.rdma.gid.fill(9);
    std::vector<std::byte> bytes;
    hello_write(hello, &bytes);
    Hello back;
    size_t used;
    for (size_t some = 0; some < bytes.size(); ++some) {
        EXPECT_EQ(hello_parse(std::span(bytes).first(some), &back, &used), nullptr);
        EXPECT_EQ(used, 0u);
    }
    ASSERT_EQ(hello_parse(bytes, &back, &used), nullptr);
    EXPECT_EQ(used, bytes.size());
    EXPECT_EQ(back.rdma, hello.rdma);
    EXPECT_EQ(back.reason, "why");
    EXPECT_EQ(back.rail, 2u);
    EXPECT_EQ(back.rails, 3u);
    for (const size_t at :
         {size_t{14}, bytes.size() - 36 + 3, bytes.size() - 36 + 7, bytes.size() - 17}) {   // length, queue, first, device
        auto wrong = bytes;
        wrong[at] = std::byte{rails_max};
        EXPECT_NE(hello_parse(wrong, &back, &used), nullptr) << at;
    }
}

TEST(Hello, EachMistakeHasItsWords) {
    Hello hello = hello_of("b", 5);
    hello.reason = "why";
    std::vector<std::byte> good;
    hello_write(hello, &good);
    struct {
        size_t at;
        uint8_t value;
        const char* what;
    } mistakes[] = {{0, 0, "does not speak gradcast"},
                    {4, 9, "version range"},
                    {8, 4, "verdict"},
                    {9, 3, "protection"},
                    {10, 0, "name"},
                    {10, 65, "name"},
                    {11, 1, "reserved"},
                    {15, 1, "rail"},
                    {15, 0xf0, "rail"},
                    {13, 3, "reason"},
                    {16, '\n', "unprintable"},
                    {108, 1, "reserved"},
                    {160, 7, "unprintable"},
                    {136, 0, "stream number"}};
    for (auto& mistake : mistakes) {
        auto bytes = good;
        bytes[mistake.at] = std::byte{mistake.value};
        Hello back;
        size_t used;
        const char* why = hello_parse(bytes, &back, &used);
        ASSERT_NE(why, nullptr) << mistake.at;
        EXPECT_NE(std::string(why).find(mistake.what), std::string::npos) << why;
    }
}

}   // namespace
}   // namespace gradcast
