// Images of many sizes: imported as JPEGs with one short side, and read as samples that are cut out of them.
#include <signal.h>
#include <sys/wait.h>

#include <thread>

#include "datasets/hdf5.h"
#include "datasets/picture.h"
#include "runtime/core/digest.h"
#include "tests/datasets/images.h"

namespace gradcast {
namespace {

/// A smooth picture with noise, interleaved [H, W, C].
std::vector<uint8_t> picture(uint32_t H, uint32_t W, uint32_t C, uint64_t number) {
    std::vector<uint8_t> pixels(uint64_t{H} * W * C);
    for (uint64_t i = 0; i < pixels.size(); ++i)
        pixels[i] = static_cast<uint8_t>(i / C / W * 150 / H + i / C % W * 60 / W + pixel_of(number, i) % 16 + (i % C) * 10);
    return pixels;
}

class ImportPictures : public ImportImages {
protected:
    static constexpr uint32_t side = 24;
    void SetUp() override {
        for (const char* name : {"train/bee", "train/ant", "test/bee"}) std::filesystem::create_directories(in(name));
        jpeg(in("train/ant/a.jpg"), 40, 60, JCS_RGB, picture(40, 60, 3, 1));
        jpeg(in("train/ant/b.jpg"), 90, 30, JCS_GRAYSCALE, picture(90, 30, 1, 2));
        jpeg(in("train/bee/c.jpg"), 24, 24, JCS_RGB, picture(24, 24, 3, 3), true);   // progressive
        png(in("train/bee/d.png"), 31, 24, PNG_FORMAT_RGB, picture(31, 24, 3, 4));
        png(in("train/bee/e.png"), 12, 16, PNG_FORMAT_GRAY, picture(12, 16, 1, 5));
        jpeg(in("test/bee/f.jpg"), 50, 50, JCS_RGB, picture(50, 50, 3, 6));
        config.size = side;
        config.pictures = true;
    }
    Planes planes_of(const std::string& name) {
        ImageFile image;
        Planes planes;
        std::string odd;
        EXPECT_TRUE(image_sample_open(in(name), &image).ok());
        EXPECT_TRUE(image_sample(image, {side, true, true}, 3, &planes, &odd).ok());
        return planes;
    }
    std::unique_ptr<DataSet> open(const std::string& pattern, const DataOptions& options = {}) {
        std::unique_ptr<DataSet> data;
        const Status status = data_open(out + "/" + pattern, &data, options);
        EXPECT_TRUE(status.ok()) << status.what;
        return data;
    }
    std::vector<uint8_t> read(const DataSet& data, uint64_t sample, Drawn drawn = {}) {
        std::vector<uint8_t> image(data.sample_bytes());
        int32_t label = -1;
        const Status status = data.read({&sample, 1}, image.data(), &label, nullptr, drawn);
        EXPECT_TRUE(status.ok()) << status.what;
        return image;
    }
};

TEST_F(ImportPictures, KeepsTheShapeAndTheShortSide) {
    ASSERT_TRUE(import().ok());
    EXPECT_EQ(result.train, 5u);
    Shard shard;
    ASSERT_TRUE(shard_open(out + "/train.h5", &shard).ok());
    const Status verified = shard_verify(shard);
    EXPECT_TRUE(verified.ok()) << verified.what;
    EXPECT_STREQ(shard.samples_name, "samples");
    EXPECT_EQ(shard.info.side, side);
    EXPECT_EQ(shard.info.longest, 72u);   // of b.jpg
    EXPECT_EQ(shard.info.C, 3u);
    EXPECT_EQ(shard.info.class_names, "ant,bee");
    ASSERT_EQ(shard.offsets.size(), 6u);
    // Each is the JPEG of the resized picture.
    const std::string file = read_file(out + "/train.h5");
    const std::vector<const char*> names = {"train/ant/a.jpg", "train/ant/b.jpg", "train/bee/c.jpg", "train/bee/d.png", "train/bee/e.png"};
    for (size_t i = 0; i < names.size(); ++i) {
        const Planes planes = planes_of(names[i]);
        EXPECT_EQ(std::min(planes.H, planes.W), side);
        std::string its;
        picture_encode(planes, &its);
        EXPECT_EQ(file.substr(shard.samples_offset + shard.offsets[i], shard.offsets[i + 1] - shard.offsets[i]), its) << names[i];
    }
    const std::unique_ptr<DataSet> data = open("train.h5");
    EXPECT_EQ(data->info().H, side);
    for (float mean : data->info().mean) EXPECT_TRUE(mean > 0.2f && mean < 0.7f);
    // The middle, as it is.
    const Planes planes = planes_of("train/ant/a.jpg");   // 24 x 36
    const std::vector<uint8_t> image = read(*data, 0);
    double error = 0;
    for (uint32_t c = 0; c < 3; ++c)
        for (uint32_t y = 0; y < side; ++y)
            for (uint32_t x = 0; x < side; ++x)
                error += std::abs(image[(c * side + y) * side + x] - planes.pixels[(c * side + y) * 36 + x + 6]);
    EXPECT_LT(error / (3 * side * side), 6);
    // A smaller side is cut out of the same.
    const std::unique_ptr<DataSet> small = open("train.h5", {.side = 10});
    EXPECT_EQ(small->sample_bytes(), 300u);
    EXPECT_NE(small->digest(), data->digest());
    const std::vector<uint8_t> middle = read(*small, 0);
    for (uint32_t y = 0; y < 10; ++y)
        for (uint32_t x = 0; x < 10; ++x) EXPECT_EQ(middle[y * 10 + x], image[(y + 7) * side + x + 7]);
    EXPECT_EQ(open("train.h5", {.side_of_pictures = 10})->digest(), small->digest());
}

TEST_F(ImportPictures, GreyPicturesHaveOneChannel) {
    std::filesystem::remove_all(in("train/bee"));
    std::filesystem::remove_all(in("test"));
    std::filesystem::remove(in("train/ant/a.jpg"));
    ASSERT_TRUE(import().ok());
    const std::unique_ptr<DataSet> data = open("train.h5");
    EXPECT_EQ(data->info().C, 1u);
    EXPECT_EQ(read(*data, 0).size(), side * side);
}

TEST_F(ImportPictures, PartsAreDrawnBySeedEpochAndSample) {
    ASSERT_TRUE(import().ok());
    const std::unique_ptr<DataSet> data = open("train.h5", {.side = 16});
    Augment how{.seed = 3, .area = share_units(0.2)};
    uint64_t epoch = 0;
    const std::vector<uint8_t> first = read(*data, 0, {&how, &epoch}), again = read(*data, 0, {&how, &epoch});
    EXPECT_EQ(first, again);
    epoch = 1;
    EXPECT_NE(read(*data, 0, {&how, &epoch}), first);
    epoch = 0;
    how.seed = 4;
    EXPECT_NE(read(*data, 0, {&how, &epoch}), first);
    // Without a share the middle is cut out, in training as well.
    how.area = 0;
    EXPECT_EQ(read(*data, 0, {&how, &epoch}), read(*data, 0));
    // What a part is: that of the decoded picture, resampled.
    how = {.seed = 3, .area = share_units(0.2)};
    std::string jpeg;
    picture_encode(planes_of("train/ant/a.jpg"), &jpeg);
    PictureDecoder decoder;
    uint32_t high = 0, wide = 0;
    ASSERT_EQ(decoder.open(std::span(reinterpret_cast<const uint8_t*>(jpeg.data()), jpeg.size()), 3, &high, &wide), nullptr);
    std::vector<uint8_t> cut(first.size());
    ASSERT_EQ(decoder.cut(part_drawn(how.area, 3, 0, 0, high, wide), 16, cut.data()), nullptr);
    EXPECT_EQ(cut, first);
}

TEST_F(ImportPictures, TheLoaderGivesWhatReadGives) {
    ASSERT_TRUE(import().ok());
    const std::unique_ptr<DataSet> data = open("train.h5", {.side = 16});
    const Augment how{.crop = 0, .flip = true, .seed = 3, .area = share_units(0.2), .jitter = {20000, 20000, 20000}};
    const Sampler sampler(5, 3, 4, 2);
    for (const bool threaded : {true, false}) {
        Arena arena;
        std::unique_ptr<Loader> loader;
        ASSERT_TRUE(loader_plan(*data, sampler, {.ahead = 2, .threaded = threaded, .augment = how}, arena, Log(), &loader).ok());
        ASSERT_TRUE(arena.seal().ok());
        ASSERT_TRUE(loader_start(*loader).ok());
        EXPECT_STREQ(loader->name(), "pread");
        loader->plan(0, {0, 1});
        for (StepId step = 0; step < 10; ++step)
            for (uint32_t block : {0, 1}) {
                Samples samples;
                ASSERT_TRUE(loader->get({step, block}, 10'000'000, &samples).ok());
                std::vector<uint64_t> indices(samples.count);
                sampler.block({step, block}, indices);
                for (uint32_t i = 0; i < samples.count; ++i) {
                    const uint64_t epoch = sampler.epoch_of({step, block}, i);
                    std::vector<uint8_t> image = read(*data, indices[i], {&how, &epoch});
                    augment(how, data->info(), epoch, indices[i], image.data());
                    ASSERT_TRUE(std::equal(image.begin(), image.end(), samples.images + i * image.size()))
                        << step << " " << block << " " << i;
                }
                loader->done({step, block});
            }
    }
}

TEST_F(ImportPictures, SeveralShardsAndThreadsAreTheSameSamples) {
    ASSERT_TRUE(import().ok());
    const std::unique_ptr<DataSet> one = open("train.h5");
    std::vector<std::vector<uint8_t>> images;
    for (uint64_t i = 0; i < 5; ++i) images.push_back(read(*one, i));
    const std::string whole = read_file(out + "/train.h5");
    config.force = true;
    config.threads = 3;
    ASSERT_TRUE(import().ok());
    EXPECT_EQ(read_file(out + "/train.h5"), whole);
    config.shard_bytes = 2500;
    ASSERT_TRUE(import().ok());
    const std::unique_ptr<DataSet> several = open("train-*.h5");
    EXPECT_GT(several->shards().size(), 1u);
    EXPECT_EQ(several->info().mean, one->info().mean);
    for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(read(*several, i), images[i]);
    EXPECT_TRUE(data_verify(*several).ok());
}

TEST_F(ImportPictures, GoesOnWhereItWasKilled) {
    for (uint64_t n = 0; n < 14; ++n)
        jpeg(in(fmt::format("train/ant/x{}.jpg", n)), 30 + static_cast<uint32_t>(n), 40, JCS_RGB,
             picture(30 + static_cast<uint32_t>(n), 40, 3, n));
    ASSERT_TRUE(import().ok());
    const std::string train = read_file(out + "/train.h5"), test = read_file(out + "/test.h5");
    std::filesystem::remove_all(out);
    const pid_t pid = ::fork();
    if (pid == 0) {
        config.progress = [&](const ImportProgress& progress) {
            if (progress.headers) return;
            if (progress.done >= 12) ::kill(::getpid(), SIGKILL);
            std::this_thread::sleep_for(std::chrono::milliseconds(progress.done == 10 ? 1100 : 110));
        };
        (void)import().ok();
        ::_exit(0);
    }
    int how = 0;
    ASSERT_EQ(::waitpid(pid, &how, 0), pid);
    ASSERT_TRUE(WIFSIGNALED(how));
    ASSERT_TRUE(std::filesystem::exists(out + "/import.part"));
    ASSERT_TRUE(import().ok());
    EXPECT_NE(result.notes[0].find("goes on after"), std::string::npos) << result.notes[0];
    EXPECT_TRUE(read_file(out + "/train.h5") == train);
    EXPECT_TRUE(read_file(out + "/test.h5") == test);
}

/// The number of 2 bytes at a marker SOF0 of a JPEG: 5 for the height, 7 for the width.
void sof_write(const std::string& path, size_t at, uint32_t number) {
    std::string bytes = read_file(path);
    const size_t sof = bytes.find("\xff\xc0");
    bytes[sof + at] = static_cast<char>(number >> 8);
    bytes[sof + at + 1] = static_cast<char>(number);
    write_file(path, bytes);
}

TEST_F(ImportPictures, FilesThatCannotBePicturesAreNamedWithAWayOut) {
    const std::string path = in("train/ant/z.jpg");
    jpeg(path, 8, 8, JCS_RGB, picture(8, 8, 3, 1));
    sof_write(path, 5, 50'000);
    sof_write(path, 7, 50'000);
    expect_refused({path, "50000 x 50000 pixels are more than a shard takes", "make it smaller", "--skip-bad"});
    jpeg(path, 8, 8, JCS_CMYK, std::vector<uint8_t>(8 * 8 * 4, 9));
    expect_refused({path, "a JPEG in CMYK", "convert it to RGB", "--skip-bad"});
    jpeg(path, 64, 64, JCS_RGB, picture(64, 64, 3, 1));
    write_file(path, read_file(path).substr(0, 900));
    expect_refused({path, "corrupt JPEG", "repair or remove it", "--skip-bad"});
    jpeg(path, 3, 9000, JCS_RGB, picture(3, 9000, 3, 1));
    expect_refused({path, "9000 x 3 pixels become 72000 x 24 with --size 24", "cut it, or take a smaller size", "--skip-bad"});
    config.skip_bad = true;
    ASSERT_TRUE(import().ok());
    EXPECT_EQ(result.train, 5u);
    EXPECT_EQ(open("train.h5")->info().longest, 72u);
}

TEST_F(ImportPictures, OptionsThatDoNotGoTogether) {
    config.size = 0;
    expect_refused({"--store jpeg: say how many pixels the short side", "--size 256"});
    config.size = side;
    config.compress = 6;
    expect_refused({"--compress: JPEGs are compressed"});
    config.compress = 0;
    config.kind = "masks";
    expect_refused({"--store jpeg: masks is no folder of images"});
    config.kind = "images";
    config.pictures = false;
    config.size = 0;
    expect_refused({"--size 40 makes all alike", "or --store jpeg with it keeps their shapes"});
}

TEST_F(ImportPictures, WhatDataCannotBeOpenedFor) {
    ASSERT_TRUE(import().ok());
    std::unique_ptr<DataSet> data;
    expect_error(data_open(out + "/train.h5", &data, {.side = 25}),
                 {"side = 25: the short side of the pictures of", "has 24 pixels: at most so many, or import them with --size 25"});
    ASSERT_TRUE(write_shard(out + "/train9.h5", info_of(10, 3, side, side, 2)).ok());
    expect_error(data_open(out + "/train9.h5", &data, {.side = 8}), {"side = 8:", "has samples of one size, not pictures", "leave it out"});
    EXPECT_TRUE(data_open(out + "/train9.h5", &data, {.side_of_pictures = 8}).ok());
    expect_error(data_open(out + "/train*.h5", &data), {"train9.h5: pixels, but", "has JPEGs: shards of one data set are alike"});
}

/// Shards of pictures that other programs might write.
class PictureShards : public testing::Test {
protected:
    TestFolder folder;
    std::string path = folder.file("a.h5");
    std::vector<std::string> jpegs;
    DataInfo info{.count = 3,
                  .C = 3,
                  .H = 16,
                  .W = 16,
                  .classes = 2,
                  .mean = {0.5f, 0.5f, 0.5f},
                  .std = {0.2f, 0.2f, 0.2f},
                  .source = "a test",
                  .side = 16,
                  .longest = 40};
    void SetUp() override {
        for (uint32_t n = 0; n < 3; ++n) jpegs.push_back(made(16, 16 + 8 * n, JCS_RGB, false));
    }
    std::string made(uint32_t H, uint32_t W, J_COLOR_SPACE space, bool progressive) {
        jpeg(folder.file("x.jpg"), H, W, space, picture(H, W, space == JCS_RGB ? 3 : space == JCS_CMYK ? 4 : 1, W), progressive);
        return read_file(folder.file("x.jpg"));
    }
    void write() {
        std::string all;
        std::vector<uint32_t> lengths;
        for (const std::string& each : jpegs) all += each, lengths.push_back(static_cast<uint32_t>(each.size()));
        const int32_t labels[] = {0, 1, 0};
        const PicturesRead read = [&](uint64_t at, uint64_t bytes, uint8_t* to) {
            return std::copy_n(all.data() + at, bytes, to), Status();
        };
        ASSERT_TRUE(shard_write_part(path, info, lengths, read, labels).ok());
        std::filesystem::rename(path + ".part", path);
    }
    Status verify() {
        Shard shard;
        GC_TRY(shard_open(path, &shard));
        return shard_verify(shard);
    }
    Status read(uint64_t sample) {
        std::unique_ptr<DataSet> data;
        GC_TRY(data_open(path, &data));
        std::vector<uint8_t> image(data->sample_bytes());
        int32_t label = 0;
        return data->read({&sample, 1}, image.data(), &label);
    }
};

TEST_F(PictureShards, JpegsThatAreNoSamplesAreNamed) {
    write();
    EXPECT_TRUE(verify().ok());
    EXPECT_TRUE(read(2).ok());
    const std::string good = jpegs[1];
    const std::vector<std::pair<std::string, const char*>> cases = {
        {made(16, 24, JCS_RGB, true), "it is progressive, and those of a shard are baseline"},
        {made(16, 24, JCS_CMYK, false), "it is in CMYK"},
        {made(16, 24, JCS_GRAYSCALE, false), "it is not in colour"},
        {made(15, 24, JCS_RGB, false),
         "it has 24 x 15 pixels, but those of the shard have a short side of 16 and a long one of at most 40"},
        {made(16, 48, JCS_RGB, false), "it has 48 x 16 pixels"},
        {"no JPEG", "Not a JPEG file"}};
    for (const auto& [bytes, what] : cases) {
        jpegs[1] = bytes;
        write();
        expect_error(verify(),
                     {path, "data set samples, chunk 0 (sample 1): its JPEG cannot be used:", what, "import it again, or leave it out"});
        expect_error(read(1), {"(sample 1)", what});
        EXPECT_TRUE(read(0).ok());
    }
    // Its header is good, so it is the pixels that say it.
    jpegs[1] = good.substr(0, good.size() - 60);
    write();
    EXPECT_TRUE(verify().ok());
    expect_error(read(1), {"(sample 1): its JPEG cannot be used:"});
    // An image bomb: the shard says how long a side is.
    std::string bomb = good;
    const size_t sof = bomb.find("\xff\xc0");
    for (const size_t at : {5, 7}) bomb[sof + at] = '\x7f';
    jpegs[1] = bomb;
    write();
    expect_error(read(1), {"(sample 1)", "it has 32536 x 32528 pixels"});
}

TEST_F(PictureShards, DamageIsFound) {
    write();
    Shard shard;
    ASSERT_TRUE(shard_open(path, &shard).ok());
    flip(path, shard.samples_offset + shard.offsets[1] + 200);
    expect_error(verify(), {"data set samples, chunk 0 (samples 0 .. 2): SHA-256 is not the one written with it"});
    write();
    const std::string bytes = read_file(path);
    std::string offsets(reinterpret_cast<const char*>(shard.offsets.data()), shard.offsets.size() * 8);
    const size_t at = bytes.find(offsets);
    ASSERT_NE(at, bytes.npos);
    flip(path, at + 8);
    expect_error(verify(), {path, "data set offsets is damaged: SHA-256 is not the one written with it: import it again"});
    write();
    std::filesystem::resize_file(path, at - 4096);
    expect_error(verify(), {path, "truncated"});
}

/// Changes an open shard.
void with_file(const std::string& path, const std::function<void(hid_t root)>& change) {
    Hdf5Lock lock;
    Hid file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
    ASSERT_TRUE(file);
    change(file.get());
}

TEST_F(PictureShards, AttributesAndOffsetsThatMakeNoSense) {
    const auto number = [&](const char* name, uint32_t value) {
        with_file(path, [&](hid_t root) {
            Hid attribute(H5Aopen(root, name, H5P_DEFAULT));
            ASSERT_GE(H5Awrite(attribute.get(), H5T_NATIVE_UINT32, &value), 0);
        });
    };
    const auto expect = [&](std::initializer_list<std::string> parts) {
        expect_error(verify(), parts);
        write();
    };
    write();
    number("side", 0);
    expect({"attribute side is 0, outside 1 .. 65500"});
    number("longest", 15);
    expect({"attribute longest is 15, outside 16 .. 65500"});
    number("channels", 2);
    expect({"attribute channels is 2, not 1 (grey) or 3 (RGB)"});
    with_file(path, [](hid_t root) { H5Adelete(root, "channels"); });
    expect({"attribute channels is missing"});
    with_file(path, [](hid_t root) { H5Ldelete(root, "offsets", H5P_DEFAULT); });
    expect({"data set offsets is missing"});
    // Offsets whose digest is right, but not they.
    const auto offsets = [&](std::vector<uint64_t> values, const std::string& sha) {
        with_file(path, [&](hid_t root) {
            H5Ldelete(root, "offsets", H5P_DEFAULT);
            const hsize_t count = values.size(), one = 1;
            Hid space(H5Screate_simple(1, &count, nullptr)), scalar(H5Screate_simple(1, &one, nullptr));
            Hid set(H5Dcreate2(root, "offsets", H5T_STD_U64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
            H5Dwrite(set.get(), H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
            Hid type(H5Tcopy(H5T_C_S1));
            H5Tset_size(type.get(), 64);
            Hid attribute(H5Acreate2(set.get(), "sha256", type.get(), scalar.get(), H5P_DEFAULT, H5P_DEFAULT));
            H5Awrite(attribute.get(), type.get(), sha.empty() ? sha256_hex(std::as_bytes(std::span(values))).data() : sha.data());
        });
    };
    const uint64_t end = jpegs[0].size() + jpegs[1].size() + jpegs[2].size();
    offsets({0, 100, 50, end}, "");
    expect({"data set offsets says that sample 1 begins at byte 100 and ends at 50"});
    offsets({0, 100, 100, end}, "");
    expect({"data set offsets says that sample 1 begins at byte 100 and ends at 100"});
    offsets({0, 100, 200, end + 1}, "");
    expect({"data set offsets is from 0 to", "but samples has"});
    offsets({0}, "");
    expect({"data set offsets has 1 entries"});
    offsets({0, 100, end}, "");
    expect({"data set targets has 3 entries for 2 samples"});
}

}   // namespace
}   // namespace gradcast
