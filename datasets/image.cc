// libpng's simplified interface and TurboJPEG: neither lets a longjmp cross the caller.
#include "datasets/image.h"

#include <png.h>
#include <turbojpeg.h>

#include <cstring>
#include <memory>
#include <vector>

#include "runtime/core/fd.h"

namespace gradcast {
namespace {

struct JpegClose {
    void operator()(void* handle) const { tjDestroy(handle); }
};
using Jpeg = std::unique_ptr<void, JpegClose>;

struct Png {
    png_image image{};
    Png() { image.version = PNG_IMAGE_VERSION; }
    Png(Png&&) = delete;
    ~Png() { png_image_free(&image); }
};

Status corrupt(const ImageFile& image, const char* reason) {
    return fail(Code::data, "{}: corrupt {}: {}: repair or remove it", image.path, image.jpeg ? "JPEG" : "PNG", reason);
}
const unsigned char* bytes_of(const ImageFile& image) { return reinterpret_cast<const unsigned char*>(image.bytes.data()); }

Status png_header(const ImageFile& image, Png* png) {
    if (!png_image_begin_read_from_memory(&png->image, image.bytes.data(), image.bytes.size())) return corrupt(image, png->image.message);
    return {};
}

}   // namespace

Status image_open(const std::string& path, ImageFile* image) {
    *image = {.path = path, .bytes = {}};
    GC_TRY(file_read(path, &image->bytes));
    if (image->bytes.starts_with("\x89PNG")) {
        Png png;
        GC_TRY(png_header(*image, &png));
        image->C = png.image.format & PNG_FORMAT_FLAG_COLOR ? 3 : 1;
        image->H = png.image.height;
        image->W = png.image.width;
        return {};
    }
    if (!image->bytes.starts_with("\xff\xd8\xff")) return fail(Code::data, "{}: neither PNG nor JPEG: remove it", path);
    image->jpeg = true;
    Jpeg jpeg(tjInitDecompress());
    int width = 0, height = 0, sampling = 0, space = 0;   // 0 and success for a file of tables alone
    if (!jpeg || tjDecompressHeader3(jpeg.get(), bytes_of(*image), image->bytes.size(), &width, &height, &sampling, &space) != 0)
        return corrupt(*image, tjGetErrorStr2(jpeg.get()));
    if (space == TJCS_CMYK || space == TJCS_YCCK) return fail(Code::data, "{}: a JPEG in CMYK: convert it to RGB", path);
    image->C = space == TJCS_GRAY ? 1 : 3;
    if (width < 1 || height < 1) return corrupt(*image, "it ends before its picture");
    image->H = static_cast<uint32_t>(height);
    image->W = static_cast<uint32_t>(width);
    return {};
}

Status image_decode(const ImageFile& image, uint32_t C, uint8_t* pixels) {
    const size_t plane = size_t{image.H} * image.W;
    std::vector<uint8_t> mixed(C * plane);   // [H, W, C]
    if (image.jpeg) {
        Jpeg jpeg(tjInitDecompress());
        // TJFLAG_ACCURATEDCT gives the same bits on every machine.  A warning of the library (damage) counts as an error.
        if (!jpeg || tjDecompress2(jpeg.get(), bytes_of(image), image.bytes.size(), mixed.data(), static_cast<int>(image.W), 0,
                                   static_cast<int>(image.H), C == 1 ? TJPF_GRAY : TJPF_RGB, TJFLAG_ACCURATEDCT) != 0)
            return corrupt(image, tjGetErrorStr2(jpeg.get()));
    } else {
        Png png;
        GC_TRY(png_header(image, &png));
        png.image.format = C == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
        png_color black{};
        if (!png_image_finish_read(&png.image, &black, mixed.data(), 0, nullptr)) return corrupt(image, png.image.message);
    }
    for (uint32_t c = 0; c < C; ++c)
        for (size_t i = 0; i < plane; ++i) pixels[c * plane + i] = mixed[i * C + c];
    return {};
}

Status png_write(const std::string& path, uint32_t H, uint32_t W, const uint8_t* pixels) {
    Png png;
    png.image.width = W;
    png.image.height = H;
    png.image.format = PNG_FORMAT_RGB;
    png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(png.image);
    std::string bytes(size, '\0');
    if (!png_image_write_to_memory(&png.image, bytes.data(), &size, 0, pixels, 0, nullptr))
        return fail(Code::invalid, "cannot make a PNG of {} x {} pixels for {}: {}", H, W, path, png.image.message);
    return file_write(path, std::string_view(bytes).substr(0, size));
}

}   // namespace gradcast
