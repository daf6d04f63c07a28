// Convolutions whose products are of bf16, with sums in float: a chunk of pixels becomes bf16 in the cache, two values in a word, which one
// instruction multiplies and adds up.  For y and dx neighbouring channels are in a word, for dw neighbouring pixels.
#include "nn/cpu/wide.h"
#include "nn/cpu/product.h"

namespace gradcast {
namespace GC_ISA {
namespace {

inline __m512i halves(const void* from) { return _mm512_loadu_si512(from); }
inline void keep(void* to, __m512i value) { _mm512_storeu_si512(to, value); }
/// 32 bf16: a's, then b's.
inline __m512i narrow(const V& a, const V& b) { return (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a); }

/// Which bf16 make words: those from `first` and from `second` on by turns.
struct Order {
    alignas(64) uint16_t at[32];
    constexpr Order(uint32_t first, uint32_t second) : at{} {
        for (uint32_t i = 0; i < 32; ++i) at[i] = static_cast<uint16_t>(i / 2 + (i % 2 ? second : first));
    }
};
constexpr Order of_both(0, 16), of_halves[2] = {Order(0, 32), Order(16, 48)};
/// 16 words of a bf16 of a and one of b; and of each the upper or lower half of 32.
inline __m512i words(const V& a, const V& b) { return _mm512_permutexvar_epi16(halves(of_both.at), narrow(a, b)); }
inline __m512i words(__m512i a, __m512i b, uint32_t half) { return _mm512_permutex2var_epi16(a, halves(of_halves[half].at), b); }

constexpr uint32_t chunk = 128;   // pixels whose values stay in the second-level cache

uint32_t blocks(uint32_t count, uint32_t size) { return (count + size - 1) / size; }
bool few(const WideShape& s) { return s.C < 16; }
/// How many products an output is the sum of.
uint32_t values(const WideShape& s) { return s.C * s.kernel * s.kernel; }

uint64_t packed(const WideShape& s) { return uint64_t{blocks(values(s), 2)} * s.K; }

void pack(float* packed, const float* w, const WideShape& s, bool turned) {
    const uint32_t C = turned ? s.K : values(s), K = turned ? s.C : s.K, terms = blocks(C, 2);
    auto weight = [&](uint32_t c, uint32_t k) { return c >= C ? 0 : turned ? w[uint64_t{c} * K + k] : w[uint64_t{k} * C + c]; };
    for (uint32_t term = 0; term < terms; ++term)
        for (uint32_t vector = 0; vector < K / width; ++vector) {
            V a, b;
            for (uint32_t lane = 0; lane < width; ++lane) {
                a[lane] = weight(2 * term, vector * width + lane);
                b[lane] = weight(2 * term + 1, vector * width + lane);
            }
            keep(packed + packed_place(term, vector, terms, K), words(a, b));
        }
}

/// What sums are made of, a chunk of pixels at a time: rows [values/32][chunk][16 words].
struct Input {
    const WideShape& s;
    int32_t* rows;
    uint16_t *patches, *padded;   // of few channels: a pixel's values one after the other; the image with its padding
    const float* image = nullptr;

    // What is copied begins within a row and is 8 values long.
    static uint32_t patch(const WideShape& s) { return blocks(values(s) + 8, 32) * 32; }
    static uint32_t padded_W(const WideShape& s) { return s.W + 2 * s.pad; }
    static uint64_t padded_size(const WideShape& s) { return uint64_t{s.C} * (s.H + 2 * s.pad) * padded_W(s) + 16; }
    static uint64_t rows_size(const WideShape& s) { return uint64_t{blocks(values(s), 32)} * chunk * 16; }
    /// In words.
    static uint64_t size(const WideShape& s) {
        return rows_size(s) + (few(s) ? chunk * patch(s) / 2 + (padded_size(s) + 31) / 32 * 16 : 0);
    }
    Input(float* scratch, const WideShape& shape)
        : s(shape),
          rows(reinterpret_cast<int32_t*>(scratch)),
          patches(reinterpret_cast<uint16_t*>(rows + rows_size(s))),
          padded(patches + chunk * patch(s)) {}

    void open(const float* from) {
        image = from;
        if (!few(s)) return;
        for (uint64_t i = 0; i < padded_size(s); ++i) padded[i] = 0;
        for (uint32_t c = 0; c < s.C; ++c)
            for (uint32_t h = 0; h < s.H; ++h, from += s.W) {
                uint16_t* to = padded + (uint64_t{c * (s.H + 2 * s.pad) + h + s.pad}) * padded_W(s) + s.pad;
                for (uint32_t w = 0; w < s.W; w += 16) {   // the zeros behind a line are padding, or written over
                    const auto there = static_cast<__mmask16>((1u << least(16, s.W - w)) - 1);
                    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + w),
                                        (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(there, from + w)));
                }
            }
    }

    void read(uint64_t pixel, uint32_t count) {
        if (!few(s)) {
            const uint64_t plane = uint64_t{s.H} * s.W * 16;
            for (uint32_t c = 0; c < s.C / 16; c += 2) {
                const float* from = image + c * plane + pixel * 16;
                const bool two = c + 1 < s.C / 16;
                for (uint32_t j = 0; j < count; ++j, from += 16)
                    keep(rows + (c / 2 * chunk + j) * 16, narrow(load(from), two ? load(from + plane) : V{}));
            }
            return;
        }
        const uint32_t size = patch(s), C = s.C, kernel = s.kernel, W = padded_W(s);
        const uint64_t plane = uint64_t{s.H + 2 * s.pad} * W;
        const uint16_t* corner = padded + pixel / s.Q() * W + pixel % s.Q();   // of a window
        const uint16_t* end = corner + (s.Q() - pixel % s.Q());                // of the row of corners
        for (uint32_t j = 0; j < count; ++j, ++corner) {
            if (corner == end) corner += kernel - 1, end += W;
            const uint16_t* from = corner;
            uint16_t* to = patches + j * size;
            for (uint32_t c = 0; c < C; ++c, from += plane - uint64_t{kernel} * W)
                for (uint32_t r = 0; r < kernel; ++r, from += W, to += kernel) __builtin_memcpy(to, from, 16);
            __builtin_memset(to, 0, 16);
        }
        for (uint32_t block = 0; block < blocks(values(s), 32); ++block)
            for (uint32_t j = 0; j < count; ++j) keep(rows + (block * chunk + j) * 16, halves(patches + j * size + block * 32));
    }

    /// pairs [values/16][chunk/2][16 words of a value of two pixels]
    void pairs(int32_t* to, uint32_t count) const {
        for (uint32_t block = 0; block < blocks(values(s), 16); ++block)
            for (uint32_t j = 0; j < count; j += 2) {
                const int32_t* from = rows + (block / 2 * chunk + j) * 16;
                const __m512i second = j + 1 < count ? halves(from + 16) : __m512i{};
                keep(to + (block * chunk / 2 + j / 2) * 16, words(halves(from), second, block % 2));
            }
    }
};

uint64_t forward_scratch(const WideShape& s) { return Input::size(s); }

void forward(float* y, const float* x, const float* packed, const float* bias, bool rectify, const float* mask, float* scratch,
             const WideShape& s) {
    const uint64_t pixels = uint64_t{s.P()} * s.Q(), plane = pixels * 16, image = uint64_t{s.C} * s.H * s.W;
    Input input(scratch, s);
    for (uint32_t n = 0; n < s.N; ++n) {
        input.open(x + n * image);
        for (uint64_t pixel = 0; pixel < pixels; pixel += chunk) {
            const uint32_t count = least(chunk, static_cast<uint32_t>(pixels - pixel));
            const uint64_t at = n * s.K * pixels + pixel * 16;
            input.read(pixel, count);
            const float* next = pixel + chunk < pixels ? input.image + (pixel + chunk) * 16 : input.image + image;
            rows_product(
                Rows<int32_t>{y + at, input.rows, reinterpret_cast<const int32_t*>(packed), plane, chunk * 16, blocks(values(s), 2), s.K,
                              Finish{bias, rectify, mask ? mask + at : nullptr}, few(s) ? nullptr : next, plane},
                0, count);
        }
    }
}

/// The same order as of Input::pairs, of pixels whose channels lie in blocks of 16; and sums [channels] += those of pixels.
void pairs_of(int32_t* to, const float* pixels, uint64_t plane, uint32_t channels, uint32_t count, float* sums) {
    for (uint32_t block = 0; block < channels / 16; ++block) {
        const float* from = pixels + block * plane;
        V sum{};
        for (uint32_t j = 0; j < count; j += 2, from += 32) {
            const V first = load(from), second = j + 1 < count ? load(from + 16) : V{};
            sum += first + second;
            keep(to + (block * chunk / 2 + j / 2) * 16, words(first, second));
        }
        if (sums) store(sums + block * 16, load(sums + block * 16) + sum);
    }
}

uint64_t pairs_size(uint32_t count) { return uint64_t{blocks(count, 16)} * chunk / 2 * 16; }
uint64_t weights_scratch(const WideShape& s) {
    return pairs_size(values(s)) + pairs_size(s.K) + uint64_t{blocks(values(s), rows)} * rows * s.K + Input::size(s);
}

void backward_weights(float* dw, float* db, const float* dy, const float* x, float* scratch, const WideShape& s) {
    const uint64_t pixels = uint64_t{s.P()} * s.Q(), plane = pixels * 16, image = uint64_t{s.C} * s.H * s.W;
    const uint32_t C = blocks(values(s), rows) * rows;
    auto* const x_pairs = reinterpret_cast<int32_t*>(scratch);
    auto* const y_pairs = x_pairs + pairs_size(values(s));
    float* const sums = scratch + pairs_size(values(s)) + pairs_size(s.K);
    Input input(sums + uint64_t{C} * s.K, s);
    for (uint32_t k = 0; k < s.K && db; ++k) db[k] = 0;
    for (uint32_t n = 0; n < s.N; ++n) {
        input.open(x + n * image);
        for (uint64_t pixel = 0; pixel < pixels; pixel += chunk) {
            const uint32_t count = least(chunk, static_cast<uint32_t>(pixels - pixel));
            const float* from = dy + n * s.K * pixels + pixel * 16;
            if (few(s)) {
                input.read(pixel, count);
                input.pairs(x_pairs, count);
            } else {
                pairs_of(x_pairs, input.image + pixel * 16, plane, s.C, count, nullptr);
            }
            pairs_of(y_pairs, from, plane, s.K, count, db);
            const bool last = pixel + chunk >= pixels;
            Sums<int32_t> t{.w = sums,
                            .x = x_pairs,
                            .y = y_pairs,
                            .x_plane = chunk / 2 * 16,
                            .y_plane = chunk / 2 * 16,
                            .C = C,
                            .K = s.K,
                            .terms = blocks(count, 2),
                            .add = n > 0 || pixel > 0,
                            .ahead = {{last ? input.image + image : input.image + (pixel + chunk) * 16, plane, few(s) ? 0 : s.C / 16},
                                      {last ? dy + (n + 1) * s.K * pixels : from + chunk * 16, plane, s.K / 16}}};
            sums_product(t);
        }
    }
    for (uint32_t k = 0; k < s.K; ++k)
        for (uint32_t i = 0; i < values(s); ++i) dw[uint64_t{k} * values(s) + i] = sums[uint64_t{i} * s.K + k];
}

}   // namespace

extern const WideKernels wide_kernels;
const WideKernels wide_kernels = {packed, pack, forward_scratch, weights_scratch, forward, backward_weights};

}   // namespace GC_ISA
}   // namespace gradcast
