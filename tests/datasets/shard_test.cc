#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <functional>
#include <set>
#include <thread>

#include "datasets/hdf5.h"
#include "tests/datasets/support.h"

namespace gradcast {
namespace {

TEST(Shard, ReadsWhatItWrote) {
    TestFolder folder;
    for (auto info : {info_of(1, 1, 1, 1, 1), info_of(300, 3, 8, 9, 10), info_of(5000, 1, 28, 28, 256), info_of(700, 2, 3, 5, 1000)}) {
        std::string path = folder.file("a.h5");
        ASSERT_TRUE(write_shard(path, info).ok());
        Shard shard;
        Status status = shard_open(path, &shard);
        ASSERT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(shard.info.count, info.count);
        EXPECT_EQ(shard.info.C, info.C);
        EXPECT_EQ(shard.info.H, info.H);
        EXPECT_EQ(shard.info.W, info.W);
        EXPECT_EQ(shard.info.classes, info.classes);
        EXPECT_EQ(shard.info.mean, info.mean);
        EXPECT_EQ(shard.info.std, info.std);
        EXPECT_EQ(shard.info.source, info.source);
        EXPECT_EQ(shard.target_bytes, info.classes > 256 ? 2u : 1u);
        EXPECT_EQ(shard.samples_offset % 4096, 0u);
        EXPECT_EQ(shard.targets_offset % 4096, 0u);
        status = shard_verify(shard);
        EXPECT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(folder.names(), std::vector<std::string>{"a.h5"});

        std::unique_ptr<DataSet> data;
        ASSERT_TRUE(data_open(path, &data).ok());
        std::vector<uint64_t> indices;
        for (uint64_t i = 0; i < info.count; i += 1 + i % 5 * (i % 3)) indices.push_back(info.count - 1 - i);
        std::sort(indices.begin(), indices.begin() + static_cast<int64_t>(indices.size() / 2));   // one half has runs
        uint64_t bytes = data->sample_bytes();
        std::vector<uint8_t> images(indices.size() * bytes);
        std::vector<int32_t> labels(indices.size());
        ASSERT_TRUE(data->read(indices, images.data(), labels.data()).ok());
        for (size_t i = 0; i < indices.size(); ++i) expect_sample(indices[i], &images[i * bytes], bytes, labels[i], info.classes);
    }
}

// Data is damaged only where its content is wrong.
TEST(Shard, ALimitOfOpenFilesIsNoDamage) {
    TestFolder folder;
    ASSERT_TRUE(write_shard(folder.file("a.h5"), info_of(300, 3, 8, 9, 10)).ok());
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    const int free = ::open("/dev/null", O_RDONLY);
    ::close(free);
    const rlimit one{static_cast<rlim_t>(free) + 1, limit.rlim_max};   // HDF5 opens the file once more
    Shard shard;
    ::setrlimit(RLIMIT_NOFILE, &one);
    const Status status = shard_open(folder.file("a.h5"), &shard);
    ::setrlimit(RLIMIT_NOFILE, &limit);
    EXPECT_EQ(status.code, Code::node_io);
    EXPECT_TRUE(std::string(status.what).starts_with("cannot open " + folder.file("a.h5") + ": Too many open files (RLIMIT_NOFILE is "))
        << status.what;
}

TEST(Shard, SameDataSameBytes) {
    TestFolder folder;
    ASSERT_TRUE(write_shard(folder.file("a.h5"), info_of(300, 3, 8, 9, 10)).ok());
    ASSERT_TRUE(write_shard(folder.file("b.h5"), info_of(300, 3, 8, 9, 10)).ok());
    EXPECT_EQ(read_file(folder.file("a.h5")), read_file(folder.file("b.h5")));
}

TEST(Shard, RefusesToWriteWrongLabels) {
    TestFolder folder;
    DataInfo info = info_of(3, 1, 2, 2, 10);
    std::vector<uint8_t> images(12);
    for (int32_t wrong : {10, -1}) {
        std::vector<int32_t> labels{1, wrong, 2};
        expect_error(shard_write(folder.file("a.h5"), info, images.data(), labels.data()),
                     {"a.h5", "sample 1", fmt::format("{}", wrong), "10 classes"});
    }
    std::vector<int32_t> labels{1, 2, 3};
    expect_error(shard_write(folder.file("no/a.h5"), info, images.data(), labels.data()), {"no/a.h5.part", "No such file or directory"});
    std::filesystem::create_directory(folder.file("taken"));
    expect_error(shard_write(folder.file("taken"), info, images.data(), labels.data()), {"taken", "directory"});
    EXPECT_EQ(folder.names(), std::vector<std::string>{"taken"});
}

// Also from several threads at once, which HDF5 does not support.
TEST(Shard, SaysWhyItCannotBeWritten) {
    TestFolder folder;
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    rlimit small = before;
    small.rlim_cur = 50'000;
    auto handler = std::signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    Status status = write_shard(folder.file("a.h5"), info_of(500, 1, 28, 28, 10));
    ::setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    expect_error(status, {"cannot write", "a.h5", "File too large"});
    EXPECT_TRUE(folder.names().empty());
    EXPECT_TRUE(write_shard(folder.file("a.h5"), info_of(500, 1, 28, 28, 10)).ok());   // HDF5 works afterwards, also at exit
}

TEST(Shard, OpensFromManyThreads) {
    TestFolder folder;
    std::thread threads[4];
    for (int t = 0; t < 4; ++t)
        threads[t] = std::thread([&, t] {
            std::string path = folder.file(fmt::format("{}.h5", t));
            for (int i = 0; i < 10; ++i) {
                Shard shard;
                ASSERT_TRUE(write_shard(path, info_of(20, 1, 4, 4, 10)).ok());
                ASSERT_TRUE(shard_open(path, &shard).ok());
                ASSERT_FALSE(shard_open(folder.file("none.h5"), &shard).ok());
            }
        });
    for (auto& thread : threads) thread.join();
}

// ---- broken shards ---------------------------------------------------------------------------------------------------------------

/// A shard of 2000 samples of 3 x 20 x 20 (three chunks of up to 873 samples) for the tests to damage.
class BrokenShard : public ::testing::Test {
protected:
    TestFolder folder;
    std::string path = folder.file("bad.h5");
    Shard good;
    void SetUp() override {
        ASSERT_TRUE(write_shard(path, info_of(2000, 3, 20, 20, 10)).ok());
        ASSERT_TRUE(shard_open(path, &good).ok());
        ASSERT_EQ(good.digest_samples, 873u);
    }
    void edit(const std::function<void(hid_t)>& change) {
        Hdf5Lock lock;
        Hid file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
        ASSERT_TRUE(file);
        change(file.get());
    }
    void attribute(const char* object, const char* name, hid_t type, std::vector<hsize_t> dims, const void* value) {
        edit([&](hid_t file) {
            Hid at(H5Oopen(file, object, H5P_DEFAULT));
            H5Adelete(at.get(), name);
            Hid space(dims.empty() ? H5Screate(H5S_SCALAR) : H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr));
            Hid attribute(H5Acreate2(at.get(), name, type, space.get(), H5P_DEFAULT, H5P_DEFAULT));
            ASSERT_GE(H5Awrite(attribute.get(), type, value), 0);
        });
    }
    void text(const char* object, const char* name, std::vector<hsize_t> dims, size_t bytes, const std::string& value) {
        Hid type(H5Tcopy(H5T_C_S1));
        H5Tset_size(type.get(), bytes);
        attribute(object, name, type.get(), std::move(dims), value.data());
    }
    /// Replaces the data set of that name; keep: with its digests.
    void data_set(const char* name, hid_t type, std::vector<hsize_t> dims, const std::function<void(hid_t)>& layout = {},
                  bool write = true) {
        edit([&](hid_t file) {
            H5Ldelete(file, name, H5P_DEFAULT);
            Hid creation(H5Pcreate(H5P_DATASET_CREATE)), space(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr));
            if (layout) layout(creation.get());
            Hid data_set(H5Dcreate2(file, name, type, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT));
            ASSERT_TRUE(data_set);
            std::vector<uint8_t> zeros(1 << 24);
            if (!write) return;
            ASSERT_GE(H5Dwrite(data_set.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros.data()), 0);
        });
    }
    Status open() const {
        Shard shard;
        return shard_open(path, &shard);
    }
};

TEST_F(BrokenShard, NotHdf5) {
    expect_error(shard_open(folder.file("none.h5"), &good), {"none.h5", "No such file"});
    expect_error(shard_open(folder.path.string(), &good), {folder.path.string(), "a folder: name the shards in it"});
    expect_error(shard_open("/dev/null", &good), {"/dev/null", "not a file"});
    for (const char* text : {"", "a text file\n", "\x89HDF\r\n\x1a"}) {
        write_file(path, text);
        expect_error(open(), {"bad.h5", "not a gradcast shard", "not an HDF5 file"});
    }
    std::unique_ptr<DataSet> data;
    expect_error(data_open(folder.file("x*.h5"), &data), {"no file matches", "x*.h5"});
}

TEST_F(BrokenShard, APipeIsNotWaitedFor) {
    std::filesystem::remove(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    expect_error(open(), {"bad.h5", "a pipe, not a file"});
    std::unique_ptr<DataSet> data;
    expect_error(data_open(folder.file("b*.h5"), &data), {"bad.h5", "a pipe, not a file"});
}

// Errors for a confidential wildcard do not show which files exist.
TEST(Confidential, AWildcardTellsNothingOfTheFilesItFinds) {
    TestFolder folder;
    std::filesystem::create_directory(folder.file("sub"));
    for (uint32_t i : {1u, 2u})
        ASSERT_TRUE(write_shard(folder.file(fmt::format("good-name{}.h5", i)), info_of(20, 1, 6, 6, 10), 20 * i).ok());
    write_file(folder.file("secret-name"), "no shard");
    write_file(folder.file("secret-cut.h5"), read_file(folder.file("good-name1.h5")).substr(0, 3000));
    ASSERT_EQ(::mkfifo(folder.file("secret-pipe").c_str(), 0600), 0);
    const DataOptions confidential{.confidential = true};
    std::unique_ptr<DataSet> data;
    auto error = [&](const std::string& pattern) {
        const std::string what = data_open(folder.file(pattern), &data, confidential).what;
        EXPECT_EQ(what.find("secret-name"), what.npos) << what;
        EXPECT_EQ(what.find("secret-cut"), what.npos) << what;
        EXPECT_EQ(what.find("secret-pipe"), what.npos) << what;
        std::string masked = what;
        for (size_t at; (at = masked.find(folder.file(pattern))) != masked.npos;)
            masked.replace(at, folder.file(pattern).size(), "PATTERN");
        return masked;
    };
    const std::string absent = error("none*");
    EXPECT_EQ(absent, "PATTERN: no file matches, or one that does is not a gradcast shard: gradcastctl data inspect 'PATTERN' says more");
    for (const char* pattern : {"secret-n*", "secret-c*", "secret-p*", "*", "s*", "*-name*", "[g]ood-name?.h5*x"})
        EXPECT_EQ(error(pattern), absent) << pattern;
    // Also in a manifest.
    for (const char* entry : {"none*", "secret-n*", "secret-c*"}) {
        write_file(folder.file("all.toml"), fmt::format("shards = [\n\"{}\"]", entry));
        const std::string what = data_open(folder.file("all.toml"), &data, confidential).what;
        EXPECT_EQ(
            what,
            fmt::format(
                "{0}: line 2: {1}: no file matches, or one that does is not a gradcast shard: gradcastctl data inspect '{1}' says more",
                folder.file("all.toml"), folder.file(entry)));
    }
    // A path without wildcard is shown; a match of a wildcard is shown by its number.
    expect_error(data_open(folder.file("secret-cut.h5"), &data, confidential), {"secret-cut.h5", "truncated"});
    ASSERT_TRUE(data_open(folder.file("good-*.h5"), &data, confidential).ok());
    EXPECT_TRUE(data_verify(*data).ok());
    Shard second;
    ASSERT_TRUE(shard_open(folder.file("good-name2.h5"), &second).ok());
    std::string bytes = read_file(second.path);
    bytes[second.samples_offset] ^= 1;
    write_file(second.path, bytes);
    ASSERT_TRUE(data_open(folder.file("good-*.h5"), &data, confidential).ok());
    const std::string damaged = data_verify(*data).what;
    EXPECT_EQ(damaged.find(folder.file("good-*.h5") + " (file 2): data set images, chunk 0"), 0u) << damaged;
    EXPECT_EQ(damaged.find("good-name"), damaged.npos) << damaged;
}

TEST(Stop, EndsOpeningAndVerifying) {
    TestFolder folder;
    ASSERT_TRUE(write_shard(folder.file("a.h5"), info_of(20, 1, 6, 6, 10)).ok());
    std::atomic<bool> stop = true;
    std::unique_ptr<DataSet> data;
    EXPECT_EQ(data_open(folder.file("a.h5"), &data, {.stop = &stop}).code, Code::cancelled);
    ASSERT_TRUE(data_open(folder.file("a.h5"), &data).ok());
    EXPECT_EQ(data_verify(*data, &stop).code, Code::cancelled);
    stop = false;
    EXPECT_TRUE(data_verify(*data, &stop).ok());
}

TEST_F(BrokenShard, AnotherHdf5File) {
    {
        Hdf5Lock lock;
        Hid file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
    }
    expect_error(open(), {"bad.h5", "not a gradcast shard", "attribute format is missing"});
}

TEST_F(BrokenShard, TruncatedAnywhere) {
    std::string whole = read_file(path);
    for (uint64_t kept : {whole.size() - 1, good.targets_offset + 100, good.samples_offset + 5000, uint64_t{3000}, uint64_t{600},
                          uint64_t{100}, uint64_t{20}}) {
        write_file(path, std::string_view(whole).substr(0, kept));
        expect_error(open(), {"bad.h5"});
    }
    write_file(path, std::string_view(whole).substr(0, good.samples_offset + 5000));
    expect_error(open(), {"bad.h5", "images", "chunk 0", "truncated", fmt::format("byte {}", good.samples_offset + 5000)});
    write_file(path, std::string_view(whole).substr(0, good.targets_offset + 100));
    expect_error(open(), {"bad.h5", "labels", "chunk 0", "(sample 100)", "truncated"});
}

// Flips every byte of a small shard, one by one: each is refused or leaves the samples intact.  Not under sanitizers ("Slow"): HDF5 1.10
// reads past its own memory if an attribute's size is damaged.
using SlowBrokenShard = BrokenShard;
TEST_F(SlowBrokenShard, DamagedAnywhere) {
    ASSERT_TRUE(write_shard(path, info_of(40, 1, 10, 10, 10)).ok());
    std::string whole = read_file(path);
    uint64_t refused = 0;
    for (size_t at = 0; at < whole.size(); ++at) {
        if (whole[at] == 0 && at % 16 != 0) continue;   // zeros are mostly padding
        flip(path, at);
        std::unique_ptr<DataSet> data;
        Status status = data_open(path, &data);
        if (status.ok()) status = data_verify(*data);
        if (status.ok() && data->info().count == 40) {
            uint64_t index = at % 40;
            std::vector<uint8_t> image(data->sample_bytes());
            int32_t label;
            ASSERT_TRUE(data->read({&index, 1}, image.data(), &label).ok());
            expect_sample(index, image.data(), image.size(), label, 10);
        }
        refused += !status.ok();
        flip(path, at);
    }
    ASSERT_EQ(read_file(path), whole);
    EXPECT_GT(refused, 4200u);   // 4000 pixels, 40 labels, the digests and more
}

TEST_F(BrokenShard, FlippedPixelNamesTheChunk) {
    flip(path, good.samples_offset + 1200 * 1000 + 17);
    EXPECT_TRUE(open().ok());
    expect_error(shard_verify(good), {"bad.h5", "images", "chunk 1", "873 .. 1745", "SHA-256"});
    std::unique_ptr<DataSet> data;
    ASSERT_TRUE(data_open(path, &data).ok());
    expect_error(data_verify(*data), {"bad.h5", "images", "chunk 1"});
}

TEST_F(BrokenShard, FlippedLabelNamesTheChunk) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(good.targets_offset + 1999));
    file.put(static_cast<char>((label_of(1999, 10) + 1) % 10));
    file.close();
    expect_error(shard_verify(good), {"bad.h5", "labels", "chunk 2", "1746 .. 1999", "SHA-256"});
}

TEST_F(BrokenShard, LabelOutOfRangeNamesTheSample) {
    flip(path, good.targets_offset + 900);   // makes the label at least 16
    auto label = fmt::format("label {}", label_of(900, 10) ^ 0x10);
    expect_error(shard_verify(good), {"bad.h5", "labels", "chunk 1", "sample 900", label, "10 classes"});
    std::unique_ptr<DataSet> data;
    expect_error(data_open(path, &data), {"bad.h5", "labels", "chunk 1", "sample 900", label, "10 classes"});
    // The same with 2-byte labels.
    ASSERT_TRUE(write_shard(path, info_of(100, 1, 2, 2, 300)).ok());
    ASSERT_TRUE(shard_open(path, &good).ok());
    flip(path, good.targets_offset + 2 * 50 + 1);
    label = fmt::format("label {}", label_of(50, 300) ^ 0x1000);
    expect_error(shard_verify(good), {"bad.h5", "labels", "chunk 0", "sample 50", label, "300 classes"});
    expect_error(data_open(path, &data), {"bad.h5", "labels", "chunk 0", "sample 50", label, "300 classes"});
}

TEST_F(BrokenShard, MissingDataSet) {
    edit([](hid_t file) { ASSERT_GE(H5Ldelete(file, "labels", H5P_DEFAULT), 0); });
    expect_error(open(), {"bad.h5", "labels", "missing"});
    edit([](hid_t file) { ASSERT_GE(H5Ldelete(file, "images", H5P_DEFAULT), 0); });
    expect_error(open(), {"bad.h5", "images", "missing"});
    edit([](hid_t file) { Hid group(H5Gcreate2(file, "images", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)); });
    expect_error(open(), {"bad.h5", "images"});
}

TEST_F(BrokenShard, LinksToOtherPlaces) {
    ASSERT_TRUE(write_shard(folder.file("other.h5"), info_of(2000, 3, 20, 20, 10)).ok());
    edit([](hid_t file) {
        ASSERT_GE(H5Ldelete(file, "images", H5P_DEFAULT), 0);
        ASSERT_GE(H5Lcreate_external("other.h5", "images", file, "images", H5P_DEFAULT, H5P_DEFAULT), 0);
    });
    expect_error(open(), {"bad.h5", "images", "missing"});
    data_set("images", H5T_NATIVE_UINT8, {2000, 3, 20, 20},
             [&](hid_t creation) { H5Pset_external(creation, folder.file("raw").c_str(), 0, 2000 * 1200); });
    expect_error(open(), {"bad.h5", "images", "contiguously in this file"});
}

TEST_F(BrokenShard, WrongShapesAndTypes) {
    data_set("images", H5T_NATIVE_UINT16, {2000, 3, 20, 20});
    expect_error(open(), {"bad.h5", "images", "not uint8"});
    data_set("images", H5T_NATIVE_FLOAT, {2000, 3, 20, 20});
    expect_error(open(), {"bad.h5", "images", "is float32, not uint8: (x * 255).round().astype(\"uint8\")", "help shard"});
    data_set("images", H5T_NATIVE_UINT8, {2000, 20, 20, 3});
    expect_error(open(), {"bad.h5", "2000 x 20 x 20 x 3 for 3 means", "[N, H, W, C] in place of [N, C, H, W]", "x.transpose(0, 3, 1, 2)"});
    data_set("images", H5T_NATIVE_UINT8, {2000, 1200});
    expect_error(open(), {"bad.h5", "images", "2 dimensions instead of 4"});
    data_set("images", H5T_NATIVE_UINT8, {1999, 3, 20, 20});
    expect_error(open(), {"bad.h5", "labels has 2000 entries for 1999 images"});
    data_set("images", H5T_NATIVE_UINT8, {2000, 3, 0, 20}, {}, false);
    expect_error(open(), {"bad.h5", "images", "empty"});
    data_set("images", H5T_NATIVE_UINT8, {2000, 3, 20, 20}, {}, false);
    expect_error(open(), {"bad.h5", "images", "never written"});
    data_set("images", H5T_NATIVE_UINT8, {1, 1, 1, 1}, [](hid_t creation) { H5Pset_layout(creation, H5D_COMPACT); });
    expect_error(open(), {"bad.h5", "images", "contiguously"});
    data_set("images", H5T_NATIVE_UINT8, {1, 70000, 1, 1});
    data_set("labels", H5T_NATIVE_UINT8, {1});
    expect_error(open(), {"bad.h5", "images", "70000"});
    data_set("labels", H5T_NATIVE_INT32, {1});
    expect_error(open(), {"bad.h5", "labels", "is int32, not uint8, or uint16 above 256 classes: labels.astype(\"uint8\")"});
    data_set("labels", H5T_NATIVE_UINT8, {1, 1});
    expect_error(open(), {"bad.h5", "labels", "2 dimensions instead of 1"});
}

TEST_F(BrokenShard, LabelsFromOne) {
    edit([](hid_t file) {
        Hid labels(H5Dopen2(file, "labels", H5P_DEFAULT));
        std::vector<uint8_t> from_1(2000);
        for (size_t i = 0; i < from_1.size(); ++i) from_1[i] = static_cast<uint8_t>(label_of(i, 10) + 1);
        ASSERT_GE(H5Dwrite(labels.get(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, from_1.data()), 0);
    });
    std::unique_ptr<DataSet> data;
    expect_error(data_open(path, &data), {"bad.h5: data set labels: they are 1 .. 10, but those of 10 classes are 0 .. 9: labels - 1"});
}

TEST_F(BrokenShard, AFileThatAnotherProgramHasOpen) {
    Fd other(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);   // as HDF5 does
    expect_error(open(), {"bad.h5: another program has it open for writing: close it there"});
    ASSERT_EQ(::ftruncate(other.get(), 0), 0);   // before it has written anything
    expect_error(open(), {"bad.h5: another program has it open for writing: close it there"});
}

TEST_F(BrokenShard, LabelsWithoutDigests) {
    data_set("labels", H5T_NATIVE_UINT8, {2000});
    expect_error(open(), {"bad.h5", "data set labels", "attribute sha256", "missing"});
}

TEST_F(BrokenShard, WrongAttributes) {
    auto number = [&](const char* name, int64_t value) { attribute("/", name, H5T_NATIVE_INT64, {}, &value); };
    auto floats = [&](const char* name, std::vector<float> values) {
        attribute("/", name, H5T_NATIVE_FLOAT, {values.size()}, values.data());
    };
    auto restore = [&](const char* what) {
        SCOPED_TRACE(what);
        ASSERT_TRUE(write_shard(path, info_of(2000, 3, 20, 20, 10)).ok());
    };
    text("/", "format", {}, 5, "other");
    expect_error(open(), {"bad.h5", "attribute format", "is not \"gradcast shard\""});
    restore("version");
    number("version", 3);
    expect_error(open(), {"bad.h5", "version 3", "newer", "update"});
    number("version", 0);
    expect_error(open(), {"bad.h5", "attribute version"});
    restore("classes");
    for (int64_t classes : {int64_t{0}, int64_t{-1}, int64_t{70000}, INT64_MAX}) {
        number("classes", classes);
        expect_error(open(), {"bad.h5", "attribute classes"});
    }
    text("/", "classes", {}, 2, "10");
    expect_error(open(), {"bad.h5", "attribute classes", "is text, not an integer"});
    uint32_t two[2] = {10, 10};
    attribute("/", "classes", H5T_NATIVE_UINT32, {2}, two);
    expect_error(open(), {"bad.h5", "attribute classes", "2 elements instead of 1"});
    number("classes", 5);   // fewer than the labels use
    std::unique_ptr<DataSet> data;
    expect_error(data_open(path, &data), {"bad.h5", "labels", "5 classes"});
    restore("mean");
    floats("mean", {1, 2});
    expect_error(open(), {"bad.h5", "attribute mean", "2 elements instead of 3"});
    for (float wrong : {NAN, 1.5f, -0.25f, 33.3f}) {
        floats("mean", {1, 0, wrong});
        expect_error(open(), {"bad.h5", "attribute mean", "outside 0 .. 1"});
    }
    restore("std");
    for (float wrong : {NAN, 0.0f, -1.0f, 78.6f}) {
        floats("std", {1, 0.1f, wrong});
        expect_error(open(), {"bad.h5", "attribute std", "not above 0 and at most 1"});
    }
    restore("digest_samples");
    number("digest_samples", 0);
    expect_error(open(), {"bad.h5", "attribute digest_samples"});
    number("digest_samples", 1);
    expect_error(open(), {"bad.h5", "attribute digest_samples", "chunks"});
    number("digest_samples", 1000);
    expect_error(open(), {"bad.h5", "attribute sha256", "3 elements instead of 2"});
    number("digest_samples", INT64_MAX);
    expect_error(open(), {"bad.h5", "attribute sha256", "3 elements instead of 1"});
    restore("source");
    text("/", "source", {}, 60000, std::string(60000, 'x'));
    expect_error(open(), {"bad.h5", "attribute source", "60000"});
    {
        Hdf5Lock lock;
        Hid file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT)), type(H5Tcopy(H5T_C_S1)), space(H5Screate(H5S_SCALAR));
        H5Adelete(file.get(), "source");
        H5Tset_size(type.get(), H5T_VARIABLE);
        Hid attribute(H5Acreate2(file.get(), "source", type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT));
        const char* value = "variable";
        ASSERT_GE(H5Awrite(attribute.get(), type.get(), &value), 0);
    }
    expect_error(open(), {"bad.h5", "attribute source", "is text of variable length, not text of fixed length (numpy.bytes_)",
                          "gradcastctl help shard"});
    restore("sha256");
    text("images", "sha256", {3}, 64, std::string(3 * 64, 'g'));
    expect_error(open(), {"bad.h5", "attribute sha256", "hex"});
    text("images", "sha256", {3}, 63, std::string(3 * 63, 'a'));
    expect_error(open(), {"bad.h5", "attribute sha256", "hex"});
    text("images", "sha256", {3}, 64, std::string(3 * 64, 'a'));
    ASSERT_TRUE(open().ok());
    ASSERT_TRUE(shard_open(path, &good).ok());
    expect_error(shard_verify(good), {"bad.h5", "images", "chunk 0"});
}

TEST_F(BrokenShard, OfVersion2) {
    const auto number = [&](const char* name, int64_t value) { attribute("/", name, H5T_NATIVE_INT64, {}, &value); };
    number("version", 2);
    expect_error(open(), {"bad.h5: data set samples is missing"});
    data_set("samples", H5T_NATIVE_DOUBLE, {2000, 3, 2, 2});
    expect_error(open(), {"samples is float64, not uint8, uint16, uint32 or float32"});
    data_set("samples", H5T_NATIVE_FLOAT, {2000, 12});
    expect_error(open(), {"samples has 2 dimensions instead of 4, [N, C, H, W], or 1, [N] of tokens"});
    data_set("samples", H5T_NATIVE_FLOAT, {2000, 3, 2, 2});
    expect_error(open(), {"data set targets is missing"});
    data_set("targets", H5T_NATIVE_UINT8, {2000, 2});
    expect_error(open(), {"targets is u8 with 2 dimensions: labels are [N], floats [N, K]"});
    data_set("targets", H5T_NATIVE_FLOAT, {2000});
    expect_error(open(), {"targets is f32 with 1 dimensions"});
    data_set("samples", H5T_NATIVE_FLOAT, {1, 3, 2, 2});
    data_set("targets", H5T_NATIVE_FLOAT, {1, 70000});
    expect_error(open(), {"targets has 70000 targets a sample, more than 65536"});
    data_set("samples", H5T_NATIVE_FLOAT, {2000, 3, 2, 2});
    data_set("targets", H5T_NATIVE_FLOAT, {1999, 2});
    expect_error(open(), {"targets has 1999 entries for 2000 samples"});
    data_set("targets", H5T_NATIVE_FLOAT, {2000, 2});
    expect_error(open(), {"attribute classes is 10, but samples with float targets are of 1 class"});
    number("classes", 1);
    const float infinite[] = {1, INFINITY, 0}, negative[] = {1, 1, -1};
    attribute("/", "mean", H5T_NATIVE_FLOAT, {3}, infinite);
    expect_error(open(), {"attribute mean is inf, not finite"});
    attribute("/", "mean", H5T_NATIVE_FLOAT, {3}, negative);
    attribute("/", "std", H5T_NATIVE_FLOAT, {3}, negative);
    expect_error(open(), {"attribute std is -1, not above 0"});
    data_set("samples", H5T_NATIVE_FLOAT, {2000});
    expect_error(open(), {"samples is f32 with 1 dimension: tokens are uint16 or uint32"});
    data_set("samples", H5T_NATIVE_UINT16, {2000});
    expect_error(open(), {"attribute vocabulary is missing"});
    number("vocabulary", 70000);
    expect_error(open(), {"attribute vocabulary is 70000, outside 1 .. 65536"});
    number("vocabulary", 70);
    expect_error(open(), {"data set samples: not a gradcast shard: attribute sha256 is missing"});
}

// A value that is no number is found when all is read, also where a read ends within it.
TEST(TypedShard, ValuesThatAreNotFinite) {
    TestFolder folder;
    const std::string path = folder.file("t.h5");
    DataInfo info = info_of(300'000, 1, 1, 1, 1);
    info.element = Element::f32;
    info.targets = 1;
    std::vector<float> values(info.count, 1), targets(info.count, 2);
    const auto write = [&](uint32_t compress) {
        return shard_write(path, info, reinterpret_cast<const uint8_t*>(values.data()), std::as_bytes(std::span(targets)).data(), compress);
    };
    Shard shard;
    for (const uint32_t compress : {0u, 1u}) {
        ASSERT_TRUE(write(compress).ok() && shard_open(path, &shard).ok());
        EXPECT_TRUE(shard_verify(shard).ok());
        values[280'001] = NAN;
        ASSERT_TRUE(write(compress).ok() && shard_open(path, &shard).ok());
        expect_error(shard_verify(shard), {"t.h5: data set samples, chunk 1 (sample 280001): a value is not finite"});
        values[280'001] = 1;
    }
    targets[7] = -INFINITY;
    ASSERT_TRUE(write(0).ok() && shard_open(path, &shard).ok());
    expect_error(shard_verify(shard), {"t.h5: data set targets, chunk 0 (sample 7): a value is not finite"});
}

DataInfo masks_of(uint64_t count, uint32_t H, uint32_t W, uint32_t classes, Element element) {
    DataInfo info = info_of(count, 3, H, W, classes);
    info.targets = H * W;
    info.target_element = element;
    return info;
}

// Masks stay on disk and are read with their samples.
TEST(TypedShard, Masks) {
    for (const Element element : {Element::u8, Element::u16}) {
        TestFolder folder;
        const uint32_t width = element_bytes(element);
        DataInfo info = masks_of(40, 5, 7, 9, element);
        info.ignore = 200;
        std::vector<uint8_t> images(40 * 105);
        std::vector<std::byte> masks(40 * 35 * width);
        for (size_t i = 0; i < images.size(); ++i) images[i] = pixel_of(i / 105, i % 105);
        for (size_t i = 0; i < 40 * 35; ++i) masks[i * width] = static_cast<std::byte>(i % 11 == 10 ? 200 : i % 9);
        ASSERT_TRUE(shard_write(folder.file("a.h5"), info, images.data(), masks.data()).ok());
        std::unique_ptr<DataSet> data;
        Status status = data_open(folder.file("a.h5"), &data);
        ASSERT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(data->info().ignore, 200);
        EXPECT_TRUE(data->info().masks() && !data->info().regression());
        status = data_verify(*data);
        ASSERT_TRUE(status.ok()) << status.what;
        const std::vector<uint64_t> indices{3, 4, 5, 39, 0};
        std::vector<uint8_t> found(5 * 105);
        std::vector<std::byte> its(5 * 35 * width);
        std::vector<int32_t> labels(5, 9);
        ASSERT_TRUE(data->read(indices, found.data(), labels.data(), its.data()).ok());
        for (size_t i = 0; i < 5; ++i) {
            EXPECT_EQ(std::memcmp(&its[i * 35 * width], &masks[indices[i] * 35 * width], 35 * width), 0) << i;
            EXPECT_EQ(found[i * 105 + 7], pixel_of(indices[i], 7));
            EXPECT_EQ(labels[i], 0);
        }
        masks[(17 * 35 + 2 * 7 + 6) * width] = std::byte{9};
        ASSERT_TRUE(shard_write(folder.file("a.h5"), info, images.data(), masks.data()).ok());
        ASSERT_TRUE(data_open(folder.file("a.h5"), &data).ok());
        expect_error(data_verify(*data),
                     {"a.h5: data set targets, chunk 0 (sample 17, row 2, column 6): label 9 is not below the 9 classes"});
        expect_error(data_open(folder.file("a.h5"), &data, {.classes = 2}), {"classes = 2: ", "has masks, not one class a sample"});
        std::filesystem::resize_file(folder.file("a.h5"), data->shards()[0].targets_offset + 20 * 35 * width);
        expect_error(data->read(indices, found.data(), labels.data(), its.data()),
                     {"data set targets", "(sample 39)", "truncated while in use"});
    }
}

TEST(DataSet, MeanAndDeviationInPlaceOfThose) {
    TestFolder folder;
    const std::string path = folder.file("a.h5");
    ASSERT_TRUE(write_shard(path, info_of(20, 3, 2, 2, 10)).ok());
    std::unique_ptr<DataSet> plain, data, again;
    ASSERT_TRUE(data_open(path, &plain).ok());
    ASSERT_TRUE(data_open(path, &data, {.mean = {0.5f, 0.25f, 0}, .std = {1, 2, 3}}).ok());
    ASSERT_TRUE(data_open(path, &again, {.mean = {0.5f, 0.25f, 0}}).ok());
    EXPECT_EQ(data->info().mean, (std::vector<float>{0.5f, 0.25f, 0}));
    EXPECT_EQ(data->info().std, (std::vector<float>{1, 2, 3}));
    EXPECT_EQ(again->info().std, plain->info().std);
    EXPECT_NE(data->digest(), plain->digest());
    EXPECT_NE(data->digest(), again->digest());
    expect_error(data_open(path, &data, {.mean = {1}}), {"mean = 1 numbers: the samples of ", "have 3 channels"});
}

// ---- several shards --------------------------------------------------------------------------------------------------------------

TEST(DataSet, JoinsShardsInOrder) {
    TestFolder folder;
    ASSERT_TRUE(write_shard(folder.file("t-b.h5"), info_of(31, 1, 6, 6, 10), 20).ok());
    ASSERT_TRUE(write_shard(folder.file("t-a.h5"), info_of(20, 1, 6, 6, 10), 0).ok());
    ASSERT_TRUE(write_shard(folder.file("t-c.h5"), info_of(1, 1, 6, 6, 10), 51).ok());
    std::unique_ptr<DataSet> data, again, part;
    Status status = data_open(folder.file("t-*.h5"), &data);
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(data->info().count, 52u);
    EXPECT_EQ(data->pattern(), folder.file("t-*.h5"));
    std::vector<uint64_t> indices(52);
    for (uint64_t i = 0; i < 52; ++i) indices[i] = i;
    std::vector<uint8_t> images(52 * 36);
    std::vector<int32_t> labels(52);
    ASSERT_TRUE(data->read(indices, images.data(), labels.data()).ok());
    for (uint64_t i = 0; i < 52; ++i) expect_sample(i, &images[i * 36], 36, labels[i], 10);
    EXPECT_TRUE(data_verify(*data).ok());

    ASSERT_TRUE(data_open(folder.file("t-?.h5"), &again).ok());
    EXPECT_EQ(data->digest(), again->digest());
    EXPECT_EQ(data->digest().size(), 64u);
    ASSERT_TRUE(data_open(folder.file("t-[ab].h5"), &part).ok());
    EXPECT_NE(data->digest(), part->digest());
}

TEST(DataSet, ShardsMustBeAlike) {
    TestFolder folder;
    std::unique_ptr<DataSet> data;
    ASSERT_TRUE(write_shard(folder.file("a.h5"), info_of(20, 1, 6, 6, 10)).ok());
    for (auto info : {info_of(20, 1, 6, 7, 10), info_of(20, 3, 6, 6, 10), info_of(20, 1, 6, 6, 11)}) {
        ASSERT_TRUE(write_shard(folder.file("b.h5"), info).ok());
        expect_error(data_open(folder.file("?.h5"), &data), {"b.h5", "a.h5", "alike"});
    }
    DataInfo info = info_of(20, 1, 6, 6, 10);
    info.mean[0] = 0.5f;
    ASSERT_TRUE(write_shard(folder.file("b.h5"), info).ok());
    expect_error(data_open(folder.file("?.h5"), &data), {"b.h5", "a.h5", "mean"});
}

// DataOptions::classes hides the samples of other classes, for any shards and reads.
TEST(DataSet, KeepsTheFirstClasses) {
    TestFolder folder;
    ASSERT_TRUE(write_shard(folder.file("a.h5"), info_of(40, 1, 6, 6, 10), 0).ok());
    ASSERT_TRUE(write_shard(folder.file("b.h5"), info_of(300, 1, 6, 6, 10), 40).ok());
    std::set<std::string> digests;
    for (uint32_t classes : {0u, 1u, 3u, 9u, 10u}) {
        std::vector<uint64_t> wanted;   // numbers in the series
        for (uint64_t i = 0; i < 340; ++i)
            if (classes == 0 || label_of(i, 10) < static_cast<int32_t>(classes)) wanted.push_back(i);
        std::unique_ptr<DataSet> data;
        Status status = data_open(folder.file("?.h5"), &data, {.classes = classes});
        ASSERT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(data->info().classes, classes ? classes : 10);
        ASSERT_EQ(data->info().count, wanted.size());
        EXPECT_TRUE(data_verify(*data).ok());
        digests.insert(data->digest());
        for (bool back : {false, true}) {   // in order: runs of adjacent samples
            std::vector<uint64_t> indices(wanted.size());
            for (uint64_t i = 0; i < indices.size(); ++i) indices[i] = back ? indices.size() - 1 - i : i;
            std::vector<uint8_t> images(indices.size() * 36);
            std::vector<int32_t> labels(indices.size());
            ASSERT_TRUE(data->read(indices, images.data(), labels.data()).ok());
            for (uint64_t i = 0; i < indices.size(); ++i) expect_sample(wanted[indices[i]], &images[i * 36], 36, labels[i], 10);
        }
    }
    EXPECT_EQ(digests.size(), 4u);   // naming all classes equals naming none
}

TEST(DataSet, ClassesThatAreNotThere) {
    TestFolder folder;
    ASSERT_TRUE(write_shard(folder.file("a.h5"), info_of(40, 1, 6, 6, 10), 0).ok());
    std::unique_ptr<DataSet> data;
    expect_error(data_open(folder.file("a.h5"), &data, {.classes = 11}), {"classes = 11", "the 10 of", "a.h5"});
    DataInfo info = info_of(2, 1, 6, 6, 10);
    std::vector<uint8_t> images(2 * 36);
    ASSERT_TRUE(shard_write(folder.file("b.h5"), info, images.data(), std::vector<int32_t>{5, 6}.data()).ok());
    expect_error(data_open(folder.file("b.h5"), &data, {.classes = 5}), {"b.h5", "no sample of the first 5 classes"});
}

TEST(DataSet, DigestTellsDataApart) {
    TestFolder folder;
    std::set<std::string> digests;
    DataInfo info = info_of(20, 1, 6, 6, 10), other = info;
    other.std[0] = 0.75f;
    auto add = [&](const DataInfo& each, uint64_t first) {
        std::unique_ptr<DataSet> data;
        ASSERT_TRUE(write_shard(folder.file("a.h5"), each, first).ok());
        ASSERT_TRUE(data_open(folder.file("a.h5"), &data).ok());
        digests.insert(data->digest());
    };
    add(info, 0);
    add(info, 1);
    add(other, 0);
    add(info_of(20, 1, 6, 6, 11), 0);
    add(info_of(20, 1, 4, 9, 10), 0);
    EXPECT_EQ(digests.size(), 5u);
}

TEST(DataSet, SaysWhereAReadFailed) {
    TestFolder folder;
    std::string path = folder.file("a.h5");
    ASSERT_TRUE(write_shard(path, info_of(2000, 3, 20, 20, 10)).ok());
    std::unique_ptr<DataSet> data;
    ASSERT_TRUE(data_open(path, &data).ok());
    std::filesystem::resize_file(path, data->shards()[0].samples_offset + 1000 * 1200 + 600);   // in the middle of sample 1000
    std::vector<uint64_t> indices{998, 999, 1000, 1001};
    std::vector<uint8_t> images(4 * 1200);
    std::vector<int32_t> labels(4);
    expect_error(data->read(indices, images.data(), labels.data()), {"a.h5", "images", "chunk 1", "sample 1000", "truncated"});
    ASSERT_GE(::dup2(::open("/", O_RDONLY | O_CLOEXEC), data->fd(0)), 0);   // reads of a folder fail
    expect_error(data->read(indices, images.data(), labels.data()), {"a.h5", "images", "chunk 1", "sample 998", "Is a directory"});
}

}   // namespace
}   // namespace gradcast
