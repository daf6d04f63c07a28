// Mail over the simulator: tagged messages of all sizes between all ranks, received in a different order than sent.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "runtime/core/digest.h"
#include "tests/mail/buffer.h"
#include "tests/sim/seeds.h"
#include "transport/mail.h"
#include "transport/sim/sim.h"

namespace gradcast {
namespace {

constexpr uint64_t mail_deadline_us = 60'000'000;

struct Letter {
    Rank from, to;
    uint64_t tag;
    std::vector<std::byte> sent, got;
};

TEST(MailSim, EveryMessageReachesItsReceive) {
    for_seeds(20, [](uint64_t seed) {
        uint64_t state = seed;
        auto random = [&](uint64_t below) { return splitmix64(state += 0x9E3779B97F4A7C15) % below; };
        SimConfig config;
        config.seed = seed;
        config.ranks = 2 + static_cast<uint32_t>(random(7));
        config.break_per_packet = random(2) ? 0.01 : 0, config.jitter_us = random(500), config.batch_us = random(100),
        config.window_bytes = random(2) ? 5000 : 1 << 20;
        const uint32_t segment = random(2) ? 4096 : 65536;
        std::vector<Letter> letters(10 * config.ranks);
        for (size_t i = 0; i < letters.size(); ++i) {
            Letter& letter = letters[i];
            letter.from = static_cast<Rank>(random(config.ranks));
            letter.to = static_cast<Rank>((letter.from + 1 + random(config.ranks - 1)) % config.ranks);
            letter.tag = i;
            letter.sent.resize(random(2) ? random(1200) : random(200'000));
            letter.got.resize(letter.sent.size());
            uint64_t byte = random(256);
            for (std::byte& b : letter.sent) b = static_cast<std::byte>(byte += 7);
        }
        auto sim = Simulator::create(config);
        std::vector<std::unique_ptr<Protocol>> protocols;
        for (Rank r = 0; r < config.ranks; ++r) {
            protocols.push_back(mail_protocol(r, config.ranks, segment));
            sim->attach(r, mail_channel, protocols[r].get());
            std::vector<size_t> order(letters.size());
            std::iota(order.begin(), order.end(), 0);
            for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random(i)]);
            uint64_t pause_us = random(300);
            sim->trainer(r, [&letters, r, order, pause_us](Host& host) -> Status {
                Mail mail(host, mail_channel);
                size_t open = 0;
                for (size_t i : order) {
                    Letter& letter = letters[i];
                    if (letter.from == r) {
                        mail.send({letter.to}, letter.tag, buffer_of(letter.sent), 2 * i + 1);
                        ++open;
                    }
                    if (letter.to == r) {
                        mail.receive(letter.from, letter.tag, buffer_of(letter.got), 2 * i + 2);
                        ++open;
                    }
                    if (letter.from == r || letter.to == r) host.spend(pause_us);
                }
                std::vector<Completion> out;
                while (out.size() < open) GC_TRY(host.wait(&out, host.now_us() + mail_deadline_us));
                EXPECT_EQ(out.size(), open);
                for (const Completion& c : out) GC_TRY(c.status);
                std::sort(out.begin(), out.end(), [](const Completion& a, const Completion& b) { return a.id < b.id; });
                EXPECT_EQ(std::adjacent_find(out.begin(), out.end(), [](const Completion& a, const Completion& b) { return a.id == b.id; }),
                          out.end());
                return {};
            });
        }
        Status status = sim->run();
        ASSERT_TRUE(status.ok()) << status.what;
        for (const Letter& letter : letters)
            EXPECT_EQ(letter.got, letter.sent) << letter.from << " to " << letter.to << " tag " << letter.tag;
    });
}

// ---- what nobody has posted -------------------------------------------------------------------------------------------------------

/// A packet to rank 1 each millisecond, which it counts.
struct Beats : Protocol {
    const Rank self;
    uint64_t count = 0, longest_us = 0, last_us = 0;
    explicit Beats(Rank rank) : self(rank) {}
    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events) {
            if (event.is<Event::Received>()) {
                longest_us = std::max(longest_us, actions.now_us - last_us);
                last_us = actions.now_us;
                ++count;
            }
            if (self != 0 || (!event.is<Event::TimerExpired>() && !event.is<Event::PeerUp>())) continue;
            if (actions.now_us < until_us) actions.timers.push_back({1, actions.now_us + 1000});
            actions.sends.push_back({{1}, PacketType::job, {}, {}, 0, 0});
        }
    }
    static constexpr uint64_t until_us = 100'000;
};

struct Posted {
    std::vector<std::byte> sent, got;
    explicit Posted(size_t bytes, uint8_t byte = 3) : sent(bytes, std::byte{byte}), got(bytes) {}
};

/// Two ranks with mail, and beats from rank 0 to rank 1.
struct Two {
    std::unique_ptr<Simulator> sim;
    std::unique_ptr<Protocol> mails[2];
    Beats beats[2] = {Beats(0), Beats(1)};
    static constexpr uint32_t segment = 65536;

    explicit Two(uint64_t seed) {
        SimConfig config;
        config.seed = seed;
        config.window_bytes = 100'000;
        if (seed % 2) config.break_per_packet = 0.0005;
        sim = Simulator::create(config);
        for (Rank r = 0; r < 2; ++r) {
            mails[r] = mail_protocol(r, 2, segment);
            sim->attach(r, mail_channel, mails[r].get());
            sim->attach(r, mail_channel + 1, &beats[r]);
        }
    }
    static Status wait(Host& host, std::vector<Completion>* out, size_t count, uint64_t us) {
        const uint64_t until_us = host.now_us() + us;
        while (out->size() < count) GC_TRY(host.wait(out, until_us));
        return {};
    }
    void run() {
        const Status status = sim->run();
        EXPECT_TRUE(status.ok()) << status.what;
    }
};

// A large message and more small ones than there is room for wait, while another channel's packets and other mail come as ever.
TEST(MailSim, WhatIsNotPostedHoldsUpNothingElse) {
    for_seeds(20, [](uint64_t seed) {
        Two two(seed);
        const uint32_t smalls = 2 * mail_room(2);
        std::vector<Posted> letters(3, Posted(300'000));
        std::vector<std::byte> none;
        two.sim->trainer(0, [&](Host& host) -> Status {
            Mail mail(host, mail_channel);
            mail.send({1}, 0, buffer_of(letters[0].sent), 0);
            for (uint32_t i = 0; i < smalls; ++i) mail.send({1}, 100 + i, {}, 100 + i);
            mail.send({1}, 1, buffer_of(letters[1].sent), 1);
            mail.send({1}, 2, buffer_of(letters[2].sent), 2);
            std::vector<Completion> out;
            GC_TRY(Two::wait(host, &out, 3 + smalls, 3 * Beats::until_us));
            for (const Completion& each : out) GC_TRY(each.status);
            return {};
        });
        two.sim->trainer(1, [&](Host& host) -> Status {
            Mail mail(host, mail_channel);
            std::vector<Completion> out;
            mail.receive(0, 2, buffer_of(letters[2].got), 2);
            GC_TRY(Two::wait(host, &out, 1, Beats::until_us / 2));   // the last one comes first
            if (const uint64_t now = host.now_us(); now < Beats::until_us) host.spend(Beats::until_us - now);
            EXPECT_GE(two.beats[1].count, 50u);
            EXPECT_LE(two.beats[1].longest_us, 20'000u);
            mail.receive(0, 1, buffer_of(letters[1].got), 1);
            for (uint32_t i = smalls; i-- > smalls / 2;) mail.receive(0, 100 + i, {}, 100 + i);   // no room for these yet
            for (uint32_t i = 0; i < smalls / 2; ++i) mail.receive(0, 100 + i, {}, 100 + i);
            mail.receive(0, 0, buffer_of(letters[0].got), 0);
            GC_TRY(Two::wait(host, &out, 3 + smalls, 3 * Beats::until_us));
            for (const Completion& each : out) GC_TRY(each.status);
            return {};
        });
        two.run();
        for (const Posted& each : letters) EXPECT_EQ(each.got, each.sent);
    });
}

// A rank dies while a large message waits to be asked for: the other side's end of it is lost, and memory is free.
TEST(MailSim, ADeathBeforeTheAskEndsBothSides) {
    for (const Rank dead : {0u, 1u})
        for_seeds(4, [&](uint64_t seed) {
            Two two(seed);
            Posted letter(300'000);
            two.sim->kill(dead, 50'000);
            two.sim->trainer(0, [&](Host& host) -> Status {
                Mail mail(host, mail_channel);
                if (dead == 0) host.spend(10'000);
                mail.send({1}, 7, buffer_of(letter.sent), 7);
                std::vector<Completion> out;
                GC_TRY(Two::wait(host, &out, 1, 60'000'000));
                EXPECT_EQ(out[0].status.code, Code::peer_lost);
                mail.send({1}, 8, buffer_of(letter.sent), 8);
                GC_TRY(Two::wait(host, &out, 2, 1'000'000));
                EXPECT_EQ(out[1].status.code, Code::peer_lost);
                return {};
            });
            two.sim->trainer(1, [&](Host& host) -> Status {
                Mail mail(host, mail_channel);
                host.spend(60'000);
                mail.receive(0, 7, buffer_of(letter.got), 7);
                std::vector<Completion> out;
                GC_TRY(Two::wait(host, &out, 1, 60'000'000));
                EXPECT_EQ(out[0].status.code, Code::peer_lost);
                return {};
            });
            two.run();
        });
}

// A view ends with a large message that nobody has posted, and another whose receive waits: its memory is free at once, and the next
// view's message of the same tag comes.
TEST(MailSim, AViewEndsWithMessagesThatWait) {
    for_seeds(20, [](uint64_t seed) {
        SimConfig config;
        config.seed = seed;
        auto sim = Simulator::create(config);
        std::unique_ptr<Protocol> mails[2][2];
        Posted letters[2] = {Posted(300'000, 1), Posted(200'000, 2)};
        for (Rank r = 0; r < 2; ++r)
            sim->trainer(r, [&, r](Host& host) -> Status {
                Mail mail(host, mail_channel);
                std::vector<std::byte> unposted(100'000), unsent(100'000);
                for (uint32_t view = 0; view < 2; ++view) {
                    mails[r][view] = mail_protocol(r, 2, 65536);
                    const Attachment attachment{mail_channel, mails[r][view].get(), false};
                    host.open_view(1 + view, {&attachment, 1});
                    if (r == 0) mail.send({1}, 7, buffer_of(letters[view].sent), 7);
                    else mail.receive(0, 7, buffer_of(letters[view].got), 7);
                    if (r == 0) mail.send({1}, 8, buffer_of(unposted), 8);
                    else mail.receive(0, 9, buffer_of(unsent), 9);
                    std::vector<Completion> out;
                    GC_TRY(Two::wait(host, &out, 1, 1'000'000));
                    GC_TRY(out[0].status);
                    EXPECT_EQ(out[0].id, 7u);
                    const uint64_t begin_us = host.now_us();
                    GC_TRY(host.close_view(begin_us + 1'000'000));
                    EXPECT_LE(host.now_us(), begin_us + 10'000);
                    std::fill(unposted.begin(), unposted.end(), std::byte{9});
                    std::fill(unsent.begin(), unsent.end(), std::byte{9});
                }
                return {};
            });
        const Status status = sim->run();
        EXPECT_TRUE(status.ok()) << status.what;
        for (const Posted& each : letters) EXPECT_EQ(each.got, each.sent);
    });
}

}   // namespace
}   // namespace gradcast
