// import masks: images with a class for each pixel.
#include <numeric>

#include "datasets/image.h"
#include "datasets/import.h"
#include "tests/datasets/images.h"
#include "tests/datasets/support.h"

namespace gradcast {
namespace {

class ImportMasks : public ::testing::Test {
protected:
    TestFolder folder;
    std::string from = folder.file("from"), out = folder.file("out");
    ImportConfig config{.kind = "masks", .from = from, .out = out, .force = true};
    ImportResult result;
    static constexpr uint32_t H = 4, W = 6;
    void SetUp() override {
        for (const char* name : {"images", "masks"}) std::filesystem::create_directories(from + "/" + name);
    }
    /// An RGB image whose pixels are those of a sample, and its mask.
    void add(const std::string& name, uint64_t sample, const std::vector<uint8_t>& mask, const std::string& end = ".png",
             const std::string& half = "") {
        std::vector<uint8_t> pixels;
        for (uint64_t i = 0; i < H * W; ++i)
            for (uint64_t c = 0; c < 3; ++c) pixels.push_back(pixel_of(sample, c * H * W + i));
        png(from + half + "/images/" + name + ".png", H, W, PNG_FORMAT_RGB, pixels);
        png(from + half + "/masks/" + name + end, H, W, PNG_FORMAT_GRAY, mask);
    }
    static std::vector<uint8_t> mask(uint8_t first, uint8_t step = 1, uint32_t count = H * W) {
        std::vector<uint8_t> labels(count);
        for (uint32_t i = 0; i < count; ++i) labels[i] = static_cast<uint8_t>(first + i % 3 * step);
        return labels;
    }
    void expect_samples(const std::string& name, const std::vector<uint64_t>& samples, const std::vector<std::vector<uint8_t>>& masks) {
        std::unique_ptr<DataSet> data;
        Status status = data_open(out + "/" + name, &data);
        ASSERT_TRUE(status.ok()) << status.what;
        status = data_verify(*data);
        ASSERT_TRUE(status.ok()) << status.what;
        ASSERT_EQ(data->info().count, samples.size());
        for (uint64_t n = 0; n < samples.size(); ++n) {
            std::vector<uint8_t> image(data->sample_bytes());
            std::vector<std::byte> found(data->info().targets_bytes());
            int32_t label;
            ASSERT_TRUE(data->read({&n, 1}, image.data(), &label, found.data()).ok());
            for (size_t i = 0; i < image.size(); ++i) ASSERT_EQ(image[i], pixel_of(samples[n], i));
            for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(std::to_integer<uint8_t>(found[i]), masks[n][i]) << n << " " << i;
        }
    }
};

TEST_F(ImportMasks, ByName) {
    add("b.1", 2, mask(0));
    add("a", 1, mask(2), "_mask.png");
    Status status = data_import(config, &result);
    ASSERT_TRUE(status.ok()) << status.what;
    expect_samples("train.h5", {1, 2}, {mask(2), mask(0)});
    std::unique_ptr<DataSet> data;
    ASSERT_TRUE(data_open(out + "/train.h5", &data).ok());
    EXPECT_EQ(data->info().classes, 5u);
    EXPECT_EQ(data->info().ignore, -1);
    EXPECT_EQ(data->info().C, 3u);
}

TEST_F(ImportMasks, Halves) {
    std::filesystem::remove_all(from);
    for (const char* half : {"/train", "/val"})
        for (const char* name : {"/images", "/masks"}) std::filesystem::create_directories(from + half + name);
    add("a", 1, mask(0), ".png", "/train");
    add("a", 2, mask(1), ".png", "/val");
    ASSERT_TRUE(data_import(config, &result).ok());
    expect_samples("train.h5", {1}, {mask(0)});
    expect_samples("test.h5", {2}, {mask(1)});
    config.test = 0.5;
    expect_error(data_import(config, &result), {"--test: ", "/val is there to test on"});
}

TEST_F(ImportMasks, WhiteIsAClassOrSaysNothing) {
    std::vector<uint8_t> white(H * W), other(H * W);
    for (uint32_t i = 0; i < H * W; ++i) white[i] = i % 2 ? 255 : 0, other[i] = i % 2;
    add("a", 1, white);
    ASSERT_TRUE(data_import(config, &result).ok());
    expect_samples("train.h5", {1}, {other});
    EXPECT_EQ(result.notes[0], "masks of 0 and 255: 255 is the class 1");
    white[0] = 3;
    add("a", 1, white);
    ASSERT_TRUE(data_import(config, &result).ok());
    expect_samples("train.h5", {1}, {white});
    std::unique_ptr<DataSet> data;
    ASSERT_TRUE(data_open(out + "/train.h5", &data).ok());
    EXPECT_EQ(data->info().classes, 4u);
    EXPECT_EQ(data->info().ignore, 255);
}

// Resized and cut as the image is, but without values in between.
TEST_F(ImportMasks, Resized) {
    Planes planes{1, 4, 6, {}};
    for (uint8_t i = 0; i < 24; ++i) planes.pixels.push_back(i);
    Planes half = planes, same = planes, twice = planes;
    mask_fit(2, &half);   // 4 x 6 to 2 x 3, of which the left two stay
    EXPECT_EQ(half.pixels, (std::vector<uint8_t>{0, 2, 12, 14}));
    mask_fit(4, &same);
    EXPECT_EQ(same.pixels, (std::vector<uint8_t>{1, 2, 3, 4, 7, 8, 9, 10, 13, 14, 15, 16, 19, 20, 21, 22}));
    mask_fit(8, &twice);
    for (uint32_t y = 0; y < 8; ++y)
        for (uint32_t x = 0; x < 8; ++x) EXPECT_EQ(twice.pixels[y * 8 + x], y / 2 * 6 + (x + 2) / 2);
    add("a", 1, mask(0));
    config.size = 2;
    ASSERT_TRUE(data_import(config, &result).ok());
    std::unique_ptr<DataSet> data;
    ASSERT_TRUE(data_open(out + "/train.h5", &data).ok());
    EXPECT_EQ(data->info().H, 2u);
    EXPECT_EQ(data->info().targets, 4u);
}

// Values of a mask are those of the file: of a palette its places, of fewer than 8 bits the numbers themselves.
TEST_F(ImportMasks, PalettesAndFewBits) {
    const std::string path = folder.file("m.png"), palette = png_chunk("PLTE", std::string("\0\0\0\xFF\0\0\0\xFF\0", 9));
    ImageFile image;
    std::vector<uint8_t> found(4);
    for (const auto& [type, before] : {std::pair{3, palette}, {0, std::string()}}) {
        // Two rows of two pixels of two bits: 0 2, 1 0.
        png_raw(path, 2, 2, 2, type, std::string("\0\x20\0\x40", 4), before);
        ASSERT_TRUE(image_open(path, &image).ok());
        const Status status = mask_decode(image, found.data());
        ASSERT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(found, (std::vector<uint8_t>{0, 2, 1, 0})) << type;
    }
    png(path, 2, 2, PNG_FORMAT_RGB, std::vector<uint8_t>(12));
    ASSERT_TRUE(image_open(path, &image).ok());
    expect_error(mask_decode(image, found.data()), {"m.png: a mask is grey of 8 bits or has a palette"});
    jpeg(path, 2, 2, JCS_GRAYSCALE, std::vector<uint8_t>(4));
    ASSERT_TRUE(image_open(path, &image).ok());
    expect_error(mask_decode(image, found.data()), {"m.png: a mask is a PNG: a JPEG changes the classes"});
}

TEST_F(ImportMasks, ErrorsNameTheFile) {
    expect_error(data_import(config, &result), {"from/images: empty"});
    add("a", 1, mask(0));
    std::filesystem::rename(from + "/masks/a.png", from + "/masks/b.png");
    expect_error(data_import(config, &result), {"images/a.png: ", "/masks has no a.png and no a_mask.png for it"});
    add("a", 1, mask(0));
    expect_error(data_import(config, &result), {"masks/b.png: a mask without an image"});
    std::filesystem::rename(from + "/masks/b.png", from + "/masks/a_mask.png");
    expect_error(data_import(config, &result), {"masks: a.png and a_mask.png are masks of one image"});
    std::filesystem::remove(from + "/masks/a_mask.png");
    png(from + "/masks/a.png", H, W + 1, PNG_FORMAT_GRAY, mask(0, 1, H * (W + 1)));
    expect_error(data_import(config, &result),
                 {"masks/a.png: 7 x 4 pixels, but ", "images/a.png has 6 x 4: a mask has the size of its image"});
    add("a", 1, mask(0, 0));
    expect_error(data_import(config, &result), {"all masks are 0"});
    std::filesystem::remove_all(from + "/masks");
    expect_error(data_import(config, &result), {"--from has the folders images and masks, or train and test (val) with such"});
    EXPECT_FALSE(std::filesystem::exists(out + "/train.h5"));
}

}   // namespace
}   // namespace gradcast
