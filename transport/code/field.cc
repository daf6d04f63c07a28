// Rank i stands for the point x = i + 1.  F(x) = sum over j, u of segment u of super-block j times p_{j,u}(x) has a degree below n-s; its
// m highest coefficients, x^(n-d) and up, are the segments of the sum.  p_{j,u} vanishes at the ranks that lack super-block j, so each rank
// can compute F at its own point, and any n-s points give F.
#include "transport/code/field.h"

#include <vector>

#include "runtime/core/limits.h"

namespace gradcast {

namespace {
uint32_t point(Rank rank) { return rank + 1; }
}   // namespace

uint32_t field_inverse(uint32_t a, uint32_t prime) {
    GC_ASSERT(a != 0 && a < prime);
    uint32_t inverse = 1;   // a^(prime - 2), Fermat
    for (uint32_t power = a, exponent = prime - 2; exponent != 0; exponent >>= 1, power = field_mul(power, power, prime))
        if (exponent & 1) inverse = field_mul(inverse, power, prime);
    return inverse;
}

Status CyclicCode::check() const {
    GC_ASSERT(prime == prime_32 || prime == prime_16);
    static_assert(ranks_max < prime_16);   // the points differ and are not 0
    if (n < 1 || n > ranks_max) return fail(Code::invalid, "a code over {} ranks: it takes 1 to {}", n, ranks_max);
    if (m < 1) return fail(Code::invalid, "a code with m = 0: it cuts the sum into m segments, at least 1");
    if (uint64_t{m} + s > n)
        return fail(Code::invalid, "a code with m = {} and s = {} needs at least {} ranks, and there are {}: lower m or s", m, s,
                    uint64_t{m} + s, n);
    return {};
}

void CyclicCode::encode_weights(Rank rank, std::span<uint32_t> weights) const {
    GC_ASSERT(rank < n && weights.size() == uint64_t{d()} * m);
    const uint32_t lacking = n - d();                                     // ranks that lack a super-block: the degree of p_{j,1}
    std::vector<uint32_t> first(lacking + 1), p(uint64_t{lacking} + m);   // coefficients of p_{j,1} and p_{j,u}, lowest first
    for (uint32_t k = 0; k < d(); ++k) {
        std::fill(first.begin(), first.end(), 0);
        first[0] = 1;
        for (uint32_t i = 0; i < lacking; ++i) {   // multiply by (x - point)
            const uint32_t minus = prime - point((held(rank, k) + d() + i) % n);
            for (uint32_t c = i + 1; c > 0; --c) first[c] = field_add(first[c - 1], field_mul(minus, first[c], prime), prime);
            first[0] = field_mul(minus, first[0], prime);
        }
        std::fill(p.begin(), p.end(), 0);
        std::copy(first.begin(), first.end(), p.begin());
        for (uint32_t u = 0; u < m; ++u) {
            if (u > 0) {   // x p - c p_{j,1}: clears the coefficient of x^(n-d)
                const uint32_t c = lacking == 0 ? 0 : p[lacking - 1];
                std::copy_backward(p.begin(), p.end() - 1, p.end());
                p[0] = 0;
                for (uint32_t i = 0; i <= lacking; ++i) p[i] = field_sub(p[i], field_mul(c, first[i], prime), prime);
            }
            uint32_t value = 0;
            for (size_t i = p.size(); i-- > 0;) value = field_add(field_mul(value, point(rank), prime), p[i], prime);
            weights[uint64_t{k} * m + u] = value;
        }
    }
}

// Lagrange: L_i(x) = product over the other senders of (x - x_b) / (x_i - x_b).  Its m highest coefficients follow from those of the
// product over all senders, divided by (x - x_i) from the top; lower coefficients are not needed.
void CyclicCode::decode_weights(std::span<const Rank> ranks, std::span<uint32_t> weights) const {
    const uint32_t count = senders();
    GC_ASSERT(ranks.size() == count && weights.size() == uint64_t{m} * count);
    // at(k, i): the k-th highest coefficient of L_i, for segment m-1-k.  The last column holds the product's until its own turn.
    auto at = [&](uint32_t k, uint32_t i) -> uint32_t& { return weights[uint64_t{m - 1 - k} * count + i]; };
    for (uint32_t k = 0; k < m; ++k) at(k, count - 1) = k == 0 ? 1 : 0;
    for (uint32_t i = 0; i < count; ++i) {
        GC_ASSERT(ranks[i] < n && (i == 0 || ranks[i - 1] < ranks[i]));
        for (uint32_t k = m - 1; k > 0; --k)
            at(k, count - 1) = field_sub(at(k, count - 1), field_mul(point(ranks[i]), at(k - 1, count - 1), prime), prime);
    }
    for (uint32_t i = 0; i < count; ++i) {
        const uint32_t x = point(ranks[i]);
        uint32_t below = 1;
        for (uint32_t b = 0; b < count; ++b)
            if (b != i) below = field_mul(below, field_sub(x, point(ranks[b]), prime), prime);
        for (uint32_t k = 0; k < m; ++k) at(k, i) = k == 0 ? 1 : field_add(at(k, count - 1), field_mul(x, at(k - 1, i), prime), prime);
        const uint32_t scale = field_inverse(below, prime);
        for (uint32_t k = 0; k < m; ++k) at(k, i) = field_mul(at(k, i), scale, prime);
    }
}

}   // namespace gradcast
