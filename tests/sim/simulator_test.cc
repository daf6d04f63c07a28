// The simulator itself, with tiny protocols.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <deque>
#include <map>

#include "runtime/core/digest.h"
#include "tests/mail/buffer.h"
#include "tests/sim/seeds.h"
#include "transport/sim/sim.h"
#include "transport/wire/packet.h"

namespace gradcast {
namespace {

constexpr uint64_t forever = UINT64_MAX;

Buffer part_of(std::vector<uint32_t>& words, uint64_t first, uint64_t count) {
    return {reinterpret_cast<std::byte*>(words.data() + first), nullptr, count * 4};
}
Completion completion(uint64_t id, StepId step = 0, Status status = {}) { return {0, id, step, nullptr, status}; }

/// A protocol made of lambdas.
struct Toy : Protocol {
    std::function<void(const Event&, Actions&)> each;
    std::function<Landing(const Packet&, uint64_t, Buffer*)> place;
    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events) each(event, actions);
    }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* buffer) override {
        return place ? place(packet, bytes, buffer) : Protocol::land(packet, bytes, buffer);
    }
};

TEST(Simulator, PingPongTakesTheTimeOfTheLink) {
    SimConfig config;
    config.jitter_us = 0;
    config.batch_us = 0;
    config.latency_us = 100;
    config.trace = true;
    auto sim = Simulator::create(config);
    Toy toys[2];
    int remaining = 10;
    for (Rank r : {0u, 1u}) {
        toys[r].each = [&, r](const Event& event, Actions& actions) {
            bool first = event.is<Event::PeerUp>() && r == 0;
            const auto* received = event.is<Event::Received>();
            if (!first && !received) return;
            if (received) {
                EXPECT_EQ(received->packet->sender, 1 - r);
            }
            if (remaining-- > 0) actions.sends.push_back({{1 - r}, PacketType::job, {}, {}, 0, 0});
        };
        sim->attach(r, 0, &toys[r]);
    }
    ASSERT_TRUE(sim->run().ok());
    EXPECT_GE(sim->now_us(), 1000u);
    EXPECT_LE(sim->now_us(), 1110u);   // the last acknowledgement takes one latency more
    EXPECT_EQ(sim->bytes_sent(0), 5u * 64);
    EXPECT_EQ(sim->bytes_received(0), 5u * 64);
    EXPECT_EQ(std::count_if(sim->trace().begin(), sim->trace().end(), [](const SimTrace& t) { return t.what == SimTrace::What::deliver; }),
              10);
}

/// Ranks exchange numbered messages of all sizes, some to several ranks; every receiver checks order, content and number.
struct Chatter {
    SimConfig config;
    uint32_t messages = 60, size_max = 100'000;
    uint64_t partition_us = 0;   // ranks 0 and 1 are cut off for so long, from 1 ms on
    bool push_back = false;      // some packets are answered `later`
    std::unique_ptr<Simulator> sim;
    struct Node {
        Toy toy;
        std::vector<std::vector<std::byte>> out;   // payloads until `sent`
        std::deque<uint64_t> bits;
        std::vector<int64_t> last;   // by sender: the last number received
        std::vector<std::byte> place;
        int64_t owner = -1;   // sender and number of the packet that has the place
        uint64_t remaining = 0, later = 0, got = 0;
    };
    std::deque<Node> nodes;
    uint64_t random = 0, open = 0, sends = 0, lost = 0;   // open: deliveries still to come
    uint64_t next() { return splitmix64(random += 0x9E3779B97F4A7C15); }
    static uint64_t content(Rank from, uint64_t number) { return splitmix64(from * 1000003 + number); }   // byte i: this + 7 i

    void send(Rank r, Actions& actions) {
        Node& node = nodes[r];
        uint64_t& bits = node.bits.emplace_back(0);
        for (uint32_t wanted = next() % 3 == 0 ? 3 : 1; bits == 0 || wanted; wanted -= wanted ? 1 : 0)
            if (Rank to = static_cast<Rank>(next() % config.ranks); to != r) bits |= uint64_t{1} << to;
        uint64_t number = node.out.size(), size = next() % 4 == 0 ? next() % size_max : next() % 1500;
        std::vector<std::byte>& out = node.out.emplace_back(size);
        uint64_t byte = content(r, number);
        for (uint64_t i = 0; i < size; ++i, byte += 7) out[i] = static_cast<std::byte>(byte);
        Send s;
        std::memcpy(s.body.data(), &number, 8);
        std::memcpy(s.body.data() + 8, &bits, 8);
        s.to = {0, &bits};
        s.type = PacketType::mail;
        s.payload = buffer_of(out);
        s.ticket = number + 1;
        actions.sends.push_back(s);
        open += static_cast<uint64_t>(std::popcount(bits));
        --node.remaining;
        ++sends;
    }
    Landing land(Node& node, const Packet& packet, uint64_t bytes, Buffer* place) {
        if (push_back && next() % 4 == 0) {
            ++node.later;
            return Landing::later;
        }
        if (bytes <= 1000) return Landing::lease;
        int64_t owner = static_cast<int64_t>(packet.sender) << 32 | static_cast<int64_t>(packet.body[0]);
        if (node.owner >= 0 && node.owner != owner) {   // the one place is taken until its packet arrives
            ++node.later;
            return Landing::later;
        }
        node.owner = owner;   // a packet may ask again after its connection broke
        *place = {node.place.data(), nullptr, bytes};
        return Landing::place;
    }
    void packet(Node& node, Rank r, const Packet& packet) {
        uint64_t number, bits;
        std::memcpy(&number, packet.body.data(), 8);
        std::memcpy(&bits, packet.body.data() + 8, 8);
        EXPECT_TRUE(bits >> r & 1);
        EXPECT_GT(static_cast<int64_t>(number), node.last[packet.sender]);
        node.last[packet.sender] = static_cast<int64_t>(number);
        ++node.got;
        --open;
        uint64_t wrong = 0, byte = content(packet.sender, number);
        for (uint64_t i = 0; i < packet.payload.bytes; ++i, byte += 7) wrong += packet.payload.host[i] != static_cast<std::byte>(byte);
        EXPECT_EQ(wrong, 0u) << "bytes of message " << number << " from rank " << packet.sender;
        if (packet.payload.host == node.place.data()) node.owner = -1;
    }

    Status run() {
        random = config.seed;
        sim = Simulator::create(config);
        for (Rank r = 0; r < config.ranks; ++r) {
            Node& node = nodes.emplace_back();
            node.remaining = messages;
            node.last.resize(config.ranks, -1);
            node.place.resize(size_max);
            node.toy.place = [this, &node](const Packet& p, uint64_t bytes, Buffer* place) { return land(node, p, bytes, place); };
            node.toy.each = [this, &node, r](const Event& event, Actions& actions) {
                if (const auto* its = event.is<Event::PeerLost>()) {
                    ++lost;
                    if (node.owner >> 32 == its->rank) node.owner = -1;   // the lost peer's packet will not be completed
                }
                if (const auto* received = event.is<Event::Received>()) packet(node, r, *received->packet);
                const auto* sent = event.is<Event::Sent>();   // returns the memory
                if (sent) std::fill(node.out[sent->ticket - 1].begin(), node.out[sent->ticket - 1].end(), std::byte{0});
                const auto* up = event.is<Event::PeerUp>();
                bool start = up && up->rank == (r + 1) % config.ranks;
                for (int i = start ? 4 : sent ? 1 : 0; i > 0 && node.remaining; --i) send(r, actions);
                // A protocol that answers `later` needs an event of its own, or land() is not called again.
                if ((open || sends < messages * config.ranks) && actions.now_us < 2'000'000 && (start || event.is<Event::TimerExpired>()))
                    actions.timers.push_back({1, actions.now_us + 100});
            };
            sim->attach(r, 7, &node.toy);
        }
        if (partition_us) sim->partition({0, 1}, 1000, 1000 + partition_us);
        return sim->run();
    }
};

TEST(Simulator, StreamsDeliverInOrderExactlyOnce) {
    uint64_t later = 0;
    for_seeds(30, [&](uint64_t seed) {
        Chatter chatter;
        chatter.config.seed = seed;
        chatter.config.ranks = 2 + static_cast<uint32_t>(seed % 7);
        chatter.config.break_per_packet = seed % 3 == 0 ? 0 : 0.03;
        chatter.push_back = seed % 2;
        chatter.config.window_bytes = seed % 5 ? 1 << 20 : 4000;
        Status status = chatter.run();
        ASSERT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(chatter.open, 0u);   // numbers grow, so exactly once
        EXPECT_EQ(chatter.sends, chatter.messages * chatter.config.ranks);
        for (auto& node : chatter.nodes) later += node.later;
    });
    if (!std::getenv("GC_SEED")) {
        EXPECT_GT(later, 100u);
    }
}

TEST(Simulator, SameSeedSameTrace) {
    uint64_t hash[3];
    for (int i = 0; i < 3; ++i) {
        Chatter chatter;
        chatter.config.seed = i == 2 ? 8 : 7;
        chatter.config.ranks = 5;
        chatter.config.break_per_packet = 0.02;
        chatter.push_back = true;
        ASSERT_TRUE(chatter.run().ok());
        hash[i] = chatter.sim->trace_hash();
    }
    EXPECT_EQ(hash[0], hash[1]);
    EXPECT_NE(hash[0], hash[2]);
}

TEST(Simulator, FindsMemoryOverwrittenBeforeSent) {
    for (bool datagrams : {false, true}) {
        SimConfig config;
        auto sim = Simulator::create(config);
        std::vector<std::byte> payload(5000);
        Toy toys[2];
        toys[0].each = [&](const Event& event, Actions& actions) {
            if (event.is<Event::PeerUp>()) {
                DataBody body{};
                body.step.set(3);
                body.bucket.set(2);
                actions.sends.push_back({{1}, PacketType::words, body_bytes(body), buffer_of(payload), 1, 0});
                actions.timers.push_back({1, actions.now_us + 1});
            } else if (event.is<Event::TimerExpired>()) {
                payload[4321] = std::byte{1};
            }
        };
        toys[1].each = [](const Event&, Actions&) {};
        for (Rank r : {0u, 1u}) datagrams ? sim->attach_datagrams(r, 1, &toys[r]) : sim->attach(r, 1, &toys[r]);
        Status status = sim->run();
        EXPECT_EQ(status.code, Code::conflict);
        EXPECT_NE(std::string(status.what).find("rank 0 channel 1 type 5 step 3 bucket 2"), std::string::npos) << status.what;
    }
}

TEST(Simulator, DatagramsAreLostRepeatedAndSwapped) {
    for (double burst : {1.0, 8.0}) {
        SimConfig config;
        config.ranks = 4;
        config.loss = 0.2;
        config.duplicate = burst > 1 ? 0 : 0.05;
        config.loss_burst = burst;
        config.loss_type = PacketType::words;
        auto sim = Simulator::create(config);
        constexpr uint32_t count = 20000;
        static const uint64_t bits = 0b1110;
        std::vector<std::byte> payload(1200);
        Toy toys[4];
        uint32_t next = 0, swapped = 0, other = 0, last[4] = {}, runs[4] = {};
        std::vector<uint32_t> got[4];
        for (auto& g : got) g.resize(count);
        toys[0].each = [&](const Event& event, Actions& actions) {
            const auto* up = event.is<Event::PeerUp>();
            if (up ? up->rank != 1 : !event.is<Event::Sent>()) return;
            if (next == count) return;
            DataBody body{};
            body.index.set(next++);
            actions.sends.push_back({{0, &bits}, PacketType::words, body_bytes(body), buffer_of(payload), 1, 0});
            if (next % 10 == 0) actions.sends.push_back({{2}, PacketType::job, {}, {}, 0, 0});
        };
        for (Rank r = 1; r < 4; ++r)
            toys[r].each = [&, r](const Event& event, Actions&) {
                const auto* received = event.is<Event::Received>();
                if (!received) return;
                if (received->packet->type == PacketType::job) return void(++other);
                uint32_t index = body_of<DataBody>(*received->packet).index.get();
                ++got[r][index];
                swapped += index < last[r];
                last[r] = index;
            };
        for (Rank r = 0; r < 4; ++r) sim->attach_datagrams(r, 1, &toys[r]);
        ASSERT_TRUE(sim->run().ok());
        // One transmission for three receivers.
        EXPECT_EQ(sim->bytes_sent(0), (count + count / 10) * uint64_t{sim_datagram_overhead_bytes} + count * uint64_t{1200});
        EXPECT_GE(other, count / 10);   // only packets of type words are lost
        for (Rank r = 1; r < 4; ++r) {
            uint32_t total = 0, missing = 0;
            for (uint32_t i = 0; i < count; ++i) {
                total += got[r][i];
                missing += got[r][i] == 0;
                runs[r] += got[r][i] == 0 && (i == 0 || got[r][i - 1]);
            }
            // A duplicate is lost independently, so 0.2 * 0.95 = 0.19 are missing.
            EXPECT_NEAR(total, count * (0.8 + config.duplicate), count * 0.03);
            EXPECT_NEAR(missing, count * (burst > 1 ? 0.2 : 0.19), count * 0.03);
            double expected = burst > 1 ? missing / burst : missing * 0.81;
            EXPECT_NEAR(runs[r], expected, expected * 0.15);
        }
        EXPECT_GT(swapped, 100u);
    }
}

/// A protocol that completes every command.
struct Echo : Toy {
    Echo() {
        each = [](const Event& event, Actions& actions) {
            if (const auto* command = event.is<Event::Command>()) actions.completions.push_back(completion(command->as<uint32_t>()));
            if (const auto* lost = event.is<Event::PeerLost>())
                actions.completions.push_back(completion(1000 + lost->rank, 0, lost->status));
        };
    }
};

TEST(Simulator, TrainersRunByTurnsAndTimePassesInSpendAlone) {
    SimConfig config;
    config.ranks = 3;
    config.trace = true;
    auto sim = Simulator::create(config);
    Echo echo[3];
    uint64_t took[3];
    uint64_t counter = 0;   // without a lock: one trainer runs at a time (the thread sanitizer checks)
    for (Rank r = 0; r < 3; ++r) {
        sim->attach(r, 1, &echo[r]);
        sim->slow(r, r == 2 ? 4 : 1);
        sim->trainer(r, [&, r](Host& host) -> Status {
            for (int i = 0; i < 10000; ++i) counter = counter * 3 + 1;
            uint64_t start = host.now_us();
            std::vector<Completion> out;
            EXPECT_EQ(host.wait(&out, start + 500).code, Code::deadline);
            EXPECT_EQ(host.now_us(), start + 500);
            EXPECT_EQ(host.wait(&out, start).code, Code::deadline);
            EXPECT_EQ(host.now_us(), start + 500);
            host.post(1, command_event(r + 5));
            GC_TRY(host.wait(&out, forever));
            EXPECT_EQ(out.size(), 1u);
            EXPECT_EQ(out[0].id, r + 5);
            EXPECT_EQ(out[0].channel, 1);
            uint64_t before = host.now_us();
            host.spend(1000);
            took[r] = host.now_us() - before;
            sim->mark(r, "spent");
            return {};
        });
    }
    Status status = sim->run();
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(took[0], 1000u);
    EXPECT_EQ(took[2], 4000u);
    EXPECT_EQ(std::count_if(sim->trace().begin(), sim->trace().end(), [](const SimTrace& t) { return t.text == "spent"; }), 3);
}

TEST(Simulator, ADeadRankIsToldAndItsTrainerEnds) {
    SimConfig config;
    config.ranks = 3;
    config.lost_after_us = 5000;
    auto sim = Simulator::create(config);
    Echo echo[3];
    for (Rank r = 0; r < 3; ++r) {
        sim->attach(r, 1, &echo[r]);
        sim->trainer(r, [&, r](Host& host) -> Status {
            std::vector<Completion> out;
            GC_TRY(host.wait(&out, forever));
            EXPECT_NE(r, 1u);
            EXPECT_EQ(out.at(0).id, 1001u);
            EXPECT_GE(host.now_us(), 15'000u);
            EXPECT_LE(host.now_us(), 15'100u);
            return out[0].status;
        });
    }
    sim->kill(1, 10'000);
    Status status = sim->run();
    EXPECT_EQ(status.code, Code::peer_lost);
    EXPECT_STREQ(status.what, "rank 1 has not answered for 5 ms");
    EXPECT_EQ(sim->result(1).code, Code::cancelled);
    EXPECT_NE(std::string(sim->result(1).what).find("killed"), std::string::npos);
}

TEST(Simulator, ReportsADeadlockAndAnEnd) {
    for (bool forever_busy : {false, true}) {
        SimConfig config;
        config.ranks = 2;
        config.end_us = 1'000'000;
        auto sim = Simulator::create(config);
        Toy toys[2];
        toys[0].each = [&](const Event& event, Actions& actions) {
            if (event.is<Event::PeerUp>()) actions.sends.push_back({{1}, PacketType::mail, {}, {}, 0, 0});
        };
        toys[1].each = [&](const Event& event, Actions& actions) {
            if (!event.is<Event::Received>() && forever_busy) actions.timers.push_back({1, actions.now_us + 1000});
        };
        toys[1].place = [](const Packet&, uint64_t, Buffer*) { return Landing::later; };
        for (Rank r = 0; r < 2; ++r) {
            sim->attach(r, 9, &toys[r]);
            sim->trainer(r, [](Host& host) {
                std::vector<Completion> out;
                return host.wait(&out, forever);
            });
        }
        Status status = sim->run();
        EXPECT_EQ(status.code, Code::deadline);
        std::string what = status.what;
        EXPECT_EQ(what.find(forever_busy ? "not done after 1000000 us" : "deadlock at "), 0u) << what;
        EXPECT_NE(what.find("rank 0 waits, rank 1 waits; rank 1 answers `later` to rank 0 channel 9 type 6"), std::string::npos) << what;
        EXPECT_EQ(sim->result(0).code, Code::cancelled);
    }
}

TEST(Simulator, PartitionsStallStreamsAndHeal) {
    for (bool heals : {true, false}) {
        Chatter chatter;
        chatter.config.ranks = 6;
        chatter.config.lost_after_us = 50'000;
        chatter.config.seed = 3;
        chatter.messages = 200;
        chatter.partition_us = heals ? 30'000 : 1'000'000;   // from 1 ms on, during the exchange
        Status status = chatter.run();
        ASSERT_TRUE(status.ok()) << status.what;
        if (heals) {
            EXPECT_EQ(chatter.open, 0u);
            EXPECT_GT(chatter.sim->now_us(), 30'000u);
        } else {
            EXPECT_GT(chatter.open, 0u);
            EXPECT_EQ(chatter.lost, 2u * 4 * 2);   // each of the two with each of the four, both sides notified
        }
    }
}

TEST(Simulator, ComputesAnswerLaterAndRacesAreFound) {
    for (int kind : {0, 1, 2}) {
        SimConfig config;
        config.compute_async = kind > 0;
        auto sim = Simulator::create(config);
        std::vector<uint32_t> words(3000, 5);
        Toy toy;
        std::vector<uint64_t> done;
        toy.each = [&](const Event& event, Actions& actions) {
            if (const auto* computed = event.is<Event::Computed>()) done.push_back(computed->ticket);
            if (!event.is<Event::Command>()) return;
            actions.computes.push_back({Kernel::add_i32, part_of(words, 0, 1000), part_of(words, 2000, 1000), 1000, 1});
            actions.computes.push_back(
                {Kernel::add_i32, part_of(words, kind == 2 ? 500 : 1000, 1000), part_of(words, 2000, 1000), 1000, 2});
            EXPECT_TRUE(done.empty());
        };
        sim->attach(0, 1, &toy);
        sim->host(0).post(1, command_event(1));
        Status status = sim->run();
        if (kind == 2) {
            EXPECT_EQ(status.code, Code::conflict);
            EXPECT_NE(std::string(status.what).find("compute 2 races with compute 1"), std::string::npos) << status.what;
        } else {
            EXPECT_TRUE(status.ok());
            EXPECT_EQ(done.size(), 2u);
            EXPECT_EQ(words[0] + words[1999], 20u);
        }
    }
}

}   // namespace
}   // namespace gradcast
