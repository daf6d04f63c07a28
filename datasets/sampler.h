// The samples of a block: a keyed permutation of the epoch, without a stored index, so any rank can compute any block.
#pragma once
#include <cstdint>
#include <span>

#include "runtime/core/types.h"

namespace gradcast {

/// The permutations of all epochs, one after the other, are cut into mini-batches of b: sample i of step s has position p = s b + i in
/// epoch floor(p / N).  Block T of B holds samples floor(Tb/B) .. floor((T+1)b/B) - 1 of the mini-batch (transport/exchange/CODES.md, "What
/// is computed").
class Sampler {
public:
    Sampler(uint64_t samples, uint64_t seed, uint32_t batch, uint32_t blocks);
    uint32_t block_size(uint32_t block) const;
    uint32_t block_size_max() const;
    /// Indices into the data set.  indices.size() == block_size(id.block).  O(1) a sample, thread-safe.
    void block(BlockId id, std::span<uint64_t> indices) const;
    /// Consecutive samples from `position` on, counted over all epochs.  O(1) a sample, thread-safe.
    void range(uint64_t position, std::span<uint64_t> indices) const;
    uint64_t seed() const { return seed_; }
    uint64_t epoch_of(StepId step) const { return step * batch_ / samples_; }
    /// The epoch of sample i of the block.
    uint64_t epoch_of(BlockId id, uint32_t i) const { return (position(id) + i) / samples_; }
    /// Steps that cover `epochs` epochs: ceil(epochs * N / b).
    uint64_t steps(uint64_t epochs) const { return (epochs * samples_ + batch_ - 1) / batch_; }

private:
    uint64_t position(BlockId id) const { return id.step * batch_ + uint64_t{id.block} * batch_ / blocks_; }
    uint64_t samples_, seed_;
    uint32_t batch_, blocks_;
};

}   // namespace gradcast
