#include "transport/code/field.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "runtime/core/rng.h"
#include "tests/code/isas.h"
#include "transport/code/kernels.h"

namespace gradcast {
namespace {

// A stream of numbers for one test.
struct Random {
    uint32_t purpose;
    uint64_t drawn = 0;
    uint32_t operator()(uint32_t below) { return random4(Purpose::test, 21, drawn++, purpose)[0] % below; }
};

/// `count` different ranks below n, ascending.
std::vector<Rank> choose(uint32_t n, uint32_t count, Random& random) {
    std::vector<Rank> ranks(n);
    std::iota(ranks.begin(), ranks.end(), 0);
    for (uint32_t i = 0; i + 1 < n; ++i) std::swap(ranks[i], ranks[i + random(n - i)]);
    ranks.resize(count);
    std::sort(ranks.begin(), ranks.end());
    return ranks;
}

uint32_t residue(int64_t v, uint32_t p) { return static_cast<uint32_t>((v % p + p) % p); }
int64_t signed_of(uint32_t v, uint32_t p) { return v > p / 2 ? int64_t{v} - p : int64_t{v}; }

uint32_t plain(std::span<const uint32_t> weights, const std::vector<uint32_t>& values, uint32_t p) {
    EXPECT_EQ(weights.size(), values.size());
    uint64_t sum = 0;
    for (size_t i = 0; i < weights.size(); ++i) sum = (sum + uint64_t{weights[i]} * values[i]) % p;
    return static_cast<uint32_t>(sum);
}

std::vector<uint32_t> encode_weights(const CyclicCode& code, Rank rank) {
    std::vector<uint32_t> weights(uint64_t{code.d()} * code.m);
    code.encode_weights(rank, weights);
    return weights;
}
std::vector<uint32_t> decode_weights(const CyclicCode& code, const std::vector<Rank>& ranks) {
    std::vector<uint32_t> weights(uint64_t{code.m} * code.senders());
    code.decode_weights(ranks, weights);
    return weights;
}

// One word per segment of each super-block: the words of any n - s ranks give the sums.
void expect_exact(const CyclicCode& code, Random& random, uint32_t sets) {
    ASSERT_TRUE(code.check().ok());
    const uint32_t p = code.prime, limit = p / 2 / code.n;   // so that the sum fits a word
    for (int values : {0, 1, -1}) {                          // random; all at the upper limit; all at the lower limit
        std::vector<int64_t> segments(uint64_t{code.n} * code.m), want(code.m);
        for (uint32_t j = 0; j < code.n; ++j)
            for (uint32_t u = 0; u < code.m; ++u) {
                int64_t& v = segments[uint64_t{j} * code.m + u];
                v = values == 0 ? int64_t{random(2 * limit + 1)} - limit : values * int64_t{limit};
                want[u] += v;
            }
        std::vector<uint32_t> sent(code.n);
        for (Rank rank = 0; rank < code.n; ++rank) {
            std::vector<uint32_t> held;
            for (uint32_t k = 0; k < code.d(); ++k)
                for (uint32_t u = 0; u < code.m; ++u) held.push_back(residue(segments[uint64_t{code.held(rank, k)} * code.m + u], p));
            sent[rank] = plain(encode_weights(code, rank), held, p);
        }
        for (uint32_t set = 0; set < sets; ++set) {
            const std::vector<Rank> ranks = choose(code.n, code.senders(), random);
            const std::vector<uint32_t> weights = decode_weights(code, ranks);
            std::vector<uint32_t> received;
            for (Rank rank : ranks) received.push_back(sent[rank]);
            for (uint32_t u = 0; u < code.m; ++u)
                ASSERT_EQ(signed_of(plain(std::span(weights).subspan(uint64_t{u} * code.senders(), code.senders()), received, p), p),
                          want[u])
                    << "segment " << u << " from ranks " << testing::PrintToString(ranks);
        }
    }
}

TEST(CyclicCode, AnySendersGiveTheSumForEveryCodeUpTo12) {
    Random random{1};
    for (uint32_t p : {prime_32, prime_16})
        for (uint32_t n = 1; n <= 12; ++n)
            for (uint32_t m = 1; m <= n; ++m)
                for (uint32_t s = 0; m + s <= n; ++s) {
                    SCOPED_TRACE(fmt::format("n {} m {} s {} p {}", n, m, s, p));
                    expect_exact(CyclicCode{n, m, s, p}, random, s == 0 ? 1 : 8);
                    if (testing::Test::HasFatalFailure()) return;
                }
}

TEST(CyclicCode, AnySendersGiveTheSumForSomeLargerCodes) {
    Random random{2};
    for (uint32_t p : {prime_32, prime_16})
        for (uint32_t n : {16u, 24u, 32u, 64u})
            for (auto [m, s] :
                 {std::pair{1u, 0u}, {1u, 3u}, {2u, 0u}, {2u, 1u}, {3u, 2u}, {4u, 0u}, {n / 2, n / 4}, {n - 1, 1u}, {n, 0u}}) {
                SCOPED_TRACE(fmt::format("n {} m {} s {} p {}", n, m, s, p));
                expect_exact(CyclicCode{n, m, s, p}, random, 4);
                if (testing::Test::HasFatalFailure()) return;
            }
    expect_exact(CyclicCode{200, 3, 2, prime_16}, random, 1);
}

TEST(CyclicCode, SuperBlocksAreHeldByRunsOfRanks) {
    for (uint32_t n = 1; n <= 9; ++n)
        for (uint32_t d = 1; d <= n; ++d) {
            const CyclicCode code{n, d, 0, prime_32};
            for (Rank rank = 0; rank < n; ++rank) {
                EXPECT_EQ(code.held(rank, d - 1), rank);
                for (uint32_t k = 0; k < d; ++k) EXPECT_EQ((code.held(rank, k) + (d - 1 - k)) % n, rank);   // j .. j+d-1 hold j
            }
        }
}

TEST(CyclicCode, RefusesWhatIsNoCode) {
    EXPECT_TRUE((CyclicCode{8, 2, 1, prime_32}).check().ok());
    EXPECT_TRUE((CyclicCode{ranks_max, 2, 1, prime_16}).check().ok());
    EXPECT_STREQ((CyclicCode{8, 0, 1, prime_32}).check().what, "a code with m = 0: it cuts the sum into m segments, at least 1");
    EXPECT_STREQ((CyclicCode{4, 3, 2, prime_32}).check().what,
                 "a code with m = 3 and s = 2 needs at least 5 ranks, and there are 4: lower m or s");
    EXPECT_EQ((CyclicCode{4, 1, UINT32_MAX, prime_16}).check().code, Code::invalid);
    EXPECT_EQ((CyclicCode{0, 1, 0, prime_16}).check().code, Code::invalid);
    EXPECT_EQ((CyclicCode{ranks_max + 1, 1, 0, prime_32}).check().code, Code::invalid);
}

TEST(Field, Inverse) {
    for (uint32_t p : {prime_32, prime_16})
        for (uint32_t a : {1u, 2u, 3u, 4095u, p / 2, p - 2, p - 1}) EXPECT_EQ(field_mul(a, field_inverse(a, p), p), 1u);
}

// ---- the kernels ------------------------------------------------------------------------------------------------------------------

// Rows of words of the prime's size, each `shift` words off its alignment and guarded at both ends.
struct Rows {
    uint32_t prime;
    uint64_t count, stride;
    std::vector<std::byte> memory;
    std::vector<Buffer> buffers;
    Rows(uint32_t p, uint32_t rows, uint64_t n, uint32_t shift)
        : prime(p), count(n), stride((n + shift + 2) * size()), memory(rows * stride) {
        std::fill(memory.begin(), memory.end(), std::byte{0x5A});
        for (uint32_t r = 0; r < rows; ++r) buffers.push_back({memory.data() + r * stride + (1 + shift) * size(), nullptr, n * size()});
    }
    uint64_t size() const { return prime == prime_16 ? 2 : 4; }
    void set(uint32_t row, uint64_t x, int64_t v) {
        if (prime == prime_16) buffers[row].as<uint16_t>()[x] = static_cast<uint16_t>(v);
        else buffers[row].as<uint32_t>()[x] = static_cast<uint32_t>(v);
    }
    int64_t get(uint32_t row, uint64_t x, bool is_signed) const {
        if (prime == prime_16) return is_signed ? int64_t{buffers[row].as<int16_t>()[x]} : int64_t{buffers[row].as<uint16_t>()[x]};
        return is_signed ? int64_t{buffers[row].as<int32_t>()[x]} : int64_t{buffers[row].as<uint32_t>()[x]};
    }
};

TEST(Combine, EqualsThePlainReferenceAtEveryLevel) {
    Random random{3};
    for (uint32_t p : {prime_32, prime_16})
        for (uint32_t ins : {1u, 2u, 3u, 4u, 7u, 8u, 9u, 17u, 63u, 64u, 65u, 130u})
            for (int values : {0, 1, 2})   // random; all at one limit, the weights at the other; all at either limit
                for (int signs = 0; signs < 4; ++signs) {
                    const bool in_signed = signs & 1, out_signed = signs & 2;
                    const uint32_t outs = 1 + random(3), h = p / 2;
                    const uint64_t count = ins < 10 && values == 0 ? 1000 + random(3000) : random(100);
                    Rows in(p, ins, count, random(17));
                    std::vector<uint32_t> weights(outs * ins);
                    for (uint32_t& w : weights) w = values == 0 ? random(p) : values == 1 ? h + 1 : random(2) ? h : h + 1;
                    const int64_t low = in_signed ? -int64_t{h} : 0, high = in_signed ? h : p - 1;
                    for (uint32_t i = 0; i < ins; ++i)
                        for (uint64_t x = 0; x < count; ++x)
                            in.set(i, x, values == 0 ? low + random(p) : values == 1 ? (x % 2 ? low : high) : random(2) ? low : high);
                    for (Isa isa : isas()) {
                        SCOPED_TRACE(fmt::format("{} p {} ins {} outs {} count {} values {} signed {} {}", isa_name(isa), p, ins, outs,
                                                 count, values, in_signed, out_signed));
                        Rows out(p, outs, count, random(17));
                        const Rows before = out;
                        ASSERT_EQ(word_kernels(isa).combine(
                                      {p, outs, ins, weights.data(), in.buffers.data(), out.buffers.data(), in_signed, out_signed}, count),
                                  ins);
                        Rows want = before;
                        want.buffers = out.buffers;
                        for (uint32_t o = 0; o < outs; ++o)
                            for (uint64_t x = 0; x < count; ++x) {
                                uint64_t sum = 0;
                                for (uint32_t i = 0; i < ins; ++i)
                                    sum = (sum + uint64_t{weights[o * ins + i]} * residue(in.get(i, x, in_signed), p)) % p;
                                const int64_t v = out_signed ? signed_of(static_cast<uint32_t>(sum), p) : static_cast<int64_t>(sum);
                                ASSERT_EQ(out.get(o, x, out_signed), v) << "output " << o << " word " << x;
                                out.set(o, x, 0x5A5A5A5A);
                            }
                        EXPECT_EQ(out.memory, before.memory);   // only the words were written
                    }
                }
}

TEST(Combine, NamesAnInputThatHoldsNoResidue) {
    for (uint32_t p : {prime_32, prime_16})
        for (Isa isa : isas())
            for (uint64_t count : {1u, 77u, 5001u})
                for (uint64_t word : {uint64_t{0}, count / 2, count - 1})
                    for (int64_t value : {int64_t{p}, int64_t{p} + 1, p == prime_16 ? int64_t{0xFFFF} : int64_t{0x80000000}, int64_t{-1}}) {
                        Rows in(p, 5, count, 3), out(p, 2, count, 0);
                        for (uint32_t i = 0; i < 5; ++i)
                            for (uint64_t x = 0; x < count; ++x) in.set(i, x, p - 1);
                        const std::vector<uint32_t> weights(10, 12345 % p);
                        const Combine combine{p, 2, 5, weights.data(), in.buffers.data(), out.buffers.data(), false, true};
                        EXPECT_EQ(word_kernels(isa).combine(combine, count), 5u);
                        in.set(3, word, value);
                        EXPECT_EQ(word_kernels(isa).combine(combine, count), 3u);
                    }
}

TEST(Combine, EncodesAndDecodesWholeVectors) {
    Random random{4};
    for (uint32_t p : {prime_32, prime_16})
        for (CyclicCode code : {CyclicCode{8, 2, 0, p}, CyclicCode{5, 1, 2, p}, CyclicCode{12, 4, 3, p}, CyclicCode{3, 3, 0, p}}) {
            const uint64_t count = 1000 + random(200);
            Rows blocks(p, code.n * code.m, count, 1), sent(p, code.n, count, 2), sum(p, code.m, count, 5);
            const int64_t limit = p / 2 / code.n;
            for (uint32_t row = 0; row < code.n * code.m; ++row)
                for (uint64_t x = 0; x < count; ++x)
                    blocks.set(row, x, x % 3 == 0 ? limit : x % 3 == 1 ? -limit : random(static_cast<uint32_t>(2 * limit + 1)) - limit);
            for (Rank rank = 0; rank < code.n; ++rank) {
                std::vector<Buffer> in;
                for (uint32_t k = 0; k < code.d(); ++k)
                    for (uint32_t u = 0; u < code.m; ++u) in.push_back(blocks.buffers[code.held(rank, k) * code.m + u]);
                const std::vector<uint32_t> weights = encode_weights(code, rank);
                word_kernels(isa_best())
                    .combine({p, 1, static_cast<uint32_t>(in.size()), weights.data(), in.data(), &sent.buffers[rank], true, false}, count);
            }
            const std::vector<Rank> ranks = choose(code.n, code.senders(), random);
            std::vector<Buffer> in;
            for (Rank rank : ranks) in.push_back(sent.buffers[rank]);
            const std::vector<uint32_t> weights = decode_weights(code, ranks);
            ASSERT_EQ(word_kernels(isa_best())
                          .combine({p, code.m, code.senders(), weights.data(), in.data(), sum.buffers.data(), false, true}, count),
                      code.senders());
            for (uint32_t u = 0; u < code.m; ++u)
                for (uint64_t x = 0; x < count; ++x) {
                    int64_t want = 0;
                    for (uint32_t j = 0; j < code.n; ++j) want += blocks.get(j * code.m + u, x, true);
                    ASSERT_EQ(sum.get(u, x, true), want);
                }
        }
}

}   // namespace
}   // namespace gradcast
