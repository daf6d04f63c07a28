// y[n,c,p,q] of s times the height and width.
// nearest:   y[p,q] = x[p / s, q / s], rounded down.
// bilinear:  the centre of p lies at i + f = (2 p + 1 - s) / (2 s), at least 0 and at most H - 1, and
//            y[p,q] = (1 - g) v[j] + g v[j + 1],  v = (1 - f) x[i] + f x[i + 1],  with j + g of q likewise.
// The gradient is the transposed sum, added in the order of p, then q.  All sums are of one channel, in one order and without fused
// multiply-adds, so every instruction set gives the same bits.
#include <algorithm>
#include <vector>

#include "nn/cpu/build.h"

namespace gradcast::cpu {
namespace {

typedef float Eight __attribute__((vector_size(8 * sizeof(float)), may_alias));

/// Of one output row or column: the share of the next input row beside that of `first`.
struct Mix {
    uint32_t first, next;
    float share, next_share;
};

std::vector<Mix> mixes_of(uint32_t side, uint32_t scale, bool bilinear) {
    std::vector<Mix> mixes;
    for (uint32_t p = 0; p < side * scale; ++p) {
        const int64_t twice = bilinear ? std::max<int64_t>(2 * int64_t{p} + 1 - scale, 0) : int64_t{p} / scale * 2 * scale;
        const auto first = static_cast<uint32_t>(twice / (2 * scale));
        const float share = static_cast<float>(twice % (2 * scale)) / static_cast<float>(2 * scale);
        mixes.push_back({first, std::min(first + 1, side - 1), 1 - share, share});
    }
    return mixes;
}

/// Planes of pixels, of `width` channels each: a multiple of 8.
struct Geometry {
    uint64_t planes;
    uint32_t W, width, scale;
    uint64_t x_floats, y_floats;   // of a plane
    std::vector<Mix> rows, columns;

    uint64_t row() const { return uint64_t{W} * width; }
    uint64_t wide_row() const { return row() * scale; }
};

/// Calls f(to, from) for the channels of two pixels.
template <typename F>
void each_eight(float* to, const float* from, uint64_t floats, F f) {
    for (uint64_t i = 0; i < floats; i += 8) f(*reinterpret_cast<Eight*>(to + i), *reinterpret_cast<const Eight*>(from + i));
}

void nearest(float* y, const float* x, const Geometry& g) {
    for (size_t p = 0; p < g.rows.size(); ++p, y += g.wide_row()) {
        if (p % g.scale != 0) {
            std::copy_n(y - g.wide_row(), g.wide_row(), y);
            continue;
        }
        const float* from = x + g.rows[p].first * g.row();
        for (size_t q = 0; q < g.columns.size(); ++q) std::copy_n(from + uint64_t{g.columns[q].first} * g.width, g.width, y + q * g.width);
    }
}

void nearest_backward(float* dx, const float* dy, const Geometry& g) {
    std::fill_n(dx, g.x_floats, 0.0f);
    for (size_t p = 0; p < g.rows.size(); ++p)
        for (size_t q = 0; q < g.columns.size(); ++q, dy += g.width)
            each_eight(dx + g.rows[p].first * g.row() + uint64_t{g.columns[q].first} * g.width, dy, g.width,
                       [](Eight& to, const Eight& from) { to += from; });
}

/// mixed: [W, width]
void bilinear(float* y, const float* x, float* mixed, const Geometry& g) {
    for (const Mix& row : g.rows) {
        std::copy_n(x + row.first * g.row(), g.row(), mixed);
        each_eight(mixed, x + row.next * g.row(), g.row(),
                   [&](Eight& to, const Eight& from) { to = row.share * to + row.next_share * from; });
        for (const Mix& column : g.columns) {
            const float *first = mixed + uint64_t{column.first} * g.width, *next = mixed + uint64_t{column.next} * g.width;
            for (uint32_t c = 0; c < g.width; c += 8, y += 8)
                *reinterpret_cast<Eight*>(y) = column.share * *reinterpret_cast<const Eight*>(first + c) +
                                               column.next_share * *reinterpret_cast<const Eight*>(next + c);
        }
    }
}

void bilinear_backward(float* dx, const float* dy, float* mixed, const Geometry& g) {
    std::fill_n(dx, g.x_floats, 0.0f);
    for (const Mix& row : g.rows) {
        std::fill_n(mixed, g.row(), 0.0f);
        for (const Mix& column : g.columns) {
            each_eight(mixed + uint64_t{column.first} * g.width, dy, g.width,
                       [&](Eight& to, const Eight& from) { to += column.share * from; });
            each_eight(mixed + uint64_t{column.next} * g.width, dy, g.width,
                       [&](Eight& to, const Eight& from) { to += column.next_share * from; });
            dy += g.width;
        }
        each_eight(dx + row.first * g.row(), mixed, g.row(), [&](Eight& to, const Eight& from) { to += row.share * from; });
        each_eight(dx + row.next * g.row(), mixed, g.row(), [&](Eight& to, const Eight& from) { to += row.next_share * from; });
    }
}

}   // namespace

Status upsample(Build& b) {
    const Layer& l = *b.layer;
    const Activation before = b.activation;
    const auto scale = static_cast<uint32_t>(l.value("scale"));
    const bool between = l.value("mode") != 0;
    Operations& list = *b.operations;
    const dnnl_memory_desc_t last = b.channels_last(l.in);
    const bool all = l.in.C % 8 == 0 && dnnl_memory_desc_equal(&before.value.desc, &last);
    const uint32_t width = all ? l.in.C : b.input_width();
    const dnnl_memory_desc_t in = all ? last : b.blocked(l.in, width), out = all ? b.channels_last(l.out) : b.blocked(l.out, width);
    Tensor x, dx;
    GC_TRY(b.consume({before.value}, in, list.forward, &x));
    const Activation y = b.activation = b.flows(out, before.learns);
    const uint64_t pixels = uint64_t{l.in.H} * l.in.W * width;
    const auto shape = std::make_shared<const Geometry>(Geometry{uint64_t{b.samples} * ((l.in.C + width - 1) / width), l.in.W, width, scale,
                                                                 pixels, pixels * scale * scale, mixes_of(l.in.H, scale, between),
                                                                 mixes_of(l.in.W, scale, between)});
    const Tensor mixed = between ? b.scratch(shape->row()) : Tensor{};
    list.forward.emplace_back([=](Frame& frame) {
        for (uint64_t plane = 0; plane < shape->planes; ++plane) {
            float* to = frame.at(y.value) + plane * shape->y_floats;
            const float* from = frame.at(x) + plane * shape->x_floats;
            if (between) bilinear(to, from, frame.at(mixed), *shape);
            else nearest(to, from, *shape);
        }
        return Status{};
    });
    if (!y.learns) return {};
    std::vector<Operation> after;
    GC_TRY(b.produce(before.gradient, in, after, &dx));
    list.data.emplace_back([=](Frame& frame) {
        for (uint64_t plane = 0; plane < shape->planes; ++plane) {
            float* to = frame.at(dx) + plane * shape->x_floats;
            const float* from = frame.at(y.gradient) + plane * shape->y_floats;
            if (between) bilinear_backward(to, from, frame.at(mixed), *shape);
            else nearest_backward(to, from, *shape);
        }
        return Status{};
    });
    list.data.insert(list.data.end(), after.begin(), after.end());
    return {};
}

}   // namespace gradcast::cpu
