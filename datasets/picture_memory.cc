#include "datasets/picture_memory.h"

#include <algorithm>

namespace gradcast {

uint64_t decoder_bytes(uint32_t C, uint32_t long_max, uint32_t side) {
    const uint64_t of_line = uint64_t{C} * long_max;
    // Cutter::reserve(): taps and weights of two axes; the part at the sample's width; sums of a line.
    const uint64_t axis = sizeof(Resample::Taps) * side + sizeof(uint32_t) * (2 * uint64_t{long_max} + 3 * uint64_t{side});
    const uint64_t cutter = 2 * axis + of_line * side + sizeof(uint32_t) * side;
    // libjpeg: its state and tables, and for each column of the picture 8 bytes of decoded rows of grey, or at most 30 of colours (of those
    // at half resolution each way: 20 of brightness, 5 of each colour) and 4 of colours at full resolution.  Both have whole blocks of
    // columns.
    constexpr uint64_t tables = 128 << 10;
    const uint64_t of_column = C == 1 ? 16 : 48;
    return cutter + of_line + tables + of_column * long_max;
}

uint64_t decoders_bytes(const DataSet& data, uint32_t threads) {
    const DataInfo& info = data.info();
    if (!info.pictures()) return 0;
    uint64_t jpeg = 0;
    for (const Shard& shard : data.shards())
        for (size_t i = 0; i + 1 < shard.offsets.size(); ++i) jpeg = std::max(jpeg, shard.offsets[i + 1] - shard.offsets[i]);
    return threads * (decoder_bytes(info.C, info.longest, info.W) + jpeg);
}

}   // namespace gradcast
