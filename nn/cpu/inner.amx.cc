// Inner products on AMX.  A strip is 32 columns of the weights by up to 512 terms; it is split into parts while the strip before it is
// multiplied by the samples' parts.  Gradients of weights multiply the parts of dy, 32 outputs at a time, by those of all x.
#include "nn/cpu/inner.h"
#include "nn/cpu/tiles.h"

namespace gradcast {
namespace avx512 {
extern const InnerKernels inner_kernels;
}
namespace GC_ISA {
namespace {

constexpr uint32_t most = 256, wide = 2 * side;   // samples; columns of a strip
// Terms of a strip.  Of a straight matrix they are rows, which share few sets of the caches.
constexpr uint32_t turned_terms = 512, straight_terms = 128;

constexpr uint64_t strip_bytes = panels_bytes(wide, turned_terms), memory_bytes = panels_bytes(most, turned_terms) + 2 * strip_bytes;

/// Splits the samples' terms into panels of a with `rows` rows.
void split_samples(uint8_t* to, const float* from, uint64_t stride, uint32_t samples, uint32_t rows, uint32_t terms) {
    const uint32_t chunks = blocks(terms, chunk), whole = terms / chunk;
    for (uint32_t n = 0; n < samples; ++n, from += stride) {
        uint8_t* line = to + n / rows * chunks * panel_bytes + n % rows * 64;
        for (uint32_t i = 0; i < whole; ++i, line += panel_bytes) split_row(line, from + i * chunk);
        if (whole == chunks) continue;
        alignas(64) float last[chunk] = {};
        __builtin_memcpy(last, from + whole * chunk, (terms - whole * chunk) * sizeof(float));
        split_row(line, last);
    }
}

/// to [N, columns] (+)= factor [N, terms] m.
void product(float* to, const float* factor, uint32_t N, uint32_t terms, uint32_t columns, bool add, const Matrix& m, float* memory) {
    const uint32_t deep = m.turned ? turned_terms : straight_terms, across = blocks(columns, wide);
    const uint32_t strips = across * blocks(terms, deep);
    uint8_t *const b = reinterpret_cast<uint8_t*>(memory), *const a = b + 2 * strip_bytes;
    auto strip = [&](uint32_t i) {
        const uint32_t term = i / across * deep, column = i % across * wide;
        return Strip{b + i % 2 * strip_bytes, term, column, least(deep, terms - term), least(wide, columns - column)};
    };
    for (uint32_t n = 0; n < N; n += most, to += uint64_t{most} * columns, factor += uint64_t{most} * terms) {
        const uint32_t samples = least(most, N - n), panels = blocks(samples, side), rows = blocks(samples, panels);
        const TileRegisters registers(rows);
        make_all(m, strip(0));
        for (uint32_t i = 0; i < strips; ++i) {
            const Strip now = strip(i), next = i + 1 < strips ? strip(i + 1) : Strip{};
            const uint32_t chunks = now.chunks(), each = blocks(next.squares(), blocks(panels, 2) * chunks);   // steps a call
            const float* const ahead = i + 2 < strips && !m.turned ? m.at(strip(i + 2).term, strip(i + 2).column) : nullptr;
            Maker maker(m, next, ahead);
            if (now.column == 0) split_samples(a, factor + now.term, terms, samples, rows, now.terms);
            for (uint32_t panel = 0; panel < panels; panel += 2)
                tiles_product({.to = to + uint64_t{panel} * rows * columns + now.column,
                               .stride = columns,
                               .rows = rows,
                               .height = least(2 * rows, samples - panel * rows),
                               .width = now.columns,
                               .add = add || now.term > 0},
                              a + panel * chunks * panel_bytes, now.to, {chunks}, [&]<uint32_t i>(std::integral_constant<uint32_t, i>) {
                                  if (each == 1) return void(maker.step<i>());
                                  for (uint32_t step = 0; step < each && maker.make(); ++step) {
                                  }
                              });
            make_all(maker);
        }
    }
}

void forward_packed(float* y, const float* x, const float* w, const float* bias, float* memory, const InnerShape& s) {
    for (uint32_t n = 0; bias && n < s.N; ++n) __builtin_memcpy(y + uint64_t{n} * s.K, bias, s.K * sizeof(float));
    product(y, x, s.N, s.C, s.K, bias, {w, s.C, true}, memory);
}

void backward_data(float* dx, const float* dy, const float* w, float* memory, const InnerShape& s) {
    product(dx, dy, s.N, s.K, s.C, false, {w, s.C, false}, memory);
}

// ---- gradients of weights --------------------------------------------------------------------------------------------------------------

constexpr uint32_t samples_most = 128;   // multiplied at a time

uint64_t packed(const InnerShape& s) { return blocks(s.C, wide) * 2 * uint64_t{blocks(s.N, chunk)} * panel_bytes / sizeof(float); }

/// Calls f(first sample, their number, their terms, first column of the strip, its parts).
template <typename F>
void each_strip(float* memory, const InnerShape& s, F f) {
    uint8_t* at = reinterpret_cast<uint8_t*>(memory);
    for (uint32_t n = 0; n < s.N; n += samples_most)
        for (uint32_t c = 0; c < s.C; c += wide) {
            const uint32_t samples = least(samples_most, s.N - n);
            const Terms terms = terms_of(samples);
            f(n, samples, terms, c, at);
            at += 2 * terms.bytes();
        }
}

void pack(float* to, const float* x, const InnerShape& s) {
    const Matrix m{x, s.C, false};
    each_strip(to, s, [&](uint32_t n, uint32_t samples, const Terms& terms, uint32_t c, uint8_t* at) {
        const uint32_t columns = least(wide, s.C - c), whole = least(samples, terms.chunks * chunk);
        uint8_t* last = at + 2 * terms.chunks * panel_bytes;
        for (uint32_t i = 0; i < columns; i += side, at += terms.chunks * panel_bytes, last += terms.last_bytes()) {
            const uint32_t some = least(side, columns - i);
            make_all(m, {at, n, c + i, whole, some});
            if (terms.sixteen) split_last_terms(last, m.at(n + whole, c + i), s.C, samples - whole, some);
        }
    });
}

void backward_weights(float* dw, uint64_t apart, const float* dy, const float* in_strips, const InnerShape& s, uint32_t first,
                      uint32_t end) {
    const TileRegisters registers(side);
    alignas(64) uint8_t factor[2 * terms_of(samples_most).bytes()];
    for (uint32_t k = first; k < end; k += wide, dw += wide * apart) {
        const uint32_t outputs = least(wide, end - k);
        each_strip(const_cast<float*>(in_strips), s, [&](uint32_t n, uint32_t samples, const Terms& terms, uint32_t c, const uint8_t* at) {
            const uint32_t whole = least(samples, terms.chunks * chunk);
            uint8_t *to = factor, *last = factor + 2 * terms.chunks * panel_bytes;
            for (uint32_t i = 0; c == 0 && i < outputs; i += side, to += terms.chunks * panel_bytes, last += terms.last_bytes()) {
                const float* const from = dy + uint64_t{n} * s.K + k + i;
                const uint32_t some = least(side, outputs - i);
                split_turned(to, from, s.K, whole, some);
                if (terms.sixteen) split_last_turned(last, from + uint64_t{whole} * s.K, s.K, samples - whole, some);
            }
            tiles_product({.to = dw + c, .stride = apart, .rows = side, .height = outputs, .width = least(wide, s.C - c), .add = n > 0},
                          factor, at, terms, [](auto) {});
        });
    }
}

}   // namespace

InnerKernels inner_kernels() {
    InnerKernels made = avx512::inner_kernels;
    made.memory = memory_bytes / sizeof(float);
    made.forward_packed = forward_packed;
    made.backward_data = backward_data;
    made.packed = packed;
    made.pack = pack;
    made.backward_weights = backward_weights;
    return made;
}

}   // namespace GC_ISA
}   // namespace gradcast
