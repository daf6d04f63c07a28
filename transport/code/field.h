// The prime fields and the code of `coded` and `coded-rs` (transport/exchange/CODES.md, "The code of coded and coded-rs"): the words of any
// n - s of n ranks give the whole sum.  This file computes the weights; transport/code/kernels.h applies them.
#pragma once
#include <span>

#include "runtime/core/status.h"
#include "runtime/core/types.h"

namespace gradcast {

constexpr uint32_t prime_32 = 2147483647;   // 2^31 - 1, words of 32 bits
constexpr uint32_t prime_16 = 65521;        // 2^16 - 15, words of 16 bits

/// Arithmetic on residues (0 .. prime - 1).
constexpr uint32_t field_add(uint32_t a, uint32_t b, uint32_t prime) { return static_cast<uint32_t>((uint64_t{a} + b) % prime); }
constexpr uint32_t field_sub(uint32_t a, uint32_t b, uint32_t prime) { return a >= b ? a - b : prime - (b - a); }
constexpr uint32_t field_mul(uint32_t a, uint32_t b, uint32_t prime) { return static_cast<uint32_t>(uint64_t{a} * b % prime); }
uint32_t field_inverse(uint32_t a, uint32_t prime);   // a != 0

/// The sum of n super-blocks is cut into m segments.  Super-block j is held by ranks j .. j+d-1 (mod n), and each rank sends one
/// combination of the segments it holds: 1/m of the sum's length.
struct CyclicCode {
    uint32_t n, m, s;   // ranks, segments, ranks that may be missing
    uint32_t prime;     // prime_32 or prime_16

    uint32_t d() const { return m + s; }         // super-blocks a rank holds
    uint32_t senders() const { return n - s; }   // the words of any so many ranks suffice
    Status check() const;                        // precondition of the other functions
    /// The super-blocks of a rank in the order of its weights: rank-d+1 .. rank (mod n), k = 0 .. d-1.
    uint32_t held(Rank rank, uint32_t k) const { return (rank + n - d() + 1 + k) % n; }
    /// What `rank` sends is the sum over k < d, u < m of weights[k m + u] times segment u of super-block held(rank, k).
    /// Allocates; O(d n (d + m)): once for a view.
    void encode_weights(Rank rank, std::span<uint32_t> weights) const;
    /// Segment u of the sum is the sum over i < n-s of weights[u (n-s) + i] times what ranks[i] sent.  `ranks` are senders() different
    /// ones, ascending.  Does not allocate; O(n (n + m)): once for a set of senders.
    void decode_weights(std::span<const Rank> ranks, std::span<uint32_t> weights) const;
};

}   // namespace gradcast
