#include "nn/graph/slices.h"
#include "nn/graph/weights.h"
#include "nn/graph/window.h"

namespace gradcast {
namespace {

Status shape(const NetSpec&, Layer& layer) {
    GC_TRY(outputs_shape(layer));
    const uint32_t K = layer.out.C, C = layer.in.C;
    window_of_keys(layer);
    GC_TRY(window_shape(layer));
    layer.out.C = K;
    weights_shape(layer, {K, C, layer.window.kernel, layer.window.kernel});
    return {};
}

constexpr const LayerKey* keys[] = {&outputs_key, &kernel_key, &stride_key, &pad_key, &bias_key, &slices_key};

}   // namespace

const LayerKind conv_kind{.name = "conv",
                          .short_name = "conv",
                          .keys = keys,
                          .shape = shape,
                          .multiplies = true,
                          .slice_unit = 16,
                          .onnx = {.type = "Conv", .input = OnnxOperator::Input::spatial, .windowed = true}};

}   // namespace gradcast
