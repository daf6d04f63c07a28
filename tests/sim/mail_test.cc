// Mail over the simulator: tagged messages of all sizes between all ranks, received in a different order than sent.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "runtime/core/digest.h"
#include "tests/sim/seeds.h"
#include "transport/link/sim.h"
#include "transport/mail.h"

namespace gradcast {
namespace {

constexpr uint16_t channel = 2;
constexpr uint64_t deadline_us = 60'000'000;

struct Letter {
    Rank from, to;
    uint64_t tag;
    std::vector<std::byte> sent, got;
};
Buffer buffer_of(std::vector<std::byte>& bytes) { return {bytes.data(), nullptr, bytes.size()}; }

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
            sim->attach(r, channel, protocols[r].get());
            std::vector<size_t> order(letters.size());
            std::iota(order.begin(), order.end(), 0);
            for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random(i)]);
            uint64_t pause_us = random(300);
            sim->trainer(r, [&letters, r, order, pause_us](Host& host) -> Status {
                Mail mail(host, channel);
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
                while (out.size() < open) GC_TRY(host.wait(&out, host.now_us() + deadline_us));
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

}   // namespace
}   // namespace gradcast
