// PNG and JPEG files, through libpng and libjpeg-turbo.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/core/status.h"

namespace gradcast {

/// An image file in memory, its header read.
struct ImageFile {
    std::string path, bytes;
    uint32_t C = 0, H = 0, W = 0;   // C: 1 grey, 3 RGB
    bool jpeg = false;
};
/// Reads the file and its header.  The format follows from the first bytes, not from the name.
Status image_open(const std::string& path, ImageFile* image);
/// pixels [C, H, W]: C 1 or 3 (grey values are repeated).  Transparent pixels are blended with black.
Status image_decode(const ImageFile& image, uint32_t C, uint8_t* pixels);

/// pixels [H, W, 3].  Writes beside the target, then renames.
Status png_write(const std::string& path, uint32_t H, uint32_t W, const uint8_t* pixels);

}   // namespace gradcast
