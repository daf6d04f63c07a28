#include <set>

#include "datasets/augment.h"
#include "tests/datasets/support.h"

namespace gradcast {
namespace {

DataInfo augment_info() { return info_of(1, 3, 6, 9, 10); }
std::vector<uint8_t> image_of(uint64_t sample) {
    std::vector<uint8_t> image(augment_info().sample_bytes());
    for (uint64_t i = 0; i < image.size(); ++i) image[i] = static_cast<uint8_t>(pixel_of(sample, i) | 1);   // never 0
    return image;
}
std::vector<uint8_t> changed(const Augment& how, uint64_t epoch, uint64_t sample) {
    std::vector<uint8_t> image = image_of(sample);
    augment(how, augment_info(), epoch, sample, image.data());
    return image;
}
/// Reference: pad, cut, mirror.
std::vector<uint8_t> expected(uint64_t sample, int down, int right, bool mirrored) {
    constexpr int C = 3, H = 6, W = 9;
    std::vector<uint8_t> image = image_of(sample), out(image.size());
    for (int c = 0; c < C; ++c)
        for (int y = 0; y < H; ++y)
            for (int x = 0; x < W; ++x) {
                int from_y = y + down, from_x = (mirrored ? W - 1 - x : x) + right;
                if (from_y >= 0 && from_y < H && from_x >= 0 && from_x < W) out[(c * H + y) * W + x] = image[(c * H + from_y) * W + from_x];
            }
    return out;
}

TEST(Augment, EveryCropAndFlipComesAndIsWhatItSays) {
    constexpr int crop = 2;
    const Augment how{.crop = crop, .flip = true, .seed = 7};
    std::set<std::tuple<int, int, bool>> seen;
    uint64_t mirrored_count = 0;
    for (uint64_t sample = 0; sample < 1000; ++sample) {
        std::vector<uint8_t> image = changed(how, 3, sample);
        int matches = 0;
        for (int down = -crop; down <= crop; ++down)
            for (int right = -crop; right <= crop; ++right)
                for (bool mirrored : {false, true})
                    if (image == expected(sample, down, right, mirrored)) {
                        seen.insert({down, right, mirrored});
                        mirrored_count += mirrored;
                        ++matches;
                    }
        ASSERT_EQ(matches, 1) << sample;
    }
    EXPECT_EQ(seen.size(), 50u);
    EXPECT_NEAR(static_cast<double>(mirrored_count), 500, 60);
}

TEST(Augment, KeyedBySeedEpochAndSampleAlone) {
    const Augment how{.crop = 4, .flip = true, .seed = 7};
    int by_epoch = 0, by_seed = 0;
    for (uint64_t sample = 0; sample < 100; ++sample) {
        EXPECT_EQ(changed(how, 1, sample), changed(how, 1, sample));
        by_epoch += changed(how, 1, sample) != changed(how, 2, sample);
        by_seed += changed(how, 1, sample) != changed({.crop = 4, .flip = true, .seed = 8}, 1, sample);
    }
    EXPECT_GT(by_epoch, 90);
    EXPECT_GT(by_seed, 90);
}

/// A mask whose labels name their places moves as the pixels do.
template <typename Label>
void expect_masks_move(Element element, int32_t ignore) {
    constexpr uint32_t H = 6, W = 9;
    DataInfo info = info_of(1, 1, H, W, 200);
    info.targets = H * W;
    info.target_element = element;
    info.ignore = ignore;
    const Augment how{.crop = 3, .flip = true, .seed = 7};
    for (uint64_t sample = 0; sample < 100; ++sample) {
        std::vector<uint8_t> image(H * W);
        std::vector<Label> mask(H * W);
        for (size_t i = 0; i < mask.size(); ++i) image[i] = static_cast<uint8_t>(i + 1), mask[i] = static_cast<Label>(i + 1);
        augment(how, info, 2, sample, image.data(), reinterpret_cast<std::byte*>(mask.data()));
        for (size_t i = 0; i < mask.size(); ++i)
            ASSERT_EQ(mask[i], image[i] > 0 ? image[i] : static_cast<Label>(std::max(ignore, 0))) << sample << " " << i;
    }
}

TEST(Augment, MasksMoveWithTheirImages) {
    expect_masks_move<uint8_t>(Element::u8, 255);
    expect_masks_move<uint8_t>(Element::u8, -1);
    expect_masks_move<uint16_t>(Element::u16, 999);
}

TEST(Augment, WidestCropAndNone) {
    for (uint64_t sample = 0; sample < 50; ++sample) {
        changed({.crop = 5, .flip = false, .seed = 1}, 0, sample);   // the largest crop: out-of-bounds access shows in the sanitizers
        EXPECT_EQ(changed({}, 0, sample), image_of(sample));
    }
    EXPECT_FALSE(Augment{}.any());
}

}   // namespace
}   // namespace gradcast
