// import npy: arrays as numpy.save writes them.
#include <numeric>

#include <cmath>

#include "datasets/import.h"
#include "tests/datasets/support.h"

namespace gradcast {
namespace {

using namespace std::string_literals;

class ImportNpy : public ::testing::Test {
protected:
    TestFolder folder;
    std::string from = folder.file("from"), out = folder.file("out");
    ImportConfig config{.kind = "npy", .from = from, .out = out, .force = true};
    ImportResult result;
    static constexpr uint32_t count = 12, H = 3, W = 5, C = 3;
    void SetUp() override { std::filesystem::create_directory(from); }
    void write(const std::string& name, const std::string& type, const std::string& shape, const std::string& bytes,
               bool fortran = false) const {
        std::string header =
            fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': ({}), }}", type, fortran ? "True" : "False", shape);
        header += std::string(64 - (header.size() + 11) % 64, ' ') + '\n';
        write_file(from + "/" + name,
                   "\x93NUMPY\1\0"s + static_cast<char>(header.size() % 256) + static_cast<char>(header.size() / 256) + header + bytes);
    }
    /// Pixels of samples, [N, C, H, W] or with the channels last.
    static std::string pixels(uint64_t samples, uint32_t channels, bool last) {
        std::string bytes;
        for (uint64_t n = 0; n < samples; ++n)
            for (uint64_t i = 0; i < channels * H * W; ++i)
                bytes += static_cast<char>(pixel_of(n, last ? i % channels * H * W + i / channels : i));
        return bytes;
    }
    static std::string labels(uint64_t samples, size_t width, bool big, int64_t add = 0) {
        std::string bytes;
        for (uint64_t n = 0; n < samples; ++n)
            for (size_t k = 0; k < width; ++k)
                bytes += static_cast<char>((static_cast<int64_t>(n % 4) + add) >> (8 * (big ? width - 1 - k : k)));
        return bytes;
    }
    void expect_samples(const std::string& path, uint64_t samples, uint32_t channels) {
        std::unique_ptr<DataSet> data;
        Status status = data_open(path, &data);
        ASSERT_TRUE(status.ok()) << status.what;
        ASSERT_EQ(data->info().count, samples);
        ASSERT_EQ(data->info().C, channels);
        std::vector<uint64_t> indices(samples);
        std::iota(indices.begin(), indices.end(), 0);
        std::vector<uint8_t> images(samples * data->sample_bytes());
        std::vector<int32_t> its(samples);
        ASSERT_TRUE(data->read(indices, images.data(), its.data()).ok());
        for (uint64_t n = 0; n < samples; ++n) {
            ASSERT_EQ(its[n], static_cast<int32_t>(n % 4));
            for (uint64_t i = 0; i < data->sample_bytes(); ++i)
                ASSERT_EQ(images[n * data->sample_bytes() + i], pixel_of(n, i)) << n << " " << i;
        }
    }
};

TEST_F(ImportNpy, ReadsAllShapesAndIntegers) {
    struct {
        const char* shape;
        uint32_t channels;
        bool last;
    } shapes[] = {{"12, 3, 5", 1, false}, {"12, 1, 3, 5", 1, false}, {"12, 3, 3, 5", 3, false}};
    for (const auto& each : shapes) {
        write("images.npy", "|u1", each.shape, pixels(count, each.channels, each.last));
        for (const auto& [type, width, big] :
             {std::tuple{"|u1", 1, false}, {"|i1", 1, false}, {"<i8", 8, false}, {">i4", 4, true}, {"<u2", 2, false}}) {
            write("labels.npy", type, "12,", labels(count, static_cast<size_t>(width), big));
            Status status = data_import(config, &result);
            ASSERT_TRUE(status.ok()) << status.what;
            expect_samples(result.paths[0], count, each.channels);
        }
    }
}

TEST_F(ImportNpy, ChannelsLastAndATestSet) {
    std::string wide;   // [N, 4, 5, 3]: the channels can only be last
    for (uint64_t n = 0; n < count; ++n)
        for (uint64_t i = 0; i < 60; ++i) wide += static_cast<char>(pixel_of(n, i % 3 * 20 + i / 3));
    write("images.npy", "|u1", "12, 4, 5, 3", wide);
    write("labels.npy", "<i8", "12,", labels(count, 8, false));
    ASSERT_TRUE(data_import(config, &result).ok());
    expect_samples(result.paths[0], count, 3);
    EXPECT_NE(result.notes[0].find("from/images.npy: |u1 [12, 4, 5, 3] is read as [N, H, W, C]"), std::string::npos) << result.notes[0];
    write("test-images.npy", "|u1", "8, 4, 5, 3", wide.substr(0, 8 * 60));
    write("test-labels.npy", "<i8", "8,", labels(8, 8, false));
    ASSERT_TRUE(data_import(config, &result).ok());
    expect_samples(result.paths[1], 8, 3);
    config.test = 0.5;
    expect_error(data_import(config, &result), {"--test: ", "test-images.npy is there"});
    std::filesystem::remove(from + "/test-images.npy");
    std::filesystem::remove(from + "/test-labels.npy");
    ASSERT_TRUE(data_import(config, &result).ok());
    EXPECT_EQ(result.test, 8u);   // of 4 classes of 3 samples: 2 each
}

// Values that are no pixels: rows of numbers, or planes, with mean and deviation by channel.
TEST_F(ImportNpy, FloatsAreKeptAsTheyAre) {
    std::vector<float> values(12 * 2 * 3 * 5);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(pixel_of(1, i)) / 3 - 40 + (i / 15 % 2 ? 1000.0f : 0.0f);
    const std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    write("labels.npy", "<i8", "12,", labels(count, 8, false));
    for (const char* shape : {"12, 2, 3, 5", "12, 30", "12, 5, 6"}) {
        write("images.npy", "<f4", shape, bytes);
        const Status status = data_import(config, &result);
        ASSERT_TRUE(status.ok()) << status.what;
        std::unique_ptr<DataSet> data;
        ASSERT_TRUE(data_open(result.paths[0], &data).ok());
        ASSERT_TRUE(data_verify(*data).ok());
        const DataInfo& info = data->info();
        EXPECT_EQ(info.element, Element::f32);
        EXPECT_EQ(info.C * info.H * info.W, 30u);
        std::vector<uint64_t> indices(12);
        for (uint64_t i = 0; i < 12; ++i) indices[i] = i;
        std::vector<uint8_t> read(bytes.size());
        std::vector<int32_t> its_labels(12);
        ASSERT_TRUE(data->read(indices, read.data(), its_labels.data()).ok());
        EXPECT_EQ(std::string(read.begin(), read.end()), bytes);
        for (uint32_t c = 0; c < info.C; ++c) {
            double mean = 0, spread = 0;
            const size_t pixels = info.H * info.W;
            const auto each = [&](auto what) {
                for (size_t n = 0; n < 12; ++n)
                    for (size_t k = 0; k < pixels; ++k) what(static_cast<double>(values[(n * info.C + c) * pixels + k]));
            };
            each([&](double value) { mean += value / static_cast<double>(12 * pixels); });
            each([&](double value) { spread += (value - mean) * (value - mean) / static_cast<double>(12 * pixels); });
            EXPECT_NEAR(info.mean[c], mean, 1e-3) << shape << " " << c;
            EXPECT_NEAR(info.std[c], std::sqrt(spread), 1e-3) << shape << " " << c;
        }
    }
    // Both halves are alike.
    write("test-labels.npy", "<i8", "2,", labels(2, 8, false));
    write("test-images.npy", "|u1", "2, 5, 6", std::string(60, 1));
    expect_error(data_import(config, &result), {"samples for training are f32, those for testing u8: save both alike"});
}

TEST_F(ImportNpy, MistakesAreNamed) {
    auto refused = [&](std::initializer_list<std::string> parts) { expect_error(data_import(config, &result), parts); };
    refused({"from/labels.npy", "No such file"});
    write("labels.npy", "<f8", "12,", std::string(96, 0));
    refused({"from/labels.npy: <f8 [12]: labels are integers [N]", "astype"});
    write("labels.npy", "<i8", "12,", labels(count, 8, false, -1));
    refused({"from/labels.npy: label -1 of sample 0: labels begin with 0"});
    write("labels.npy", "<i8", "12,", labels(count, 8, false, 1 << 20));
    refused({"from/labels.npy: label 1048576 of sample 0"});
    write("labels.npy", "<i8", "12,", labels(11, 8, false));
    refused({"from/labels.npy: truncated"});
    write("labels.npy", "<i8", "11,", labels(11, 8, false));
    write("images.npy", "|u1", "12, 3, 5", pixels(count, 1, false));
    refused({"from/labels.npy has 11 labels for the 12 images of"});
    write("labels.npy", "<i8", "12,", labels(count, 8, false));
    write("images.npy", "<f8", "12, 3, 5", std::string(12 * 15 * 8, 0));
    refused(
        {"from/images.npy: <f8 [12, 3, 5]: images are uint8", "other values float32 [N, C] or as images: save x.astype(numpy.float32)"});
    std::string values(12 * 15 * 4, 0);
    values[4 * 17 + 3] = '\x7f', values[4 * 17 + 2] = '\x80';
    write("images.npy", "<f4", "12, 3, 5", values);
    refused({"from/images.npy: sample 1, value 2: inf is not finite: leave the sample out"});
    write("images.npy", "|u1", "12, 15", pixels(count, 1, false));
    refused({"from/images.npy: |u1 [12, 15]: images are uint8 [N, H, W]"});
    write("images.npy", "|u1", "12, 3, 5", pixels(count, 1, false), true);
    refused({"from/images.npy: in Fortran order: save numpy.ascontiguousarray(x)"});
    write("images.npy", "|u1", "12, 3, 5", pixels(11, 1, false));
    refused({"from/images.npy: truncated: it ends within image 11 of 12"});
    write("images.npy", "|u1", "12, 3, 5", pixels(count, 1, false) + "x");
    refused({"from/images.npy: longer than its 12 images"});
    write("images.npy", "|u1", "99999999999, 99999999999, 5", "");
    refused({"from/images.npy: of shape (99999999999, 99999999999, 5), which is empty or too large"});
    write_file(from + "/images.npy", "PK\3\4 an npz, perhaps, of some arrays");
    refused({"from/images.npy: not a NumPy file: write it with numpy.save"});
    EXPECT_FALSE(std::filesystem::exists(out));
}

}   // namespace
}   // namespace gradcast
