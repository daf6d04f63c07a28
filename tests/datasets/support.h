// Small shards in a folder of the test; contents are a function of (sample, pixel).
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "datasets/reader.h"
#include "datasets/shard.h"

namespace gradcast {

struct TestFolder {
    std::filesystem::path path;
    TestFolder() {
        const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
        path = std::filesystem::path(::testing::TempDir()) /
               fmt::format("gradcast-{}-{}-{}", test->test_suite_name(), test->name(), ::getpid());
        std::filesystem::remove_all(path);
        std::filesystem::create_directories(path);
    }
    ~TestFolder() { std::filesystem::remove_all(path); }
    std::string file(const std::string& name) const { return (path / name).string(); }
    std::vector<std::string> names() const {
        std::vector<std::string> found;
        for (const auto& entry : std::filesystem::directory_iterator(path)) found.push_back(entry.path().filename());
        std::sort(found.begin(), found.end());
        return found;
    }
};

inline uint8_t pixel_of(uint64_t sample, uint64_t pixel) {
    return static_cast<uint8_t>((sample * 0x9E3779B97F4A7C15 + pixel * 0xBF58476D1CE4E5B9) >> 40);
}
inline int32_t label_of(uint64_t sample, uint32_t classes) { return static_cast<int32_t>((sample * 2654435761u >> 7) % classes); }

inline DataInfo info_of(uint64_t count, uint32_t C, uint32_t H, uint32_t W, uint32_t classes) {
    return {count, C, H, W, classes, std::vector<float>(C, 0.25f), std::vector<float>(C, 0.5f), "made by a test"};
}

/// Samples first .. first + info.count - 1 of an endless series.
inline Status write_shard(const std::string& path, const DataInfo& info, uint64_t first = 0, uint32_t compress = 0) {
    uint64_t sample_bytes = uint64_t{info.C} * info.H * info.W;
    std::vector<uint8_t> images(info.count * sample_bytes);
    std::vector<int32_t> labels(info.count);
    for (uint64_t n = 0; n < info.count; ++n) {
        for (uint64_t i = 0; i < sample_bytes; ++i) images[n * sample_bytes + i] = pixel_of(first + n, i);
        labels[n] = label_of(first + n, info.classes);
    }
    return shard_write(path, info, images.data(), labels.data(), compress);
}

inline void expect_sample(uint64_t sample, const uint8_t* image, uint64_t sample_bytes, int32_t label, uint32_t classes) {
    for (uint64_t i = 0; i < sample_bytes; ++i) ASSERT_EQ(image[i], pixel_of(sample, i)) << "sample " << sample << " pixel " << i;
    ASSERT_EQ(label, label_of(sample, classes)) << "sample " << sample;
}

inline Status shard_verify(const Shard& shard) {
    Fd fd;
    GC_TRY(file_open(shard.path, &fd));
    return shard_verify(shard, fd.get());
}

inline std::string read_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}
inline void write_file(const std::string& path, std::string_view bytes) {
    std::ofstream out(path, std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(out.good());
}
inline void flip(const std::string& path, uint64_t at) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(at));
    char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte);
    ASSERT_TRUE(file.good());
}

/// Expects an error whose message is one line and contains all of `parts`.
inline void expect_error(const Status& status, std::initializer_list<std::string> parts) {
    ASSERT_FALSE(status.ok());
    for (const std::string& part : parts)
        EXPECT_NE(std::string(status.what).find(part), std::string::npos) << status.what << "\nlacks: " << part;
    EXPECT_EQ(std::string(status.what).find('\n'), std::string::npos) << status.what;
}

}   // namespace gradcast
