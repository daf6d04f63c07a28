// What a decoder of pictures takes, and that libjpeg's objects are made where its errors are caught.  malloc and free are wrapped here, so
// no other file of this program may do so.
#include <dlfcn.h>
#include <malloc.h>

#include "datasets/picture_memory.h"
#include "tests/datasets/images.h"

namespace gradcast {
namespace {

thread_local int64_t held_bytes = 0, held_bytes_most = 0;   // of this thread
bool other_library = false;                                 // libjpeg is asked for another version of its interface

void account(int64_t bytes) {
    held_bytes += bytes;
    held_bytes_most = std::max(held_bytes_most, held_bytes);
}

}   // namespace
}   // namespace gradcast

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool memory_counted = false;   // a sanitizer's malloc has taken the place
#else
constexpr bool memory_counted = true;
extern "C" {
void* __libc_malloc(size_t);
void __libc_free(void*);
void* malloc(size_t bytes) {
    void* memory = __libc_malloc(bytes);
    if (memory) gradcast::account(static_cast<int64_t>(malloc_usable_size(memory)));
    return memory;
}
void free(void* memory) {
    if (memory) gradcast::account(-static_cast<int64_t>(malloc_usable_size(memory)));
    __libc_free(memory);
}
}
#endif

extern "C" void jpeg_CreateDecompress(j_decompress_ptr jpeg, int version, size_t bytes) {
    using Create = void (*)(j_decompress_ptr, int, size_t);
    static const auto create = reinterpret_cast<Create>(::dlsym(RTLD_NEXT, "jpeg_CreateDecompress"));
    create(jpeg, gradcast::other_library ? version + 1 : version, bytes);
}

namespace gradcast {
namespace {

/// A JPEG with these factors of the resolution of brightness.
std::vector<uint8_t> jpeg_of(uint32_t C, uint32_t H, uint32_t W, int wide, int high) {
    std::vector<uint8_t> pixels(uint64_t{H} * W * C);
    for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i % (W * C) * 37 % 251);
    const std::string bytes = jpeg_bytes(H, W, C == 1 ? JCS_GRAYSCALE : JCS_RGB, pixels, false, wide, high);
    return {bytes.begin(), bytes.end()};
}

TEST(DecoderMemory, IsBoundedByTheSidesThatAShardSays) {
    if (!memory_counted) GTEST_SKIP() << "a sanitizer counts memory";
    for (const auto& [H, W] : {std::pair{1u, 1u}, {17u, 33u}, {300u, 4001u}, {4001u, 300u}, {9u, 65500u}})
        for (const auto& [C, wide, high] : {std::tuple{1u, 1, 1}, {3u, 1, 1}, {3u, 2, 1}, {3u, 2, 2}}) {
            const std::vector<uint8_t> jpeg = jpeg_of(C, H, W, wide, high);
            const uint32_t side = std::min(H, W), longest = std::max(H, W);
            std::vector<uint8_t> planes(uint64_t{C} * side * side);
            const int64_t before = held_bytes;
            held_bytes_most = held_bytes;
            {
                PictureDecoder decoder;
                decoder.reserve(C, longest, side);
                const int64_t reserved = held_bytes;
                for (const Part part : {Part{0, 0, H, W}, part_centre(H, W, side)}) {
                    uint32_t high_found = 0, wide_found = 0;
                    ASSERT_EQ(decoder.open(jpeg, C, &high_found, &wide_found), nullptr);
                    ASSERT_EQ(decoder.cut(part, side, planes.data()), nullptr);
                    EXPECT_EQ(std::pair(high_found, wide_found), std::pair(H, W));
                }
                // Between two pictures libjpeg keeps its tables alone.
                EXPECT_LT(held_bytes - reserved, 64 << 10) << H << " x " << W;
            }
            EXPECT_EQ(held_bytes, before);
            const auto taken = static_cast<uint64_t>(held_bytes_most - before), bound = decoder_bytes(C, longest, side);
            EXPECT_LE(taken, bound) << C << " x " << H << " x " << W << ", " << wide << " x " << high;
            EXPECT_GT(taken + (192 << 10), bound * 2 / 3) << C << " x " << H << " x " << W << ", " << wide << " x " << high;
        }
}

// Its error is said, and not thrown past us; the next picture is another attempt.
TEST(DecoderMemory, AnObjectThatCannotBeMadeIsAnErrorOfThePicture) {
    const std::vector<uint8_t> jpeg = jpeg_of(3, 8, 8, 1, 1);
    PictureDecoder decoder;
    uint32_t H = 0, W = 0;
    other_library = true;
    const char* wrong = decoder.open(jpeg, 3, &H, &W);
    ASSERT_NE(wrong, nullptr);
    EXPECT_NE(std::string_view(wrong).find("Wrong JPEG library version"), std::string_view::npos) << wrong;
    TestFolder folder;
    write_file(folder.file("a.jpg"), {reinterpret_cast<const char*>(jpeg.data()), jpeg.size()});
    ImageFile image;
    expect_error(image_open(folder.file("a.jpg"), &image), {"a.jpg: corrupt JPEG: Wrong JPEG library version"});
    other_library = false;
    EXPECT_EQ(decoder.open(jpeg, 3, &H, &W), nullptr);
    EXPECT_EQ(H, 8u);
    EXPECT_TRUE(image_open(folder.file("a.jpg"), &image).ok());
}

}   // namespace
}   // namespace gradcast
