// What the importers share.
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
    std::string class_names = {};   // separated by commas, where the files tell
};

/// Fills train, and test where there is one.  classes 0: as many as the labels show.
using ReadSets = Status (*)(const ImportConfig& config, uint32_t classes, Set* train, Set* test);

Status image_sets(const ImportConfig& config, uint32_t classes, Set* train, Set* test);   // from/[train|test]/CLASS/*

/// Made, not read: x in R^500 and noise standard normal, y = <x, 1> + noise.  A shard holds whole numbers: an element is (pixel - 128) /
/// 32, which mean and std bring about, the target (label - 32768) / 256; y is of the x that is stored.
Status ridge_sets(const ImportConfig& config, uint32_t classes, Set* train, Set* test);
constexpr uint32_t ridge_levels = 65536;
constexpr uint64_t ridge_samples_max = 10'000'000;   // 5 GB
constexpr float ridge_target_scale = 1.0f / 256, ridge_mean = 128.0f / 255, ridge_std = 32.0f / 255;

}   // namespace gradcast
