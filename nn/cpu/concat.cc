// y = x and behind it `other`, along the channels.  The gradient is cut apart.
#include <cstring>

#include "nn/cpu/build.h"

namespace gradcast::cpu {
namespace {

/// Rows of y, each of `first` bytes of x and `second` bytes of the other.
struct Rows {
    uint64_t count, first, second;
};

/// The order of one input, of y, and how y's rows are put together.  Orders of 8 or 16 channels together stay if x fills its last block,
/// and all channels together if either input comes so.
struct Orders {
    dnnl_memory_desc_t x, other, y;
    Rows rows;
};

Orders orders_of(const Build& b) {
    const Layer& l = *b.layer;
    const auto is = [](const Activation& a, const dnnl_memory_desc_t& order) { return dnnl_memory_desc_equal(&a.value.desc, &order) != 0; };
    const uint64_t plane = uint64_t{l.in.H} * l.in.W, all = sizeof(float);
    const dnnl_memory_desc_t last = b.channels_last(l.in), other_last = b.channels_last(l.other_in);
    if (plane > 1 && (is(b.activation, last) || is(b.other, other_last)))
        return {last, other_last, b.channels_last(l.out), {b.samples * plane, l.in.C * all, l.other_in.C * all}};
    for (const uint32_t width : {16u, 8u}) {
        const dnnl_memory_desc_t x = b.blocked(l.in, width), other = b.blocked(l.other_in, width);
        if (l.in.C % width != 0 || !(is(b.activation, x) || is(b.other, other))) continue;
        const uint64_t filled = (l.other_in.C + width - 1) / width * width;
        return {x, other, b.blocked(l.out, width), {b.samples, l.in.C * plane * all, filled * plane * all}};
    }
    const auto plain = [&](const Shape& shape) { return Build::plain({b.samples, shape.C, shape.H, shape.W}); };
    return {plain(l.in), plain(l.other_in), plain(l.out), {b.samples, l.in.elements() * all, l.other_in.elements() * all}};
}

}   // namespace

Status concat(Build& b) {
    const Activation x = b.activation, other = b.other;
    const Orders orders = orders_of(b);
    Operations& list = *b.operations;
    Tensor first, second;
    GC_TRY(b.consume({x.value}, orders.x, list.forward, &first));
    GC_TRY(b.consume({other.value}, orders.other, list.forward, &second));
    const Activation y = b.activation = b.flows(orders.y, x.learns || other.learns);
    const auto bytes = [](const Frame& frame, const Tensor& tensor) { return reinterpret_cast<std::byte*>(frame.at(tensor)); };
    list.forward.emplace_back([=, rows = orders.rows](Frame& frame) {
        std::byte* to = bytes(frame, y.value);
        for (uint64_t row = 0; row < rows.count; ++row, to += rows.first + rows.second) {
            std::memcpy(to, bytes(frame, first) + row * rows.first, rows.first);
            std::memcpy(to + rows.first, bytes(frame, second) + row * rows.second, rows.second);
        }
        return Status{};
    });
    const auto part = [&](const Activation& input, const dnnl_memory_desc_t& order, uint64_t at, uint64_t count) {
        if (!input.learns) return Status{};
        Tensor gradient;
        std::vector<Operation> after;
        GC_TRY(b.produce(input.gradient, order, after, &gradient));
        list.data.emplace_back([=, rows = orders.rows](Frame& frame) {
            const std::byte* from = bytes(frame, y.gradient) + at;
            for (uint64_t row = 0; row < rows.count; ++row)
                std::memcpy(bytes(frame, gradient) + row * count, from + row * (rows.first + rows.second), count);
            return Status{};
        });
        list.data.insert(list.data.end(), after.begin(), after.end());
        return Status{};
    };
    if (!y.learns) return {};
    GC_TRY(part(x, orders.x, 0, orders.rows.first));
    return part(other, orders.other, orders.rows.first, orders.rows.second);
}

}   // namespace gradcast::cpu
