// attention: of each sample and head, y = p v with p = softmax(q k^T / sqrt(width)) over keys.  The input has the queries of all heads,
// then their keys, then their values; a position's channels lie together.
//
// Queries are taken in blocks, so scratch memory is in proportion to the positions.  The backward pass computes p again:
//     dp = dy v^T,  ds = p (dp - sum of p dp) / sqrt(width),  dq = ds k;  dv = p^T dy and dk = ds^T q, added up over the blocks in order.
//
// With `dropout` both p in y and dv, and dp, are 0 or times 1 / (1 - dropout) in training, as PyTorch's scaled_dot_product_attention does.
// Which ones follows from (seed, layer, step, block, sample in the block, head, query, key); each pass draws it again (AttentionDraws).
#include "nn/cpu/attention.h"

#include <algorithm>
#include <cmath>

#include "nn/cpu/build.h"
#include "nn/cpu/inner.h"
#include "nn/graph/attention.h"
#include "runtime/core/isa_build.h"

namespace gradcast::cpu {

namespace portable {
extern const AttentionKernels attention_kernels;
}
namespace avx2 {
extern const AttentionKernels attention_kernels;
}
namespace avx512 {
extern const AttentionKernels attention_kernels;
}

const AttentionKernels& attention_kernels(Isa isa) {
    return isa_build(isa, portable::attention_kernels, avx2::attention_kernels, avx512::attention_kernels);
}

namespace {

constexpr uint32_t block_rows = 64;   // queries

/// One head of one sample, in scratch memory.
class Head {
public:
    Head(const InnerKernels& products, uint32_t positions, uint32_t width, bool causal, RotaryTurns turns)
        : products_(products),
          positions_(positions),
          width_(width),
          rows_(std::min(block_rows, positions)),
          causal_(causal),
          turns_(std::make_shared<RotaryTurns>(std::move(turns))),
          scale_(static_cast<float>(1 / std::sqrt(static_cast<double>(width)))) {}
    /// Floats of scratch memory.
    uint64_t scratch() const {
        return products_.memory + products_.packed({rows_, width_, positions_}) + 8 * values() + 2 * uint64_t{rows_} * positions_;
    }
    /// x: the first query.  Rows of x are 3 `channels` floats apart, rows of y `channels`.  drops: key.first is the draw of the head's
    /// first query; null: nothing is dropped.
    void forward(float* y, const float* x, uint32_t channels, float* scratch, const DropoutKey* drops) const {
        const Memory m = memory(scratch);
        take(m, x, channels);
        each_block([&](uint32_t first, const ScoreRows& shape) {
            scores(m, first, shape);
            drop(m.p, first, shape, drops);
            products_.backward_data(m.out, m.p, m.v, m.work, {shape.rows, width_, shape.keys});
            give(y + uint64_t{first} * channels, channels, m.out, shape.rows);
        });
    }
    void backward(float* dx, const float* dy, const float* x, uint32_t channels, float* scratch, const DropoutKey* drops) const {
        const Memory m = memory(scratch);
        take(m, x, channels);
        copy_rows(m.dy, width_, dy, channels, positions_);
        std::fill_n(m.dk, values(), 0.0f);
        std::fill_n(m.dv, values(), 0.0f);
        const uint64_t apart = 3 * uint64_t{channels};
        each_block([&](uint32_t first, const ScoreRows& shape) {
            const InnerShape of{shape.rows, width_, shape.keys};
            const float *dy_rows = m.dy + uint64_t{first} * width_, *queries = m.q + uint64_t{first} * width_;
            scores(m, first, shape);
            products_.forward_packed(m.dp, dy_rows, m.v, nullptr, m.work, of);
            drop(m.dp, first, shape, drops);
            attention_kernels().slope(m.dp, m.p, scale_, shape);
            drop(m.p, first, shape, drops);
            add_transposed(m, m.dv, m.p, dy_rows, of);
            add_transposed(m, m.dk, m.dp, queries, of);
            products_.backward_data(m.out, m.dp, m.k, m.work, of);
            turn(m.out, first, shape.rows, -1);
            give(dx + first * apart, apart, m.out, shape.rows);
        });
        turn(m.dk, 0, positions_, -1);
        give(dx + channels, apart, m.dk, positions_);
        give(dx + 2 * uint64_t{channels}, apart, m.dv, positions_);
    }

private:
    /// [positions, width] but for p and dp, [block_rows, positions].
    struct Memory {
        float *work, *strips, *q, *k, *v, *out, *dy, *dk, *dv, *part, *p, *dp;
    };
    uint64_t values() const { return uint64_t{positions_} * width_; }
    Memory memory(float* scratch) const {
        const auto next = [&scratch](uint64_t floats) { return std::exchange(scratch, scratch + floats); };
        Memory m{};
        m.work = next(products_.memory);
        m.strips = next(products_.packed({rows_, width_, positions_}));
        for (float** each : {&m.q, &m.k, &m.v, &m.out, &m.dy, &m.dk, &m.dv, &m.part}) *each = next(values());
        for (float** each : {&m.p, &m.dp}) *each = next(uint64_t{rows_} * positions_);
        return m;
    }
    void copy_rows(float* to, uint64_t to_apart, const float* from, uint64_t apart, uint32_t rows) const {
        for (uint64_t row = 0; row < rows; ++row) std::copy_n(from + row * apart, width_, to + row * to_apart);
    }
    void take(const Memory& m, const float* x, uint32_t channels) const {
        const uint64_t apart = 3 * uint64_t{channels};
        copy_rows(m.q, width_, x, apart, positions_);
        copy_rows(m.k, width_, x + channels, apart, positions_);
        copy_rows(m.v, width_, x + 2 * uint64_t{channels}, apart, positions_);
        turn(m.q, 0, positions_, 1);
        turn(m.k, 0, positions_, 1);
    }
    /// Turns rows of positions from `first` on; way: 1, or -1 back.
    void turn(float* rows, uint32_t first, uint32_t count, float way) const {
        if (turns_->cosines.empty()) return;
        const uint32_t half = width_ / 2;
        for (uint64_t row = 0; row < count; ++row) {
            const float *cosines = turns_->cosines.data() + (first + row) * half, *sines = turns_->sines.data() + (first + row) * half;
            float *x = rows + row * width_, *y = x + half;
#pragma GCC ivdep
            for (uint32_t i = 0; i < half; ++i) {
                const float of_x = x[i], of_y = y[i], sine = way * sines[i];
                x[i] = of_x * cosines[i] - of_y * sine;
                y[i] = of_y * cosines[i] + of_x * sine;
            }
        }
    }
    void give(float* to, uint64_t apart, const float* from, uint32_t rows) const { copy_rows(to, apart, from, width_, rows); }
    /// Calls f(first query, its shape).  Causal: the block's queries see no key behind its last one.
    template <typename F>
    void each_block(F f) const {
        for (uint32_t first = 0; first < positions_; first += rows_) {
            const uint32_t count = std::min(rows_, positions_ - first);
            f(first, ScoreRows{count, causal_ ? first + count : positions_, first, causal_});
        }
    }
    void scores(const Memory& m, uint32_t first, const ScoreRows& shape) const {
        products_.forward_packed(m.p, m.q + uint64_t{first} * width_, m.k, nullptr, m.work, {shape.rows, width_, shape.keys});
        attention_kernels().softmax(m.p, scale_, shape);
    }
    /// Of p or dp; 0 stays for keys that a query does not see.
    void drop(float* p, uint32_t first, const ScoreRows& shape, const DropoutKey* drops) const {
        if (!drops) return;
        DropoutKey key = *drops;
        key.first += AttentionDraws::first(0, first, positions_);
        for (uint32_t row = 0; row < shape.rows; ++row, p += shape.keys, key.first += AttentionDraws::first(0, 1, positions_))
            float_kernels(isa_best()).dropout(p, shape.causal ? first + row + 1 : shape.keys, key);
    }
    /// sum [keys, width] += a^T b, of a [rows, keys] and b [rows, width].
    void add_transposed(const Memory& m, float* sum, const float* a, const float* b, const InnerShape& of) const {
        products_.pack(m.strips, b, of);
        products_.backward_weights(m.part, width_, a, m.strips, of, 0, of.K);
        float_kernels(isa_best()).add(sum, sum, m.part, uint64_t{of.K} * width_);
    }

    const InnerKernels& products_;
    uint32_t positions_, width_, rows_;
    bool causal_;
    std::shared_ptr<const RotaryTurns> turns_;   // of all copies
    float scale_;
};

}   // namespace

Status attention(Build& b) {
    const Layer& l = *b.layer;
    b.operations->unit = 1;
    const auto heads = static_cast<uint32_t>(l.value("heads"));
    const uint32_t channels = l.out.C, positions = l.in.H * l.in.W, width = channels / heads;
    const Head head(inner_kernels(b.level(false)), positions, width, l.value("causal") != 0, rotary_turns(l));
    const Activation before = b.activation;
    Operations& list = *b.operations;
    Tensor x, dx;
    std::vector<Operation> after;
    GC_TRY(b.consume({before.value}, b.position_rows(l.in), list.forward, &x));
    const Activation y = b.activation = b.flows(b.position_rows(l.out), before.learns);
    const Tensor space = b.scratch(head.scratch());
    const DropoutShare share = dropout_share(l.value("dropout"));
    const bool draws = b.training && layer_draws(l);
    const uint64_t layer_seed = dropout_mixed(b.seed, b.number);
    /// Calls f(place in y, place in x, what is dropped) for each head.
    const auto each = [=](const Frame& frame, auto f) {
        const bool drops = draws && frame.training;
        DropoutKey key{.seed = drops ? dropout_mixed(layer_seed, frame.blocks[0].id.step) : 0,
                       .sample = 0,
                       .first = 0,
                       .stride = 1,
                       .drop = share.drop,
                       .scale = share.scale};
        const Block* block = frame.blocks.data();
        for (uint32_t n = 0, begin = 0; n < frame.samples; ++n) {
            if (drops && n - begin == block->samples.count) begin = n, ++block;
            if (drops) key.sample = uint64_t{block->id.block} << 32 | (n - begin);
            for (uint32_t h = 0; h < heads; ++h) {
                const uint64_t first = uint64_t{n} * positions * channels;
                key.first = AttentionDraws::first(h, 0, positions);
                f(first + h * width, 3 * first + h * width, drops ? &key : nullptr);
            }
        }
    };
    list.forward.emplace_back([=](Frame& frame) {
        each(frame, [&](uint64_t in_y, uint64_t in_x, const DropoutKey* drops) {
            head.forward(frame.at(y.value) + in_y, frame.at(x) + in_x, channels, frame.at(space), drops);
        });
        return Status{};
    });
    if (!y.learns) return {};
    GC_TRY(b.produce(before.gradient, b.position_rows(l.in), after, &dx));
    list.data.emplace_back([=](Frame& frame) {
        each(frame, [&](uint64_t in_y, uint64_t in_x, const DropoutKey* drops) {
            head.backward(frame.at(dx) + in_x, frame.at(y.gradient) + in_y, frame.at(x) + in_x, channels, frame.at(space), drops);
        });
        return Status{};
    });
    list.data.insert(list.data.end(), after.begin(), after.end());
    return {};
}

}   // namespace gradcast::cpu
