// Where nets are cut, as tables.
#include <gtest/gtest.h>

#include "algos/grid/cuts.h"
#include "nn/net.h"

namespace gradcast {
namespace {

using Firsts = std::vector<uint32_t>;

TEST(Cuts, TheMostWorkOfAStageIsTheLeastPossible) {
    const std::vector<double> work = {1, 2, 3, 4, 5, 6};
    const std::vector<bool> learns(6, true);
    const Firsts all = {0, 1, 2, 3, 4, 5};
    EXPECT_EQ(cuts_even({work}, learns, all, 1), (Firsts{0}));
    EXPECT_EQ(cuts_even({work}, learns, all, 2), (Firsts{0, 4}));      // 10, 11
    EXPECT_EQ(cuts_even({work}, learns, all, 3), (Firsts{0, 3, 5}));   // 6, 9, 6
    EXPECT_EQ(cuts_even({work}, learns, all, 6), all);
    EXPECT_EQ(cuts_even({work}, learns, all, 7), Firsts{});
    EXPECT_EQ(cuts_even({work}, learns, (Firsts{0, 2, 5}), 2), (Firsts{0, 5}));   // 15, 6
}

TEST(Cuts, EachStageHasParameters) {
    const std::vector<double> work = {5, 1, 1, 1, 5};
    const std::vector<bool> learns = {true, false, false, false, true};
    const Firsts all = {0, 1, 2, 3, 4};
    EXPECT_EQ(cuts_most(learns, all), 2u);
    EXPECT_EQ(cuts_even({work}, learns, all, 2), (Firsts{0, 4}));
    EXPECT_EQ(cuts_even({work}, learns, (Firsts{0, 1, 2, 3}), 2), (Firsts{0, 2}));
    EXPECT_EQ(cuts_even({work}, learns, all, 3), Firsts{});
    EXPECT_EQ(cuts_most({true, true}, (Firsts{0})), 1u);
}

// A cut goes where the work is less even and the values are few.
TEST(Cuts, EdgesCost) {
    const std::vector<double> work = {4, 4, 4, 4, 4, 4}, edges = {0, 9, 9, 9, 1, 0};
    const std::vector<bool> learns(6, true);
    const Firsts all = {0, 1, 2, 3, 4, 5};
    EXPECT_EQ(cuts_even({work}, learns, all, 2), (Firsts{0, 3}));
    EXPECT_EQ(cuts_even({work, edges}, learns, all, 2), (Firsts{0, 4}));      // 17, 9 instead of 21, 21
    EXPECT_EQ(cuts_even({work, edges}, learns, all, 3), (Firsts{0, 4, 5}));   // 17, 5, 4
}

TEST(Cuts, WhatACutCrosses) {
    const std::vector<uint64_t> outputs = {10, 20, 30, 40, 50};
    const std::vector<std::pair<uint32_t, uint32_t>> reads = {{0, 1}, {1, 2}, {2, 3}, {0, 3}, {3, 4}};
    EXPECT_EQ(cuts_crossed(outputs, reads), (std::vector<uint64_t>{0, 10, 30, 40, 40}));
    const std::vector<std::pair<uint32_t, uint32_t>> twice = {{0, 1}, {0, 2}, {2, 3}, {3, 4}};
    EXPECT_EQ(cuts_crossed(outputs, twice), (std::vector<uint64_t>{0, 10, 10, 30, 40}));
}

std::vector<std::string> names(const char* preset, uint32_t stages) {
    NetSpec spec;
    const bool grey = preset != std::string("nin") && preset != std::string("resnet9");
    EXPECT_TRUE(preset_find(preset, grey ? 1 : 3, grey ? 28 : 32, grey ? 28 : 32, 10, &spec).ok());
    NetOrder order;
    EXPECT_TRUE(net_cpu_order(spec, &order).ok());
    std::vector<std::string> all;
    for (const uint32_t first : cuts_even({order.work}, order.learns, order.begins, stages)) all.push_back(order.names[first]);
    return all;
}

// Nodes of one version cut alike, so these are part of what they agree on.
TEST(Cuts, OfPresets) {
    using Names = std::vector<std::string>;
    EXPECT_EQ(names("lenet5", 2), (Names{"conv1", "conv2"}));
    EXPECT_EQ(names("mlp", 2), (Names{"fc1", "fc2"}));
    EXPECT_EQ(names("mlp", 4), (Names{"fc1", "fc2", "fc3", "fc4"}));
    EXPECT_EQ(names("nin", 3), (Names{"conv1", "conv4", "conv5"}));
    EXPECT_EQ(names("resnet9", 2), (Names{"conv1", "conv5"}));
}

}   // namespace
}   // namespace gradcast
