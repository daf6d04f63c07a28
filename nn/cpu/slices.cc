// A sliced layer: each slice is built as a layer of its own, which knows nothing of the others.  Its outputs are copied to and from their
// place among all outputs:
//     y[:, t] = slice t of x;   dx = the binary tree ((p0 + p1) + (p2 + p3)) + ... of each slice's own dx, p_t, in float
//
// One of several slice groups computes an aligned run of the slices.  It gets the other groups' columns of y, and adds up dx by recursive
// doubling: on level l of the tree with group g ^ 2^l, so all groups have all of y and dx.
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

/// All outputs in memory, and the columns of each slice group.
struct Groups {
    Tensor all;
    Runs runs;
    uint64_t row = 0;   // bytes of a run
    struct Columns {
        uint64_t before, bytes;   // in a run
    };
    std::vector<Columns> columns;   // by group

    uint64_t bytes(uint32_t group, uint32_t samples) const { return runs.count(samples) * columns[group].bytes; }
    template <typename Copy>
    void each(Frame& frame, uint32_t group, std::byte* there, Copy copy) const {
        const auto [before, count] = columns[group];
        auto* here = reinterpret_cast<std::byte*>(frame.at(all)) + before;
        for (uint64_t run = runs.count(frame.samples); run > 0; --run, here += row, there += count) copy(here, there, count);
    }
    void take(Frame& frame, uint32_t group, std::byte* to) const {
        each(frame, group, to, [](const std::byte* here, std::byte* there, uint64_t count) { std::memcpy(there, here, count); });
    }
    void put(Frame& frame, uint32_t group, std::byte* from) const {
        each(frame, group, from, [](std::byte* here, const std::byte* there, uint64_t count) { std::memcpy(here, there, count); });
    }
};

/// Gives the own columns to all groups, and takes theirs.
void gather_groups(Build& b, const Groups& groups) {
    const size_t point = b.slice_point(SliceTraffic::columns, SlicePoint::all,
                                       [groups](uint32_t group, uint32_t samples) { return groups.bytes(group, samples); });
    b.operations->forward.emplace_back([groups, point, own = b.stage.slice_group](Frame& frame) {
        Buffer to;
        GC_TRY(frame.link->room(frame.lane, point, &to));
        groups.take(frame, own, to.host);
        GC_TRY(frame.link->exchange(frame.lane, point));
        for (uint32_t group = 0; group < groups.columns.size(); ++group)
            if (group != own) groups.put(frame, group, frame.link->received(frame.lane, point, group).host);
        return Status{};
    });
}

/// Adds up the slices' dx.  A part waits at the depth of the tree where its sum is not complete.
class Tree {
public:
    /// Of so many slices, which are an aligned subtree where there are slice groups.
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
    /// Behind the last own slice: the sum over all slice groups.
    void add_groups(Build& b, std::vector<Operation>& list) const {
        const uint32_t own = b.stage.slice_group;
        for (uint32_t apart = 1; apart < b.stage.slice_groups; apart *= 2) {
            const uint32_t with = own ^ apart;
            const auto count = [floats = waiting_[0].bytes() / sizeof(float), most = samples_](uint32_t samples) {
                return samples == most ? floats : floats / most * samples;
            };
            const size_t point = b.slice_point(SliceTraffic::gradients, with,
                                               [count](uint32_t, uint32_t samples) { return count(samples) * sizeof(float); });
            list.emplace_back([&kernels = float_kernels(isa_best()), sum = waiting_[0], count, point, own, with](Frame& frame) {
                const uint64_t floats = count(frame.samples);
                Buffer to;
                GC_TRY(frame.link->room(frame.lane, point, &to));
                std::memcpy(to.host, frame.at(sum), floats * sizeof(float));
                GC_TRY(frame.link->exchange(frame.lane, point));
                const float *const part = to.as<float>(), *const other = frame.link->received(frame.lane, point, with).as<float>();
                if (own < with) kernels.add(frame.at(sum), part, other, floats);
                else kernels.add(frame.at(sum), other, part, floats);   // which of two NaN counts depends on the order
                return Status{};
            });
        }
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

/// Pieces of the layer's gradient: the weights of the own slices, then their biases.
Pieces pieces_of(std::span<const Layer> own, std::vector<Pieces> slices) {
    if (std::ranges::any_of(slices, [](const Pieces& each) { return !each; })) return nullptr;
    struct Part {
        uint64_t weights, first_weight, first_bias;   // in the layer's gradient
    };
    uint64_t weights = 0;
    for (const Layer& slice : own) weights += slice.weights;
    std::vector<Part> parts;
    for (const Layer& slice : own)
        parts.push_back({slice.weights, slice.offset - own[0].offset, weights + slice.bias_offset - own[0].bias_offset});
    return [parts = std::move(parts), slices = std::move(slices), weights](Frame& frame, uint64_t first) {
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
    const uint32_t first = b.stage.slices_begin(slices), count = b.stage.slices_count(slices);
    copies.slices.resize(slices);
    std::optional<Tree> tree;
    if (x.learns) tree.emplace(b, x.gradient, count);
    std::vector<Pieces> pieces;
    Activation y;
    Groups groups;
    size_t in = 0;   // the number of the order of all outputs
    for (uint32_t t = 0; t < slices; ++t) {
        const Layer& slice = whole.slices[t];
        const bool own = b.stage.has_slice(t, slices);
        const std::array before = {list.forward.size(), list.gradient.size(), list.data.size(), list.weights.size()};
        Layer pooled;
        if (pool) pooled = *pool, pooled.in.C = pooled.out.C = slice.out.C;
        b.in_slice = true;
        b.own_slice(own);
        b.layer = &slice;
        b.pool = pool ? &pooled : nullptr;
        b.copies = &copies.slices[t];
        b.activation = x;
        if (tree) b.activation.gradient = tree->part(own ? t - first : 0);
        GC_TRY(build(b));
        const Activation made = b.activation;
        if (own) std::ranges::move(b.copies->refresh, std::back_inserter(copies.refresh));
        b.copies->refresh.clear();
        Pieces made_pieces = std::exchange(list.pieces, nullptr);

        const Shape shape{slice.out.C, out.H, out.W};
        const dnnl_data_type_t type = made.value.desc.data_type;
        const std::vector<Runs> parts = orders(b, shape, type), all = orders(b, out, type);
        const auto given = [&](const Runs& each) { return dnnl_memory_desc_equal(&each.desc, &made.value.desc) != 0; };
        // One channel at several positions is alike in plain order and with the channels last.  Linear layers alone have such slices.
        const bool last = shape.C == 1 && shape.H * shape.W > 1;
        while (t == 0 && in < parts.size() && (!given(parts[in]) || (last && parts[in].of_sample == 1))) ++in;
        if (in == parts.size() || !given(parts[in]))
            return fail(Code::unsupported, "layer {}: its kernel gives outputs in an order that cannot be sliced", layer_name(whole));
        if (t == 0) {
            b.in_slice = false;   // y is a layer's output as any other
            b.own_slice(true);
            y = b.flows(all[in].desc, true);
            groups = {y.value, all[in], y.value.bytes() / all[in].count(b.samples), {}};
        }
        const uint64_t bytes = made.value.bytes() / groups.runs.count(b.samples);   // of the slice, in a run
        const uint32_t group = t / count;
        if (t % count == 0) groups.columns.push_back({t == 0 ? 0 : groups.columns.back().before + groups.columns.back().bytes, 0});
        const Columns columns(y.value, made.value, groups.runs, groups.columns[group].before + groups.columns[group].bytes, b.samples);
        const Columns dcolumns(y.gradient, made.gradient, groups.runs, groups.columns[group].before + groups.columns[group].bytes,
                               b.samples);
        groups.columns[group].bytes += bytes;
        if (!own) {   // it was built for the choice of kernels and orders alone
            list.forward.resize(before[0]);
            list.gradient.resize(before[1]);
            list.data.resize(before[2]);
            list.weights.resize(before[3]);
            continue;
        }
        pieces.push_back(std::move(made_pieces));
        list.forward.emplace_back([columns](Frame& frame) { return columns.gather(frame); });
        if (b.training)
            list.gradient.insert(list.gradient.begin() + static_cast<ptrdiff_t>(before[1]),
                                 [dcolumns](Frame& frame) { return dcolumns.scatter(frame); });
        if (tree) tree->add(t - first, list.data);
    }
    b.in_slice = false;
    b.own_slice(true);
    b.reordered.clear();
    b.layer = &whole;
    b.pool = pool;
    b.copies = &copies;
    b.activation = y;
    if (b.stage.slice_groups > 1 && !b.columns_apart(b.number)) gather_groups(b, groups);
    if (tree) tree->add_groups(b, list.data);
    list.pieces = pieces_of(std::span(whole.slices).subspan(first, count), std::move(pieces));
    if (!list.weights.empty())
        list.weights = {[all = std::move(list.weights)](Frame& frame) {
            for (const Operation& each : all) GC_TRY(each(frame));
            return Status{};
        }};
    return tree ? tree->end(b, list.data) : Status{};
}

}   // namespace gradcast::cpu
