// What decoders of pictures take, for the memory plan of a job.
#pragma once
#include "datasets/reader.h"

namespace gradcast {

/// Bytes that a PictureDecoder takes at most for pictures of C planes whose longer side is at most long_max, and samples of this side: what
/// it reserves, and what libjpeg takes for the time of one picture.  side: at most long_max.
uint64_t decoder_bytes(uint32_t C, uint32_t long_max, uint32_t side);
/// Bytes that so many threads take at most, beside their samples, that read pictures of `data` at the same time: a decoder and a JPEG each.
/// 0: `data` has no pictures.  O(samples).
uint64_t decoders_bytes(const DataSet& data, uint32_t threads);

}   // namespace gradcast
