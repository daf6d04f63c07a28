#include <sys/stat.h>

#include "tests/datasets/images.h"

namespace gradcast {
namespace {

TEST_F(ImportImages, LabelsAreSortedFolders) {
    Status status = import();
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(result.train, 3u);
    EXPECT_EQ(result.test, 1u);
    std::unique_ptr<DataSet> data;
    ASSERT_TRUE(data_open(result.paths[0], &data).ok());
    EXPECT_EQ(data->info().classes, 2u);
    EXPECT_EQ(data->info().class_names, "ant,bee");
    EXPECT_EQ(data->info().C, 3u);
    uint64_t indices[] = {0, 1, 2};
    std::vector<uint8_t> images(3 * 3 * H * W);
    int32_t labels[3];
    ASSERT_TRUE(data->read(indices, images.data(), labels).ok());
    EXPECT_EQ(std::vector<int32_t>(labels, labels + 3), (std::vector<int32_t>{0, 1, 1}));
    uint64_t numbers[] = {2, 0, 1};
    for (uint64_t n = 0; n < 3; ++n)
        for (uint32_t c = 0; c < 3; ++c)
            for (uint32_t i = 0; i < H * W; ++i)
                ASSERT_EQ(images[(n * 3 + c) * H * W + i], pixel_of(numbers[n], i * 3 + c)) << n << " " << c << " " << i;
    // A class without test images is still a class.
    ASSERT_TRUE(data_open(result.paths[1], &data).ok());
    EXPECT_EQ(data->info().classes, 2u);
}

TEST_F(ImportImages, AFolderWithoutHalvesIsForTraining) {
    from += "/train";
    ASSERT_TRUE(import().ok());
    EXPECT_EQ(result.paths, (std::vector<std::string>{out + "/train.h5"}));
    EXPECT_EQ(result.test, 0u);
    EXPECT_FALSE(std::filesystem::exists(out + "/test.h5"));
}

TEST_F(ImportImages, GreyStaysGreyUntilOneIsColour) {
    for (const char* name : {"train/bee/0.png", "train/bee/1.png", "train/ant/x.png", "test/bee/z.png"})
        png(in(name), H, W, PNG_FORMAT_GRAY, pixels(5, 1));
    jpeg(in("train/ant/flat.JPG"), H, W, JCS_GRAYSCALE, std::vector<uint8_t>(H * W, 77));
    ASSERT_TRUE(import().ok());
    Shard shard;
    ASSERT_TRUE(shard_open(out + "/train.h5", &shard).ok());
    EXPECT_EQ(shard.info.C, 1u);
    std::filesystem::remove_all(out);

    png(in("test/bee/colour.png"), H, W, PNG_FORMAT_RGB, pixels(5, 3));
    ASSERT_TRUE(import().ok());
    std::unique_ptr<DataSet> data;
    ASSERT_TRUE(data_open(out + "/train.h5", &data).ok());
    EXPECT_EQ(data->info().C, 3u);
    uint64_t indices[] = {0, 1};   // ant/flat.JPG, ant/x.png
    std::vector<uint8_t> images(2 * 3 * H * W);
    int32_t labels[2];
    ASSERT_TRUE(data->read(indices, images.data(), labels).ok());
    for (uint32_t i = 0; i < 3 * H * W; ++i) {
        ASSERT_NEAR(images[i], 77, 1) << i;
        ASSERT_EQ(images[3 * H * W + i], pixel_of(5, i % (H * W))) << i;
    }
}

TEST_F(ImportImages, JpegIsNearWhatWasPacked) {
    std::vector<uint8_t> soft(H * W * 3);
    for (uint32_t i = 0; i < soft.size(); ++i) soft[i] = static_cast<uint8_t>(60 + i);
    jpeg(in("train/ant/y.jpeg"), H, W, JCS_RGB, soft);
    ImageFile image;
    std::string odd;
    ASSERT_TRUE(image_open(in("train/ant/y.jpeg"), &image).ok());
    EXPECT_TRUE(image.jpeg && image.C == 3 && image.H == H && image.W == W);
    std::vector<uint8_t> planes(3 * H * W);
    ASSERT_TRUE(image_decode(image, 3, planes.data(), &odd).ok());
    for (uint32_t c = 0; c < 3; ++c)
        for (uint32_t i = 0; i < H * W; ++i) ASSERT_NEAR(planes[c * H * W + i], soft[i * 3 + c], 6) << c << " " << i;
}

TEST_F(ImportImages, UnequalSizesNameBoth) {
    png(in("test/bee/z.png"), W, H, PNG_FORMAT_RGB, pixels(3, 3));
    expect_refused({"from/test/bee/z.png", "6 x 5 pixels", "from/train/ant/x.png has 5 x 6", "--size 5 makes all alike"});
}

TEST_F(ImportImages, CorruptOnesAreNamed) {
    std::string whole = read_file(in("train/bee/1.png"));
    for (size_t kept : {size_t{0}, size_t{9}, size_t{40}, whole.size() / 2, whole.size() - 13}) {
        write_file(in("train/bee/1.png"), whole.substr(0, kept));
        expect_refused({"from/train/bee/1.png"});
    }
    std::string bytes = whole;
    bytes[whole.size() - 30] ^= 0x10;   // in its only IDAT
    write_file(in("train/bee/1.png"), bytes);
    expect_refused({"from/train/bee/1.png: corrupt PNG"});

    std::filesystem::remove(in("train/bee/1.png"));
    jpeg(in("train/bee/1.jpg"), H, W, JCS_RGB, pixels(1, 3));
    ASSERT_TRUE(import().ok());
    std::filesystem::remove_all(out);
    whole = read_file(in("train/bee/1.jpg"));
    for (size_t kept : {size_t{4}, size_t{30}, whole.size() - 20}) {
        write_file(in("train/bee/1.jpg"), whole.substr(0, kept));
        expect_refused({"from/train/bee/1.jpg: corrupt JPEG"});
    }
    write_file(in("train/bee/1.jpg"), "GIF89a");
    expect_refused({"from/train/bee/1.jpg: a GIF image, neither PNG nor JPEG"});
}

TEST_F(ImportImages, FoldersThatAreNotOfClasses) {
    std::filesystem::create_directories(in("test/cat"));
    expect_refused({"from/test/cat", "nothing to train on"});
    std::filesystem::remove(in("test/cat"));
    std::filesystem::create_directories(in("train/ant/deep"));
    expect_refused({"from/train/ant/deep: a folder"});
    std::filesystem::remove(in("train/ant/deep"));
    ASSERT_EQ(::mkfifo(in("train/ant/pipe.png").c_str(), 0600), 0);
    expect_refused({"from/train/ant/pipe.png: not a file"});
    std::filesystem::remove(in("train/ant/pipe.png"));
    write_file(in("train/list.txt"), "x");
    expect_refused({"from/train/list.txt: not a folder"});
    std::filesystem::remove(in("train/list.txt"));
    std::filesystem::create_directories(in("train/a,b"));
    expect_refused({"from/train/a,b: a comma divides"});
    from = folder.file("none");
    expect_refused({"none: no such folder"});
    std::filesystem::create_directories(from);
    expect_refused({"none: empty"});
    std::filesystem::create_directories(from + "/ant");
    expect_refused({"none/ant: a class without images"});
}

// A small PNG may declare any size: it is refused before decoding, and no unreadable shard is written.
TEST_F(ImportImages, TooLargeForAShardIsRefusedAtOnce) {
    for (auto [height, width] : {std::pair{60'000u, 60'000u}, {70'000u, 1u}, {9'460u, 9'461u}}) {
        std::string bytes = read_file(in("train/ant/x.png"));
        for (auto [at, side] : {std::pair{16, width}, {20, height}})
            for (int i = 0; i < 4; ++i) bytes[static_cast<size_t>(at + i)] = static_cast<char>(side >> (24 - 8 * i));
        const auto crc = static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(bytes.data()) + 12, 17));   // of IHDR
        for (int i = 0; i < 4; ++i) bytes[static_cast<size_t>(29 + i)] = static_cast<char>(crc >> (24 - 8 * i));
        write_file(in("train/ant/x.png"), bytes);
        expect_refused({"from/train/ant/x.png", fmt::format("{} x {} pixels are more than a shard takes", width, height)});
    }
}

TEST(Image, PngRoundTrip) {
    TestFolder folder;
    std::vector<uint8_t> pixels(7 * 9 * 3);
    for (uint64_t i = 0; i < pixels.size(); ++i) pixels[i] = pixel_of(1, i);
    ASSERT_TRUE(png_write(folder.file("x.png"), 7, 9, pixels.data()).ok());
    ImageFile image;
    std::string odd;
    ASSERT_TRUE(image_open(folder.file("x.png"), &image).ok());
    ASSERT_TRUE(image.C == 3 && image.H == 7 && image.W == 9);
    std::vector<uint8_t> planes(pixels.size());
    ASSERT_TRUE(image_decode(image, 3, planes.data(), &odd).ok());
    for (uint32_t i = 0; i < pixels.size(); ++i) ASSERT_EQ(planes[i % 3 * 63 + i / 3], pixels[i]);
    expect_error(png_write(folder.file("none/x.png"), 7, 9, pixels.data()), {"none/x.png"});
}

// ---- ridge ---------------------------------------------------------------------------------------------------------------------

TEST(ImportRidge, IsTheRegressionItSays) {
    TestFolder folder;
    ImportResult result;
    auto import = [&](uint64_t samples, uint64_t seed) {
        return data_import({.kind = "ridge", .from = "", .out = folder.file("out"), .force = true, .samples = samples, .seed = seed},
                           &result);
    };
    ASSERT_TRUE(import(2000, 1).ok());
    EXPECT_EQ(result.train, 2000u);
    std::unique_ptr<DataSet> data;
    Status status = data_open(result.paths[0], &data);
    ASSERT_TRUE(status.ok()) << status.what;
    const DataInfo& info = data->info();
    EXPECT_EQ(info.classes, 65536u);
    EXPECT_EQ(data->sample_bytes(), 500u);
    EXPECT_EQ(info.target_scale, 1.0f / 256);
    std::vector<uint64_t> indices(2000);
    std::iota(indices.begin(), indices.end(), 0);
    std::vector<uint8_t> pixels(2000 * 500);
    std::vector<int32_t> labels(2000);
    ASSERT_TRUE(data->read(indices, pixels.data(), labels.data()).ok());
    double sum = 0, squares = 0, noise = 0, noise_squares = 0;
    for (uint64_t n = 0; n < 2000; ++n) {
        double dot = 0;
        for (uint64_t i = 0; i < 500; ++i) {
            double x = (pixels[n * 500 + i] / 255.0 - info.mean[0]) / info.std[0];
            dot += x;
            sum += x;
            squares += x * x;
        }
        double error = (labels[n] - 32768) * static_cast<double>(info.target_scale) - dot;
        noise += error;
        noise_squares += error * error;
    }
    EXPECT_NEAR(sum / 1e6, 0, 5e-3);
    EXPECT_NEAR(squares / 1e6, 1, 0.01);
    EXPECT_NEAR(noise / 2000, 0, 0.1);
    EXPECT_NEAR(noise_squares / 2000, 1, 0.15);

    std::string first = read_file(result.paths[0]);
    ASSERT_TRUE(import(2000, 1).ok());
    EXPECT_EQ(read_file(result.paths[0]), first);
    ASSERT_TRUE(import(2000, 2).ok());
    EXPECT_NE(read_file(result.paths[0]), first);
    expect_error(import(0, 1), {"--samples"});
}

}   // namespace
}   // namespace gradcast
