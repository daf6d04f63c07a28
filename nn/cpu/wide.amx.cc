// 1x1 convolutions on AMX: the channels of 32 pixels are split into parts while the 32 pixels before them are multiplied by all weights,
// whose parts are made once a step.
#include "nn/cpu/wide.h"

#include "nn/cpu/product.h"
#include "nn/cpu/tiles.h"

namespace gradcast {
namespace GC_ISA {
namespace {

constexpr uint32_t pixels_most = 2 * side;   // of two panels of a
constexpr uint32_t terms_most = 256;         // pixels at a time, for gradients of weights

uint64_t packed(const WideShape& s) {
    const uint64_t ahead = panels_bytes(s.K, s.C), back = panels_bytes(s.C, s.K);
    return (ahead > back ? ahead : back) / sizeof(float);
}

void pack(float* to, const float* w, const WideShape& s, bool turned) {
    const uint32_t terms = turned ? s.K : s.C, columns = turned ? s.C : s.K;
    const Matrix m{w, s.C, !turned};
    for (uint32_t c = 0; c < columns; c += side) {
        make_all(m, {reinterpret_cast<uint8_t*>(to) + panels_bytes(c, terms), 0, c, terms, side});
    }
}

uint64_t forward_scratch(const WideShape& s) { return 2 * panels_bytes(pixels_most, s.C) / sizeof(float); }

/// Makes two panels of a from pixels' channels, a row at a time.
struct Pixels {
    uint8_t* to;
    const float* from;
    uint64_t plane;
    uint32_t count, C, made = 0;
    bool make() {
        const uint32_t chunks = blocks(C, chunk), pixel = made % pixels_most, i = made / pixels_most;
        if (i == chunks) return false;
        ++made;
        if (pixel >= count) return true;
        alignas(64) static constexpr float zeros[side] = {};
        const float* const first = from + 2 * i * plane + pixel * side;
        split_row(to + (pixel / side * chunks + i) * panel_bytes + pixel % side * 64, first, 2 * i + 1 < C / side ? first + plane : zeros);
        return true;
    }
};

void forward_1x1(float* y, const float* x, const uint8_t* packed, const float* biases, uint8_t* scratch, const WideShape& s) {
    const uint32_t pixels = s.H * s.W, chunks = blocks(s.C, chunk), across = blocks(pixels, pixels_most), all = s.N * across;
    const uint64_t plane = uint64_t{pixels} * side;
    auto some = [&](uint32_t i) {
        const uint32_t pixel = i % across * pixels_most;
        return Pixels{scratch + i % 2 * panels_bytes(pixels_most, s.C), x + i / across * s.C * uint64_t{pixels} + pixel * side, plane,
                      least(pixels_most, pixels - pixel), s.C};
    };
    const TileRegisters registers(side);
    const uint32_t each = blocks(pixels_most, blocks(s.K, 2 * side) * pauses);
    Pixels next = some(0);
    make_all(next);
    for (uint32_t i = 0; i < all; ++i) {
        const Pixels now = next;
        if (i + 1 < all) next = some(i + 1);
        const uint64_t image = i / across * s.K * uint64_t{pixels} + i % across * pixels_most * side;
        for (uint32_t k = 0; k < s.K; k += 2 * side) {
            alignas(64) float sums[pixels_most][2 * side];
            const uint32_t columns = least(2 * side, s.K - k);
            tiles_product({.to = sums[0], .stride = 2 * side, .rows = side, .height = now.count, .width = columns, .add = false}, now.to,
                          packed + panels_bytes(k, s.C), {chunks}, [&](auto) {
                              for (uint32_t row = 0; row < each && next.make(); ++row) {
                              }
                          });
            for (uint32_t c = 0; c < columns; c += side) {
                const V bias = biases ? load(biases + k + c) : V{};
                for (uint32_t pixel = 0; pixel < now.count; ++pixel)
                    store(y + image + (k + c) / side * plane + pixel * side, load(&sums[pixel][c]) + bias);
            }
        }
        make_all(next);
    }
}

void forward(float* y, const float* x, const float* w, const float* bias, float* scratch, const WideShape& s) {
    forward_1x1(y, x, reinterpret_cast<const uint8_t*>(w), bias, reinterpret_cast<uint8_t*>(scratch), s);
}

uint64_t weights_scratch(const WideShape& s) { return (panels_bytes(s.C, terms_most) + panels_bytes(s.K, terms_most)) / sizeof(float); }

void backward_weights_1x1(float* dw, float* db, const float* dy, const float* x, uint8_t* scratch, const WideShape& s) {
    const uint32_t pixels = s.H * s.W;
    const uint64_t plane = uint64_t{pixels} * side;
    uint8_t *const a = scratch, *const b = scratch + panels_bytes(s.K, terms_most);
    const TileRegisters registers(side);
    for (uint32_t n = 0; n < s.N; ++n, x += s.C * uint64_t{pixels}, dy += s.K * uint64_t{pixels})
        for (uint32_t pixel = 0; pixel < pixels; pixel += terms_most) {
            const uint32_t terms = least(terms_most, pixels - pixel), chunks = blocks(terms, chunk);
            for (uint32_t c = 0; c < s.C; c += side) {
                const Matrix m{x + c / side * plane + pixel * side, side, false};
                make_all(m, {b + panels_bytes(c, terms), 0, 0, terms, side});
            }
            for (uint32_t k = 0; k < s.K; k += side)
                split_turned(a + panels_bytes(k, terms), dy + k / side * plane + pixel * side, side, terms, side);
            for (uint32_t k = 0; k < s.K; k += 2 * side)
                for (uint32_t c = 0; c < s.C; c += 2 * side)
                    tiles_product({.to = dw + uint64_t{k} * s.C + c,
                                   .stride = s.C,
                                   .rows = side,
                                   .height = least(2 * side, s.K - k),
                                   .width = least(2 * side, s.C - c),
                                   .add = n > 0 || pixel > 0},
                                  a + panels_bytes(k, terms), b + panels_bytes(c, terms), {chunks}, [](auto) {});
            if (db) sums_of_rows(db, dy + pixel * side, plane, s.K, terms);
        }
}

void backward_weights(float* dw, float* db, const float* dy, const float* x, float* scratch, const WideShape& s) {
    for (uint32_t k = 0; k < s.K && db; ++k) db[k] = 0;
    backward_weights_1x1(dw, db, dy, x, reinterpret_cast<uint8_t*>(scratch), s);
}

}   // namespace

extern const WideKernels wide_kernels;
const WideKernels wide_kernels = {packed, pack, forward_scratch, weights_scratch, forward, backward_weights};

}   // namespace GC_ISA
}   // namespace gradcast
