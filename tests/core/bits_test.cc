// Bits in words, at the borders of the words.
#include "runtime/core/bits.h"

#include <gtest/gtest.h>

#include <vector>

#include "runtime/core/types.h"

namespace gradcast {
namespace {

TEST(Bits, AreThoseOfRankSets) {
    EXPECT_EQ(bit_words(0), 0u);
    EXPECT_EQ(bit_words(64), 1u);
    EXPECT_EQ(bit_words(65), 2u);
    for (const uint32_t self : {0u, 1u, 63u, 64u, 99u}) {
        std::vector<uint64_t> others(bit_words(100));
        for (uint32_t rank = 0; rank < 100; ++rank) set_bit(others.data(), rank);
        EXPECT_TRUE(bit(others.data(), self));
        clear_bit(others.data(), self);
        EXPECT_EQ(others, ranks_but(self, 100));
        EXPECT_FALSE(bit(others.data(), self));
        flip_bit(others.data(), self);
        EXPECT_TRUE(bit(others.data(), self));
    }
}

}   // namespace
}   // namespace gradcast
