// Brightness, contrast and saturation of training samples.
#include <cmath>
#include <set>

#include "datasets/augment.h"
#include "datasets/cut.h"
#include "runtime/core/digest.h"
#include "runtime/core/rng.h"
#include "tests/datasets/support.h"

namespace gradcast {
namespace {

constexpr uint32_t jitter_pixels = 6 * 5;

DataInfo jitter_info(uint32_t C) { return info_of(1, C, 6, 5, 10); }

std::vector<uint8_t> image_of(uint32_t C, uint64_t sample) {
    std::vector<uint8_t> image(C * jitter_pixels);
    for (uint64_t i = 0; i < image.size(); ++i) image[i] = pixel_of(sample, i);
    return image;
}
std::vector<uint8_t> changed(const Augment& how, uint32_t C, uint64_t epoch, uint64_t sample) {
    std::vector<uint8_t> image = image_of(C, sample);
    augment(how, jitter_info(C), epoch, sample, image.data());
    return image;
}

/// The definition in doubles, on values that are rounded after each step.
std::vector<uint8_t> plain(const Augment& how, uint32_t C, uint64_t epoch, uint64_t sample) {
    const std::vector<uint8_t> image = image_of(C, sample);
    std::vector<double> x(image.begin(), image.end());
    const Philox random = random4(Purpose::jitter, how.seed, sample, static_cast<uint32_t>(epoch));
    const auto factor = [&](size_t i) {
        const auto steps = static_cast<double>(uint64_t{random[i]} * (2 * uint64_t{how.jitter[i]} + 1) >> 32);
        return 1 + (steps - how.jitter[i]) / 65536;
    };
    const auto held = [](double value) { return std::clamp(std::floor(value + 0.5), 0.0, 255.0); };
    const auto grey = [&](size_t i) {
        return C == 1 ? x[i] : std::floor((19595 * x[i] + 38470 * x[jitter_pixels + i] + 7471 * x[2 * jitter_pixels + i]) / 65536 + 0.5);
    };
    for (double& each : x) each = held(each * factor(0));
    double mean = 0;
    for (size_t i = 0; i < jitter_pixels; ++i) mean += grey(i);
    mean = std::floor(mean / jitter_pixels + 0.5);
    for (double& each : x) each = held(mean + (each - mean) * factor(1));
    std::vector<double> greys;
    for (size_t i = 0; i < jitter_pixels; ++i) greys.push_back(grey(i));
    for (size_t i = 0; C == 3 && i < x.size(); ++i) x[i] = held(greys[i % jitter_pixels] + (x[i] - greys[i % jitter_pixels]) * factor(2));
    return {x.begin(), x.end()};
}

TEST(Jitter, IsItsDefinition) {
    for (const std::array<uint32_t, 3>& jitter :
         {std::array<uint32_t, 3>{26214, 0, 0}, {0, 26214, 0}, {0, 0, 26214}, {65536, 65536, 65536}, {1, 2, 3}})
        for (const uint32_t C : {1u, 3u})
            for (uint64_t sample = 0; sample < 40; ++sample) {
                const Augment how{.seed = 7, .jitter = jitter};
                EXPECT_EQ(changed(how, C, 2, sample), plain(how, C, 2, sample)) << C << " " << sample;
            }
}

TEST(Jitter, FollowsFromSeedEpochAndSampleAlone) {
    std::set<std::vector<uint8_t>> seen;
    const auto with = [](uint64_t seed, uint64_t epoch, uint64_t sample) {
        std::vector<uint8_t> image = image_of(3, 1);
        augment({.seed = seed, .jitter = {30000, 30000, 30000}}, jitter_info(3), epoch, sample, image.data());
        return image;
    };
    for (uint64_t seed : {1, 2})
        for (uint64_t epoch : {0, 1})
            for (uint64_t sample : {0, 1}) {
                EXPECT_EQ(with(seed, epoch, sample), with(seed, epoch, sample));
                seen.insert(with(seed, epoch, sample));
            }
    EXPECT_EQ(seen.size(), 8u);
}

TEST(Jitter, NoneChangesNothingAndCropsStayWhereTheyWere) {
    EXPECT_FALSE(Augment{}.jitters());
    EXPECT_TRUE((Augment{.jitter = {0, 0, 1}}).any());
    // Colours come first: what is shifted in from outside stays 0, and the place of the crop is that without jitter.
    const Augment crop{.crop = 3, .flip = true, .seed = 5}, both{.crop = 3, .flip = true, .seed = 5, .jitter = {20000, 20000, 20000}};
    for (uint64_t sample = 0; sample < 20; ++sample) {
        std::vector<uint8_t> image = image_of(3, sample), other = image_of(3, sample);
        colours_jitter(both, jitter_info(3), 0, sample, image.data());
        augment(crop, jitter_info(3), 0, sample, image.data());
        augment(both, jitter_info(3), 0, sample, other.data());
        EXPECT_EQ(image, other);
    }
    // Of grey images saturation is none.
    EXPECT_EQ(changed({.seed = 1, .jitter = {0, 0, 65536}}, 1, 0, 3), image_of(1, 3));
}

// The bits are the contract: another CPU or compiler must give these.
TEST(Jitter, HasTheseBits) {
    Sha256 sha;
    for (uint64_t sample = 0; sample < 50; ++sample) {
        const std::vector<uint8_t> image = changed({.seed = 9, .jitter = {26214, 26214, 13107}}, 3, sample % 4, sample);
        sha.add(std::as_bytes(std::span(image)));
    }
    EXPECT_EQ(sha.hex(), "9852cfd3c29a62fdf423beb3953caaefe65e00e8a10408dbf2360cf294e7a9c9");
}

}   // namespace
}   // namespace gradcast
