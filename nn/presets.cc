// Nets by name, each a list of layers in the form that users write too (sizes: LeCun et al. 1998 with ReLU and max pooling; the CSSGD
// paper's DNN and CNN).
#include <algorithm>
#include <array>

#include "nn/net.h"

namespace gradcast {
namespace {

LayerSpec conv(uint32_t kernel, uint32_t outputs) { return {.kind = "conv", .outputs = outputs, .kernel = kernel}; }
LayerSpec fc(uint32_t outputs) { return {.kind = "inner_product", .outputs = outputs}; }
LayerSpec max_pool(uint32_t kernel) { return {.kind = "max_pool", .kernel = kernel, .stride = kernel}; }
LayerSpec relu() { return {.kind = "relu"}; }
LayerSpec loss() { return {.kind = "softmax_cross_entropy"}; }

/// 32x32; 28x28 is padded by 2.
Status square_32(const char* name, NetSpec& spec) {
    if (spec.H != spec.W || (spec.H != 28 && spec.H != 32))
        return fail(Code::invalid, "net {} takes samples of 28x28 or 32x32, not {}x{}", name, spec.H, spec.W);
    spec.pad = (32 - spec.H) / 2;
    return {};
}

// 61,706 parameters with C = 1 and 10 classes.
Status lenet5(NetSpec& spec) {
    GC_TRY(square_32("lenet5", spec));
    spec.layers = {conv(5, 6), relu(), max_pool(2), conv(5, 16), relu(),           max_pool(2),
                   fc(120),    relu(), fc(84),      relu(),      fc(spec.classes), loss()};
    return {};
}

// 878,538 parameters with C = 3 and 10 classes.
Status cnn(NetSpec& spec) {
    GC_TRY(square_32("cnn", spec));
    spec.layers = {conv(5, 32), relu(), max_pool(2), conv(5, 64), relu(), max_pool(2), fc(512), relu(), fc(spec.classes), loss()};
    return {};
}

// Samples as they are; 2,383,370 parameters for 28x28 and 10 classes.
Status mlp(NetSpec& spec) {
    spec.layers = {fc(1024), relu(), fc(1024), relu(), fc(512), relu(), fc(spec.classes), loss()};
    return {};
}

struct Row {
    const char* name;
    Status (*make)(NetSpec& spec);
};
constexpr std::array rows = {Row{"lenet5", lenet5}, Row{"cnn", cnn}, Row{"mlp", mlp}};
constexpr auto names = [] {
    std::array<const char*, rows.size()> result{};
    std::transform(rows.begin(), rows.end(), result.begin(), [](const Row& row) { return row.name; });
    return result;
}();

}   // namespace

std::span<const char* const> preset_names() { return names; }

Status preset_find(const std::string& name, uint32_t C, uint32_t H, uint32_t W, uint32_t classes, NetSpec* spec) {
    std::string known;
    for (const Row& row : rows) {
        known += (known.empty() ? "" : ", ") + std::string(row.name);
        if (name != row.name) continue;
        NetSpec made{.C = C, .H = H, .W = W, .classes = classes};
        GC_TRY(row.make(made));
        *spec = std::move(made);
        return {};
    }
    return fail(Code::invalid, "no net \"{}\": one of {}", name, known);
}

}   // namespace gradcast
