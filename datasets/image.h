// PNG and JPEG files, through libpng and libjpeg-turbo; their shape.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/status.h"

namespace gradcast {

/// An image file in memory, its header read.
struct ImageFile {
    std::string path, bytes;
    uint32_t C = 0, H = 0, W = 0;       // as stored; C: 1 grey, 3 RGB
    uint32_t orientation = 1;           // EXIF: 1 .. 8; 1: upright
    bool jpeg = false, scans = false;   // scans: a JPEG whose pixels come in several ones, as of a progressive JPEG
    uint64_t file_bytes = 0;
    // What image_decode() leaves out.
    bool deep = false;                                // 16 bits: the low byte
    bool alpha = false;                               // transparency
    bool colours = false;                             // a gamma other than sRGB's, or a colour profile
    uint64_t decode_bytes(uint32_t channels) const;   // memory that image_decode() takes, with the result
};
/// Reads the file and its header.  The format follows from the first bytes, not from the name.
Status image_open(const std::string& path, ImageFile* image);
/// The header alone: image->bytes stays empty.  Reads 256 KiB at most; *complete is false where the header does not end in them, and then
/// nothing else is known but that the file is there.
Status image_header(const std::string& path, ImageFile* image, bool* complete);
/// pixels [C, H, W]: C 1 or 3.  Grey values are repeated; of RGB one plane is the luminance 0.299 R + 0.587 G + 0.114 B.  Pixels are as
/// OpenCV reads them: the high byte of 16-bit values, no gamma or colour profile, no transparency.
/// *odd: what the decoder has found wrong without harm to a pixel, as bytes between two parts of the file; "" if nothing.
Status image_decode(const ImageFile& image, uint32_t C, uint8_t* pixels, std::string* odd);

/// Classes [H, W] of a mask: the grey values of a PNG of 8 bits or fewer, or places in its palette, as the file holds them.  Error: another
/// kind of image.
Status mask_decode(const ImageFile& image, uint8_t* classes);

/// Pixels [C, H, W].
struct Planes {
    uint32_t C = 0, H = 0, W = 0;
    std::vector<uint8_t> pixels;
};
/// Turns an image upright that is stored with this EXIF orientation.
void image_turn(uint32_t orientation, Planes* planes);
/// Resizes so that the short side has `side` pixels, the long one in proportion (rounded down), and cuts side x side out of the middle
/// (left and top rounded down).  A pixel is the mean of its neighbourhood weighted by a triangle, as wide as two pixels of the coarser
/// grid; rows first, then columns, each rounded to the nearest integer.  Integer arithmetic: every CPU gives the same bytes.
void image_fit(uint32_t side, Planes* planes);

/// image_fit() without the cut: the short side has `side` pixels, the long one side * long / short, rounded down.
void image_resize(uint32_t side, Planes* planes);

/// image_fit() of a mask: a pixel is the one whose centre is nearest, the left or upper one of two.
void mask_fit(uint32_t side, Planes* mask);

/// classes [H, W], below `count`, 256 at most.  A palette of the PASCAL VOC colours, whose places mask_decode() reads as the classes.
Status mask_write(const std::string& path, uint32_t H, uint32_t W, uint32_t count, const uint8_t* classes);

/// pixels [H, W, 3].  Writes beside the target, then renames.
Status png_write(const std::string& path, uint32_t H, uint32_t W, const uint8_t* pixels);

}   // namespace gradcast
