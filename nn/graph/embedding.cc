// embedding and positions: learnt vectors, of a token and of a place.
#include "nn/graph/onnx_nodes.h"
#include "nn/graph/slices.h"
#include "nn/graph/weights.h"

namespace gradcast {
namespace {

Status embedding_shape(const NetSpec& spec, Layer& layer) {
    GC_TRY(outputs_shape(layer, false));
    if (spec.vocabulary == 0 || layer.input != Layer::none)
        return fail(Code::invalid,
                    "layer {}: an embedding takes the tokens of a text: make it the first layer of a net for data of `import text` or "
                    "`import tokens`",
                    layer.spec.name);
    layer.out = {layer.out.C, spec.positions(), 1};
    weights_shape(layer, {spec.vocabulary, layer.out.C});
    return {};
}

Status positions_shape(const NetSpec&, Layer& layer) {
    layer.out = layer.in;
    weights_shape(layer, {uint64_t{layer.in.H} * layer.in.W, layer.in.C});
    return {};
}

std::string embedding_onnx(OnnxNodes& nodes, const Layer&, const std::string& tokens) {
    return nodes.node("Gather", {nodes.weight(), tokens});
}

std::string positions_onnx(OnnxNodes& nodes, const Layer&, const std::string& x) { return nodes.node("Add", {x, nodes.weight()}); }

constexpr LayerKey spread = initial_std_key(0.02);
constexpr const LayerKey *embedding_keys[] = {&outputs_key, &spread, &slices_key}, *positions_keys[] = {&spread};

}   // namespace

const LayerKind embedding_kind{.name = "embedding",
                               .short_name = "embedding",
                               .keys = embedding_keys,
                               .shape = embedding_shape,
                               .selects = true,
                               .causal = by_position,
                               .slice_unit = 1,
                               .initial_std = &spread,
                               .onnx = {.form = OnnxOperator::Form::rows, .make = embedding_onnx}};
const LayerKind positions_kind{.name = "positions",
                               .short_name = "positions",
                               .keys = positions_keys,
                               .shape = positions_shape,
                               .causal = by_position,
                               .initial_std = &spread,
                               .onnx = {.form = OnnxOperator::Form::rows, .make = positions_onnx}};

}   // namespace gradcast
