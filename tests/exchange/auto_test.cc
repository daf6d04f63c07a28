// The alternatives of `auto`, and its choice from measurements.
#include "transport/exchange/auto.h"
#include "tests/exchange/world.h"

namespace gradcast {
namespace {

std::vector<Alternative> alternatives(const Layout& layout, uint32_t n, ExchangeConfig job = {}, uint32_t datagram_bytes = 1432) {
    job.layout = &layout;
    if (!job.blocks) job.blocks = 8;
    std::vector<Alternative> found;
    Status status = alternatives_find("auto", job, n, datagram_bytes, &found);
    EXPECT_TRUE(status.ok()) << status.what;
    return found;
}

TEST(Auto, EveryAlternativeCanBeInstalled) {
    const Layout layout = layout_make({1000, 300});
    for (Quantiser quantiser : {Quantiser::auto32, Quantiser::auto16, Quantiser::fixed})
        for (uint32_t n : {1u, 2u, 3u, 5u, 8u, 20u})
            for (uint32_t s : {0u, 1u, 3u, 30u})
                for (uint32_t blocks : {1u, 8u, 20u}) {
                    SCOPED_TRACE(fmt::format("{} n = {} s = {} B = {}", quantiser_name(quantiser), n, s, blocks));
                    const ExchangeConfig job{.layout = &layout, .blocks = blocks, .quantiser = quantiser, .m = 4, .s = s, .servers = 30};
                    if (s >= n && quantiser != Quantiser::fixed) {
                        std::vector<Alternative> none;
                        EXPECT_EQ(alternatives_find("auto", job, n, 1432, &none).code, Code::invalid);
                        continue;
                    }
                    std::vector<Alternative> all = alternatives(layout, n, job);
                    ASSERT_FALSE(all.empty());
                    EXPECT_EQ(all.size() == 1, n == 1);
                    View view;
                    view.members.resize(n);
                    for (const Alternative& each : all) {
                        SCOPED_TRACE(each.text());
                        Arena arena;
                        auto exchange = each.kind->create(each.config);
                        Status status = exchange->install(view, arena);
                        EXPECT_TRUE(status.ok()) << status.what;
                        EXPECT_EQ(exchange->losses_tolerated(), quantiser == Quantiser::fixed ? 0 : s);
                        EXPECT_EQ(each.datagrams, each.kind->datagrams && n > 1);
                    }
                }
    std::vector<Alternative> one;
    Status status = alternatives_find("ring", {.layout = &layout, .quantiser = Quantiser::fixed}, 4, 0, &one);
    EXPECT_STREQ(status.what, "ring does not allow the quantiser fixed: use auto32");
    EXPECT_TRUE(alternatives_find("coded", {.layout = &layout, .m = 3, .s = 3}, 4, 0, &one).ok());
    EXPECT_EQ(one.size(), 1u);
    EXPECT_EQ(one[0].text(), "coded m=1 s=3");
}

TEST(Auto, ToleranceThatWasAskedForIsKeptOrRefused) {
    std::vector<std::string> notes;
    auto refusal = [&](std::string_view exchange, uint32_t s, uint32_t n) {
        return std::string(tolerance_check(exchange, {.s = s}, n, &notes).what);
    };
    for (const char* exchange : {"coded", "coded-rs", "auto"}) {
        EXPECT_EQ(refusal(exchange, 9, 2), "algorithm.s = 9 with 2 nodes: at most 1 can be lost: set s = 1, or take at least 10 nodes");
        EXPECT_EQ(refusal(exchange, 1, 1), "algorithm.s = 1 with 1 node: at most 0 can be lost: set s = 0, or take at least 2 nodes");
        EXPECT_EQ(refusal(exchange, 1, 2), "");
    }
    EXPECT_EQ(refusal("ring", 9, 2), "");   // the job file refuses it earlier
    auto notes_of = [&](std::string_view exchange, uint32_t m, uint32_t s, uint32_t n, uint32_t cells = 1) {
        EXPECT_TRUE(tolerance_check(exchange, {.m = m, .s = s, .cells = cells}, n, &notes).ok());
        return notes;
    };
    EXPECT_TRUE(notes_of("coded-rs", 2, 1, 4).empty());
    EXPECT_TRUE(notes_of("coded-rs", 2, 0, 1).empty());
    EXPECT_TRUE(notes_of("ring", 2, 0, 2).empty());
    EXPECT_TRUE(notes_of("auto", 9, 1, 3).empty());
    const std::string all =
        "every node computes all blocks, as m + s is the number of nodes ({}): a step takes as long to compute as on one "
        "node, unless there are more nodes or m or s is smaller";
    EXPECT_EQ(notes_of("coded-rs", 2, 0, 2), std::vector{fmt::format(fmt::runtime(all), "2 + 0 = 2")});
    EXPECT_EQ(notes_of("auto", 2, 2, 3), std::vector{fmt::format(fmt::runtime(all), "1 + 2 = 3")});
    EXPECT_EQ(notes_of("coded", 3, 1, 3), (std::vector<std::string>{"3 nodes with s = 1 allow m = 2 at most: m = 2 is used instead of 3",
                                                                    fmt::format(fmt::runtime(all), "2 + 1 = 3")}));
    // Of a net in stages the ranks are replicas.
    EXPECT_STREQ(
        tolerance_check("coded", {.s = 2, .cells = 2}, 2, &notes).what,
        "algorithm.s = 2 with 2 replicas of 2 nodes each: at most 1 can be lost: set s = 1, or take at least 3 replicas (6 nodes)");
    EXPECT_STREQ(tolerance_check("auto", {.s = 1, .cells = 4}, 1, &notes).what,
                 "algorithm.s = 1 with 1 replica of 4 nodes each: at most 0 can be lost: set s = 0, or take at least 2 replicas (8 nodes)");
    EXPECT_EQ(
        notes_of("coded-rs", 3, 1, 2, 2),
        (std::vector<std::string>{
            "2 replicas with s = 1 allow m = 1 at most: m = 1 is used instead of 3",
            "every replica computes all blocks, as m + s is the number of replicas (1 + 1 = 2): a step takes as long to compute as on one "
            "replica, unless there are more replicas or m or s is smaller"}));
}

TEST(Auto, TheFirstIsPredictedAsItWasMeasured) {
    const Layout layout = layout_make({1'000'000});
    for (uint32_t s : {0u, 1u})
        for (uint64_t latency_us : {0, 50, 5'000'000}) {
            std::vector<Alternative> all = alternatives(layout, 8, {.s = s});
            alternatives_choose(all, {.wave_us = 7'000, .lanes = 1, .wait_us = 600'000, .latency_us = latency_us}, 8);
            EXPECT_NEAR(all[0].predicted_us, 607'000 + 7'000 * s, 1);
        }
}

TEST(Auto, ChoosesByTheLinkAndByTheBlocks) {
    const Layout layout = layout_make({1'000'000});
    for (uint32_t datagrams : {0u, 1432u}) {
        // 4 MB at 100 Mbit/s: the ring moves 7 MB.
        std::vector<Alternative> all = alternatives(layout, 8, {}, datagrams);
        const Measured slow{.wave_us = 20'000, .lanes = 1, .wait_us = 560'000, .latency_us = 100};
        const Alternative& coded = alternatives_choose(all, slow, 8);
        EXPECT_STREQ(coded.kind->name, "coded-rs");
        EXPECT_GE(coded.config.m, 2u);
        EXPECT_LT(coded.predicted_us, all[0].predicted_us);
        // The same link; blocks take longer than coding can save.
        Measured long_blocks = slow;
        long_blocks.wave_us = 1'000'000;
        EXPECT_EQ(alternatives_choose(all, long_blocks, 8).config.m, 1u);
        // A rank with a lane for each of its blocks still codes.
        long_blocks.lanes = 4;
        EXPECT_GE(alternatives_choose(all, long_blocks, 8).config.m, 2u);
        // If only latency counts, fewer rounds are faster.
        const Layout small = layout_make({100});
        std::vector<Alternative> few = alternatives(small, 8, {}, datagrams);
        const Alternative& rounds = alternatives_choose(few, {.wave_us = 500, .lanes = 1, .wait_us = 2'000, .latency_us = 100}, 8);
        EXPECT_STRNE(rounds.kind->name, "ring");
        // A small gain does not outweigh the unpredicted work.
        EXPECT_STREQ(alternatives_choose(few, {.wave_us = 50'000, .lanes = 1, .wait_us = 2'000, .latency_us = 100}, 8).kind->name, "ring");
    }
    // Without multicast each receiver gets a copy, and the ring is best for long blocks.
    std::vector<Alternative> all = alternatives(layout, 8);
    const Alternative& copies =
        alternatives_choose(all, {.wave_us = 2'000'000, .lanes = 1, .wait_us = 560'000, .latency_us = 100, .copies = 1}, 8);
    EXPECT_STREQ(copies.kind->name, "ring");
    // Every alternative tolerates s lost ranks.
    for (const Alternative& each : alternatives(layout, 8, {.s = 2})) EXPECT_EQ(each.config.s, 2u);
    // Extreme measurements from outside are tolerated.
    std::vector<Alternative> odd = alternatives(layout, 8);
    alternatives_choose(odd, {.wave_us = UINT64_MAX, .lanes = 0, .wait_us = 0, .latency_us = UINT64_MAX}, 8);
}

TEST(Auto, TriesTheBestThatComputeAPartAndAll) {
    const Layout layout = layout_make({1'000'000});
    const auto tried = [&](const Measured& measured, uint32_t n, ExchangeConfig job = {}) {
        std::vector<Alternative> all = alternatives(layout, n, job);
        alternatives_choose(all, measured, n);
        std::string text;
        for (const size_t each : alternatives_to_try(all, n)) text += (text.empty() ? "" : ", ") + all[each].text();
        return text;
    };
    EXPECT_EQ(tried({.wave_us = 20'000, .lanes = 1, .wait_us = 560'000, .latency_us = 100}, 4), "ring, coded m=3 s=0, coded-rs m=4 s=0");
    EXPECT_EQ(tried({.wave_us = 20'000, .lanes = 1, .wait_us = 560'000, .latency_us = 100}, 4, {.s = 1}),
              "coded-rs m=1 s=1, coded-rs m=2 s=1, coded-rs m=3 s=1");
    EXPECT_EQ(tried({.wave_us = 2'000'000, .lanes = 1, .wait_us = 1'000, .latency_us = 100}, 8),
              "ring, coded-rs m=1 s=0");   // not eight times the blocks
    EXPECT_EQ(tried({.wave_us = 1, .lanes = 1, .wait_us = 1, .latency_us = 1}, 1), "ring");
}

TEST(Auto, MergingDoesNotDependOnTheOrder) {
    const Measured a{5, 2, 100, 30, 9, 0}, b{7, 4, 50, 10, 8, 1};
    Measured ab = a, ba = b;
    ab.merge(b), ba.merge(a), ba.merge(a);
    for (const Measured& each : {ab, ba}) {
        EXPECT_EQ(each.wave_us, 7u);
        EXPECT_EQ(each.lanes, 2u);
        EXPECT_EQ(each.wait_us, 50u);
        EXPECT_EQ(each.latency_us, 30u);
        EXPECT_EQ(each.step_us, 9u);
        EXPECT_EQ(each.copies, 1u);
    }
}

}   // namespace
}   // namespace gradcast
