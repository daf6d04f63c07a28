// Efficiency: the receiver's link stays busy, and repairs are few.
#include "tests/bulk/crowd.h"

namespace gradcast {
namespace {

/// Share of the capacity of the busiest receiving link, from the first byte until the last `sent`.
double busy(Crowd& crowd) {
    uint64_t most = 0, end_us = 0;
    for (const auto& node : crowd.nodes) {
        most = std::max(most, crowd.sim->bytes_received(node.self));
        end_us = std::max(end_us, node.done_us);
    }
    return static_cast<double>(most) / (crowd.config.rate_bytes_per_s * static_cast<double>(end_us) * 1e-6);
}

void link_stays_busy(bool incast) {
    for (double rate : {12.5e6, 125e6})
        for (uint64_t latency : {50, 200}) {
            Crowd crowd;
            crowd.config.ranks = 8;
            crowd.config.rate_bytes_per_s = rate;
            crowd.config.latency_us = latency;
            crowd.config.jitter_us = 0;
            crowd.config.end_us = 60'000'000;
            crowd.config.queue_bytes = 1 << 20;
            crowd.contents = false;
            // As many bytes as the link moves in half a second.
            const uint64_t each = static_cast<uint64_t>(rate / 7 * 0.5);
            for (Rank from = 0; from < 8; ++from) {
                if (!incast) crowd.transfers.push_back({from, 0, 0xffu & ~(1u << from), PacketType::words, Phase::gather, each});
                else if (from) crowd.transfers.push_back({from, 0, 0, PacketType::words, Phase::reduce, each});
            }
            crowd.build();
            crowd.run();
            const double share = busy(crowd), packets = static_cast<double>(crowd.total(&BulkCounters::packets_sent));
            printf("%-10s %5.1f MB/s, latency %3u us: link %.1f%% busy, %.2f feedbacks a packet, %lu repairs\n",
                   incast ? "incast" : "all to all", rate / 1e6, static_cast<unsigned>(latency), share * 100,
                   static_cast<double>(crowd.total(&BulkCounters::feedback_sent)) / packets,
                   static_cast<unsigned long>(crowd.total(&BulkCounters::repairs_sent)));
            EXPECT_GT(share, 0.95);
            EXPECT_EQ(crowd.total(&BulkCounters::repairs_sent), 0u);
        }
}

TEST(SlowBulkTraffic, AnIncastKeepsTheLinkBusy) { link_stays_busy(true); }
TEST(SlowBulkTraffic, AMulticastOfAllToAllKeepsTheLinksBusy) { link_stays_busy(false); }

// As in cssgd: a multicast for two of eight ranks fills all queues, whose size bounds the bytes in flight of all senders.
TEST(BulkTraffic, MulticastsToFewDoNotFloodTheOthers) {
    Crowd crowd;
    crowd.config.ranks = 8;
    crowd.config.rate_bytes_per_s = 12.5e6;
    crowd.config.latency_us = 50;
    crowd.config.end_us = 60'000'000;
    crowd.config.queue_bytes = 1'000'000;
    crowd.contents = false;
    for (Rank a = 0; a < 8; ++a)
        for (Rank b = a + 1; b < 8; ++b)
            for (Rank from = 0; from < 8; ++from)
                if (from != a && from != b)
                    crowd.transfers.push_back({from, 0, uint64_t{1} << a | uint64_t{1} << b, PacketType::words, Phase::gather, 100'000});
    crowd.build();
    crowd.run();
    EXPECT_LT(crowd.total(&BulkCounters::repairs_sent), crowd.total(&BulkCounters::packets_sent) / 20);
    EXPECT_GT(busy(crowd), 0.85);
}

TEST(BulkTraffic, APacedSenderKeepsItsRate) {
    Crowd crowd;
    crowd.config.ranks = 3;
    crowd.config.rate_bytes_per_s = 125e6;
    crowd.config.latency_us = 50;
    crowd.config.end_us = 60'000'000;
    crowd.contents = false;
    crowd.rate_bytes_per_s = 10'000'000;
    constexpr uint64_t each = 1'000'000;
    crowd.transfers.push_back({0, 0, 0b110, PacketType::words, Phase::gather, each});
    crowd.build();
    crowd.run();
    const double least_us = each / 10.0;                                       // without headers
    EXPECT_GT(static_cast<double>(crowd.nodes[0].done_us), least_us - 1000);   // the initial window may be sent at once
    EXPECT_LT(static_cast<double>(crowd.nodes[0].done_us), least_us * 1.15);
}

TEST(BulkTraffic, OlderStepsGoFirstThenWordsForReducers) {
    constexpr uint64_t bytes = 300'000;
    Crowd crowd;
    crowd.config.ranks = 4;
    crowd.config.rate_bytes_per_s = 12.5e6;
    crowd.config.end_us = 60'000'000;
    crowd.contents = false;
    for (uint32_t step : {1u, 0u}) {
        crowd.transfers.push_back({0, 0, 0b1110, PacketType::words, Phase::gather, bytes, 0, step});
        crowd.transfers.push_back({0, 2, 0, PacketType::words, Phase::reduce, bytes, 0, step});
    }
    crowd.build();
    crowd.run();
    const std::vector<uint64_t>& sent_us = crowd.nodes[0].sent_us;
    const double each_us = bytes / 12.5;
    for (uint32_t i = 0; i < 4; ++i) {   // the last one submitted is sent first
        EXPECT_GT(static_cast<double>(sent_us[3 - i]), (i + 1) * each_us) << i;
        EXPECT_LT(static_cast<double>(sent_us[3 - i]), (i + 1) * each_us * 1.2 + 2000) << i;
    }
}

// Ranks 1 to 3 wait for the last words of step 0 of rank 0, which has already begun step 1.  Credit arrives from one receiver after
// another.
TEST(BulkTraffic, WordsOfTheNextStepDoNotTakeTheCreditOfAMulticast) {
    constexpr uint64_t bytes = 1'000'000;
    double took_us[2];
    for (const bool next_step : {false, true}) {
        Crowd crowd;
        crowd.config.ranks = 4;
        crowd.config.rate_bytes_per_s = 12.5e6;
        crowd.config.end_us = 60'000'000;
        crowd.contents = false;
        for (Rank from = 0; from < 4; ++from)
            crowd.transfers.push_back({from, 0, 0xfu & ~(1u << from), PacketType::words, Phase::gather, bytes, 0, 0});
        for (Rank to = 1; next_step && to < 4; ++to) crowd.transfers.push_back({0, to, 0, PacketType::words, Phase::reduce, bytes, 0, to});
        crowd.build();
        crowd.run();
        took_us[next_step] = static_cast<double>(crowd.nodes[0].sent_us[0]);
    }
    printf("a multicast of step 0 takes %.1f ms, with words of the next steps behind it %.1f ms\n", took_us[0] / 1e3, took_us[1] / 1e3);
    EXPECT_LT(took_us[1], took_us[0] * 1.1);
}

/// Between the network and a Bulk: sees every datagram once, so it can tell which first transmissions were lost.
struct Watched final : Protocol {
    Protocol* inner = nullptr;
    std::vector<bool> sent, got;                        // segments of the transfer; transmission numbers received here
    std::vector<std::pair<uint64_t, uint32_t>> first;   // transmission number and segment of first transmissions

    static void set(std::vector<bool>& bits, uint64_t i) {
        if (bits.size() <= i) bits.resize(i + 1 + i / 2);
        bits[i] = true;
    }
    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events)
            if (const auto* it = event.is<Event::Received>(); it && it->packet->sender == 0) set(got, it->packet->sequence);
        const size_t before = actions.sends.size();
        inner->on(events, actions);
        for (size_t i = before; i < actions.sends.size(); ++i) {
            if (actions.sends[i].type != PacketType::words) continue;
            const uint32_t index = std::bit_cast<DataBody>(actions.sends[i].body).index.get();
            if (index < sent.size() && sent[index]) continue;
            set(sent, index), first.push_back({actions.sends[i].sequence, index});
        }
    }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override { return inner->land(packet, bytes, place); }
};

/// Number of segments that plain retransmission by multicast repeats, in rounds, if receivers lack these segments.
double plain_repairs(const std::vector<uint64_t>& lacking, double p, uint64_t seed) {
    uint64_t random = seed, sent = 0;
    for (uint64_t bits : lacking)
        while (bits) {
            ++sent;
            for (uint64_t remaining = bits; remaining; remaining &= remaining - 1)
                if (static_cast<double>(splitmix64(++random) >> 11) * 0x1p-53 >= p) bits &= ~(remaining & -remaining);
        }
    return static_cast<double>(sent);
}

TEST(SlowBulkTraffic, RepairsAreFewerThanPlainRetransmissionNeeds) {
    for (uint32_t n : {8u, 64u})
        for (double p : {0.2, 0.05}) {
            constexpr uint32_t blocks = 100, segment = 384;
            Crowd crowd;
            crowd.config.ranks = n;
            crowd.config.loss = p;
            crowd.config.end_us = 60'000'000;
            crowd.config.seed = n;
            crowd.segment_bytes = segment;
            crowd.contents = false;
            const uint64_t all = (n == 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1) & ~uint64_t{1};
            crowd.transfers.push_back({0, 0, all, PacketType::words, Phase::gather, uint64_t{blocks} * 128 * segment});
            crowd.build();
            std::vector<Watched> watched(n);
            crowd.sim = Simulator::create(crowd.config);
            for (Rank r = 0; r < n; ++r) {
                watched[r].inner = crowd.nodes[r].bulk.get();
                crowd.sim->attach_datagrams(r, Crowd::channel, &watched[r]);
            }
            crowd.run();
            std::vector<uint32_t> lost(blocks * n);
            std::vector<uint64_t> lacking(blocks * 128);
            for (auto [sequence, index] : watched[0].first)
                for (Rank r = 1; r < n; ++r)
                    if (sequence >= watched[r].got.size() || !watched[r].got[sequence]) {
                        ++lost[index / 128 * n + r];
                        lacking[index] |= uint64_t{1} << r;
                    }
            double bound = 0;
            for (uint32_t b = 0; b < blocks; ++b) bound += *std::max_element(lost.begin() + b * n, lost.begin() + (b + 1) * n) / (1 - p);
            const double repairs = static_cast<double>(crowd.nodes[0].counters.repairs_sent.load()), packets = blocks * 128;
            printf("n = %2u, loss %2.0f%%: repairs %.3f a packet, %.3f x the bound of %.3f; plain retransmission needs %.3f; %.1f%% busy\n",
                   n, p * 100, repairs / packets, repairs / bound, bound / packets, plain_repairs(lacking, p, n) / packets,
                   busy(crowd) * 100);
            EXPECT_LE(repairs, 1.15 * bound);
            EXPECT_LT(repairs, plain_repairs(lacking, p, n) * 0.5);
        }
}

}   // namespace
}   // namespace gradcast
