// The permutation is a Feistel network over a grid a x b, a = ceil(sqrt(N)), b = ceil(N / a): it shifts row and column in turn, each by a
// keyed hash of the other.  Results outside 0 .. N-1 go through it again (cycle walking; Black, Rogaway, "Ciphers with arbitrary finite
// domains", CT-RSA 2002).  The grid is at most sqrt(N) larger than N, where halves of a word's bits may be 4 N.  Keys are Philox numbers of
// (seed, epoch).  Every trained model depends on these values; a test pins them.
#include "datasets/sampler.h"

#include <array>
#include <cmath>

#include "runtime/core/digest.h"
#include "runtime/core/rng.h"
#include "runtime/core/status.h"

namespace gradcast {
namespace {

constexpr uint32_t rounds = 12;   // 8 mix hundreds of samples well, tiny sets need 12

/// (x + h) mod side, h < side derived from `hash`
uint64_t moved(uint64_t x, uint64_t hash, uint64_t side) {
    x += (hash >> 32) * side >> 32;
    return x >= side ? x - side : x;
}

struct Permutation {
    uint64_t count, rows, columns;
    std::array<uint64_t, rounds> keys;

    Permutation(uint64_t samples, uint64_t seed, uint64_t epoch) : count(samples) {
        rows = static_cast<uint64_t>(std::sqrt(static_cast<double>(samples)));
        while (rows * rows < samples) ++rows;
        columns = (samples + rows - 1) / rows;
        for (uint32_t i = 0; i < rounds; i += 2) {
            Philox random = random4(Purpose::shuffle, seed, epoch, i / 2);
            keys[i] = uint64_t{random[0]} << 32 | random[1];
            keys[i + 1] = uint64_t{random[2]} << 32 | random[3];
        }
    }
    uint64_t operator()(uint64_t position) const {
        uint64_t row = position / columns, column = position % columns;
        do {
            for (uint32_t i = 0; i < rounds; i += 2) {
                row = moved(row, splitmix64(column ^ keys[i]), rows);
                column = moved(column, splitmix64(row ^ keys[i + 1]), columns);
            }
        } while (row * columns + column >= count);
        return row * columns + column;
    }
};

}   // namespace

Sampler::Sampler(uint64_t samples, uint64_t seed, uint32_t batch, uint32_t blocks)
    : samples_(samples), seed_(seed), batch_(batch), blocks_(blocks) {
    GC_ASSERT(samples > 0 && samples <= uint64_t{1} << 62 && batch > 0 && blocks > 0 && blocks <= batch);
}

uint32_t Sampler::block_size(uint32_t block) const {
    GC_ASSERT(block < blocks_);
    return static_cast<uint32_t>((block + uint64_t{1}) * batch_ / blocks_ - uint64_t{block} * batch_ / blocks_);
}

uint32_t Sampler::block_size_max() const { return (batch_ + blocks_ - 1) / blocks_; }

void Sampler::block(BlockId id, std::span<uint64_t> indices) const {
    GC_ASSERT(indices.size() == block_size(id.block));
    range(position(id), indices);
}

void Sampler::range(uint64_t position, std::span<uint64_t> indices) const {
    uint64_t epoch = position / samples_, in_epoch = position % samples_;
    Permutation permutation(samples_, seed_, epoch);
    for (uint64_t& index : indices) {
        if (in_epoch == samples_) {
            permutation = Permutation(samples_, seed_, ++epoch);
            in_epoch = 0;
        }
        index = permutation(in_epoch++);
    }
}

}   // namespace gradcast
