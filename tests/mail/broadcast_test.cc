#include "transport/broadcast.h"

#include <gtest/gtest.h>

#include <bit>

#include "runtime/core/digest.h"
#include "runtime/core/rng.h"
#include "tests/mail/buffer.h"
#include "tests/sim/seeds.h"
#include "transport/bulk/bulk.h"
#include "transport/sim/sim.h"

namespace gradcast {
namespace {

constexpr uint32_t datagram_bytes = 1432;

/// Rank `from`'s vector of that number.
std::vector<std::byte> vector_of(Rank from, uint32_t number, size_t bytes) {
    std::vector<std::byte> all(bytes);
    for (size_t i = 0; i < bytes; ++i) all[i] = static_cast<std::byte>(splitmix64((uint64_t{from} << 40) + (uint64_t{number} << 32) + i));
    return all;
}

/// A Host that hands every event straight to the protocol.
struct Direct : Host {
    Direct(Protocol& target, Actions& into) : one(target), actions(into) {}
    uint64_t now_us() override { return 0; }
    void post(uint16_t, const Event& event) override { one.on({&event, 1}, actions); }
    Status wait(std::vector<Completion>*, uint64_t) override { return {}; }
    void open_view(uint32_t, std::span<const Attachment>) override {}
    Status close_view(uint64_t) override { return {}; }
    Protocol& one;
    Actions& actions;
};

/// n ranks with a broadcast each, by bulk.
struct Ranks {
    std::unique_ptr<Simulator> sim;
    std::vector<std::unique_ptr<Protocol>> broadcasts, bulks;
    std::vector<std::unique_ptr<Arena>> arenas;
    std::vector<BulkCounters> counters;
    explicit Ranks(const SimConfig& config) : sim(Simulator::create(config)), counters(config.ranks) {
        for (Rank r = 0; r < config.ranks; ++r) {
            broadcasts.push_back(broadcast_protocol(r, config.ranks, datagram_bytes));
            arenas.push_back(std::make_unique<Arena>());
            bulks.push_back(
                bulk_create({.self = r, .ranks = config.ranks, .segment_bytes = datagram_bytes}, *broadcasts[r], *arenas[r], &counters[r]));
            EXPECT_TRUE(arenas[r]->seal().ok());
            sim->attach_datagrams(r, broadcast_channel, bulks[r].get());
        }
    }
    static Status wait(Host& host, std::vector<Completion>* out, size_t count, uint64_t us) {
        const uint64_t until_us = host.now_us() + us;
        while (out->size() < count) GC_TRY(host.wait(out, until_us));
        return {};
    }
};

// Every rank sends vectors of all sizes and posts receives at times of its own: each comes whole at all others, over a network that loses.
TEST(Broadcast, AllComeToAllOthers) {
    for_seeds(30, [](uint64_t seed) {
        SimConfig config;
        config.seed = seed;
        config.ranks = 2 + static_cast<uint32_t>(seed % 5);
        config.jitter_us = random_of(seed, 1, 0) % 300;
        if (seed % 2) config.loss = 0.03, config.duplicate = 0.01;
        Ranks all(config);
        const uint32_t n = config.ranks, count = 6;
        const auto bytes = [&](Rank from, uint32_t number) {
            const size_t sizes[] = {1, 8, datagram_bytes, datagram_bytes + 1, 40'000, 300'000};
            return sizes[random_of(seed, from, number) % 6];
        };
        for (Rank self = 0; self < n; ++self)
            all.sim->trainer(self, [&, self](Host& host) -> Status {
                Broadcast broadcast(host, broadcast_channel);
                std::vector<std::vector<std::byte>> sent(count), got(n * count);
                for (uint32_t i = 0; i < count; ++i) {
                    sent[i] = vector_of(self, i, bytes(self, i));
                    for (Rank from = 0; from < n; ++from) {
                        if (from == self) broadcast.send(buffer_of(sent[i]), 1 + i);
                        else got[from * count + i].resize(bytes(from, i));
                        if (from != self) broadcast.receive(from, buffer_of(got[from * count + i]), 1 + count + from * count + i);
                        host.spend(random_of(seed, self, 100 + from + i * n) % 2000);
                    }
                }
                std::vector<Completion> out;
                GC_TRY(Ranks::wait(host, &out, n * count, 20'000'000));
                for (const Completion& each : out) GC_TRY(each.status);
                for (Rank from = 0; from < n; ++from)
                    for (uint32_t i = 0; i < count && from != self; ++i)
                        if (got[from * count + i] != vector_of(from, i, bytes(from, i)))
                            return fail(Code::conflict, "vector {} of rank {} is not what was sent", i, from);
                return {};
            });
        const Status status = all.sim->run();
        EXPECT_TRUE(status.ok()) << status.what;
    });
}

TEST(Broadcast, SendsAboutOneCopy) {
    SimConfig config;
    config.ranks = 6;
    Ranks all(config);
    std::vector<std::byte> sent(1'000'000, std::byte{3}), got[6];
    for (Rank self = 0; self < config.ranks; ++self)
        all.sim->trainer(self, [&, self](Host& host) -> Status {
            Broadcast broadcast(host, broadcast_channel);
            got[self].resize(sent.size());
            if (self == 0) broadcast.send(buffer_of(sent), 1);
            else broadcast.receive(0, buffer_of(got[self]), 1);
            std::vector<Completion> out;
            return Ranks::wait(host, &out, 1, 1'000'000);
        });
    ASSERT_TRUE(all.sim->run().ok());
    uint64_t bytes = 0;
    for (Rank r = 0; r < config.ranks; ++r) bytes += all.sim->bytes_sent(r);
    EXPECT_GT(bytes, sent.size());
    EXPECT_LT(bytes, sent.size() * 11 / 10);
}

// A rank that dies misses its part; a sender that dies ends the receives from it.
TEST(Broadcast, ADeathEndsWhatWaitsForIt) {
    for (const Rank dead : {0u, 2u})
        for_seeds(4, [&](uint64_t seed) {
            SimConfig config;
            config.seed = seed;
            config.ranks = 3;
            config.lost_after_us = 500'000;
            Ranks all(config);
            std::vector<std::byte> sent(3'000'000, std::byte{3}), got[3];
            all.sim->kill(dead, 3'000);
            for (Rank self = 0; self < config.ranks; ++self)
                all.sim->trainer(self, [&, self](Host& host) -> Status {
                    Broadcast broadcast(host, broadcast_channel);
                    got[self].resize(sent.size());
                    std::vector<Completion> out;
                    for (uint64_t i = 1; i < 3; ++i) {   // the second one when the death is known
                        if (self == 0) broadcast.send(buffer_of(sent), i);
                        else broadcast.receive(0, buffer_of(got[self]), i);
                        GC_TRY(Ranks::wait(host, &out, i, 5'000'000));
                        const bool misses = self == 0 ? i == 1 : dead == 0;   // the first send misses the rank that dies meanwhile
                        EXPECT_EQ(out.back().status.code, misses ? Code::peer_lost : Code::ok) << self << " " << i;
                    }
                    if (self == 1 && dead == 2) {
                        EXPECT_EQ(got[1], sent);
                    }
                    return {};
                });
            const Status status = all.sim->run();
            EXPECT_TRUE(status.ok()) << status.what;
        });
}

TEST(Broadcast, RefusesWhatCannotBe) {
    const std::unique_ptr<Protocol> one = broadcast_protocol(1, 3, datagram_bytes);
    std::vector<std::byte> memory(datagram_bytes + 10);
    Actions actions;
    Direct host(*one, actions);
    Broadcast(host, broadcast_channel).receive(0, buffer_of(memory), 5);
    Buffer place;
    const auto land = [&](Rank from, uint32_t number, uint32_t index, uint64_t bytes, Phase phase = Phase::gather, uint16_t bucket = 0,
                          PacketType type = PacketType::words) {
        Packet packet;
        packet.type = type;
        packet.sender = from;
        DataBody body{};
        body.step.set(number);
        body.bucket.set(bucket);
        body.phase = static_cast<uint8_t>(phase);
        body.index.set(index);
        packet.body = std::bit_cast<std::array<std::byte, 16>>(body);
        return one->land(packet, bytes, &place);
    };
    EXPECT_EQ(land(0, 0, 0, datagram_bytes), Landing::place);
    EXPECT_EQ(land(0, 0, 1, 10), Landing::place);
    EXPECT_EQ(place.host, memory.data() + datagram_bytes);
    EXPECT_EQ(land(0, 1, 0, datagram_bytes), Landing::later);   // not posted yet
    EXPECT_EQ(land(2, 0, 0, datagram_bytes), Landing::later);
    EXPECT_EQ(land(1, 0, 0, datagram_bytes), Landing::drop);   // ourselves
    EXPECT_EQ(land(3, 0, 0, datagram_bytes), Landing::drop);   // nobody
    EXPECT_EQ(land(0, 0, 0, datagram_bytes - 1), Landing::drop);
    EXPECT_EQ(land(0, 0, 1, 11), Landing::drop);
    EXPECT_EQ(land(0, 0, 2, 0), Landing::drop);
    EXPECT_EQ(land(0, 0, 0xffffff, datagram_bytes), Landing::drop);
    EXPECT_EQ(land(0, 0, 0, datagram_bytes, Phase::reduce), Landing::drop);
    EXPECT_EQ(land(0, 0, 0, datagram_bytes, Phase::gather, 1), Landing::drop);
    EXPECT_EQ(land(0, 0, 0, datagram_bytes, Phase::gather, 0, PacketType::record), Landing::drop);
}

}   // namespace
}   // namespace gradcast
