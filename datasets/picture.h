// Pictures that a shard stores as JPEGs, and the samples that are cut out of them.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "datasets/cut.h"
#include "datasets/image.h"

namespace gradcast {

constexpr uint32_t picture_side_max = 65500;   // of a JPEG, by libjpeg

/// A baseline JPEG of quality 95, whose colours have half the resolution each way.  Planes: C 1 or 3, no side above picture_side_max.
/// Equal pixels give equal bytes.  Any thread.
void picture_encode(const Planes& planes, std::string* jpeg);

/// Decodes with the accurate integer DCT.  One thread at a time.  open() and cut() allocate what libjpeg needs for one picture and give it
/// back.
class PictureDecoder {
public:
    PictureDecoder();
    PictureDecoder(PictureDecoder&&) = delete;
    ~PictureDecoder();
    /// Memory for pictures of C planes whose longer side is at most long_max, and samples of this side.
    void reserve(uint32_t C, uint32_t long_max, uint32_t side);
    /// Reads the header.  jpeg must stay valid until cut().  Null, or what is wrong, valid until the next call: damaged, progressive or
    /// arithmetic coding, CMYK, not C planes.
    const char* open(std::span<const uint8_t> jpeg, uint32_t C, uint32_t* H, uint32_t* W);
    /// planes [C, side, side]: that part of the picture, resampled.  Rows below the part are not decoded.  Null, or what is wrong.
    const char* cut(const Part& part, uint32_t side, uint8_t* planes);

private:
    struct State;
    std::unique_ptr<State> state_;
};

/// 16 hex digits of a probe picture as this machine's libjpeg decodes it.  Decoders differ by version, so nodes of a job compare it as a
/// part of their kernel set.  Decodes once in a process; thread-safe.
const std::string& decoder_digest();

}   // namespace gradcast
