// Shards in deflated chunks: the samples and digests of contiguous ones for any cache size; errors name the broken chunk.
#include <zlib.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <thread>

#include "datasets/hdf5.h"
#include "tests/datasets/support.h"

namespace gradcast {
namespace {

/// All pixels of an even sample are equal (deflates well), those of an odd one differ.
uint8_t value_of(uint64_t sample, uint64_t pixel) { return sample % 2 ? pixel_of(sample, pixel) : static_cast<uint8_t>(sample / 2); }

class Chunks : public ::testing::Test {
protected:
    TestFolder folder;
    std::string path = folder.file("bad.h5");
    static Status write(const std::string& to, const DataInfo& info, uint32_t compress, bool noise = false) {
        const uint64_t bytes = uint64_t{info.C} * info.H * info.W;
        std::vector<uint8_t> images(info.count * bytes);
        std::vector<int32_t> labels(info.count);
        for (uint64_t n = 0; n < info.count; ++n) {
            for (uint64_t i = 0; i < bytes; ++i) images[n * bytes + i] = noise ? pixel_of(n, i) : value_of(n, i);
            labels[n] = label_of(n, info.classes);
        }
        return shard_write(to, info, images.data(), labels.data(), compress);
    }
    static Status read(const DataSet& data, std::vector<uint64_t> indices, std::vector<uint8_t>* images) {
        std::vector<int32_t> labels(indices.size());
        images->assign(indices.size() * data.sample_bytes(), 0);
        return data.read(indices, images->data(), labels.data());
    }
    static std::vector<uint64_t> shuffled(uint64_t count, uint64_t seed = 1) {
        std::vector<uint64_t> indices(count);
        Sampler(count, seed, static_cast<uint32_t>(count), 1).block({0, 0}, indices);
        return indices;
    }
    static void expect_samples(const DataSet& data, const std::vector<uint64_t>& indices) {
        std::vector<uint8_t> images;
        Status status = read(data, indices, &images);
        ASSERT_TRUE(status.ok()) << status.what;
        const uint64_t bytes = data.sample_bytes();
        for (size_t n = 0; n < indices.size(); ++n)
            for (uint64_t i = 0; i < bytes; ++i)
                ASSERT_EQ(images[n * bytes + i], value_of(indices[n], i)) << "sample " << indices[n] << " pixel " << i;
    }
    /// Rewrites `images` of bad.h5 with HDF5, with the chunks and filters of `layout`.
    void images(std::vector<hsize_t> dims, const std::function<void(hid_t)>& layout, const char* name = "images", bool write = true) {
        Hdf5Lock lock;
        Hid file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
        ASSERT_TRUE(file);
        // With its digests.
        Hid old(H5Dopen2(file.get(), name, H5P_DEFAULT)), digests(H5Aopen(old.get(), "sha256", H5P_DEFAULT));
        Hid text(H5Aget_type(digests.get())), many(H5Aget_space(digests.get()));
        std::string kept(H5Tget_size(text.get()) * static_cast<size_t>(H5Sget_simple_extent_npoints(many.get())), '\0');
        ASSERT_GE(H5Aread(digests.get(), text.get(), kept.data()), 0);
        std::vector<uint8_t> values(1 << 22);
        ASSERT_GE(H5Dread(old.get(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
        ASSERT_GE(H5Ldelete(file.get(), name, H5P_DEFAULT), 0);
        Hid creation(H5Pcreate(H5P_DATASET_CREATE)), space(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr));
        layout(creation.get());
        Hid data_set(H5Dcreate2(file.get(), name, H5T_NATIVE_UINT8, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT));
        ASSERT_TRUE(data_set);
        if (write) {
            ASSERT_GE(H5Dwrite(data_set.get(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
        }
        Hid attribute(H5Acreate2(data_set.get(), "sha256", text.get(), many.get(), H5P_DEFAULT, H5P_DEFAULT));
        ASSERT_GE(H5Awrite(attribute.get(), text.get(), kept.data()), 0);
    }
    static void chunk(hid_t creation, std::vector<hsize_t> sides) {
        ASSERT_GE(H5Pset_chunk(creation, static_cast<int>(sides.size()), sides.data()), 0);
    }
    Status open() const {
        std::unique_ptr<DataSet> data;
        return data_open(path, &data);
    }
};

TEST_F(Chunks, TheSameDataAndDigests) {
    for (auto info : {info_of(1, 1, 1, 1, 1), info_of(301, 3, 8, 9, 10), info_of(3000, 1, 28, 28, 256), info_of(70, 3, 300, 200, 1000)})
        for (bool noise : {false, true})   // noise does not deflate: such chunks are stored plain
            for (uint32_t compress : {1u, 9u}) {
                SCOPED_TRACE(fmt::format("{} {} {}", info.count, noise, compress));
                ASSERT_TRUE(write(folder.file("plain.h5"), info, 0, noise).ok());
                ASSERT_TRUE(write(folder.file("small.h5"), info, compress, noise).ok());
                std::unique_ptr<DataSet> plain, small;
                ASSERT_TRUE(data_open(folder.file("plain.h5"), &plain).ok());
                Status status = data_open(folder.file("small.h5"), &small);
                ASSERT_TRUE(status.ok()) << status.what;
                EXPECT_FALSE(plain->chunked());
                EXPECT_TRUE(small->chunked());
                EXPECT_EQ(plain->digest(), small->digest());
                status = data_verify(*small);
                EXPECT_TRUE(status.ok()) << status.what;
                std::vector<uint64_t> indices = shuffled(info.count);
                std::sort(indices.begin(), indices.begin() + static_cast<int64_t>(indices.size() / 2));   // one half has runs
                std::vector<uint8_t> a, b;
                ASSERT_TRUE(read(*plain, indices, &a).ok());
                ASSERT_TRUE(read(*small, indices, &b).ok());
                EXPECT_EQ(a, b);
                if (!noise && info.count > 1000) {
                    EXPECT_LT(std::filesystem::file_size(folder.file("small.h5")), std::filesystem::file_size(folder.file("plain.h5")));
                }
            }
    DataInfo info = info_of(3000, 1, 28, 28, 10);
    ASSERT_TRUE(write(folder.file("again.h5"), info, 9).ok());
    ASSERT_TRUE(write(folder.file("small.h5"), info, 9).ok());
    EXPECT_EQ(read_file(folder.file("again.h5")), read_file(folder.file("small.h5")));
}

// Samples are right for any cache size, also when threads evict each other's chunks.
TEST_F(Chunks, AnyBoundOnMemory) {
    DataInfo info = info_of(3000, 1, 28, 28, 10);   // 36 chunks of 65 KB
    ASSERT_TRUE(write(folder.file("a.h5"), info, 6).ok());
    for (uint64_t bound : {uint64_t{1}, uint64_t{200'000}, uint64_t{1'200'000}, uint64_t{1} << 30}) {
        std::unique_ptr<DataSet> data;
        ASSERT_TRUE(data_open(folder.file("a.h5"), &data, {.inflated_max = bound}).ok());
        std::thread threads[3];
        for (uint64_t t = 0; t < 3; ++t) threads[t] = std::thread([&, t] { expect_samples(*data, shuffled(info.count, t)); });
        for (auto& thread : threads) thread.join();
    }
}

TEST_F(Chunks, WhatFitsIsReadOnce) {
    DataInfo info = info_of(3000, 1, 28, 28, 10);
    ASSERT_TRUE(write(folder.file("a.h5"), info, 6).ok());
    std::unique_ptr<DataSet> all, some;
    ASSERT_TRUE(data_open(folder.file("a.h5"), &all).ok());
    ASSERT_TRUE(data_open(folder.file("a.h5"), &some, {.inflated_max = 500'000}).ok());
    expect_samples(*all, shuffled(info.count));
    expect_samples(*some, shuffled(info.count));
    std::filesystem::resize_file(folder.file("a.h5"), 0);
    expect_samples(*all, shuffled(info.count, 2));
    std::vector<uint8_t> images;
    expect_error(read(*some, shuffled(info.count), &images), {"a.h5", "images", "stored chunk", "the file ends here", "import it again"});
}

TEST_F(Chunks, SomeShardsOfADataSet) {
    ASSERT_TRUE(write_shard(folder.file("s0.h5"), info_of(101, 2, 5, 7, 10), 0).ok());
    ASSERT_TRUE(write_shard(folder.file("s1.h5"), info_of(2000, 2, 5, 7, 10), 101, 6).ok());
    ASSERT_TRUE(write_shard(folder.file("s2.h5"), info_of(11, 2, 5, 7, 10), 2101).ok());
    ASSERT_TRUE(write_shard(folder.file("s3.h5"), info_of(3, 2, 5, 7, 10), 2112, 1).ok());
    std::unique_ptr<DataSet> data;
    ASSERT_TRUE(data_open(folder.file("s*.h5"), &data).ok());
    std::vector<uint64_t> indices(2115);
    std::iota(indices.begin(), indices.end(), 0);
    std::vector<uint8_t> images(indices.size() * 70);
    std::vector<int32_t> labels(indices.size());
    ASSERT_TRUE(data->read(indices, images.data(), labels.data()).ok());
    for (uint64_t i = 0; i < indices.size(); ++i) expect_sample(i, &images[i * 70], 70, labels[i], 10);
}

// As h5repack writes it: other chunk sizes (one larger than the data set), no alignment.
TEST_F(Chunks, OthersMayWriteThem) {
    for (hsize_t samples : {1, 7, 300})
        for (bool deflate : {true, false}) {
            ASSERT_TRUE(write(path, info_of(300, 3, 8, 9, 10), 0).ok());
            images({300, 3, 8, 9}, [&](hid_t creation) {
                chunk(creation, {samples, 3, 8, 9});
                if (deflate) H5Pset_deflate(creation, 4);
            });
            std::unique_ptr<DataSet> data;
            Status status = data_open(path, &data);
            ASSERT_TRUE(status.ok()) << status.what;
            EXPECT_EQ(data->shards()[0].chunk_samples, samples);
            EXPECT_TRUE(data_verify(*data).ok());
            expect_samples(*data, shuffled(300));
        }
}

TEST_F(Chunks, LayoutsThatAreNotRead) {
    auto fresh = [&] { ASSERT_TRUE(write(path, info_of(300, 3, 8, 9, 10), 0).ok()); };
    fresh();
    images({300, 3, 8, 9}, [](hid_t creation) { chunk(creation, {10, 3, 8, 3}); });
    expect_error(open(), {"bad.h5", "images", "10 x 3 x 8 x 3", "whole samples", "CHUNK=100x3x8x9"});
    fresh();
    images({300, 3, 8, 9}, [](hid_t creation) {
        chunk(creation, {10, 3, 8, 9});
        H5Pset_shuffle(creation);
        H5Pset_deflate(creation, 6);
    });
    expect_error(open(), {"bad.h5", "images", "through shuffle and deflate, not deflate alone", "GZIP=6"});
    fresh();
    images({300, 3, 8, 9}, [](hid_t creation) {
        chunk(creation, {10, 3, 8, 9});
        H5Pset_fletcher32(creation);
    });
    expect_error(open(), {"bad.h5", "images", "through fletcher32, not deflate alone"});
    fresh();
    images(
        {300, 3, 8, 9},
        [](hid_t creation) {
            chunk(creation, {10, 3, 8, 9});
        },
        "images", false);
    expect_error(open(), {"bad.h5", "images", "0 of its 30 chunks"});
    fresh();
    images(
        {300}, [](hid_t creation) { chunk(creation, {10}); }, "labels");
    expect_error(open(), {"bad.h5", "labels", "contiguously", "labels:CONTI"});
    ASSERT_TRUE(write(path, info_of(9000, 1, 2, 2, 10), 0).ok());
    images({9000, 1, 2, 2}, [](hid_t creation) { chunk(creation, {1, 1, 2, 2}); });
    expect_error(open(), {"bad.h5", "images", "9000 chunks", "h5repack -f images:GZIP=6 -l images:CHUNK=100x1x2x2"});
}

// Every command of h5repack that a message has, as it is typed.
TEST_F(Chunks, TheCommandsOfMessagesWork) {
    if (std::system("command -v h5repack >/dev/null") != 0) GTEST_SKIP() << "h5repack is missing (hdf5-tools)";
    const std::vector<std::function<void(hid_t)>> layouts = {[](hid_t creation) {
                                                                 chunk(creation, {10, 3, 8, 3});
                                                             },
                                                             [](hid_t creation) {
                                                                 chunk(creation, {10, 3, 4, 9});
                                                                 H5Pset_shuffle(creation);
                                                                 H5Pset_deflate(creation, 6);
                                                             },
                                                             [](hid_t creation) {
                                                                 chunk(creation, {10, 3, 8, 9});
                                                                 H5Pset_fletcher32(creation);
                                                             }};
    for (size_t i = 0; i <= layouts.size(); ++i) {
        const uint64_t count = i == 0 ? 30 : 300;
        ASSERT_TRUE(write(path, info_of(count, 3, 8, 9, 10), 0).ok());
        if (i < layouts.size()) images({count, 3, 8, 9}, layouts[i]);
        else
            images(
                {count}, [](hid_t creation) { chunk(creation, {10}); }, "labels");
        const std::string what = open().what, command = what.substr(what.find("h5repack"));
        EXPECT_EQ(std::system(command.c_str()), 0) << command;
        std::filesystem::rename(path + ".new", path);
        Status status = open();
        EXPECT_TRUE(status.ok()) << status.what << "\nafter " << command;
    }
}

TEST_F(Chunks, AFilterThatHdf5LacksIsNamed) {
    ASSERT_TRUE(write(path, info_of(300, 3, 8, 9, 10), 0).ok());
    const H5Z_class2_t lzf{
        H5Z_CLASS_T_VERS, 32000, 1, 1, "lzf", nullptr, nullptr, [](unsigned, size_t, const unsigned*, size_t bytes, size_t*, void**) {
            return bytes;
        }};
    ASSERT_GE(H5Zregister(&lzf), 0);
    images({300, 3, 8, 9}, [](hid_t creation) {
        chunk(creation, {10, 3, 8, 9});
        H5Pset_filter(creation, 32000, 0, 0, nullptr);
    });
    ASSERT_GE(H5Zunregister(32000), 0);
    expect_error(open(), {"bad.h5", "images", "through lzf, not deflate alone: leave compression and shuffle out", "help shard"});
}

TEST_F(Chunks, ABrokenOneIsNamed) {
    ASSERT_TRUE(write(path, info_of(3000, 1, 28, 28, 10), 6).ok());
    Shard good;
    ASSERT_TRUE(shard_open(path, &good).ok());
    ASSERT_EQ(good.chunk_samples, 83u);
    const StoredChunk& stored = good.chunks[5];
    ASSERT_TRUE(stored.deflated);
    std::string whole = read_file(path);
    auto expect_named = [&](const char* reason) {
        expect_error(shard_verify(good), {"bad.h5", "images", "stored chunk 5 (samples 415 .. 497)", reason, "damaged", "import it again"});
        std::unique_ptr<DataSet> data;
        std::vector<uint8_t> images;
        ASSERT_TRUE(data_open(path, &data).ok());
        expect_error(read(*data, {414, 415, 416}, &images), {"bad.h5", "stored chunk 5", reason});
        expect_error(read(*data, {497}, &images), {"bad.h5", "stored chunk 5", reason});   // not cached
        EXPECT_TRUE(read(*data, {414, 498}, &images).ok());
    };
    flip(path, stored.offset);
    expect_named("checksum");   // in the header
    write_file(path, whole);
    flip(path, stored.offset + stored.bytes - 1);
    expect_named("checksum");
    write_file(path, whole);
    std::string zeros = whole;
    std::fill_n(zeros.begin() + static_cast<int64_t>(stored.offset + 2), stored.bytes - 2, '\0');   // an empty stored block
    write_file(path, zeros);
    expect_named("deflate stream");
    zeros[stored.offset] = zeros[stored.offset + 1] = '\0';
    write_file(path, zeros);
    expect_named("zlib stream");
    write_file(path, whole);
    for (uint32_t at = 2; at < stored.bytes; at += 97) {   // any byte
        flip(path, stored.offset + at);
        expect_named("");
        write_file(path, whole);
    }
    EXPECT_TRUE(shard_verify(good).ok());
    std::filesystem::resize_file(path, stored.offset + stored.bytes / 2);
    expect_error(shard_verify(good), {"bad.h5", "stored chunk 5", "the file ends here"});
    expect_error(open(), {"bad.h5", "truncated"});
}

// A valid stream with a right checksum, but not of a chunk's length.
TEST_F(Chunks, StreamsOfAnotherLength) {
    for (uint64_t bytes : {uint64_t{10 * 216 - 1}, uint64_t{10 * 216 + 1}, uint64_t{100'000}}) {
        ASSERT_TRUE(write(path, info_of(300, 3, 8, 9, 10), 0).ok());
        images({300, 3, 8, 9}, [](hid_t creation) {
            chunk(creation, {10, 3, 8, 9});
            H5Pset_deflate(creation, 6);
        });
        {
            std::vector<uint8_t> plain(bytes), packed(bytes + 1000);
            uLongf size = packed.size();
            ASSERT_EQ(compress2(packed.data(), &size, plain.data(), bytes, 6), Z_OK);
            Hdf5Lock lock;
            Hid file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT)), data_set(H5Dopen2(file.get(), "images", H5P_DEFAULT));
            hsize_t at[4] = {20, 0, 0, 0};
            ASSERT_GE(H5Dwrite_chunk(data_set.get(), H5P_DEFAULT, 0, at, size, packed.data()), 0);
        }
        Shard shard;
        ASSERT_TRUE(shard_open(path, &shard).ok());
        expect_error(shard_verify(shard), {"bad.h5", "stored chunk 2 (samples 20 .. 29)",
                                           bytes < 2160 ? "inflates to 2159 bytes instead of 2160" : "inflates to more than a chunk"});
    }
}

}   // namespace
}   // namespace gradcast
