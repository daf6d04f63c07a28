// Random samples: 1x8x8 pixels in 4 classes.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "datasets/shard.h"
#include "runtime/core/rng.h"

namespace gradcast {

inline void write_noise(const std::string& path, uint32_t count) {
    std::vector<uint8_t> images(count * 64);
    std::vector<int32_t> labels(count);
    for (uint32_t i = 0; i < images.size(); ++i) images[i] = static_cast<uint8_t>(random4(Purpose::test, 1, i, 0)[0]);
    for (uint32_t i = 0; i < count; ++i) labels[i] = static_cast<int32_t>(i % 4);
    const DataInfo info{.count = count, .C = 1, .H = 8, .W = 8, .classes = 4, .mean = {0.5f}, .std = {0.3f}, .source = "noise"};
    ASSERT_TRUE(shard_write(path, info, images.data(), labels.data()).ok());
}

}   // namespace gradcast
