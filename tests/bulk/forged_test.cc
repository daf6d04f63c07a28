// A lying member can corrupt its own words only.
#include "tests/bulk/forged.h"

#include <gtest/gtest.h>

#include "runtime/core/digest.h"
#include "tests/sim/seeds.h"

namespace gradcast {
namespace {

TEST(BulkForged, RandomPacketsOfAMemberDoNoHarm) {
    uint64_t given = 0, sent = 0, repairs = 0, repaired = 0;
    for_seeds(300, [&](uint64_t seed) {
        uint64_t random = seed;
        std::vector<uint8_t> bytes(20'000);
        for (uint8_t& b : bytes) b = static_cast<uint8_t>(splitmix64(++random * 0x9E3779B97F4A7C15 + seed));
        Forged forged(bytes);
        forged.run();
        given += forged.given;
        sent += forged.counters().packets_sent.load();
        repairs += forged.counters().repairs_sent.load();
        repaired += forged.counters().repaired.load();
    });
    if (!std::getenv("GC_SEED")) {
        EXPECT_GT(given, 5000u);   // packets are accepted
        EXPECT_GT(repaired, 200u);
        EXPECT_GT(sent, 100'000u);   // and answered
        EXPECT_GT(repairs, 50'000u);
    }
}

}   // namespace
}   // namespace gradcast
