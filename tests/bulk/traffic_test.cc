// How well it does: the receiver's link stays busy, repairs are few.
#include <map>

#include "tests/bulk/crowd.h"

namespace gradcast {
namespace {

/// Of what the busiest link into a rank could have carried, from the first byte until the last `sent`.
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
            crowd.config.ranks = 8, crowd.config.rate_bytes_per_s = rate, crowd.config.latency_us = latency;
            crowd.config.jitter_us = 0, crowd.config.end_us = 60'000'000, crowd.config.queue_bytes = 1 << 20;
            crowd.contents = false;
            // As much as takes half a second, which is a step or more.
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

TEST(BulkTraffic, AnIncastKeepsTheLinkBusy) { link_stays_busy(true); }
TEST(BulkTraffic, AMulticastOfAllToAllKeepsTheLinksBusy) { link_stays_busy(false); }

}   // namespace
}   // namespace gradcast
