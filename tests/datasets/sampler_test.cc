#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "datasets/sampler.h"

namespace gradcast {
namespace {

/// The first `count` positions of the endless sequence, by whole mini-batches of one block.
std::vector<uint64_t> sequence(uint64_t samples, uint64_t seed, uint32_t batch, uint32_t blocks, uint64_t steps) {
    Sampler sampler(samples, seed, batch, blocks);
    std::vector<uint64_t> all;
    for (StepId step = 0; step < steps; ++step)
        for (uint32_t block = 0; block < blocks; ++block) {
            std::vector<uint64_t> indices(sampler.block_size(block));
            sampler.block({step, block}, indices);
            all.insert(all.end(), indices.begin(), indices.end());
        }
    return all;
}

TEST(Sampler, EveryEpochIsAPermutation) {
    for (uint64_t samples :
         {1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 32, 33, 64, 97, 100, 127, 128, 255, 256, 257, 1000, 1021, 4096, 4097, 60000, 65537})
        for (uint64_t seed : {0ull, 1ull, 0xdeadbeefcafe1234ull}) {
            uint64_t epochs = 3;
            uint32_t batch = static_cast<uint32_t>(samples);
            auto all = sequence(samples, seed, batch, std::min(batch, 7u), epochs);
            ASSERT_EQ(all.size(), epochs * samples);
            for (uint64_t epoch = 0; epoch < epochs; ++epoch) {
                std::vector<bool> seen(samples);
                for (uint64_t i = 0; i < samples; ++i) {
                    uint64_t index = all[epoch * samples + i];
                    ASSERT_LT(index, samples);
                    ASSERT_FALSE(seen[index]) << "N " << samples << " epoch " << epoch << " index " << index;
                    seen[index] = true;
                }
            }
        }
}

// Batches and blocks cut one sequence, across ends of epochs, and none is short.
TEST(Sampler, BatchesAndBlocksCutOneSequence) {
    uint64_t samples = 1009, seed = 5;
    auto whole = sequence(samples, seed, 1, 1, 8 * 1009);
    for (auto [batch, blocks] : {std::pair{128u, 8u}, {128u, 1u}, {100u, 7u}, {13u, 13u}, {1009u, 3u}, {2500u, 64u}}) {
        uint64_t steps = whole.size() / batch;
        auto cut = sequence(samples, seed, batch, blocks, steps);
        ASSERT_EQ(cut.size(), steps * batch);
        ASSERT_TRUE(std::equal(cut.begin(), cut.end(), whole.begin())) << batch << " " << blocks;
        Sampler sampler(samples, seed, batch, blocks);
        uint32_t sum = 0, most = 0;
        for (uint32_t block = 0; block < blocks; ++block) {
            sum += sampler.block_size(block);
            most = std::max(most, sampler.block_size(block));
        }
        EXPECT_EQ(sum, batch);
        EXPECT_EQ(most, sampler.block_size_max());
    }
}

TEST(Sampler, StepsAndEpochs) {
    Sampler sampler(60000, 1, 128, 8);
    EXPECT_EQ(sampler.steps(5), (5 * 60000 + 127) / 128);
    EXPECT_EQ(sampler.epoch_of(0), 0u);
    EXPECT_EQ(sampler.epoch_of(468), 0u);   // 468 * 128 = 59904
    EXPECT_EQ(sampler.epoch_of(469), 1u);
    EXPECT_EQ(sampler.epoch_of(4'000'000'000), 4'000'000'000ull * 128 / 60000);
}

TEST(Sampler, EpochsAndSeedsDiffer) {
    uint64_t samples = 10000;
    auto a = sequence(samples, 1, 10000, 1, 3), b = sequence(samples, 2, 10000, 1, 3);
    auto same = [&](const uint64_t* x, const uint64_t* y) {
        uint64_t equal = 0;
        for (uint64_t i = 0; i < samples; ++i) equal += x[i] == y[i];
        return equal;   // for two independent permutations: Poisson with mean 1
    };
    for (int i = 0; i < 3; ++i) {
        EXPECT_LT(same(&a[i * samples], &b[i * samples]), 10u);
        for (int j = 0; j < i; ++j) EXPECT_LT(same(&a[i * samples], &a[j * samples]), 10u);
        uint64_t fixed = 0;
        for (uint64_t k = 0; k < samples; ++k) fixed += a[i * samples + k] == k;
        EXPECT_LT(fixed, 10u);
    }
}

/// (chi^2 - f) / sqrt(2 f), f = cells - 1: about normal for a good shuffle.
double deviation(const std::vector<uint64_t>& counts) {
    double total = 0, chi = 0, cells = static_cast<double>(counts.size());
    for (uint64_t count : counts) total += static_cast<double>(count);
    for (uint64_t count : counts) chi += std::pow(static_cast<double>(count) - total / cells, 2) / (total / cells);
    return (chi - (cells - 1)) / std::sqrt(2 * (cells - 1));
}

// Over many epochs each sample is at each place, and before each other sample, equally often.
TEST(Sampler, PlacesAndNeighboursAreUniform) {
    for (uint64_t samples : {5, 8, 10, 16, 17, 33, 50}) {
        uint64_t epochs = 400 * samples;
        auto all = sequence(samples, 77, static_cast<uint32_t>(samples), 1, epochs);
        std::vector<uint64_t> places(samples * samples), steps(samples - 1);
        for (uint64_t epoch = 0; epoch < epochs; ++epoch)
            for (uint64_t i = 0; i < samples; ++i) {
                ++places[i * samples + all[epoch * samples + i]];
                if (i > 0) ++steps[(all[epoch * samples + i] + samples - all[epoch * samples + i - 1]) % samples - 1];
            }
        // Rows and columns have fixed sums: (N-1)^2 degrees of freedom, fewer than N^2-1, so the deviation is below 0.
        EXPECT_LT(deviation(places), 5) << samples;
        EXPECT_GT(deviation(places), -2 * std::sqrt(2.0) - 5) << samples;
        EXPECT_LT(std::abs(deviation(steps)), 5) << samples;
    }
}

// A mini-batch of a data set sorted by class draws classes uniformly.
TEST(Sampler, BatchesMixWhatLiesTogether) {
    uint64_t samples = 60000, batch = 60, bins = 10;
    double chi = 0;
    uint64_t steps = 5000;
    auto all = sequence(samples, 3, static_cast<uint32_t>(batch), 4, steps);
    for (uint64_t step = 0; step < steps; ++step) {
        std::vector<double> counts(bins);
        for (uint64_t i = 0; i < batch; ++i) ++counts[all[step * batch + i] * bins / samples];
        for (double count : counts) chi += (count - 6) * (count - 6) / 6;
    }
    double freedom = static_cast<double>(steps * (bins - 1));
    EXPECT_LT(std::abs(chi - freedom) / std::sqrt(2 * freedom), 5) << chi / freedom;
}

// Pinned values: two versions must train the same model.
TEST(Sampler, ValuesStayTheSame) {
    Sampler sampler(60000, 1, 128, 8);
    std::vector<uint64_t> indices(16);
    sampler.block({468, 5}, indices);   // crosses the end of epoch 0
    EXPECT_EQ(indices, (std::vector<uint64_t>{37603, 49073, 17008, 23132, 2762, 47363, 46434, 49326, 13816, 14455, 18321, 50948, 26368,
                                              38070, 4116, 11119}));
}

}   // namespace
}   // namespace gradcast
