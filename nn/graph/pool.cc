// max_pool, average_pool and global_average_pool.
#include <algorithm>

#include "nn/graph/window.h"

namespace gradcast {
namespace {

constexpr LayerKey ceil_key{.name = "ceil",
                            .type = LayerKey::Type::flag,
                            .value = 0,
                            .min = 0,
                            .max = 1,
                            .help = "a last window that is partly outside counts too"};

Status shape(const NetSpec&, Layer& layer) {
    window_of_keys(layer);
    layer.window.ceil = layer.value(ceil_key.name) != 0;
    if (layer.window.stride == 0) layer.spec.values.set(stride_key.name, layer.window.stride = layer.window.kernel);
    return window_shape(layer);
}

Status global_shape(const NetSpec&, Layer& layer) {
    const uint32_t side = std::max(layer.in.H, layer.in.W);
    layer.window = {.kernel = side, .stride = side};   // one
    layer.out = {layer.in.C, 1, 1};
    return {};
}

constexpr const LayerKey* keys[] = {&kernel_key, &stride_key, &pad_key, &ceil_key};
constexpr OnnxOperator::Attribute inside[] = {{"count_include_pad", false, 0}};

}   // namespace

const LayerKind max_pool_kind{.name = "max_pool",
                              .short_name = "pool",
                              .keys = keys,
                              .shape = shape,
                              .kinks = true,
                              .onnx = {.type = "MaxPool", .form = OnnxOperator::Form::planes, .windowed = true}};
const LayerKind average_pool_kind{
    .name = "average_pool",
    .short_name = "average",
    .keys = keys,
    .shape = shape,
    .onnx = {.type = "AveragePool", .form = OnnxOperator::Form::planes, .windowed = true, .attributes = inside}};
const LayerKind global_average_pool_kind{.name = "global_average_pool",
                                         .short_name = "global",
                                         .shape = global_shape,
                                         .onnx = {.type = "GlobalAveragePool", .form = OnnxOperator::Form::planes}};

}   // namespace gradcast
