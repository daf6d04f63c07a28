// Both libraries report an error by longjmp.  setjmp() is called in functions that hold no object with a destructor, so nothing is skipped.
#include "datasets/image.h"

#include <unistd.h>

#include <png.h>
#include <cerrno>
#include <csetjmp>
#include <cstdio>

#include <algorithm>
#include <array>
#include <cstring>

#include "datasets/exif.h"
#include "datasets/jpeg_errors.h"
#include "runtime/core/fd.h"

namespace gradcast {
namespace {

using namespace std::string_view_literals;

constexpr png_fixed_point gamma_srgb = 45455;   // 1 / 2.2

const unsigned char* bytes_of(const ImageFile& image) { return reinterpret_cast<const unsigned char*>(image.bytes.data()); }

Status corrupt(const ImageFile& image, const char* reason) {
    return fail(Code::data, "{}: corrupt {}: {}: repair or remove it", image.path, image.jpeg ? "JPEG" : "PNG", reason);
}

/// Takes rows of interleaved pixels and puts them into planes.
struct Rows {
    uint32_t W, H, has, C;   // has: values of a pixel of a row; C: planes
    uint8_t* pixels;         // [C, H, W]
    void put(uint32_t y, const uint8_t* row) const {
        const size_t plane = size_t{H} * W, at = size_t{y} * W;
        if (has > C) {   // the luminance, with the weights of libjpeg
            for (size_t x = 0; x < W; ++x)
                pixels[at + x] = static_cast<uint8_t>((299u * row[x * 3] + 587u * row[x * 3 + 1] + 114u * row[x * 3 + 2] + 500) / 1000);
            return;
        }
        for (uint32_t c = 0; c < C; ++c)
            for (size_t x = 0; x < W; ++x) pixels[c * plane + at + x] = row[x * has + std::min(c, has - 1)];
    }
};

// ---- PNG -----------------------------------------------------------------------------------------------------------------------

class Png {
public:
    explicit Png(const ImageFile& image) : image_(image) {
        png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, failed, [](png_structp, png_const_charp) {});
        GC_ASSERT(png_);
        info_ = png_create_info_struct(png_);
        GC_ASSERT(info_);
        png_set_read_fn(png_, this, read);
    }
    Png(Png&&) = delete;
    ~Png() { png_destroy_read_struct(&png_, &info_, nullptr); }

    Status header(ImageFile* image) {
        if (!header_read()) return corrupt(image_, message_);
        const int type = png_get_color_type(png_, info_);
        image->C = type & PNG_COLOR_MASK_COLOR ? 3 : 1;
        image->H = png_get_image_height(png_, info_);
        image->W = png_get_image_width(png_, info_);
        image->deep = png_get_bit_depth(png_, info_) == 16;
        image->alpha = (type & PNG_COLOR_MASK_ALPHA) != 0 || png_get_valid(png_, info_, PNG_INFO_tRNS) != 0;
        png_fixed_point gamma = gamma_srgb;
        if (png_get_valid(png_, info_, PNG_INFO_sRGB) == 0) png_get_gAMA_fixed(png_, info_, &gamma);
        image->colours = gamma != gamma_srgb || png_get_valid(png_, info_, PNG_INFO_iCCP) != 0;
        png_uint_32 size = 0;
        png_bytep exif = nullptr;
        if (png_get_eXIf_1(png_, info_, &size, &exif) != 0)
            image->orientation = exif_orientation({reinterpret_cast<const char*>(exif), size});
        return {};
    }
    /// Rows of the file's C.
    Status pixels(const Rows& rows) {
        if (!header_read()) return corrupt(image_, message_);
        return read_into(rows, false);
    }
    /// Rows of one value, as the file holds it.
    Status mask(const Rows& rows) {
        if (!header_read()) return corrupt(image_, message_);
        const int type = png_get_color_type(png_, info_);
        if ((type == PNG_COLOR_TYPE_GRAY || type == PNG_COLOR_TYPE_PALETTE) && png_get_bit_depth(png_, info_) <= 8)
            return read_into(rows, true);
        return fail(Code::data, "{}: a mask is grey of 8 bits or has a palette, and its values are the classes: convert it", image_.path);
    }

private:
    Status read_into(const Rows& rows, bool raw) {
        // A pass over an interlaced image fills in pixels of all rows.
        const bool interlaced = png_get_interlace_type(png_, info_) != PNG_INTERLACE_NONE;
        const size_t row_bytes = size_t{image_.W} * (raw ? 1 : image_.C);
        mixed_.resize(row_bytes * (interlaced ? image_.H : 1));
        rows_.assign(image_.H, mixed_.data());
        for (uint32_t y = 0; interlaced && y < image_.H; ++y) rows_[y] += y * row_bytes;
        return rows_read(rows, interlaced, raw) ? Status() : corrupt(image_, message_);
    }
    bool header_read() {
        if (setjmp(png_jmpbuf(png_)) != 0) return false;
        png_read_info(png_, info_);
        return true;
    }
    bool rows_read(const Rows& rows, bool interlaced, bool raw) {
        if (setjmp(png_jmpbuf(png_)) != 0) return false;
        if (raw) {
            png_set_packing(png_);   // one byte a pixel
        } else {
            png_set_strip_16(png_);   // keeps the high byte
            png_set_expand(png_);     // palettes, and grey below 8 bits
            png_set_strip_alpha(png_);
        }
        png_set_interlace_handling(png_);
        png_read_update_info(png_, info_);
        if (png_get_rowbytes(png_, info_) != size_t{image_.W} * (raw ? 1 : image_.C)) png_error(png_, "its rows have another size");
        if (interlaced) png_read_image(png_, rows_.data());
        for (uint32_t y = 0; y < image_.H; ++y) {
            if (!interlaced) png_read_row(png_, rows_[y], nullptr);
            rows.put(y, rows_[y]);
        }
        png_read_end(png_, nullptr);   // compares the checksum of the last pixels
        return true;
    }
    static void failed(png_structp png, png_const_charp text) {
        auto* self = static_cast<Png*>(png_get_error_ptr(png));
        std::snprintf(self->message_, sizeof self->message_, "%s", text);
        png_longjmp(png, 1);
    }
    static void read(png_structp png, png_bytep to, size_t count) {
        auto* self = static_cast<Png*>(png_get_io_ptr(png));
        if (count > self->image_.bytes.size() - self->at_) png_error(png, "it ends too early");
        std::memcpy(to, self->image_.bytes.data() + self->at_, count);
        self->at_ += count;
    }
    const ImageFile& image_;
    png_structp png_ = nullptr;
    png_infop info_ = nullptr;
    size_t at_ = 0;
    std::vector<uint8_t> mixed_;
    std::vector<png_bytep> rows_;   // within mixed_
    char message_[128] = "";
};

// ---- JPEG ----------------------------------------------------------------------------------------------------------------------

class Jpeg {
public:
    explicit Jpeg(const ImageFile& image) : image_(image) { errors_.install(jpeg_.err); }
    Jpeg(Jpeg&&) = delete;
    ~Jpeg() { jpeg_destroy_decompress(&jpeg_); }

    Status header(ImageFile* image) {
        if (!header_read()) return corrupt(image_, errors_.message);
        if (jpeg_.jpeg_color_space == JCS_CMYK || jpeg_.jpeg_color_space == JCS_YCCK)
            return fail(Code::data, "{0}: a JPEG in CMYK: convert it to RGB (mogrify -colorspace sRGB '{0}')", image_.path);
        image->C = jpeg_.jpeg_color_space == JCS_GRAYSCALE ? 1 : 3;
        image->H = jpeg_.image_height;
        image->W = jpeg_.image_width;
        image->scans = jpeg_has_multiple_scans(&jpeg_) != 0;
        for (const jpeg_marker_struct* marker = jpeg_.marker_list; marker; marker = marker->next) {
            std::string_view data(reinterpret_cast<const char*>(marker->data), marker->data_length);
            if (marker->marker == JPEG_APP0 + 2) image->colours |= data.starts_with("ICC_PROFILE"sv);
            else if (data.starts_with("Exif\0\0"sv)) image->orientation = exif_orientation(data.substr(6));
        }
        return {};
    }
    /// Rows of rows.C: libjpeg repeats grey values and makes the luminance by itself.
    Status pixels(const Rows& rows, std::string* odd) {
        row_.resize(size_t{image_.W} * rows.C);
        if (!header_read() || !rows_read(rows)) return corrupt(image_, errors_.message);
        *odd = errors_.odd;
        return {};
    }

private:
    bool header_read() {
        if (setjmp(errors_.back) != 0) return false;
        jpeg_create_decompress(&jpeg_);
        jpeg_mem_src(&jpeg_, bytes_of(image_), image_.bytes.size());
        jpeg_save_markers(&jpeg_, JPEG_APP0 + 1, 0xffff);   // EXIF
        jpeg_save_markers(&jpeg_, JPEG_APP0 + 2, 16);       // the name of an ICC profile
        jpeg_read_header(&jpeg_, TRUE);
        return true;
    }
    bool rows_read(const Rows& rows) {
        if (setjmp(errors_.back) != 0) return false;
        jpeg_.out_color_space = rows.C == 1 ? JCS_GRAYSCALE : JCS_RGB;
        jpeg_.dct_method = JDCT_ISLOW;   // the same bits on every machine
        jpeg_start_decompress(&jpeg_);
        while (jpeg_.output_scanline < jpeg_.output_height) {
            JSAMPROW row = row_.data();
            const JDIMENSION y = jpeg_.output_scanline;
            jpeg_read_scanlines(&jpeg_, &row, 1);
            rows.put(y, row);
        }
        jpeg_finish_decompress(&jpeg_);
        return true;
    }
    const ImageFile& image_;
    jpeg_decompress_struct jpeg_{};
    JpegErrors errors_{};
    std::vector<uint8_t> row_;
};

/// Formats that are not read, by their first bytes.
const char* other_format(std::string_view bytes) {
    if (bytes.starts_with("GIF8")) return "a GIF";
    if (bytes.starts_with("BM")) return "a BMP";
    if (bytes.starts_with("II*\0"sv) || bytes.starts_with("MM\0*"sv)) return "a TIFF";
    if (bytes.starts_with("RIFF") && bytes.substr(0, 12).ends_with("WEBP")) return "a WebP";
    if (bytes.size() > 12 && bytes.substr(4, 4) == "ftyp") return bytes.substr(8, 4) == "avif" ? "an AVIF" : "an HEIF";
    return nullptr;
}

Status header_parse(ImageFile* image) {
    if (image->bytes.starts_with("\x89PNG")) return Png(*image).header(image);
    image->jpeg = image->bytes.starts_with("\xff\xd8\xff");
    if (image->jpeg) return Jpeg(*image).header(image);
    const std::string& path = image->path;
    if (const char* other = other_format(image->bytes))
        return fail(Code::data, "{0}: {1} image, neither PNG nor JPEG: convert it and remove it (mogrify -format png '{0}')", path, other);
    return fail(Code::data, "{}: neither PNG nor JPEG: remove it", path);
}

}   // namespace

uint64_t ImageFile::decode_bytes(uint32_t channels) const {
    // The planes, the planes turned or resized, or the interleaved pixels of an interlaced PNG; the coefficients of several scans have 2
    // bytes each.
    return file_bytes + uint64_t{std::max(channels, C)} * H * W * (scans ? 4 : 2);
}

Status image_open(const std::string& path, ImageFile* image) {
    *image = {.path = path, .bytes = {}};
    GC_TRY(file_read(path, &image->bytes));
    image->file_bytes = image->bytes.size();
    return header_parse(image);
}

Status image_header(const std::string& path, ImageFile* image, bool* complete) {
    constexpr uint64_t head_bytes = 256 << 10;
    *image = {.path = path, .bytes = {}};
    Fd fd;
    GC_TRY(file_open(path, &fd, &image->file_bytes));
    std::string& head = image->bytes;
    head.resize(std::min(image->file_bytes, head_bytes));
    for (size_t at = 0; at < head.size();) {
        const ssize_t got = ::pread(fd.get(), head.data() + at, head.size() - at, static_cast<off_t>(at));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_sys(errno, "cannot read {}", path);
        if (got == 0) head.resize(at);
        at += static_cast<size_t>(got);
    }
    const Status status = header_parse(image);
    *complete = status.ok() || head.size() == image->file_bytes;
    head = {};
    return *complete ? status : Status();
}

Status mask_decode(const ImageFile& image, uint8_t* classes) {
    if (image.jpeg) return fail(Code::data, "{}: a mask is a PNG: a JPEG changes the classes", image.path);
    return Png(image).mask({image.W, image.H, 1, 1, classes});
}

Status image_decode(const ImageFile& image, uint32_t C, uint8_t* pixels, std::string* odd) {
    GC_ASSERT(image.C <= C || C == 1);
    const Rows rows{image.W, image.H, image.jpeg ? C : image.C, C, pixels};
    odd->clear();
    return image.jpeg ? Jpeg(image).pixels(rows, odd) : Png(image).pixels(rows);
}

namespace {

/// map: of the pixels, where they are places in it.
Status write(const std::string& path, png_image image, const uint8_t* pixels, const uint8_t* map) {
    image.version = PNG_IMAGE_VERSION;
    png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
    std::string bytes(size, '\0');
    const bool made = png_image_write_to_memory(&image, bytes.data(), &size, 0, pixels, 0, map) != 0;
    png_image_free(&image);
    if (!made) return fail(Code::invalid, "cannot make a PNG of {} x {} pixels for {}: {}", image.height, image.width, path, image.message);
    return file_write(path, std::string_view(bytes).substr(0, size));
}

}   // namespace

Status png_write(const std::string& path, uint32_t H, uint32_t W, const uint8_t* pixels) {
    png_image image{};
    image.width = W, image.height = H, image.format = PNG_FORMAT_RGB;
    return write(path, image, pixels, nullptr);
}

Status mask_write(const std::string& path, uint32_t H, uint32_t W, uint32_t count, const uint8_t* classes) {
    GC_ASSERT(count > 0 && count <= 256);
    // Three bits of a class at a time, the lowest first, are the highest free bits of red, green and blue.
    std::vector<uint8_t> map(size_t{3} * count);
    for (uint32_t k = 0; k < count; ++k)
        for (uint32_t bit = 0; bit < 8; ++bit) map[3 * k + bit % 3] |= static_cast<uint8_t>((k >> bit & 1) << (7 - bit / 3));
    png_image image{};
    image.width = W, image.height = H, image.format = PNG_FORMAT_RGB_COLORMAP, image.colormap_entries = count;
    return write(path, image, classes, map.data());
}

}   // namespace gradcast
