// attention (Vaswani et al. 2017): each position takes a mean of the values of all, weighted by the softmax of its products with their
// keys.
#include "nn/graph/layers.h"

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
constexpr const LayerKey* keys[] = {&heads, &causal};

Status shape(const NetSpec&, Layer& layer) {
    const auto count = static_cast<uint32_t>(layer.value(heads.name));
    if (layer.in.C % (3 * count) != 0)
        return fail(Code::invalid,
                    "layer {}: its input {} has {} channels, which must be 3 x heads x a head's width: queries, keys and values",
                    layer.spec.name, shape_text(layer.in), layer.in.C);
    layer.out = {layer.in.C / 3, layer.in.H, layer.in.W};
    return {};
}

}   // namespace

const LayerKind attention_kind{.name = "attention", .short_name = "attention", .keys = keys, .shape = shape};

}   // namespace gradcast
