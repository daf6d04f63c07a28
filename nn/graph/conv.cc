// conv and conv_transposed.
#include "nn/graph/slices.h"
#include "nn/graph/weights.h"
#include "nn/graph/window.h"

namespace gradcast {
namespace {

constexpr LayerKey dilation_key{.name = "dilation",
                                .type = LayerKey::Type::integer,
                                .value = 1,
                                .min = 1,
                                .max = 1024,
                                .help = "steps from one pixel of a window to the next"};

Status shape(const NetSpec&, Layer& layer) {
    GC_TRY(outputs_shape(layer));
    const uint32_t K = layer.out.C, C = layer.in.C;
    const auto groups = layer.groups = static_cast<uint32_t>(layer.value(groups_key.name));
    if (C % groups != 0 || K % groups != 0)
        return fail(Code::invalid, "layer {}: {} groups do not divide {}", layer.spec.name, groups,
                    C % groups != 0 ? fmt::format("the {} channels of its input", C) : fmt::format("its {} outputs", K));
    window_of_keys(layer);
    layer.window.dilation = static_cast<uint32_t>(layer.value(dilation_key.name));
    GC_TRY(window_shape(layer));
    layer.out.C = K;
    weights_shape(layer, {K, C / groups, layer.window.kernel, layer.window.kernel});
    return {};
}

/// The convolution whose gradient it computes goes from `out` to `in`.
Status transposed_shape(const NetSpec&, Layer& layer) {
    GC_TRY(outputs_shape(layer));
    window_of_keys(layer);
    const Window& window = layer.window;
    const std::string& name = layer.spec.name;
    if (window.kernel == 0 || window.stride == 0) return fail(Code::invalid, "layer {}: kernel and stride must be at least 1", name);
    if (window.pad >= window.kernel)
        return fail(Code::invalid, "layer {}: pad {} must be below its kernel {}x{}", name, window.pad, window.kernel, window.kernel);
    const auto side = [&](uint32_t in) { return (uint64_t{in} - 1) * window.stride + window.kernel; };
    const uint64_t H = side(layer.in.H), W = side(layer.in.W), cut = 2 * uint64_t{window.pad};
    if (H <= cut || W <= cut) return fail(Code::invalid, "layer {}: pad {} leaves nothing of its output {}x{}", name, window.pad, H, W);
    if ((H - cut) * (W - cut) > layer_elements_max)
        return fail(Code::invalid, "layer {}: its output {}x{}x{} is too large", name, layer.out.C, H - cut, W - cut);
    layer.out.H = static_cast<uint32_t>(H - cut);
    layer.out.W = static_cast<uint32_t>(W - cut);
    weights_shape(layer, {layer.in.C, layer.out.C, window.kernel, window.kernel});
    return {};
}

constexpr const LayerKey* keys[] = {&outputs_key, &kernel_key, &stride_key, &pad_key, &groups_key, &dilation_key, &bias_key, &slices_key};
constexpr const LayerKey* transposed_keys[] = {&outputs_key, &kernel_key, &stride_key, &pad_key, &bias_key};

}   // namespace

const LayerKind conv_kind{.name = "conv",
                          .short_name = "conv",
                          .keys = keys,
                          .shape = shape,
                          .multiplies = true,
                          .slice_unit = 16,
                          .onnx = {.type = "Conv", .form = OnnxOperator::Form::planes, .windowed = true}};
const LayerKind conv_transposed_kind{.name = "conv_transposed",
                                     .short_name = "conv_transposed",
                                     .keys = transposed_keys,
                                     .shape = transposed_shape,
                                     .multiplies = true,
                                     .spreads = true,
                                     .onnx = {.type = "ConvTranspose", .form = OnnxOperator::Form::planes, .windowed = true}};

}   // namespace gradcast
