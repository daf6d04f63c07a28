// The interface of the importers.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "datasets/shard.h"

namespace gradcast {

/// One half of a data set, in memory.
struct Set {
    uint64_t count = 0;
    uint32_t C = 1, H = 0, W = 0;
    std::vector<uint8_t> images;
    std::vector<int32_t> labels;
    std::string class_names = {};   // separated by commas; empty: not known
};

/// Fills train and, if there is a test set, test.  classes 0: 1 + the largest label.
using ReadSets = Status (*)(const ImportConfig& config, uint32_t classes, Set* train, Set* test);

Status image_sets(const ImportConfig& config, uint32_t classes, Set* train, Set* test);   // from/[train|test]/CLASS/*

/// Synthetic ridge regression: x in R^500 and noise standard normal, y = <x, 1> + noise, y computed from the stored x.  A shard holds
/// integers: an element is (pixel - 128) / 32 (by mean and std), the target (label - 32768) / 256.
Status ridge_sets(const ImportConfig& config, uint32_t classes, Set* train, Set* test);
constexpr uint32_t ridge_levels = 65536;
constexpr uint64_t ridge_samples_max = 10'000'000;   // 5 GB
constexpr float ridge_target_scale = 1.0f / 256, ridge_mean = 128.0f / 255, ridge_std = 32.0f / 255;

}   // namespace gradcast
