#include "transport/bulk/parity.h"

#include <isa-l/erasure_code.h>

namespace gradcast::bulk {
namespace {

uint8_t coefficient(uint32_t row, uint32_t segment) { return gf_inv(static_cast<uint8_t>((block_segments + row) ^ segment)); }
unsigned char** bytes_of(std::byte** pointers) { return reinterpret_cast<unsigned char**>(pointers); }

}   // namespace

Parity::Parity(uint32_t segment_bytes, Arena& arena) : segment_bytes_(segment_bytes) {
    arena.plan("bulk parity", segment_bytes, &padded_);
    arena.plan("bulk parity", segment_bytes, &spare_);
    arena.plan("bulk parity", parity_rows * parity_rows, &matrix_);
    arena.plan("bulk parity", parity_rows * parity_rows, &inverse_);
    arena.plan("bulk parity", rows_at_once * block_segments, &rows_);
    arena.plan("bulk parity", 32 * rows_at_once * block_segments, &tables_);
}

std::byte* Parity::padded(const Buffer& segment) {
    if (segment.bytes == segment_bytes_) return segment.host;
    std::memcpy(padded_.host, segment.host, segment.bytes);
    std::memset(padded_.host + segment.bytes, 0, segment_bytes_ - segment.bytes);
    return padded_.host;
}

void Parity::encode(std::span<std::byte*> segments, uint32_t row, std::span<std::byte*> out) {
    const int k = static_cast<int>(segments.size()), count = static_cast<int>(out.size());
    uint8_t* c = rows_.as<uint8_t>();
    for (uint32_t r = 0; r < out.size(); ++r)
        for (uint32_t s = 0; s < segments.size(); ++s) *c++ = coefficient(row + r, s);
    ec_init_tables(k, count, rows_.as<uint8_t>(), tables_.as<uint8_t>());
    ec_encode_data(static_cast<int>(segment_bytes_), k, count, tables_.as<uint8_t>(), bytes_of(segments.data()), bytes_of(out.data()));
}

void Parity::decode(std::span<const uint8_t> there, std::span<const uint8_t> missing, std::span<const uint8_t> rows,
                    std::span<std::byte*> sources, std::span<std::byte*> out) {
    // parity = M missing + A there, so missing = M^-1 (parity - A there); minus is plus in GF(2^8).
    const uint32_t m = static_cast<uint32_t>(missing.size()), k = static_cast<uint32_t>(there.size()) + m;
    uint8_t *matrix = matrix_.as<uint8_t>(), *inverse = inverse_.as<uint8_t>();
    for (uint32_t r = 0; r < m; ++r)
        for (uint32_t s = 0; s < m; ++s) matrix[r * m + s] = coefficient(rows[r], missing[s]);
    GC_ASSERT(gf_invert_matrix(matrix, inverse, static_cast<int>(m)) == 0);   // every square submatrix of a Cauchy matrix is invertible
    std::byte* wanted[rows_at_once];
    uint32_t count = 0;
    for (uint32_t o = 0; o < m; ++o) {
        if (out[o]) {
            uint8_t* c = rows_.as<uint8_t>() + count * k;
            for (uint32_t s = 0; s < there.size(); ++s) {
                uint8_t sum = 0;
                for (uint32_t r = 0; r < m; ++r) sum ^= gf_mul(inverse[o * m + r], coefficient(rows[r], there[s]));
                *c++ = sum;
            }
            std::memcpy(c, inverse + o * m, m);
            wanted[count++] = out[o];
        }
        if (count == 0 || (count < rows_at_once && o + 1 < m)) continue;
        ec_init_tables(static_cast<int>(k), static_cast<int>(count), rows_.as<uint8_t>(), tables_.as<uint8_t>());
        ec_encode_data(static_cast<int>(segment_bytes_), static_cast<int>(k), static_cast<int>(count), tables_.as<uint8_t>(),
                       bytes_of(sources.data()), bytes_of(wanted));
        count = 0;
    }
}

}   // namespace gradcast::bulk
