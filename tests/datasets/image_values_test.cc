// Which values, which way up and which size an image has after its import.
#include "tests/datasets/images.h"

namespace gradcast {
namespace {

using namespace std::string_literals;

TEST_F(ImportImages, PixelsAreTheValuesOfTheFile) {
    for (const char* name : {"train/bee/0.png", "train/bee/1.png", "test/bee/z.png"}) std::filesystem::remove(in(name));
    std::filesystem::remove_all(in("test"));
    auto rows = [&](const std::string& pixel) {
        std::string all;
        for (uint32_t y = 0; y < H; ++y) {
            all += '\0';
            for (uint32_t x = 0; x < W; ++x) all += pixel;
        }
        return all;
    };
    const std::string linear = png_chunk("gAMA", "\0\1\x86\xa0"s), palette = png_chunk("PLTE", "\1\2\3\x40\x41\x42"s);
    png_raw(in("train/ant/a.png"), H, W, 8, 0, rows("\x40"), "");
    png_raw(in("train/ant/b.png"), H, W, 8, 0, rows("\x40"), linear);
    png_raw(in("train/ant/c.png"), H, W, 16, 0, rows("\x40\x40"), "");
    png_raw(in("train/ant/d.png"), H, W, 16, 0, rows("\x40\xff"), "");
    png_raw(in("train/ant/e.png"), H, W, 8, 4, rows("\x40\x80"), "");
    png_raw(in("train/ant/f.png"), H, W, 8, 0, rows("\x40"), png_chunk("tRNS", "\0\x40"s));
    std::filesystem::remove(in("train/ant/x.png"));
    std::filesystem::remove(in("train/bee"));
    ASSERT_TRUE(import().ok());
    EXPECT_EQ(samples("train.h5"), std::vector<uint8_t>(6 * H * W, 0x40));
    expect_note({"from/train/ant/b.png: gamma or colour profile is not applied"});
    expect_note({"2 images, ", "from/train/ant/c.png among them: 16 bits, of which the high byte is kept"});
    expect_note({"2 images, ", "from/train/ant/e.png among them: transparency is dropped"});

    config.force = true;
    for (const char* name : {"a", "b", "c", "d", "e", "f"}) std::filesystem::remove(in("train/ant/"s + name + ".png"));
    png_raw(in("train/ant/a.png"), H, W, 8, 6, rows("\x40\x41\x42\x80"), linear);
    png_raw(in("train/ant/b.png"), H, W, 16, 6, rows("\x40\x99\x41\x99\x42\x99\0\0"s), "");
    png_raw(in("train/ant/c.png"), H, W, 16, 2, rows("\x40\xff\x41\xff\x42\xff"), "");
    png_raw(in("train/ant/d.png"), H, W, 8, 3, rows("\1"), palette + png_chunk("tRNS", "\xff\x10"s));
    ASSERT_TRUE(import().ok());
    const std::vector<uint8_t> all = samples("train.h5");
    ASSERT_EQ(all.size(), 4 * 3 * H * W);
    for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], 0x40 + i / (H * W) % 3) << i;
}

TEST_F(ImportImages, CmykIsRefusedByName) {
    jpeg(in("train/ant/k.jpg"), H, W, JCS_CMYK, std::vector<uint8_t>(H * W * 4, 9));
    expect_refused({"from/train/ant/k.jpg: a JPEG in CMYK: convert it to RGB (mogrify -colorspace sRGB '"});
}

TEST(Image, TurnsAsAllEightOrientationsSay) {
    const char* upright[] = {"abcdef", "cbafed", "fedcba", "defabc", "adbecf", "daebfc", "fcebda", "cfbead"};
    for (uint32_t orientation = 1; orientation <= 8; ++orientation) {
        Planes planes{2, 2, 3, {}};
        for (char c : "abcdefABCDEF"s) planes.pixels.push_back(static_cast<uint8_t>(c));
        image_turn(orientation, &planes);
        const std::string first(planes.pixels.begin(), planes.pixels.begin() + 6);
        EXPECT_EQ(first, upright[orientation - 1]) << orientation;
        for (size_t i = 0; i < 6; ++i) EXPECT_EQ(planes.pixels[6 + i], first[i] - 'a' + 'A') << orientation;
        EXPECT_EQ(planes.H, orientation < 5 ? 2u : 3u);
        EXPECT_EQ(planes.W, orientation < 5 ? 3u : 2u);
    }
}

TEST_F(ImportImages, PhotosAreTurnedAsTheirTagSays) {
    std::filesystem::remove_all(from);
    std::filesystem::create_directories(in("ant"));
    std::vector<uint8_t> soft(H * W);
    for (uint32_t i = 0; i < soft.size(); ++i) soft[i] = static_cast<uint8_t>(10 + 7 * i);
    jpeg(in("ant/plain.jpg"), H, W, JCS_GRAYSCALE, soft);
    ImageFile image;
    std::string odd;
    Planes stored{1, H, W, std::vector<uint8_t>(H * W)};
    ASSERT_TRUE(image_open(in("ant/plain.jpg"), &image).ok());
    ASSERT_TRUE(image_decode(image, 1, stored.pixels.data(), &odd).ok());
    const std::string bytes = read_file(in("ant/plain.jpg"));
    std::filesystem::remove(in("ant/plain.jpg"));
    for (uint32_t orientation : {5u, 6u, 7u, 8u}) {
        const std::string app1 = "Exif\0\0"s + exif(orientation, orientation % 2 == 0);
        write_file(in("ant/" + std::to_string(orientation) + ".jpg"),
                   bytes.substr(0, 2) + "\xff\xe1\0"s + static_cast<char>(app1.size() + 2) + app1 + bytes.substr(2));
    }
    std::string rows;
    for (uint32_t y = 0; y < H; ++y) rows += '\0' + std::string(stored.pixels.begin() + y * W, stored.pixels.begin() + (y + 1) * W);
    png_raw(in("ant/9.png"), H, W, 8, 0, rows, png_chunk("eXIf", exif(6, true)));
    ASSERT_TRUE(import().ok());
    expect_note({"5 images, ", "from/ant/5.jpg among them: turned as the EXIF orientation says (--no-exif: as stored)"});
    const std::vector<uint8_t> all = samples("train.h5");
    ASSERT_EQ(all.size(), 5 * H * W);
    for (uint32_t n = 0; n < 5; ++n) {
        Planes planes = stored;
        image_turn(n < 4 ? 5 + n : 6, &planes);
        EXPECT_TRUE(std::equal(planes.pixels.begin(), planes.pixels.end(), all.begin() + n * H * W)) << n;
    }
    // As stored, on demand; a tag that says nothing valid turns nothing.
    config.force = true;
    config.exif = false;
    ASSERT_TRUE(import().ok());
    expect_note({"EXIF orientation is not applied"});
    EXPECT_TRUE(std::equal(stored.pixels.begin(), stored.pixels.end(), samples("train.h5").begin()));
    config.exif = true;
    for (const std::string& wrong : {exif(9, true), exif(0, false), "II*"s, "MM\0*\xff\xff\xff\xff"s}) {
        png_raw(in("ant/9.png"), H, W, 8, 0, rows, png_chunk("eXIf", wrong));
        ASSERT_TRUE(image_open(in("ant/9.png"), &image).ok());
        EXPECT_EQ(image.orientation, 1u);
    }
}

/// The same by its definition, in double: columns after rows, each rounded.
std::vector<uint8_t> fit(const std::vector<uint8_t>& from, uint32_t H, uint32_t W, uint32_t side) {
    auto line = [&](uint64_t in, auto pixel, std::vector<double>* to) {
        const uint64_t shorter = std::min(H, W), out = side * in / shorter, first = (out - side) / 2;
        const double step = static_cast<double>(in) / static_cast<double>(out), half = std::max(1.0, step);
        for (uint64_t i = first; i < first + side; ++i) {
            double sum = 0, weights = 0;
            for (uint64_t j = 0; j < in; ++j) {
                const double weight = 1 - std::abs(static_cast<double>(j) + 0.5 - (static_cast<double>(i) + 0.5) * step) / half;
                if (weight <= 0) continue;
                sum += weight * pixel(j);
                weights += weight;
            }
            to->push_back(std::floor(sum / weights + 0.5 + 1e-9));
        }
    };
    std::vector<double> rows, columns;
    for (uint32_t y = 0; y < H; ++y)
        line(
            W, [&](uint64_t x) { return static_cast<double>(from[y * W + x]); }, &rows);
    for (uint32_t x = 0; x < side; ++x)
        line(
            H, [&](uint64_t y) { return rows[y * side + x]; }, &columns);
    std::vector<uint8_t> all(side * side);
    for (uint32_t x = 0; x < side; ++x)
        for (uint32_t y = 0; y < side; ++y) all[y * side + x] = static_cast<uint8_t>(columns[x * side + y]);
    return all;
}

TEST(Image, FitResizesAndCutsExactly) {
    for (auto [H, W, side] :
         {std::tuple{40u, 30u, 32u}, {7u, 100u, 5u}, {64u, 64u, 32u}, {3u, 5u, 8u}, {8u, 8u, 8u}, {1u, 9u, 4u}, {99u, 17u, 1u}}) {
        Planes planes{1, H, W, {}};
        for (uint64_t i = 0; i < H * W; ++i) planes.pixels.push_back(pixel_of(7, i));
        const std::vector<uint8_t> wanted = fit(planes.pixels, H, W, side), before = planes.pixels;
        image_fit(side, &planes);
        EXPECT_EQ(planes.H, side);
        EXPECT_EQ(planes.W, side);
        EXPECT_EQ(planes.pixels, wanted) << H << " x " << W << " to " << side;
        if (H == side && W == side) {
            EXPECT_EQ(planes.pixels, before);
        }
    }
}

TEST_F(ImportImages, SizeMakesAllAlike) {
    png(in("test/bee/z.png"), 9, 20, PNG_FORMAT_RGB, std::vector<uint8_t>(9 * 20 * 3, 50));
    png(in("train/ant/x.png"), 40, 3, PNG_FORMAT_RGB, std::vector<uint8_t>(40 * 3 * 3, 60));
    expect_refused({"from/train/bee/0.png: 5 x 6 pixels, but ", "from/train/ant/x.png has 3 x 40, and 2 more differ", "--size 3"});
    config.size = 4;
    ASSERT_TRUE(import().ok());
    Shard shard;
    ASSERT_TRUE(shard_open(out + "/test.h5", &shard).ok());
    EXPECT_EQ(shard.info.H, 4u);
    EXPECT_EQ(shard.info.W, 4u);
    EXPECT_EQ(samples("test.h5"), std::vector<uint8_t>(3 * 16, 50));
    const std::vector<uint8_t> all = samples("train.h5");
    EXPECT_EQ(std::vector<uint8_t>(all.begin(), all.begin() + 48), std::vector<uint8_t>(48, 60));
}

TEST_F(ImportImages, OnePlaneOfAnRgbImageIsItsLuminance) {
    const std::vector<uint8_t> rgb = pixels(1, 3);
    png(in("a.png"), H, W, PNG_FORMAT_RGB, rgb);
    std::vector<uint8_t> grey(H * W), flat(H * W * 3);
    for (size_t i = 0; i < flat.size(); ++i) flat[i] = std::array<uint8_t, 3>{200, 100, 50}[i % 3];
    jpeg(in("a.jpg"), H, W, JCS_RGB, flat);
    ImageFile image;
    std::string odd;
    ASSERT_TRUE(image_open(in("a.png"), &image).ok());
    ASSERT_TRUE(image_decode(image, 1, grey.data(), &odd).ok());
    for (size_t i = 0; i < grey.size(); ++i)
        ASSERT_NEAR(grey[i], 0.299 * rgb[3 * i] + 0.587 * rgb[3 * i + 1] + 0.114 * rgb[3 * i + 2], 0.5001) << i;
    ASSERT_TRUE(image_open(in("a.jpg"), &image).ok());
    ASSERT_TRUE(image_decode(image, 1, grey.data(), &odd).ok());
    for (uint8_t value : grey) ASSERT_NEAR(value, 124, 2);   // 0.299 * 200 + 0.587 * 100 + 0.114 * 50
}

}   // namespace
}   // namespace gradcast
