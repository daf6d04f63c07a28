// attention (Vaswani et al. 2017): each position takes a mean of the values of all, weighted by the softmax of its products with their
// keys.
#include <cmath>
#include <limits>

#include "nn/graph/attention.h"
#include "nn/graph/onnx_nodes.h"
#include "runtime/core/elementary.h"

namespace gradcast {
namespace {

constexpr LayerKey heads{.name = "heads",
                         .type = LayerKey::Type::integer,
                         .value = 1,
                         .min = 1,
                         .max = 4096,
                         .help = "channels are cut into so many heads, each with a softmax of its own"};
constexpr LayerKey causal{.name = "causal",
                          .type = LayerKey::Type::flag,
                          .value = 0,
                          .min = 0,
                          .max = 1,
                          .help = "a position sees itself and those before it alone"};
constexpr LayerKey rotary{
    .name = "rotary",
    .type = LayerKey::Type::number,
    .value = 0,
    .min = 0,
    .max = 1e9,
    .help = "base of the angles by which queries and keys are turned by their position, 10000 as a rule; 0: not turned"};
constexpr LayerKey dropout{.name = "dropout",
                           .type = LayerKey::Type::number,
                           .value = 0,
                           .min = 0,
                           .max = 1,
                           .below = true,
                           .help = "the share of a softmax's probabilities that becomes 0 in training, in units of 2^-16"};
constexpr const LayerKey* keys[] = {&heads, &causal, &rotary, &dropout};

Status shape(const NetSpec&, Layer& layer) {
    const auto count = static_cast<uint32_t>(layer.value(heads.name));
    if (layer.in.C % (3 * count) != 0)
        return fail(Code::invalid,
                    "layer {}: its input {} has {} channels, which must be 3 x heads x a head's width: queries, keys and values",
                    layer.spec.name, shape_text(layer.in), layer.in.C);
    if (const double base = layer.value(rotary.name); base != 0) {
        if (base <= 1) return fail(Code::invalid, "layer {}: rotary = {} must be above 1, or 0", layer.spec.name, base);
        if (layer.in.C / 3 / count % 2 != 0)
            return fail(Code::invalid, "layer {}: a head of {} channels has no pairs to be turned (rotary): take fewer or more heads",
                        layer.spec.name, layer.in.C / 3 / count);
    }
    if (layer.value(dropout.name) > 0) {
        const uint64_t T = uint64_t{layer.in.H} * layer.in.W;
        if (T > UINT32_MAX || count * T > AttentionDraws::most / AttentionDraws::of_query(T))
            return fail(Code::invalid,
                        "layer {}: dropout draws numbers for {} heads of {} positions, which are more than it can count: take fewer heads "
                        "or positions, or dropout = 0",
                        layer.spec.name, count, T);
    }
    layer.out = {layer.in.C / 3, layer.in.H, layer.in.W};
    return {};
}

/// x cos + (its halves exchanged, the second one with the other sign) sin, of queries or keys.
std::string turned(OnnxNodes& nodes, const std::string& x, const std::string& cosines, const std::string& sines) {
    const std::string halves = nodes.node("Split", {x}, {{"axis", -1}}, 2);
    const std::string minus = nodes.node("Neg", {OnnxNodes::output(halves, 1)});
    const std::string other = nodes.node("Concat", {minus, halves}, {{"axis", -1}});
    return nodes.node("Add", {nodes.node("Mul", {x, cosines}), nodes.node("Mul", {other, sines})});
}

// Of heads [N, heads, T, width]: softmax(q k^T / sqrt(width) + mask) v.
std::string onnx(OnnxNodes& nodes, const Layer& layer, const std::string& x) {
    const auto count = static_cast<int64_t>(layer.value(heads.name)), width = layer.out.C / count;
    const uint64_t T = uint64_t{layer.in.H} * layer.in.W;
    const std::string parts = nodes.node("Split", {x}, {{"axis", -1}}, 3), by_head = nodes.integers({0, 0, count, width});
    auto head = [&](uint32_t part, std::vector<int64_t> order) {
        const std::string all = nodes.node("Reshape", {OnnxNodes::output(parts, part), by_head});
        return nodes.node("Transpose", {all}, {{"perm", std::move(order)}});
    };
    std::string queries = head(0, {0, 2, 1, 3}), key_rows = head(1, {0, 2, 1, 3});
    if (const RotaryTurns turns = rotary_turns(layer); !turns.cosines.empty()) {
        std::vector<float> cosines, sines;   // [T, width], both halves
        const size_t half = static_cast<size_t>(width) / 2;
        for (size_t i = 0; i < 2 * turns.cosines.size(); ++i) {
            const size_t at = i / (2 * half) * half + i % half;
            cosines.push_back(turns.cosines[at]), sines.push_back(turns.sines[at]);
        }
        const uint64_t sides[] = {T, static_cast<uint64_t>(width)};
        const std::string by_cosine = nodes.reals(sides, cosines), by_sine = nodes.reals(sides, sines);
        queries = turned(nodes, queries, by_cosine, by_sine);
        key_rows = turned(nodes, key_rows, by_cosine, by_sine);
    }
    const std::string by_width = nodes.node("Transpose", {key_rows}, {{"perm", std::vector<int64_t>{0, 1, 3, 2}}});
    std::string scores = nodes.node("MatMul", {queries, by_width});
    scores = nodes.node("Mul", {scores, nodes.real(1 / std::sqrt(static_cast<float>(width)))});
    if (layer.value(causal.name) != 0) {
        const auto later = [T] {   // -infinity for keys behind the query
            std::vector<float> mask(T * T, 0);
            for (uint64_t i = 0; i < T; ++i)
                for (uint64_t j = i + 1; j < T; ++j) mask[i * T + j] = -std::numeric_limits<float>::infinity();
            return mask;
        };
        const uint64_t sides[] = {T, T};
        scores = nodes.node("Add", {scores, nodes.shared("causal:" + std::to_string(T), sides, later)});
    }
    const std::string mixed = nodes.node("MatMul", {nodes.node("Softmax", {scores}, {{"axis", -1}}), head(2, {0, 2, 1, 3})});
    const std::string turned = nodes.node("Transpose", {mixed}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
    return nodes.node("Reshape", {turned, nodes.integers({0, 0, count * width})});
}

}   // namespace

const LayerKind attention_kind{.name = "attention",
                               .short_name = "attention",
                               .keys = keys,
                               .shape = shape,
                               .draws = [](const Layer& layer) { return layer.value(dropout.name) > 0; },
                               .causal = [](const Layer& layer) { return layer.value(causal.name) != 0; },
                               .onnx = {.form = OnnxOperator::Form::rows, .make = onnx}};

RotaryTurns rotary_turns(const Layer& layer) {
    const double base = layer.value(rotary.name);
    if (base == 0) return {};
    const uint32_t half = layer.out.C / static_cast<uint32_t>(layer.value(heads.name)) / 2, positions = layer.in.H * layer.in.W;
    constexpr double turn = 6.283185307179586;
    RotaryTurns turns;
    for (uint32_t t = 0; t < positions; ++t)
        for (uint32_t i = 0; i < half; ++i) {
            const double rate = elementary::exp(-static_cast<double>(i) / half * elementary::log(base));
            const elementary::Turn each = elementary::turn(t * rate / turn);
            turns.cosines.push_back(static_cast<float>(each.cos));
            turns.sines.push_back(static_cast<float>(each.sin));
        }
    return turns;
}

}   // namespace gradcast
