#include "nn/graph/fusions.h"

#include <algorithm>
#include <utility>

namespace gradcast {
namespace {

bool matches(std::span<const Layer> layers, uint32_t first, const Fusion& pattern) {
    if (layers.size() - first < pattern.kinds.size()) return false;
    const std::span<const Layer> run = layers.subspan(first, pattern.kinds.size());
    for (uint32_t i = 0; i < run.size(); ++i) {
        if (!run[i].is(*pattern.kinds[i])) return false;
        if (i > 0 && (run[i].input != first + i - 1 || run[i - 1].takers != 1)) return false;
    }
    return !pattern.fits || pattern.fits(run);
}

}   // namespace

// A ReLU is computed by the layer before it, and the bias of products by a max pooling behind them.
std::vector<Fusion> gpu_fusions() {
    std::vector<Fusion> all;
    for (const LayerKind* products : {&conv_kind, &inner_product_kind}) {
        all.push_back({{products, &max_pool_kind, &relu_kind}, nullptr});
        all.push_back({{products, &max_pool_kind}, nullptr});
        all.push_back({{products, &relu_kind}, nullptr});
    }
    all.push_back({{&batch_norm_kind, &relu_kind}, nullptr});
    all.push_back({{&max_pool_kind, &relu_kind}, nullptr});
    return all;
}

void layers_pool_first(std::vector<Layer>& layers) {
    for (uint32_t i = 0; i + 1 < layers.size(); ++i) {
        Layer &first = layers[i], &second = layers[i + 1];
        if (!first.is(relu_kind) || !second.is(max_pool_kind) || first.takers != 1 || second.input != i) continue;
        std::swap(first, second);
        first.input = second.input;
        second.input = i;
        second.takers = std::exchange(first.takers, 1);
        second.in = second.out = first.out;
    }
}

std::vector<bool> layers_fused(std::span<const Layer> layers, std::span<const Fusion> patterns) {
    std::vector<bool> fused(layers.size());
    for (uint32_t i = 0; i < layers.size(); ++i) {
        const auto found = std::ranges::find_if(patterns, [&](const Fusion& pattern) { return matches(layers, i, pattern); });
        if (found == patterns.end()) continue;
        for (size_t more = found->kinds.size() - 1; more > 0; --more) fused[++i] = true;
    }
    return fused;
}

std::vector<uint32_t> stage_begins(std::span<const Layer> layers, const std::vector<bool>& fused) {
    std::vector<uint32_t> begins;
    for (uint32_t i = 0, behind = 0; i < layers.size(); ++i) {
        if (behind == i && !fused[i]) begins.push_back(i);
        behind = std::max(behind, layers[i].number + 1);
    }
    return begins;
}

Status stage_check(std::span<const Layer> layers, std::span<const uint32_t> begins, const Stage& wanted, Stage* stage) {
    const auto count = static_cast<uint32_t>(layers.size());
    *stage = wanted;
    stage->end = std::min(wanted.end, count);
    if (stage->first >= stage->end) return fail(Code::invalid, "a stage needs at least one of the net's {} layers", count);
    for (const Layer& layer : layers)
        if (const size_t slices = layer.slices.size(); slices % wanted.slice_groups != 0)
            return fail(Code::invalid, "{} slice groups do not divide the {} slices of layer {}", wanted.slice_groups, slices,
                        layer.spec.name);
    for (const uint32_t begin : {stage->first, stage->end}) {
        if (begin == count || std::ranges::binary_search(begins, begin)) continue;
        const auto next = std::ranges::upper_bound(begins, begin);
        return fail(Code::invalid, "no stage can begin at layer {}, which is computed with the one before it: begin it at {}{}",
                    layers[begin].spec.name, layers[*std::prev(next)].spec.name,
                    next == begins.end() ? "" : " or " + layers[*next].spec.name);
    }
    return {};
}

NetOrder net_order(std::span<const Layer> layers, const std::vector<bool>& fused) {
    NetOrder order;
    order.begins = stage_begins(layers, fused);
    for (const Layer& layer : layers) {
        order.names.push_back(layer.spec.name);
        order.learns.push_back(layer.learns());
        const Shape& multiplied = layer.multiplied();
        const auto positions = static_cast<double>(uint64_t{multiplied.H} * multiplied.W), weights = static_cast<double>(layer.weights);
        for (const uint32_t from : {layer.input, layer.other})
            if (from != Layer::none) order.reads.emplace_back(from, order.names.size() - 1);
        order.work.push_back(3 * weights * positions + 2 * static_cast<double>(layer.in.elements() + layer.out.elements()));
    }
    return order;
}

Status net_gpu_order(const NetSpec& spec, NetOrder* order) {
    std::vector<Layer> layers;
    GC_TRY(layers_check(spec, &layers));
    layers_pool_first(layers);
    *order = net_order(layers, layers_fused(layers, gpu_fusions()));
    return {};
}

}   // namespace gradcast
