// Which folders an import of images trains and tests on, and what it does with files that are odd or cannot be used.
#include "tests/datasets/images.h"

namespace gradcast {
namespace {

using namespace std::string_literals;

TEST_F(ImportImages, HalvesHaveTheirUsualNames) {
    for (auto [train, test] :
         {std::pair{"Train", "Test"}, {"training", "testing"}, {"train", "val"}, {"TRAIN", "valid"}, {"Training", "Validation"}}) {
        std::filesystem::rename(in("train"), in("t")), std::filesystem::rename(in("test"), in("v"));
        std::filesystem::rename(in("t"), in(train)), std::filesystem::rename(in("v"), in(test));
        ASSERT_TRUE(import().ok()) << train;
        EXPECT_EQ(result.train, 3u) << train;
        EXPECT_EQ(result.test, 1u) << test;
        EXPECT_TRUE(result.notes.empty()) << fmt::format("{}", fmt::join(result.notes, "\n"));
        Shard shard;
        ASSERT_TRUE(shard_open(out + "/train.h5", &shard).ok());
        EXPECT_EQ(shard.info.class_names, "ant,bee");
        std::filesystem::remove_all(out);
        std::filesystem::rename(in(train), in("t")), std::filesystem::rename(in(test), in("v"));
        std::filesystem::rename(in("t"), in("train")), std::filesystem::rename(in("v"), in("test"));
    }
}

TEST_F(ImportImages, WhatIsLeftOutIsNamed) {
    std::filesystem::copy(in("test"), in("val"), std::filesystem::copy_options::recursive);
    std::filesystem::create_directories(in("more"));
    write_file(in("list.csv"), "x");
    ASSERT_TRUE(import().ok());
    EXPECT_EQ(result.test, 1u);
    expect_note({"left out: ", "from/list.csv, ", "from/more, ", "from/val; ", "from/train is trained on, ", "from/test tested on"});
    std::filesystem::remove_all(in("train"));
    std::filesystem::remove_all(out);
    expect_refused({"from/test: samples to test on, but none to train on", "from/train"});
}

// Folders of images may have these names as well.
TEST_F(ImportImages, AClassMayBeCalledTrain) {
    std::filesystem::rename(in("train/ant"), in("plane"));
    std::filesystem::rename(in("train/bee"), in("bee"));
    std::filesystem::remove_all(in("train"));
    std::filesystem::remove_all(in("test"));
    std::filesystem::rename(in("plane"), in("train"));
    ASSERT_TRUE(import().ok());
    EXPECT_EQ(result.train, 3u);
    Shard shard;
    ASSERT_TRUE(shard_open(out + "/train.h5", &shard).ok());
    EXPECT_EQ(shard.info.class_names, "bee,train");
}

TEST_F(ImportImages, AShareOfEachClassIsTakenForTesting) {
    std::filesystem::remove_all(from);
    for (uint64_t n = 0; n < 30; ++n) {
        const std::string name = n < 20 ? "ant" : n < 29 ? "bee" : "cat";
        std::filesystem::create_directories(in(name));
        png(in(fmt::format("{}/{:02}.png", name, n)), H, W, PNG_FORMAT_GRAY, std::vector<uint8_t>(H * W, static_cast<uint8_t>(n)));
    }
    ASSERT_TRUE(import().ok());
    expect_note({"no samples to test on: --test 10%"});
    config.force = true;
    config.test = 0.25;
    auto chosen = [&](uint64_t seed) {
        config.seed = seed;
        EXPECT_TRUE(import().ok());
        EXPECT_EQ(result.test, 7u);   // 5 of 20, 2 of 9, none of 1
        EXPECT_EQ(result.train, 23u);
        std::vector<uint8_t> numbers;
        for (const char* half : {"train.h5", "test.h5"}) {
            const std::vector<uint8_t> all = samples(half);
            for (size_t i = 0; i < all.size(); i += H * W) numbers.push_back(all[i]);
        }
        std::vector<uint8_t> each = numbers;
        std::sort(each.begin(), each.end());
        EXPECT_EQ(std::unique(each.begin(), each.end()) - each.begin(), 30);
        return std::vector<uint8_t>(numbers.begin() + 23, numbers.end());
    };
    const std::vector<uint8_t> first = chosen(1);
    EXPECT_EQ(std::count_if(first.begin(), first.end(), [](uint8_t n) { return n < 20; }), 5);
    EXPECT_EQ(chosen(1), first);
    EXPECT_NE(chosen(2), first);
    std::filesystem::create_directories(in("train/ant"));
    std::filesystem::rename(in("ant"), in("train/ant/x"));
    config.test = 1;
    expect_error(import(), {"--test", "below 100%"});
}

TEST_F(ImportImages, AShareIsNotTakenBesideATestSet) {
    config.test = 0.1;
    expect_refused({"--test: ", "from/test is there to test on"});
}

TEST_F(ImportImages, AnOddJpegThatIsWholeIsRead) {
    std::filesystem::remove(in("train/bee/1.png"));
    jpeg(in("train/bee/1.jpg"), H, W, JCS_RGB, pixels(1, 3));
    ASSERT_TRUE(import().ok());
    const std::vector<uint8_t> whole = samples("train.h5");
    const std::string bytes = read_file(in("train/bee/1.jpg"));
    write_file(in("train/bee/1.jpg"), bytes.substr(0, bytes.size() - 2) + "\1\2\3\4\5" + bytes.substr(bytes.size() - 2));
    config.force = true;
    Status status = import();
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(samples("train.h5"), whole);
    expect_note({"from/train/bee/1.jpg (Corrupt JPEG data: ",
                 " extraneous bytes before marker 0xd9): every pixel is read, though the file is odd"});
}

TEST_F(ImportImages, AllBadFilesAreNamedOrLeftOut) {
    for (int i = 0; i < 25; ++i) write_file(in(fmt::format("train/ant/bad{:02}.png", i)), "no image");
    std::string broken = read_file(in("train/bee/1.png"));
    broken[broken.size() - 30] ^= 0x10;
    write_file(in("train/bee/1.png"), broken);
    expect_refused({"from: 26 files cannot be used, the first is ", "from/train/ant/bad00.png: neither PNG nor JPEG",
                    "--skip-bad goes on without them"});
    expect_note({"from/train/ant/bad19.png"});
    expect_note({"… and 6 more files"});
    config.skip_bad = true;
    ASSERT_TRUE(import().ok());
    EXPECT_EQ(result.train, 2u);
    expect_note({"from/train/ant/bad00.png"});
    std::filesystem::remove_all(out);
    config.skip_bad = false;
    std::filesystem::remove(in("train/bee/1.png"));
    for (int i = 1; i < 25; ++i) std::filesystem::remove(in(fmt::format("train/ant/bad{:02}.png", i)));
    expect_refused({"from/train/ant/bad00.png: neither PNG nor JPEG: remove it, or go on without it (--skip-bad)"});
}

TEST_F(ImportImages, OtherFormatsAreNamedWithTheCommand) {
    for (const auto& [bytes, name] : {std::pair{"GIF89a"s, "a GIF"},
                                      {"BM123456"s, "a BMP"},
                                      {"II*\0 1234"s, "a TIFF"},
                                      {"MM\0* 1234"s, "a TIFF"},
                                      {"RIFF\1\2\3\4WEBPVP8 "s, "a WebP"},
                                      {"\0\0\0\x20"s + "ftypavif1234", "an AVIF"}}) {
        write_file(in("train/ant/y.png"), bytes);
        expect_refused(
            {"from/train/ant/y.png: "s + name + " image, neither PNG nor JPEG: convert it and remove it (mogrify -format png '"});
    }
}

TEST_F(ImportImages, NamesOfClassesThatDoNotFitAreRefused) {
    std::filesystem::remove_all(from);
    for (int i = 0; i < 200; ++i) {
        std::filesystem::create_directories(in(fmt::format("{:03}{}", i, std::string(200, 'n'))));
        png(in(fmt::format("{:03}{}/x.png", i, std::string(200, 'n'))), H, W, PNG_FORMAT_GRAY, pixels(1, 1));
    }
    expect_refused({"from: the names of its 200 classes have 40799 bytes, more than the 32768"});
    for (int i = 0; i < 200; ++i)
        std::filesystem::rename(in(fmt::format("{:03}{}", i, std::string(200, 'n'))), in(fmt::format("{:03}", i)));
    ASSERT_TRUE(import().ok());
    Shard shard;
    ASSERT_TRUE(shard_open(out + "/train.h5", &shard).ok());
    EXPECT_EQ(shard.info.classes, 200u);
    EXPECT_EQ(shard.info.class_names, "");
}

}   // namespace
}   // namespace gradcast
