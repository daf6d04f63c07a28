// Images decoded by several threads: what an import writes and tells does not depend on them.
#include "runtime/core/rng.h"
#include "tests/datasets/images.h"

namespace gradcast {
namespace {

class ImportParallel : public ImportImages {
protected:
    /// 90 files of many sizes and kinds in three classes; some are odd, some cannot be read.
    void SetUp() override {
        for (uint64_t n = 0; n < 90; ++n) {
            const auto bits = random4(Purpose::test, 7, n, 0);
            const uint32_t h = 20 + bits[0] % (n % 10 == 0 ? 900 : 90), w = 20 + bits[1] % (n % 10 == 0 ? 900 : 90);
            const std::string path = in(fmt::format("{}/{:02}", n % 3 == 0 ? "ant" : n % 3 == 1 ? "bee" : "cat", n));
            std::filesystem::create_directories(std::filesystem::path(path).parent_path());
            std::vector<uint8_t> bytes(h * w * 3);
            for (uint64_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i / 7 + n * 11);
            if (n % 4 == 0) png(path, h, w, PNG_FORMAT_RGB, bytes);
            else if (n % 4 == 1) png(path, h, w, PNG_FORMAT_RGBA, std::vector<uint8_t>(h * w * 4, static_cast<uint8_t>(n)));
            else jpeg(path, h, w, n % 4 == 2 ? JCS_RGB : JCS_GRAYSCALE, bytes);
            if (n % 13 == 5) write_file(path, read_file(path).substr(0, 200));
            if (n % 17 == 3) write_file(path, "no image");
            if (n % 19 == 6) write_file(path, read_file(path) + "more");
        }
        config.size = 24;
        config.test = 0.2;
        config.skip_bad = true;
    }
};

TEST_F(ImportParallel, TheThreadsChangeNothing) {
    std::string train, test;
    std::vector<std::string> notes;
    for (const uint32_t threads : {1u, 2u, 3u, 16u}) {
        config.threads = threads;
        config.force = threads > 1;
        const Status status = import();
        ASSERT_TRUE(status.ok()) << status.what;
        const std::string its_train = read_file(out + "/train.h5"), its_test = read_file(out + "/test.h5");
        if (threads == 1) {
            train = its_train;
            test = its_test;
            notes = result.notes;
            EXPECT_GT(notes.size(), 8u);
            EXPECT_GT(result.test, 10u);
        }
        EXPECT_TRUE(its_train == train && its_test == test) << threads;
        EXPECT_EQ(result.notes, notes) << threads;
    }
    // Without --skip-bad all are found in one go, in the same order.
    config.skip_bad = false;
    std::vector<std::string> refused;
    std::string what;
    for (const uint32_t threads : {1u, 4u}) {
        config.threads = threads;
        const Status status = import();
        EXPECT_EQ(status.code, Code::data);
        if (threads == 1) what = status.what, refused = result.notes;
        EXPECT_EQ(status.what, what);
        EXPECT_EQ(result.notes, refused);
    }
    EXPECT_TRUE(read_file(out + "/train.h5") == train);
}

// The first file that ends an import is the same as well.
TEST_F(ImportParallel, OneSizeIsAskedForWhateverTheThreads) {
    config.size = 0;
    std::string what;
    for (const uint32_t threads : {1u, 5u}) {
        config.threads = threads;
        const Status status = import();
        ASSERT_FALSE(status.ok());
        if (threads == 1) what = status.what;
        EXPECT_EQ(status.what, what);
    }
    EXPECT_NE(what.find(" more differ: --size "), std::string::npos) << what;
}

TEST_F(ImportParallel, ProgressEndsWithAllFiles) {
    for (const uint32_t threads : {1u, 4u}) {
        config.threads = threads;
        config.force = true;
        std::vector<ImportProgress> told;
        config.progress = [&](const ImportProgress& progress) { told.push_back(progress); };
        ASSERT_TRUE(import().ok());
        ASSERT_GE(told.size(), 2u);
        bool headers = false, all = false;
        for (size_t i = 0; i < told.size(); ++i) {
            EXPECT_EQ(told[i].files, 90u);
            EXPECT_LE(told[i].done, 90u);
            if (i > 0 && told[i].headers == told[i - 1].headers) {
                EXPECT_GT(told[i].done, told[i - 1].done);
            }
            if (i > 0) {
                EXPECT_LE(told[i].headers, told[i - 1].headers);
            }
            headers |= told[i].headers && told[i].done == 90;
            all |= !told[i].headers && told[i].done == 90;
        }
        EXPECT_TRUE(headers && all);
    }
}

// Rows that are not interleaved in memory: interlaced PNG, progressive JPEG, one plane of an RGB image.
TEST_F(ImportParallel, EveryKindOfRowsIsDecoded) {
    const uint32_t h = 37, w = 41;
    std::vector<uint8_t> pixels(h * w * 3);
    for (uint64_t i = 0; i < pixels.size(); ++i) pixels[i] = pixel_of(3, i);
    const std::string path = folder.file("x.png");
    for (const int interlace : {PNG_INTERLACE_NONE, PNG_INTERLACE_ADAM7}) {
        png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
        png_infop info = png_create_info_struct(png);
        FILE* file = std::fopen(path.c_str(), "wb");
        png_init_io(png, file);
        png_set_IHDR(png, info, w, h, 8, PNG_COLOR_TYPE_RGB, interlace, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
        std::vector<png_bytep> rows(h);
        for (uint32_t y = 0; y < h; ++y) rows[y] = &pixels[y * w * 3];
        png_set_rows(png, info, rows.data());
        png_write_png(png, info, PNG_TRANSFORM_IDENTITY, nullptr);
        png_destroy_write_struct(&png, &info);
        std::fclose(file);
        ImageFile image;
        ASSERT_TRUE(image_open(path, &image).ok());
        std::vector<uint8_t> planes(3 * h * w), grey(h * w);
        std::string odd;
        ASSERT_TRUE(image_decode(image, 3, planes.data(), &odd).ok());
        ASSERT_TRUE(image_decode(image, 1, grey.data(), &odd).ok());
        for (uint32_t i = 0; i < h * w; ++i) {
            for (uint32_t c = 0; c < 3; ++c) ASSERT_EQ(planes[c * h * w + i], pixels[i * 3 + c]) << interlace;
            ASSERT_EQ(grey[i], (299u * pixels[i * 3] + 587u * pixels[i * 3 + 1] + 114u * pixels[i * 3 + 2] + 500) / 1000);
        }
    }
}

// A header is read from the front of a file, unless it is longer than that.
TEST_F(ImportParallel, HeadersAreThoseOfTheWholeFile) {
    std::vector<uint8_t> soft(64 * 48 * 3, 100);
    const std::string path = folder.file("x.jpg");
    jpeg(path, 48, 64, JCS_RGB, soft);
    const std::string plain = read_file(path);
    for (const size_t segments : {0u, 1u, 3u, 9u}) {   // of 60 KiB, before the size
        std::string bytes = plain.substr(0, 2);
        for (size_t i = 0; i < segments; ++i) bytes += std::string("\xff\xed\xf0\x02", 4) + std::string(0xf000, 'x');
        write_file(path, bytes + plain.substr(2));
        ImageFile whole, head;
        bool complete = false;
        ASSERT_TRUE(image_open(path, &whole).ok());
        const Status status = image_header(path, &head, &complete);
        ASSERT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(complete, segments < 5);
        EXPECT_TRUE(head.bytes.empty());
        EXPECT_EQ(head.file_bytes, whole.bytes.size());
        if (complete) {
            EXPECT_TRUE(head.H == whole.H && head.W == whole.W && head.C == whole.C && head.decode_bytes(3) == whole.decode_bytes(3));
        }
        std::filesystem::remove_all(from);
        std::filesystem::create_directories(in("ant"));
        std::filesystem::copy_file(path, in("ant/x.jpg"));
        config.force = true;
        ASSERT_TRUE(import().ok());
    }
}

}   // namespace
}   // namespace gradcast
