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

/// The sum of n super-blocks is cut into m segments.  Ranks j .. j+d-1 (mod n) hold super-block j.  Each rank sends one linear combination
/// of the segments that it holds, which is as long as one segment.
struct CyclicCode {
    uint32_t n, m, s;   // ranks, segments, ranks that may be missing
    uint32_t prime;     // prime_32 or prime_16

    uint32_t d() const { return m + s; }         // super-blocks a rank holds
    uint32_t senders() const { return n - s; }   // ranks whose words suffice, whichever they are
    Status check() const;                        // must be ok before the other functions are called
    /// The super-blocks of a rank in the order of its weights: rank-d+1 .. rank (mod n), k = 0 .. d-1.
    uint32_t held(Rank rank, uint32_t k) const { return (rank + n - d() + 1 + k) % n; }
    /// Fills weights [d m].  `rank` sends the sum over k < d, u < m of weights[k m + u] times segment u of super-block held(rank, k).
    /// Allocates; O(d n (d + m)): once for a view.
    void encode_weights(Rank rank, std::span<uint32_t> weights) const;
    /// Segment u of the sum is the sum over i < n-s of weights[u (n-s) + i] times what ranks[i] sent.  `ranks` are senders() different
    /// ranks, ascending.  Does not allocate; O(n (n + m)): once for a set of senders.
    void decode_weights(std::span<const Rank> ranks, std::span<uint32_t> weights) const;
};

}   // namespace gradcast
