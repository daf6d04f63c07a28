// A sliced layer: each slice is built as a layer of its own, which knows nothing of the others.  Its outputs are copied to and from their
// place among all outputs:
//     y[:, t] = slice t of x;   dx = the binary tree ((p0 + p1) + (p2 + p3)) + ... of each slice's own dx, p_t, in float
#include <bit>
#include <cstring>

#include "nn/cpu/build.h"

namespace gradcast::cpu {
namespace {

/// An order of outputs in memory: runs of all channels, one behind the other.  A slice has its channels of each run together.
struct Runs {
    dnnl_memory_desc_t desc;
    uint64_t of_sample = 1;   // runs
    uint32_t samples = 1;     // that share one
    uint64_t count(uint32_t of) const { return of_sample * ((of + samples - 1) / samples); }
};

/// Orders of a tensor of that shape and type that kernels give.
std::vector<Runs> orders(const Build& b, const Shape& shape, dnnl_data_type_t type) {
    std::vector<Runs> all = {{Build::plain({b.samples, shape.C, shape.H, shape.W}, type)}};
    for (const dnnl_format_tag_t tag : {dnnl_nChw8c, dnnl_nChw16c}) all.push_back({b.tagged(shape, tag, type)});
    all.push_back({b.channels_last(shape, type), uint64_t{shape.H} * shape.W});
    if (type == dnnl_f32) all.push_back({Build::side_by_side(b.samples, shape), 1, 16});
    return all;
}

/// Copies a slice's outputs to their place among all, or back.
class Columns {
public:
    Columns(const Tensor& all, const Tensor& slice, const Runs& runs, uint64_t before, uint32_t samples)
        : all_(all),
          slice_(slice),
          runs_(runs),
          row_(all.bytes() / runs.count(samples)),
          part_(slice.bytes() / runs.count(samples)),
          before_(before) {}
    Status gather(Frame& frame) const {
        each(frame, [this](std::byte* all, std::byte* slice) { std::memcpy(all, slice, part_); });
        return {};
    }
    Status scatter(Frame& frame) const {
        each(frame, [this](std::byte* all, std::byte* slice) { std::memcpy(slice, all, part_); });
        return {};
    }

private:
    template <typename Copy>
    void each(Frame& frame, Copy copy) const {
        auto *all = reinterpret_cast<std::byte*>(frame.at(all_)) + before_, *slice = reinterpret_cast<std::byte*>(frame.at(slice_));
        for (uint64_t run = runs_.count(frame.samples); run > 0; --run, all += row_, slice += part_) copy(all, slice);
    }
    Tensor all_, slice_;
    Runs runs_;
    uint64_t row_, part_, before_;   // bytes
};

/// Adds up the slices' dx.  A part waits at the depth of the tree where its sum is not complete.
class Tree {
public:
    Tree(Build& b, const Tensor& sum, uint32_t slices) : sum_(sum), samples_(b.samples) {
        dnnl_memory_desc_t desc = sum.desc;
        desc.data_type = dnnl_f32;
        waiting_.push_back(sum.desc.data_type == dnnl_f32 ? sum : b.kept(desc));
        for (uint32_t n = slices; n > 1; n /= 2) waiting_.push_back(b.kept(desc));
    }
    /// Where slice t writes its part.
    const Tensor& part(uint32_t t) const { return waiting_[std::popcount(t)]; }
    /// Slice t has written: adds what is complete.
    void add(uint32_t t, std::vector<Operation>& list) const {
        for (size_t depth = std::popcount(t); t & 1; t >>= 1, --depth)
            list.emplace_back(
                [&kernels = float_kernels(isa_best()), to = waiting_[depth - 1], from = waiting_[depth], samples = samples_](Frame& frame) {
                    kernels.add(frame.at(to), frame.at(to), frame.at(from), frame.part(to.bytes() / sizeof(float), samples));
                    return Status{};
                });
    }
    /// Behind the last slice.
    Status end(Build& b, std::vector<Operation>& list) const {
        return sum_.desc.data_type == dnnl_f32 ? Status{} : b.reorder(waiting_[0], sum_, list);
    }

private:
    const Tensor sum_;
    const uint32_t samples_;
    std::vector<Tensor> waiting_;   // by depth
};

using Pieces = std::function<GradientPart(Frame&, uint64_t first)>;

/// Pieces of the layer's gradient: the weights of all slices, then their biases.
Pieces pieces_of(const Layer& whole, std::vector<Pieces> slices) {
    if (std::ranges::any_of(slices, [](const Pieces& each) { return !each; })) return nullptr;
    struct Part {
        uint64_t weights, first_weight, first_bias;   // in the layer
    };
    std::vector<Part> parts;
    for (const Layer& slice : whole.slices) parts.push_back({slice.weights, slice.offset - whole.offset, slice.bias_offset - whole.offset});
    return [parts = std::move(parts), slices = std::move(slices), weights = whole.weights](Frame& frame, uint64_t first) {
        size_t t = parts.size() - 1;
        if (first < weights) {
            while (parts[t].first_weight > first) --t;
            return slices[t](frame, first - parts[t].first_weight);
        }
        while (parts[t].first_bias > first) --t;
        return slices[t](frame, parts[t].weights + first - parts[t].first_bias);
    };
}

}   // namespace

Status sliced(Build& b, Status (*build)(Build&)) {
    const Layer &whole = *b.layer, *const pool = b.pool;
    const Shape out = pool ? pool->out : whole.out;
    const Activation x = b.activation;
    Operations& list = *b.operations;
    WeightCopies& copies = *b.copies;
    const auto slices = static_cast<uint32_t>(whole.slices.size());
    copies.slices.resize(slices);
    std::optional<Tree> tree;
    if (x.learns) tree.emplace(b, x.gradient, slices);
    std::vector<Pieces> pieces;
    Activation y;
    Runs runs;
    size_t in = 0;         // the number of the order of all outputs
    uint32_t before = 0;   // outputs
    b.in_slice = true;
    for (uint32_t t = 0; t < slices; ++t) {
        const Layer& slice = whole.slices[t];
        const size_t gradients = list.gradient.size();
        Layer pooled;
        if (pool) pooled = *pool, pooled.in.C = pooled.out.C = slice.out.C;
        b.layer = &slice;
        b.pool = pool ? &pooled : nullptr;
        b.copies = &copies.slices[t];
        b.activation = x;
        if (tree) b.activation.gradient = tree->part(t);
        GC_TRY(build(b));
        const Activation made = b.activation;
        std::ranges::move(b.copies->refresh, std::back_inserter(copies.refresh));
        b.copies->refresh.clear();
        pieces.push_back(std::exchange(list.pieces, nullptr));

        const Shape shape{slice.out.C, out.H, out.W};
        const dnnl_data_type_t type = made.value.desc.data_type;
        const std::vector<Runs> parts = orders(b, shape, type), all = orders(b, out, type);
        const auto order =
            std::ranges::find_if(parts, [&](const Runs& each) { return dnnl_memory_desc_equal(&each.desc, &made.value.desc); });
        const auto number = static_cast<size_t>(order - parts.begin());
        if (t == 0) in = number;
        if (order == parts.end() || number != in)
            return fail(Code::unsupported, "layer {}: its kernel gives outputs in an order that cannot be sliced", layer_name(whole));
        if (t == 0) {
            runs = all[number];
            b.in_slice = false;   // y is a layer's output as any other
            y = b.flows(runs.desc, true);
            b.in_slice = true;
        }
        const uint64_t bytes = made.value.bytes() / runs.count(b.samples) / slice.out.C * before;
        list.forward.emplace_back(
            [columns = Columns(y.value, made.value, runs, bytes, b.samples)](Frame& frame) { return columns.gather(frame); });
        before += slice.out.C;
        if (b.training)
            list.gradient.insert(
                list.gradient.begin() + static_cast<ptrdiff_t>(gradients),
                [columns = Columns(y.gradient, made.gradient, runs, bytes, b.samples)](Frame& frame) { return columns.scatter(frame); });
        if (tree) tree->add(t, list.data);
    }
    b.in_slice = false;
    b.reordered.clear();
    b.layer = &whole;
    b.pool = pool;
    b.copies = &copies;
    b.activation = y;
    list.pieces = pieces_of(whole, std::move(pieces));
    if (!list.weights.empty())
        list.weights = {[all = std::move(list.weights)](Frame& frame) {
            for (const Operation& each : all) GC_TRY(each(frame));
            return Status{};
        }};
    return tree ? tree->end(b, list.data) : Status{};
}

}   // namespace gradcast::cpu
