// embedding: y[n,p] = w[x[n,p]], of the tokens of a text.  positions: y[n,p] = x[n,p] + w[p].  A position's channels lie together.
//
// Gradients of weights are added up in the order of samples and positions.
//
// An embedding in slices is computed as a whole, because a slice is a run of its rows.  Of several slice groups each has the rows of its
// slices.  It sends those of them that the tokens name, each once, and adds up gradients of its own rows alone.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "nn/cpu/build.h"
#include "nn/graph/layers.h"
#include "nn/graph/slices.h"
#include "nn/kernels.h"

namespace gradcast::cpu {
namespace {

/// Rows of an embedding that slice groups share out.  All groups know all tokens, so each knows what the others send.
class SharedRows {
public:
    /// w: the own rows.
    SharedRows(Build& b, const Tensor& w) : w_(w), width_(b.layer->out.C), own_(b.stage.slice_group), groups_(b.stage.slice_groups) {
        const auto rows = static_cast<uint32_t>(b.layer->weight_shape[0]), slices = static_cast<uint32_t>(b.layer->slices.size());
        for (uint32_t group = 0; group <= groups_; ++group) begins_.push_back(slice_begin(slices / groups_ * group, rows, slices));
        table_ = b.scratch(uint64_t{rows} * (sizeof(const float*) / sizeof(float)));
        point_ = b.slice_point(SliceTraffic::rows, SlicePoint::all,
                               [begins = begins_, width = width_, positions = b.layer->out.H](uint32_t group, uint32_t samples) {
                                   const uint64_t own = begins[group + 1] - begins[group];
                                   return std::min(own, uint64_t{samples} * positions) * width * sizeof(float);
                               });
    }
    /// *vectors becomes a table of the vector of each of these tokens, by token; valid until the operation ends.
    Status gather(Frame& frame, std::span<const uint32_t> tokens, const float* const** vectors) const {
        auto** const table = reinterpret_cast<const float**>(frame.at(table_));
        const float* const own = frame.at(w_);
        std::fill_n(table, begins_.back(), nullptr);
        for (const uint32_t token : tokens) table[token] = own;   // it is named
        Buffer room;
        GC_TRY(frame.link->room(frame.lane, point_, &room));
        std::array<uint64_t, groups_most> bytes{};
        float* to = room.as<float>();
        for (uint32_t group = 0; group < groups_; ++group)
            each(table, group, [&](uint32_t row) {
                bytes[group] += width_ * sizeof(float);
                if (group != own_) return;
                table[row] = own + (row - begins_[own_]) * width_;
                to = std::copy_n(table[row], width_, to);
            });
        GC_TRY(frame.link->exchange(frame.lane, point_, std::span(bytes).first(groups_)));
        for (uint32_t group = 0; group < groups_; ++group) {
            if (group == own_) continue;
            const float* from = frame.link->received(frame.lane, point_, group).as<float>();
            each(table, group, [&](uint32_t row) { table[row] = std::exchange(from, from + width_); });
        }
        *vectors = table;
        return {};
    }

private:
    static constexpr uint32_t groups_most = static_cast<uint32_t>(slices_key.max);
    /// Calls f(row) for the group's rows that are named, ascending.
    template <typename F>
    void each(const float* const* table, uint32_t group, F f) const {
        for (uint32_t row = begins_[group]; row < begins_[group + 1]; ++row)
            if (table[row]) f(row);
    }
    Tensor w_, table_;
    uint64_t width_;
    uint32_t own_, groups_;
    std::vector<uint32_t> begins_;   // by group its first row, then the number of rows
    size_t point_ = 0;
};

}   // namespace

Status embedding(Build& b) {
    const Layer& l = *b.layer;
    b.operations->unit = 1;
    const uint32_t width = l.out.C, positions = l.out.H;
    const auto [place, elements] = own_parameters(l, b.stage);
    const Tensor w = b.canonical(Place::parameters, Build::plain({elements}), place),
                 dw = b.canonical(Place::gradient, Build::plain({elements}), place);
    const uint64_t first_row = (place - l.offset) / width, rows = elements / width;
    std::optional<SharedRows> shared;
    if (rows < l.weight_shape[0]) shared.emplace(b, w);
    const Activation y = b.activation = b.flows(b.position_rows(l.out), true);
    const Tensor tokens = b.kept(Build::plain({b.samples, positions}));   // uint32: the samples may be gone in the backward pass
    b.operations->forward.emplace_back([=, of = b.spec.W, element = b.spec.element](Frame& frame) {
        auto *const begin = reinterpret_cast<uint32_t*>(frame.at(tokens)), *end = begin;
        for (const Block& block : frame.blocks)
            for (uint32_t n = 0; n < block.samples.count; ++n)
                for (uint32_t at = 0; at < positions; ++at)
                    *end++ = element_number(element, reinterpret_cast<const std::byte*>(block.samples.images), uint64_t{n} * of + at);
        const float* const* vectors = nullptr;
        if (shared) GC_TRY(shared->gather(frame, {begin, end}, &vectors));
        float* to = frame.at(y.value);
        for (const uint32_t token : std::span(begin, end))
            to = std::copy_n(vectors ? vectors[token] : frame.at(w) + uint64_t{token} * width, width, to);
        std::fill(to, frame.at(y.value) + uint64_t{frame.samples} * positions * width, 0.0f);   // of an evaluation
        return Status{};
    });
    if (!b.training) return {};
    if (!l.slices.empty())
        b.operations->row_bound = [=](const Frame& frame) {
            const std::span<const float> dy(frame.at(y.gradient) + uint64_t{frame.first} * positions * width,
                                            uint64_t{frame.count} * positions * width);
            float largest = 0;
            for (const float x : dy) largest = std::max(largest, std::fabs(x));
            return largest;
        };
    b.operations->weights.emplace_back([=, &kernels = float_kernels(isa_best())](Frame& frame) {
        float* const to = frame.at(dw);
        const uint64_t first = uint64_t{frame.first} * positions, count = uint64_t{frame.count} * positions;
        const auto* token = reinterpret_cast<const uint32_t*>(frame.at(tokens)) + first;
        const float* dy = frame.at(y.gradient) + first * width;
        std::fill_n(to, elements, 0.0f);
        for (uint64_t row = 0; row < count; ++row) {
            if (token[row] - first_row >= rows) continue;   // another slice group's, also where it is before the own ones
            float* const sum = to + (token[row] - first_row) * width;
            kernels.add(sum, sum, dy + row * width, width);
        }
        return Status{};
    });
    return {};
}

Status positions(Build& b) {
    const Layer& l = *b.layer;
    b.operations->unit = 1;
    const uint64_t elements = l.in.elements();
    const FloatKernels& kernels = float_kernels(isa_best());
    const Activation before = b.activation;
    const dnnl_memory_desc_t order = b.position_rows(l.in);
    Tensor x, dx;
    std::vector<Operation> after;
    GC_TRY(b.consume({before.value}, order, b.operations->forward, &x));
    const Tensor w = b.weight(Place::parameters, Build::plain({elements})), dw = b.weight(Place::gradient, Build::plain({elements}));
    const Activation y = b.activation = b.flows(order, true);
    b.operations->forward.emplace_back([=, &kernels](Frame& frame) {
        for (uint64_t n = 0; n < frame.samples; ++n)
            kernels.add(frame.at(y.value) + n * elements, frame.at(x) + n * elements, frame.at(w), elements);
        return Status{};
    });
    if (!b.training) return {};
    b.operations->weights.emplace_back([=, &kernels](Frame& frame) {
        const float* dy = frame.at(y.gradient) + frame.first * elements;
        std::copy_n(dy, elements, frame.at(dw));
        for (uint32_t n = 1; n < frame.count; ++n) kernels.add(frame.at(dw), frame.at(dw), dy + n * elements, elements);
        return Status{};
    });
    if (before.learns) GC_TRY(b.reorder(y.gradient, before.gradient, b.operations->data));
    return {};
}

}   // namespace gradcast::cpu
