// Which part of a picture becomes a sample, and its resampling.
#include "datasets/cut.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "datasets/picture.h"
#include "datasets/picture_probe.h"
#include "runtime/core/digest.h"
#include "tests/datasets/images.h"

namespace gradcast {
namespace {

/// The definition in doubles: a triangle as wide as two pixels of the coarser grid.
std::vector<double> line_plain(const std::vector<double>& from, uint32_t out) {
    const auto in = static_cast<double>(from.size()), wide = std::max(in / out, 1.0);
    std::vector<double> to;
    for (uint32_t i = 0; i < out; ++i) {
        const double centre = (i + 0.5) * in / out;
        double sum = 0, weights = 0;
        for (size_t j = 0; j < from.size(); ++j) {
            const double weight = std::max(0.0, 1 - std::fabs(static_cast<double>(j) + 0.5 - centre) / wide);
            sum += weight * from[j];
            weights += weight;
        }
        to.push_back(sum / weights);
    }
    return to;
}

TEST(Resample, WeightsAreThoseOfATriangleAndSumToOne) {
    Resample lines;
    for (const auto& [in, out] : {std::pair{1u, 1u}, {1u, 9u}, {2u, 3u}, {7u, 7u}, {7u, 5u}, {100u, 7u}, {3u, 100u}, {5000u, 3u}}) {
        lines.plan(in, out);
        ASSERT_EQ(lines.taps().size(), out);
        for (uint32_t i = 0; i < out; ++i) {
            const Resample::Taps& taps = lines.taps()[i];
            ASSERT_LE(taps.first + taps.count, in);
            const uint32_t* weights = lines.weights(taps);
            EXPECT_EQ(std::accumulate(weights, weights + taps.count, 0u), Resample::one) << in << " " << out << " " << i;
            std::vector<double> ramp(in), plain;
            std::iota(ramp.begin(), ramp.end(), 0.0);
            plain = line_plain(ramp, out);
            double value = 0;
            for (uint32_t j = 0; j < taps.count; ++j) value += weights[j] * (taps.first + j + 0.0) / Resample::one;
            EXPECT_NEAR(value, plain[i], taps.count * (taps.count + 1.0) / Resample::one) << in << " " << out << " " << i;
        }
    }
    lines.plan(6, 6);
    for (uint32_t i = 0; i < 6; ++i) {
        EXPECT_EQ(lines.taps()[i].count, 1u);
        EXPECT_EQ(lines.taps()[i].first, i);
    }
    // 3 pixels of 2: the middle one is half of each.
    lines.plan(2, 3);
    EXPECT_EQ(lines.weights(lines.taps()[1])[0], Resample::one / 2);
}

TEST(Cutter, IsTheMeanOfTheNeighbourhoodInIntegers) {
    Cutter cutter;
    for (const uint32_t C : {1u, 3u})
        for (const auto& [H, W, side] : {std::tuple{9u, 14u, 5u}, {3u, 2u, 8u}, {1u, 1u, 4u}, {7u, 7u, 7u}, {40u, 11u, 6u}}) {
            std::vector<uint8_t> pixels(H * W * C), planes(C * side * side);
            for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = pixel_of(H * W, i);
            cutter.plan(C, {0, 0, H, W}, side);
            for (uint32_t y = 0; y < H; ++y) cutter.row(y, &pixels[y * W * C]);
            cutter.finish(planes.data());
            for (uint32_t c = 0; c < C; ++c) {
                std::vector<std::vector<double>> rows;   // resized along the columns
                for (uint32_t y = 0; y < H; ++y) {
                    std::vector<double> row(W);
                    for (uint32_t x = 0; x < W; ++x) row[x] = pixels[(y * W + x) * C + c];
                    rows.push_back(line_plain(row, side));
                }
                for (uint32_t x = 0; x < side; ++x) {
                    std::vector<double> column(H);
                    for (uint32_t y = 0; y < H; ++y) column[y] = rows[y][x];
                    const std::vector<double> plain = line_plain(column, side);
                    for (uint32_t y = 0; y < side; ++y)
                        EXPECT_NEAR(planes[(c * side + y) * side + x], plain[y], 1.3) << H << " " << W << " " << side;
                    for (uint32_t y = 0; H == side && W == side && y < side; ++y)
                        EXPECT_EQ(planes[(c * side + y) * side + x], pixels[(y * W + x) * C + c]);
                }
            }
        }
}

// The bits are the contract: another CPU or compiler must give these.
TEST(Cutter, HasTheseBits) {
    Sha256 sha;
    Cutter cutter;
    for (uint64_t sample = 0; sample < 20; ++sample) {
        const uint32_t H = 50 + static_cast<uint32_t>(sample), W = 90 - static_cast<uint32_t>(sample);
        const Part part = part_drawn(share_units(0.08), 7, 3, sample, H, W);
        std::vector<uint8_t> row(3 * W), planes(3 * 24 * 24);
        cutter.plan(3, part, 24);
        for (uint32_t y = 0; y < part.H; ++y) {
            for (uint32_t x = 0; x < 3 * W; ++x) row[x] = pixel_of(sample, uint64_t{part.top + y} * 3 * W + x);
            cutter.row(y, row.data() + 3 * part.left);
        }
        cutter.finish(planes.data());
        sha.add(std::as_bytes(std::span(planes)));
    }
    EXPECT_EQ(sha.hex(), "3f06558c60bc5de27ee11fb7c60ba477d1630a3d3e19f27cdd87b631bbbc2e6d");
}

TEST(Parts, TheMiddle) {
    const auto text = [](const Part& part) { return fmt::format("{} {} {} {}", part.top, part.left, part.H, part.W); };
    EXPECT_EQ(text(part_centre(10, 7, 4)), "3 1 4 4");
    EXPECT_EQ(text(part_centre(4, 4, 4)), "0 0 4 4");
    EXPECT_EQ(share_units(1), 65536u);
    EXPECT_EQ(share_units(0.08), 5243u);
    EXPECT_EQ(share_units(1e-9), 1u);
}

TEST(Parts, AreDrawnAsTorchvisionDoes) {
    constexpr uint32_t H = 256, W = 341, draws = 20'000;
    const uint32_t share = share_units(0.08);
    double areas = 0, logs = 0, tops = 0, lefts = 0;
    uint32_t small = 0, upright = 0;
    for (uint64_t sample = 0; sample < draws; ++sample) {
        const Part part = part_drawn(share, 5, 2, sample, H, W);
        ASSERT_TRUE(part.H > 0 && part.W > 0 && part.top + part.H <= H && part.left + part.W <= W);
        const double area = static_cast<double>(part.H * part.W) / (H * W), ratio = static_cast<double>(part.W) / part.H;
        ASSERT_GT(area, 0.077);
        ASSERT_GT(ratio, 0.735);
        ASSERT_LT(ratio, 1.36);
        areas += area;
        logs += std::log(ratio);
        small += area < 0.2;
        upright += ratio < 1;
        tops += part.H == H ? 0.5 : static_cast<double>(part.top) / (H - part.H);
        lefts += part.W == W ? 0.5 : static_cast<double>(part.left) / (W - part.W);
    }
    // Of torchvision's RandomResizedCrop.get_params() over 200,000 draws at this size: mean area 0.434, mean log of the ratio 0.031, areas
    // below 0.2 in 17.5%.
    EXPECT_NEAR(areas / draws, 0.434, 0.01);
    EXPECT_NEAR(logs / draws, 0.031, 0.01);
    EXPECT_NEAR(static_cast<double>(small) / draws, 0.175, 0.01);
    EXPECT_NEAR(tops / draws, 0.5, 0.02);
    EXPECT_NEAR(lefts / draws, 0.5, 0.02);
    EXPECT_GT(upright, draws / 3);
}

TEST(Parts, FollowFromSeedEpochAndSampleAlone) {
    const uint32_t share = share_units(0.1);
    const auto text = [&](uint64_t seed, uint64_t epoch, uint64_t sample, uint32_t H, uint32_t W) {
        const Part part = part_drawn(share, seed, epoch, sample, H, W);
        return fmt::format("{} {} {} {}", part.top, part.left, part.H, part.W);
    };
    std::map<std::string, int> seen;
    for (uint64_t seed : {1, 2})
        for (uint64_t epoch : {0, 1})
            for (uint64_t sample : {0, 1, 1'000'000'000}) {
                EXPECT_EQ(text(seed, epoch, sample, 300, 200), text(seed, epoch, sample, 300, 200));
                ++seen[text(seed, epoch, sample, 300, 200)];
            }
    EXPECT_EQ(seen.size(), 12u);
    // No part of a large share and of these ratios lies in a strip: the middle is taken.
    EXPECT_EQ(part_drawn(65536, 1, 0, 0, 10, 1000).W, 13u);
    EXPECT_EQ(part_drawn(65536, 1, 0, 0, 10, 1000).left, 493u);
    EXPECT_EQ(part_drawn(65536, 1, 0, 0, 1000, 10).H, 13u);
    EXPECT_EQ(text(1, 0, 0, 1, 1), "0 0 1 1");
}

/// A picture with edges, gradients and noise.
Planes planes_of(uint32_t C, uint32_t H, uint32_t W, uint64_t number) {
    Planes planes{C, H, W, std::vector<uint8_t>(uint64_t{C} * H * W)};
    for (uint32_t c = 0; c < C; ++c)
        for (uint32_t y = 0; y < H; ++y)
            for (uint32_t x = 0; x < W; ++x)
                planes.pixels[(uint64_t{c} * H + y) * W + x] = static_cast<uint8_t>(
                    (c == 1 ? x * 200 / W : y * 200 / H) + (x / 8 + number) % 2 * 30 + pixel_of(number, y * W + x) % 8);
    return planes;
}

TEST(Pictures, AreDecodedAsImagesAre) {
    PictureDecoder decoder;
    for (const uint32_t C : {1u, 3u}) {
        const Planes planes = planes_of(C, 37, 61, C);
        std::string jpeg, again;
        picture_encode(planes, &jpeg);
        picture_encode(planes, &again);
        EXPECT_EQ(jpeg, again);
        uint32_t H = 0, W = 0;
        ASSERT_EQ(decoder.open(std::span(reinterpret_cast<const uint8_t*>(jpeg.data()), jpeg.size()), C, &H, &W), nullptr);
        EXPECT_EQ(H, 37u);
        EXPECT_EQ(W, 61u);
        std::vector<uint8_t> cut(C * 30 * 30), whole(C * 37 * 61);
        ASSERT_EQ(decoder.cut({5, 20, 30, 30}, 30, cut.data()), nullptr);
        TestFolder folder;
        write_file(folder.file("a.jpg"), jpeg);
        ImageFile image;
        std::string odd;
        ASSERT_TRUE(image_open(folder.file("a.jpg"), &image).ok());
        EXPECT_FALSE(image.scans);
        ASSERT_TRUE(image_decode(image, C, whole.data(), &odd).ok());
        double error = 0;
        for (uint32_t c = 0; c < C; ++c)
            for (uint32_t y = 0; y < 30; ++y)
                for (uint32_t x = 0; x < 30; ++x) {
                    const uint8_t pixel = whole[(c * 37 + y + 5) * 61 + x + 20];
                    ASSERT_EQ(cut[(c * 30 + y) * 30 + x], pixel);
                    error += std::abs(pixel - planes.pixels[(c * 37 + y + 5) * 61 + x + 20]);
                }
        EXPECT_LT(error / (900 * C), 6);
    }
}

TEST(Pictures, TheDecodersDigestIsThatOfTheProbePictures) {
    const std::string digest = decoder_digest();
    EXPECT_EQ(digest.size(), 16u);
    EXPECT_EQ(digest, decoder_digest());
    Sha256 sha;
    TestFolder folder;
    for (const std::span<const uint8_t> jpeg : probe_pictures) {
        write_file(folder.file("probe.jpg"), std::string_view(reinterpret_cast<const char*>(jpeg.data()), jpeg.size()));
        ImageFile image;
        ASSERT_TRUE(image_open(folder.file("probe.jpg"), &image).ok());
        ASSERT_EQ(image.H * image.W, probe_side * probe_side);
        std::vector<uint8_t> planes(3 * probe_side * probe_side);
        std::string odd;
        ASSERT_TRUE(image_decode(image, 3, planes.data(), &odd).ok());
        EXPECT_EQ(*std::ranges::min_element(planes), 0);
        EXPECT_EQ(*std::ranges::max_element(planes), 255);
        sha.add(std::as_bytes(std::span(planes)));
    }
    EXPECT_EQ(digest, sha.hex().substr(0, 16));
}

}   // namespace
}   // namespace gradcast
