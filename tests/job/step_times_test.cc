#include "runtime/job/report/step_times.h"

#include <gtest/gtest.h>

namespace gradcast {
namespace {

NodeTimes node(const std::string& name, uint64_t compute_us, uint64_t load_us = 0, uint32_t blocks = 2, uint32_t steps = 20) {
    StepTimes times;
    std::array<uint64_t, step_phases> us{};
    us[static_cast<size_t>(StepPhase::compute)] = compute_us;
    us[static_cast<size_t>(StepPhase::load)] = load_us;
    for (uint32_t i = 0; i < steps; ++i) times.step(us, blocks);
    RankTimesWire wire;
    wire.set(times.read());
    return {name, wire.get()};
}

TEST(StepTimes, TheSlowNodeIsNamedAndNoOther) {
    const auto found = stragglers_of({node("a", 10'000), node("b", 30'000), node("c", 11'000)});
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].node, "b");
    EXPECT_EQ(found[0].phase, "compute");
    EXPECT_EQ(found[0].us, 30'000u);
    EXPECT_EQ(found[0].others_us, 10'000u);
    EXPECT_EQ(stragglers_of({node("a", 10'000), node("b", 30'000, 19'000)})[0].phase, "load");
}

TEST(StepTimes, NobodyIsNamedWithoutACause) {
    EXPECT_TRUE(stragglers_of({node("a", 10'000), node("b", 19'000), node("c", 11'000)}).empty());
    EXPECT_TRUE(stragglers_of({node("a", 10'000), node("b", 30'000, 0, 6)}).empty());      // it has more blocks
    EXPECT_TRUE(stragglers_of({node("a", 100), node("b", 1'500)}).empty());                // too short to tell
    EXPECT_TRUE(stragglers_of({node("a", 10'000), node("b", 30'000, 0, 2, 7)}).empty());   // too few steps
    EXPECT_TRUE(stragglers_of({node("a", 10'000)}).empty());
}

TEST(StepTimes, AHostThatBecomesSlowShowsWithin20Steps) {
    StepTimes times;
    std::array<uint64_t, step_phases> us{};
    us[static_cast<size_t>(StepPhase::compute)] = 1000;
    for (uint32_t i = 0; i < 300; ++i) times.step(us, 1);
    us[static_cast<size_t>(StepPhase::compute)] = 9000;
    for (uint32_t i = 0; i < 10; ++i) times.step(us, 1);
    const PhaseTimes seen = times.read().of(StepPhase::compute);
    EXPECT_EQ(seen.recent, 9000u);
    EXPECT_EQ(seen.p50, 1000u);
    EXPECT_EQ(seen.p99, 9000u);
}

}   // namespace
}   // namespace gradcast
