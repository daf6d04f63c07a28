#include <fcntl.h>
#include <fmt/format.h>
#include <lzma.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <zlib.h>

#include <cmath>

#include "tests/datasets/support.h"

namespace gradcast {
namespace {

std::string idx_bytes(std::vector<uint32_t> dims, std::string_view bytes) {
    std::string text{0, 0, 8, static_cast<char>(dims.size())};
    for (uint32_t dim : dims)
        for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(dim >> shift);
    return text.append(bytes);
}
std::string gz_bytes(const std::string& path, const std::string& bytes) {
    gzFile file = gzopen(path.c_str(), "wb");
    EXPECT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())), static_cast<int>(bytes.size()));
    gzclose(file);
    std::string packed = read_file(path);
    std::filesystem::remove(path);
    return packed;
}

std::string xz_bytes(const std::string& bytes) {
    std::string packed(lzma_stream_buffer_bound(bytes.size()), '\0');
    size_t size = 0;
    EXPECT_EQ(lzma_easy_buffer_encode(0, LZMA_CHECK_CRC64, nullptr, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(),
                                      reinterpret_cast<uint8_t*>(packed.data()), &size, packed.size()),
              LZMA_OK);
    return packed.substr(0, size);
}
/// A POSIX tar: an entry for a folder, then the files in it.
std::string tar_bytes(const std::vector<std::pair<std::string, std::string>>& files) {
    std::string tar;
    auto entry = [&](const std::string& name, char type, const std::string& bytes) {
        std::string header(512, '\0');
        auto put = [&](size_t at, const std::string& text) { header.replace(at, text.size(), text); };
        put(0, name);
        put(100, "0000644");
        put(124, fmt::format("{:011o}", bytes.size()));
        put(148, "        ");
        header[156] = type;
        put(257, std::string("ustar\0"
                             "00",
                             8));
        unsigned sum = 0;
        for (char byte : header) sum += static_cast<unsigned char>(byte);
        put(148, fmt::format("{:06o}", sum) + '\0');
        tar += header + bytes + std::string((512 - bytes.size() % 512) % 512, '\0');
    };
    entry("batches/", '5', "");
    for (const auto& [name, bytes] : files) entry("batches/" + name, '0', bytes);
    return tar + std::string(1024, '\0');
}

/// A small data set as IDX files: 120 images for training, 30 for testing, 6 x 5 pixels.
class ImportIdx : public ::testing::Test {
protected:
    TestFolder folder;
    std::string from = folder.file("from"), out = folder.file("out");
    static constexpr uint32_t H = 6, W = 5;
    static std::string images(uint64_t count, uint64_t first) {
        std::string bytes;
        for (uint64_t n = 0; n < count; ++n)
            for (uint64_t i = 0; i < H * W; ++i) bytes += static_cast<char>(pixel_of(first + n, i));
        return idx_bytes({static_cast<uint32_t>(count), H, W}, bytes);
    }
    static std::string labels(uint64_t count, uint64_t first, uint32_t classes = 10) {
        std::string bytes;
        for (uint64_t n = 0; n < count; ++n) bytes += static_cast<char>(label_of(first + n, classes));
        return idx_bytes({static_cast<uint32_t>(count)}, bytes);
    }
    std::string in(const std::string& name) const { return from + "/" + name; }
    void SetUp() override {
        std::filesystem::create_directory(from);
        write_file(in("train-images-idx3-ubyte"), images(120, 0));
        write_file(in("train-labels-idx1-ubyte"), labels(120, 0));
        write_file(in("t10k-images-idx3-ubyte"), images(30, 120));
        write_file(in("t10k-labels-idx1-ubyte"), labels(30, 120));
    }
    Status import(bool force = false, const char* kind = "mnist") {
        ImportResult result;
        return data_import({.kind = kind, .from = from, .out = out, .force = force}, &result);
    }
    /// The import fails, all of `parts` are in the message, and no file remains.
    void expect_refused(std::initializer_list<std::string> parts, const char* kind = "mnist") {
        expect_error(import(false, kind), parts);
        if (std::filesystem::exists(out)) {
            EXPECT_TRUE(std::filesystem::is_empty(out));
        }
    }
};

TEST_F(ImportIdx, PlainAndGz) {
    std::string bytes[2];
    for (int gz : {0, 1}) {
        if (gz)
            for (const char* name :
                 {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}) {
                write_file(in(name) + std::string(".gz"), gz_bytes(in("x"), read_file(in(name))));
                std::filesystem::remove(in(name));
            }
        ImportResult result;
        Status status = data_import({.kind = "mnist", .from = from, .out = out, .force = gz == 1}, &result);
        ASSERT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(result.train, 120u);
        EXPECT_EQ(result.test, 30u);
        ASSERT_EQ(result.paths, (std::vector<std::string>{out + "/train.h5", out + "/test.h5"}));
        for (int half : {0, 1}) {
            std::unique_ptr<DataSet> data;
            ASSERT_TRUE(data_open(result.paths[half], &data).ok());
            ASSERT_TRUE(data_verify(*data).ok());
            EXPECT_EQ(data->info().classes, 10u);
            EXPECT_NE(data->info().source.find("MNIST"), std::string::npos);
            std::vector<uint64_t> indices(data->info().count);
            for (uint64_t i = 0; i < indices.size(); ++i) indices[i] = i;
            std::vector<uint8_t> pixels(indices.size() * H * W);
            std::vector<int32_t> its(indices.size());
            ASSERT_TRUE(data->read(indices, pixels.data(), its.data()).ok());
            for (uint64_t i = 0; i < indices.size(); ++i) expect_sample(half * 120 + i, &pixels[i * H * W], H * W, its[i], 10);
            // Both sets have the mean and std of the training set.
            double sum = 0, squares = 0;
            for (uint64_t n = 0; n < 120; ++n)
                for (uint64_t i = 0; i < H * W; ++i) {
                    sum += pixel_of(n, i) / 255.0;
                    squares += std::pow(pixel_of(n, i) / 255.0, 2);
                }
            double mean = sum / (120 * H * W);
            EXPECT_NEAR(data->info().mean[0], mean, 1e-7);
            EXPECT_NEAR(data->info().std[0], std::sqrt(squares / (120 * H * W) - mean * mean), 1e-7);
        }
        bytes[gz] = read_file(out + "/train.h5");
    }
    EXPECT_EQ(bytes[0], bytes[1]);
}

TEST_F(ImportIdx, CountsClassesOfUnknownData) {
    write_file(in("train-labels-idx1-ubyte"), labels(120, 0, 7));
    write_file(in("t10k-labels-idx1-ubyte"), labels(30, 120, 200));
    ASSERT_TRUE(import(false, "idx").ok());
    Shard shard;
    ASSERT_TRUE(shard_open(out + "/train.h5", &shard).ok());
    int32_t most = 0;
    for (uint64_t i = 120; i < 150; ++i) most = std::max(most, label_of(i, 200));
    EXPECT_EQ(shard.info.classes, static_cast<uint32_t>(most) + 1);
}

TEST_F(ImportIdx, EqualPixels) {
    write_file(in("train-images-idx3-ubyte"), idx_bytes({120, H, W}, std::string(120 * H * W, '\x33')));
    ASSERT_TRUE(import().ok());
    Shard shard;
    ASSERT_TRUE(shard_open(out + "/train.h5", &shard).ok());
    EXPECT_FLOAT_EQ(shard.info.mean[0], 0.2f);
    EXPECT_EQ(shard.info.std[0], 1.0f);
}

TEST_F(ImportIdx, OverwritesOnlyByForce) {
    ASSERT_TRUE(import().ok());
    std::string before = read_file(out + "/train.h5");
    write_file(in("train-images-idx3-ubyte"), images(120, 1000));
    expect_error(import(), {"out/train.h5", "--force"});
    EXPECT_EQ(read_file(out + "/train.h5"), before);
    ASSERT_TRUE(import(true).ok());
    EXPECT_NE(read_file(out + "/train.h5"), before);
    std::filesystem::remove(out + "/train.h5");
    expect_error(import(), {"out/test.h5", "--force"});
}

TEST_F(ImportIdx, OneAtATimeInAFolder) {
    std::filesystem::create_directory(out);
    Fd other(::open(out.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
    write_file(out + "/train.h5.part", "its");
    expect_error(import(), {"out: another import is writing there"});
    EXPECT_EQ(read_file(out + "/train.h5.part"), "its");
    other = Fd();
    EXPECT_TRUE(import().ok());
}

TEST_F(ImportIdx, CompressedIsTheSameDataSet) {
    ImportResult result;
    std::unique_ptr<DataSet> plain, small;
    ASSERT_TRUE(data_import({.kind = "mnist", .from = from, .out = out}, &result).ok());
    ASSERT_TRUE(data_import({.kind = "mnist", .from = from, .out = folder.file("small"), .compress = 6}, &result).ok());
    for (const char* half : {"/train.h5", "/test.h5"}) {
        ASSERT_TRUE(data_open(out + half, &plain).ok());
        ASSERT_TRUE(data_open(folder.file("small") + half, &small).ok());
        EXPECT_TRUE(small->chunked());
        EXPECT_EQ(plain->digest(), small->digest());
        EXPECT_TRUE(data_verify(*small).ok());
    }
}

TEST_F(ImportIdx, WrongFlags) {
    expect_error(import(false, "cifar"),
                 {"\"cifar\"", "fashion-mnist, mnist, cifar10, cifar100, idx, images, masks, npy, table, text, tokens, ridge"});
    ImportResult result;
    expect_error(data_import({.kind = "mnist", .from = "", .out = out}, &result), {"mnist", "--from"});
    expect_error(data_import({.kind = "mnist", .from = from, .out = ""}, &result), {"--out"});
    expect_error(data_import({.kind = "mnist", .from = from, .out = out, .compress = 10}, &result), {"10 is no level", "1 (fast) to 9"});
    expect_error(data_import({.kind = "mnist", .from = folder.file("none"), .out = out}, &result),
                 {"none/train-labels-idx1-ubyte[.gz, .xz] is missing"});
    write_file(folder.file("file"), "x");
    expect_error(data_import({.kind = "mnist", .from = from, .out = folder.file("file/out")}, &result), {"file"});
    EXPECT_EQ(import_kinds(), (std::vector<std::string>{"fashion-mnist", "mnist", "cifar10", "cifar100", "idx", "images", "masks", "npy",
                                                        "table", "text", "tokens", "ridge"}));
}

TEST_F(ImportIdx, MissingFile) {
    std::filesystem::remove(in("t10k-images-idx3-ubyte"));
    expect_refused({"from/t10k-images-idx3-ubyte[.gz, .xz] is missing"});
}

TEST_F(ImportIdx, OtherUsualNames) {
    auto name_them = [&](std::vector<std::string> names) {
        std::vector<std::string> bytes{images(120, 0), labels(120, 0), images(30, 120), labels(30, 120)};
        std::filesystem::remove_all(from);
        std::filesystem::create_directory(from);
        for (size_t i = 0; i < names.size(); ++i)
            write_file(in(names[i]), names[i].ends_with(".gz") ? gz_bytes(folder.file("x"), bytes[i]) : bytes[i]);
    };
    ASSERT_TRUE(import().ok());
    const std::string usual = read_file(out + "/train.h5");
    name_them({"train-images.idx3-ubyte", "train-labels.idx1-ubyte", "t10k-images.idx3-ubyte", "t10k-labels.idx1-ubyte"});
    std::filesystem::create_directories(in("train-images-idx3-ubyte"));   // as one packing of MNIST has it
    ASSERT_TRUE(import(true).ok());
    EXPECT_EQ(read_file(out + "/train.h5"), usual);
    name_them({"emnist-digits-train-images-idx3-ubyte.gz", "emnist-digits-train-labels-idx1-ubyte.gz",
               "emnist-digits-test-images-idx3-ubyte.gz", "emnist-digits-test-labels-idx1-ubyte"});
    ASSERT_TRUE(import(true, "idx").ok());
    std::unique_ptr<DataSet> data;
    ASSERT_TRUE(data_open(out + "/test.h5", &data).ok());
    EXPECT_EQ(data->info().count, 30u);
    std::filesystem::remove_all(out);
    write_file(in("emnist-letters-train-images-idx3-ubyte"), images(120, 0));
    expect_refused({"from: files of several data sets (emnist-digits-…, emnist-letters-…)", "a folder of its own"});
    std::filesystem::remove(in("emnist-letters-train-images-idx3-ubyte"));
    write_file(in("emnist-digits-train.images-idx3-ubyte"), images(120, 0));
    expect_refused({"emnist-digits-train-images-idx3-ubyte and emnist-digits-train.images-idx3-ubyte are the same file by two names"});
}

TEST_F(ImportIdx, ATestSetMayBeMissing) {
    std::filesystem::remove(in("t10k-images-idx3-ubyte"));
    std::filesystem::remove(in("t10k-labels-idx1-ubyte"));
    ImportResult result;
    ImportConfig config{.kind = "mnist", .from = from, .out = out};
    ASSERT_TRUE(data_import(config, &result).ok());
    EXPECT_EQ(result.paths.size(), 1u);
    EXPECT_EQ(fmt::format("{}", fmt::join(result.notes, "\n")), "no samples to test on: --test 10% takes some of each class");
    config.force = true;
    config.test = 0.1;
    ASSERT_TRUE(data_import(config, &result).ok());
    EXPECT_EQ(result.train + result.test, 120u);
    EXPECT_NEAR(static_cast<double>(result.test), 12, 5);
    EXPECT_TRUE(result.notes.empty());
    std::unique_ptr<DataSet> data;
    ASSERT_TRUE(data_open(result.paths[1], &data).ok());
    uint64_t first = 0;
    std::vector<uint8_t> image(H * W);
    int32_t label = 0;
    ASSERT_TRUE(data->read({&first, 1}, image.data(), &label).ok());
    bool found = false;
    for (uint64_t n = 0; n < 120 && !found; ++n)
        found = image[0] == pixel_of(n, 0) && image[1] == pixel_of(n, 1) && label == label_of(n, 10);
    EXPECT_TRUE(found);
    config.kind = "cifar10";
    expect_error(data_import(config, &result), {"--test: cifar10 has samples to test on"});
}

TEST_F(ImportIdx, EmptyClassesAreTold) {
    std::string from_1 = labels(120, 0);
    for (size_t i = 8; i < from_1.size(); ++i) ++from_1[i];
    write_file(in("train-labels-idx1-ubyte"), from_1);
    ImportResult result;
    ImportConfig config{.kind = "idx", .from = from, .out = out, .force = true};
    ASSERT_TRUE(data_import(config, &result).ok());
    ASSERT_EQ(result.notes.size(), 1u);
    EXPECT_EQ(
        result.notes[0],
        "1 of 11 classes: no sample to train on has the label 0: labels that begin with 1 are to have 1 taken away, or the net has an "
        "output for nothing");
    std::string sparse = labels(120, 0);
    for (size_t i = 8; i < sparse.size(); ++i) sparse[i] = static_cast<char>(sparse[i] % 2 * 3);
    write_file(in("train-labels-idx1-ubyte"), sparse);
    write_file(in("t10k-labels-idx1-ubyte"), idx_bytes({30}, std::string(30, '\3')));
    ASSERT_TRUE(data_import(config, &result).ok());
    EXPECT_EQ(fmt::format("{}", fmt::join(result.notes, "|")), "2 of 4 classes: no sample to train on has the label 1, 2");
}

TEST_F(ImportIdx, WrongMagic) {
    write_file(in("train-images-idx3-ubyte"), labels(120, 0));
    expect_refused({"train-images-idx3-ubyte", "not an IDX file", "00 00 08 01"});
    write_file(in("train-images-idx3-ubyte"), "PK\3\4 something else");
    expect_refused({"train-images-idx3-ubyte", "not an IDX file", "50 4b 03 04"});
}

TEST_F(ImportIdx, TruncatedPlain) {
    std::string whole = images(120, 0);
    for (size_t kept : {size_t{0}, size_t{3}, size_t{9}, size_t{16}, whole.size() - 1}) {
        write_file(in("train-images-idx3-ubyte"), whole.substr(0, kept));
        expect_refused({"train-images-idx3-ubyte", "truncated"});
    }
    write_file(in("train-images-idx3-ubyte"), whole + "x");
    expect_refused({"train-images-idx3-ubyte", "longer than the 3600 bytes"});
}

TEST_F(ImportIdx, TruncatedOrDamagedGz) {
    std::string whole = gz_bytes(in("x"), images(30, 120));
    std::string path = in("t10k-images-idx3-ubyte.gz");
    for (size_t kept : {size_t{1}, size_t{5}, size_t{12}, whole.size() / 2, whole.size() - 9, whole.size() - 8, whole.size() - 1}) {
        write_file(path, whole.substr(0, kept));
        expect_refused({"t10k-images-idx3-ubyte.gz"});
    }
    write_file(path, whole.substr(0, whole.size() / 2));
    expect_refused({"t10k-images-idx3-ubyte.gz", "truncated"});
    for (size_t at : {whole.size() / 2, whole.size() - 6, whole.size() - 2}) {   // the data, their checksum, their length
        std::string bytes = whole;
        bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
        write_file(path, bytes);
        expect_refused({"t10k-images-idx3-ubyte.gz"});
    }
}

TEST_F(ImportIdx, HeaderThatPromisesTooMuch) {
    write_file(in("train-images-idx3-ubyte"), idx_bytes({0xffffffff, 65536, 65536}, "abc"));
    expect_refused({"train-labels-idx1-ubyte has 120 labels for the 4294967295 images"});
    write_file(in("train-images-idx3-ubyte"), idx_bytes({120, 0xffffffff, 6}, "abc"));
    expect_refused({"train-images-idx3-ubyte", "dimension 1 is 4294967295"});
    write_file(in("train-images-idx3-ubyte"), idx_bytes({0, H, W}, ""));
    expect_refused({"train-images-idx3-ubyte", "dimension 0 is 0"});
}

TEST_F(ImportIdx, CountsThatDiffer) {
    write_file(in("t10k-labels-idx1-ubyte"), labels(29, 120));
    expect_refused({"t10k-labels-idx1-ubyte has 29 labels for the 30 images of", "t10k-images-idx3-ubyte"});
}

TEST_F(ImportIdx, ShapesThatDiffer) {
    write_file(in("t10k-images-idx3-ubyte"), idx_bytes({30, W, H}, std::string(30 * H * W, 'x')));
    expect_refused({"from", "6 x 5", "5 x 6"});
}

TEST_F(ImportIdx, LabelOutOfRange) {
    std::string bytes = labels(30, 120);
    bytes[8 + 17] = 10;
    write_file(in("t10k-labels-idx1-ubyte"), bytes);
    expect_refused({"t10k-labels-idx1-ubyte", "label 10 of sample 17", "10 classes"});
}

// If the second file cannot be written, the first one is removed.
TEST_F(ImportIdx, HalfADataSetIsNone) {
    std::filesystem::create_directories(out + "/test.h5.part");
    expect_error(import(), {"test.h5.part"});
    EXPECT_FALSE(std::filesystem::exists(out + "/train.h5"));
    EXPECT_FALSE(std::filesystem::exists(out + "/train.h5.part"));
}

// ---- CIFAR ---------------------------------------------------------------------------------------------------------------------

/// Files of full size, zero except for the first records.
class ImportCifar : public ::testing::Test {
protected:
    TestFolder folder;
    std::string from = folder.file("from"), out = folder.file("out");
    static constexpr uint32_t pixels = 3 * 32 * 32, made = 20;
    static std::string records(uint64_t first, uint32_t label_bytes, uint32_t classes) {
        std::string bytes;
        for (uint64_t n = first; n < first + made; ++n) {
            if (label_bytes == 2) bytes += '\x63';   // coarse label: not used
            bytes += static_cast<char>(label_of(n, classes));
            for (uint64_t i = 0; i < pixels; ++i) bytes += static_cast<char>(pixel_of(n, i));
        }
        return bytes;
    }
    std::string in(const std::string& name) const { return from + "/" + name; }
    void file(const std::string& name, uint64_t count, uint64_t first, uint32_t label_bytes, uint32_t classes) const {
        write_file(in(name), records(first, label_bytes, classes));
        std::filesystem::resize_file(in(name), count * (label_bytes + pixels));
    }
    void SetUp() override {
        std::filesystem::create_directory(from);
        for (int i = 1; i <= 5; ++i) file(fmt::format("data_batch_{}.bin", i), 10000, 100 * i, 1, 10);
        file("test_batch.bin", 10000, 600, 1, 10);
        file("train.bin", 50000, 100, 2, 100);
        file("test.bin", 10000, 600, 2, 100);
    }
    Status import(const char* kind) {
        ImportResult result;
        return data_import({.kind = kind, .from = from, .out = out, .force = false}, &result);
    }
    void expect_refused(const char* kind, std::initializer_list<std::string> parts) {
        expect_error(import(kind), parts);
        EXPECT_FALSE(std::filesystem::exists(out));
    }
    /// `count` records of the shard from `at` on are the samples from `first` on.
    void expect_records(const std::string& name, uint64_t count, uint64_t at, uint64_t first, uint32_t classes) {
        std::unique_ptr<DataSet> data;
        Status status = data_open(out + "/" + name, &data);
        ASSERT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(data->info().count, count);
        EXPECT_EQ(data->info().classes, classes);
        EXPECT_EQ(data->info().C, 3u);
        EXPECT_EQ(data->info().H * data->info().W, 1024u);
        EXPECT_NE(data->info().source.find("CIFAR"), std::string::npos);
        std::vector<uint64_t> indices(made + 1);
        for (uint64_t i = 0; i <= made; ++i) indices[i] = at + i;
        std::vector<uint8_t> images(indices.size() * pixels);
        std::vector<int32_t> labels(indices.size());
        ASSERT_TRUE(data->read(indices, images.data(), labels.data()).ok());
        for (uint64_t i = 0; i < made; ++i) expect_sample(first + i, &images[i * pixels], pixels, labels[i], classes);
        EXPECT_EQ(images[made * pixels], 0);
    }
};

TEST_F(ImportCifar, Cifar10) {
    Status status = import("cifar10");
    ASSERT_TRUE(status.ok()) << status.what;
    expect_records("train.h5", 50000, 0, 100, 10);
    expect_records("train.h5", 50000, 30000, 400, 10);
    expect_records("test.h5", 10000, 0, 600, 10);
    EXPECT_NE(read_file(out + "/test.h5").find("airplane,automobile,bird,cat,deer,dog,frog,horse,ship,truck"), std::string::npos);
}

// The fine label is used; compressed files work like plain ones.
TEST_F(ImportCifar, Cifar100AndGz) {
    std::string packed = gz_bytes(in("x"), read_file(in("test.bin")));
    std::filesystem::remove(in("test.bin"));
    write_file(in("test.bin.gz"), packed);
    Status status = import("cifar100");
    ASSERT_TRUE(status.ok()) << status.what;
    expect_records("train.h5", 50000, 0, 100, 100);
    expect_records("test.h5", 10000, 0, 600, 100);
    std::string bytes = read_file(out + "/test.h5");
    size_t begin = bytes.find("apple,aquarium_fish"), end = bytes.find(",worm", begin);
    ASSERT_NE(end, std::string::npos);
    EXPECT_EQ(std::count(bytes.begin() + static_cast<int64_t>(begin), bytes.begin() + static_cast<int64_t>(end) + 1, ','), 99);

    std::filesystem::remove_all(out);
    write_file(in("test.bin.gz"), packed.substr(0, packed.size() - 1));
    expect_refused("cifar100", {"test.bin.gz"});
}

TEST_F(ImportCifar, LabelOutOfRange) {
    std::string bytes = records(300, 1, 10);
    bytes[7 * (1 + pixels)] = 10;
    write_file(in("data_batch_3.bin"), bytes);
    expect_refused("cifar10", {"from/data_batch_3.bin: label 10 of sample 7 is not below the 10 classes"});
    bytes = records(100, 2, 100);
    bytes[19 * (2 + pixels) + 1] = '\xff';
    write_file(in("train.bin"), bytes);
    expect_refused("cifar100", {"from/train.bin: label 255 of sample 19 is not below the 100 classes"});
}

TEST_F(ImportCifar, TruncatedTooLongOrMissing) {
    for (uint64_t kept : {0, 1, 3073, 3073 * 9999, 3073 * 10000 - 1}) {
        std::filesystem::resize_file(in("data_batch_1.bin"), kept);
        expect_refused("cifar10", {fmt::format("from/data_batch_1.bin: truncated: it ends within record {} of 10000", kept / 3073)});
    }
    std::filesystem::resize_file(in("data_batch_1.bin"), 3073 * 10000 + 1);
    expect_refused("cifar10", {"from/data_batch_1.bin: longer than 10000 records of 3073 bytes"});
    std::filesystem::remove(in("data_batch_1.bin"));
    expect_refused("cifar10", {"from/data_batch_1.bin[.gz, .xz] is missing", "--from", "unpacks"});
    ASSERT_EQ(::mkfifo(in("data_batch_1.bin").c_str(), 0600), 0);
    expect_refused("cifar10", {"from/data_batch_1.bin: it is a pipe, not a file"});
}

// Members in any order, among other files.
TEST_F(ImportCifar, Archives) {
    std::vector<std::pair<std::string, std::string>> files{{"readme.html", "<html>"}};
    for (const char* name :
         {"test_batch.bin", "data_batch_4.bin", "data_batch_1.bin", "data_batch_5.bin", "data_batch_2.bin", "data_batch_3.bin"})
        files.emplace_back(name, read_file(in(name)));
    const std::string tar = tar_bytes(files), original = from;
    const std::string kinds[] = {tar, gz_bytes(folder.file("x"), tar), xz_bytes(tar)};
    for (int i = 0; i < 3; ++i) {
        from = folder.file("archive");
        if (i == 2) {
            from = folder.file("packed");
            std::filesystem::create_directory(from);
        }
        write_file(i == 2 ? in("cifar-10-binary.tar.xz") : from,
                   kinds[i]);   // by path (the suffix is wrong on purpose), or found in the folder
        Status status = import("cifar10");
        ASSERT_TRUE(status.ok()) << status.what;
        expect_records("train.h5", 50000, 30000, 400, 10);
        expect_records("test.h5", 10000, 0, 600, 10);
        std::filesystem::remove_all(out);
        from = folder.file("archive");
        write_file(from, kinds[i].substr(0, i == 0 ? 512 * 100 : kinds[i].size() - 11));
        expect_refused("cifar10", {"archive: truncated: it ends within"});
    }
    std::string bytes = kinds[2];
    bytes[bytes.size() / 4] ^= 0x10;
    write_file(from, bytes);
    expect_refused("cifar10", {"archive: damaged: xz cannot unpack it"});
    bytes = tar.substr(0, 4096);
    bytes[3] ^= 0x10;
    write_file(from, bytes);
    expect_refused("cifar10", {"archive: not a tar archive"});
    write_file(from, tar_bytes({files[0]}));
    expect_refused("cifar10", {"archive: has no file data_batch_1.bin", "--from", "the binary version"});
    write_file(from, tar_bytes({{"data_batch_1.bin", "short"}}));
    expect_refused("cifar10", {"archive: data_batch_1.bin: truncated: it ends within record 0 of 10000"});
}

TEST_F(ImportCifar, Xz) {
    write_file(in("test.bin.xz"), xz_bytes(read_file(in("test.bin"))));
    std::filesystem::remove(in("test.bin"));
    Status status = import("cifar100");
    ASSERT_TRUE(status.ok()) << status.what;
    expect_records("test.h5", 10000, 0, 600, 100);
}

TEST(Import, FashionMnist) {
    TestFolder folder;
    ImportResult result;
    Status status = data_import({.kind = "fashion-mnist", .from = "", .out = folder.file("out")}, &result);
    if (!std::filesystem::exists("/usr/share/datasets/fashion-mnist")) {
        expect_error(status, {"apt-get install dataset-fashion-mnist"});
        GTEST_SKIP() << "package dataset-fashion-mnist is missing";
    }
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(result.train, 60000u);
    EXPECT_EQ(result.test, 10000u);
    std::unique_ptr<DataSet> data;
    status = data_open(result.paths[0], &data);
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_TRUE(data_verify(*data).ok());
    EXPECT_NEAR(data->info().mean[0], 0.2860406f, 1e-6);   // as published for this set
    EXPECT_NEAR(data->info().std[0], 0.3530242f, 1e-6);
    std::vector<uint64_t> counts(10), indices(60000);
    for (uint64_t i = 0; i < 60000; ++i) indices[i] = i;
    std::vector<int32_t> labels(60000);
    data->labels(indices, labels.data());
    for (int32_t label : labels) ++counts[label];
    EXPECT_EQ(counts, std::vector<uint64_t>(10, 6000));
}

}   // namespace
}   // namespace gradcast
