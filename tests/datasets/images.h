// What the tests of importing images share: writers of PNG and JPEG, and a small data set.
#pragma once
#include <cstdio>
#include <cstdlib>
// jpeglib.h needs FILE.
#include <fmt/format.h>
#include <jpeglib.h>
#include <png.h>
#include <zlib.h>

#include <algorithm>
#include <numeric>

#include "datasets/image.h"
#include "datasets/import.h"
#include "tests/datasets/support.h"

namespace gradcast {

inline void png(const std::string& path, uint32_t H, uint32_t W, uint32_t format, const std::vector<uint8_t>& pixels) {
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    image.width = W;
    image.height = H;
    image.format = format;
    ASSERT_TRUE(png_image_write_to_file(&image, path.c_str(), 0, pixels.data(), 0, nullptr)) << image.message;
}
/// Bytes of a JPEG.  pixels [H, W, C]; space: JCS_GRAYSCALE, JCS_RGB or JCS_CMYK; wide, high: the first component's samples for one of the
/// others.
inline std::string jpeg_bytes(uint32_t H, uint32_t W, J_COLOR_SPACE space, const std::vector<uint8_t>& pixels, bool progressive = false,
                              int wide = 1, int high = 1) {
    jpeg_compress_struct into{};
    jpeg_error_mgr errors;
    into.err = jpeg_std_error(&errors);   // exits
    jpeg_create_compress(&into);
    unsigned char* bytes = nullptr;
    unsigned long size = 0;
    jpeg_mem_dest(&into, &bytes, &size);
    into.image_width = W;
    into.image_height = H;
    into.input_components = space == JCS_GRAYSCALE ? 1 : space == JCS_RGB ? 3 : 4;
    into.in_color_space = space;
    jpeg_set_defaults(&into);
    jpeg_set_quality(&into, 95, TRUE);
    if (progressive) jpeg_simple_progression(&into);
    for (int i = 0; i < into.num_components; ++i) into.comp_info[i].h_samp_factor = into.comp_info[i].v_samp_factor = 1;
    into.comp_info[0].h_samp_factor = wide;
    into.comp_info[0].v_samp_factor = high;
    jpeg_start_compress(&into, TRUE);
    while (into.next_scanline < H) {
        JSAMPROW row =
            const_cast<JSAMPROW>(pixels.data()) + uint64_t{into.next_scanline} * W * static_cast<uint32_t>(into.input_components);
        jpeg_write_scanlines(&into, &row, 1);
    }
    jpeg_finish_compress(&into);
    std::string all(reinterpret_cast<char*>(bytes), size);
    std::free(bytes);
    jpeg_destroy_compress(&into);
    return all;
}
inline void jpeg(const std::string& path, uint32_t H, uint32_t W, J_COLOR_SPACE space, const std::vector<uint8_t>& pixels,
                 bool progressive = false) {
    write_file(path, jpeg_bytes(H, W, space, pixels, progressive));
}

/// A chunk of a PNG.
inline std::string png_chunk(const std::string& type, const std::string& data) {
    auto big = [](uint32_t value) {
        return std::string{static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
                           static_cast<char>(value)};
    };
    const std::string body = type + data;
    return big(static_cast<uint32_t>(data.size())) + body +
           big(static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()))));
}
/// A TIFF block that has the orientation after another field.
inline std::string exif(uint32_t orientation, bool little) {
    auto number = [&](uint32_t value, size_t bytes) {
        std::string text;
        for (size_t i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * (little ? i : bytes - 1 - i)));
        return text;
    };
    const std::string make = number(0x10f, 2) + number(2, 2) + number(1, 4) + number(0, 4);
    const std::string turn = number(0x112, 2) + number(3, 2) + number(1, 4) + number(orientation, 2) + number(0, 2);
    return (little ? "II" : "MM") + number(42, 2) + number(8, 4) + number(2, 2) + make + turn + number(0, 4);
}
/// A PNG of this depth and colour type; rows: each with its filter byte; chunks: what stands before the pixels.
inline void png_raw(const std::string& path, uint32_t H, uint32_t W, int depth, int type, const std::string& rows,
                    const std::string& chunks) {
    std::string header(13, '\0'), packed(compressBound(rows.size()), '\0');
    for (int i = 0; i < 4; ++i) {
        header[static_cast<size_t>(i)] = static_cast<char>(W >> (24 - 8 * i));
        header[static_cast<size_t>(4 + i)] = static_cast<char>(H >> (24 - 8 * i));
    }
    header[8] = static_cast<char>(depth);
    header[9] = static_cast<char>(type);
    uLongf size = packed.size();
    ASSERT_EQ(compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(rows.data()), rows.size()), Z_OK);
    write_file(
        path, "\x89PNG\r\n\x1a\n" + png_chunk("IHDR", header) + chunks + png_chunk("IDAT", packed.substr(0, size)) + png_chunk("IEND", ""));
}

/// from/{train,test}/{ant,bee}/…: 6 x 5 pixels, PNGs whose pixels are pixel_of(number, .).
class ImportImages : public ::testing::Test {
protected:
    TestFolder folder;
    std::string from = folder.file("from"), out = folder.file("out");
    static constexpr uint32_t H = 6, W = 5;
    static std::vector<uint8_t> pixels(uint64_t number, uint32_t C) {   // [H, W, C]
        std::vector<uint8_t> bytes(H * W * C);
        for (uint64_t i = 0; i < bytes.size(); ++i) bytes[i] = pixel_of(number, i);
        return bytes;
    }
    std::string in(const std::string& name) const { return from + "/" + name; }
    void SetUp() override {
        for (const char* name : {"train/bee", "train/ant", "test/bee"}) std::filesystem::create_directories(in(name));
        png(in("train/bee/1.png"), H, W, PNG_FORMAT_RGB, pixels(1, 3));
        png(in("train/bee/0.png"), H, W, PNG_FORMAT_RGB, pixels(0, 3));
        png(in("train/ant/x.png"), H, W, PNG_FORMAT_RGB, pixels(2, 3));
        write_file(in("train/ant/.hidden"), "not an image");
        png(in("test/bee/z.png"), H, W, PNG_FORMAT_RGB, pixels(3, 3));
    }
    ImportConfig config{.kind = "images", .from = from, .out = out};
    ImportResult result;
    Status import() {
        config.from = from;
        return data_import(config, &result);
    }
    void expect_refused(std::initializer_list<std::string> parts) {
        expect_error(import(), parts);
        EXPECT_FALSE(std::filesystem::exists(out));
    }
    /// A note has all of `parts`.
    void expect_note(std::initializer_list<std::string> parts) const {
        const bool found = std::any_of(result.notes.begin(), result.notes.end(), [&](const std::string& note) {
            return std::all_of(parts.begin(), parts.end(), [&](const std::string& part) { return note.find(part) != note.npos; });
        });
        EXPECT_TRUE(found) << fmt::format("{} in none of:\n{}", fmt::join(parts, " | "), fmt::join(result.notes, "\n"));
    }
    /// The samples of a shard that was written, one after another.
    std::vector<uint8_t> samples(const std::string& name) {
        std::unique_ptr<DataSet> data;
        Status status = data_open(out + "/" + name, &data);
        EXPECT_TRUE(status.ok()) << status.what;
        if (!status.ok()) return {};
        std::vector<uint64_t> indices(data->info().count);
        std::iota(indices.begin(), indices.end(), 0);
        std::vector<uint8_t> bytes(data->sample_bytes() * indices.size());
        std::vector<int32_t> labels(indices.size());
        EXPECT_TRUE(data->read(indices, bytes.data(), labels.data()).ok());
        return bytes;
    }
};

}   // namespace gradcast
