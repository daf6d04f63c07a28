// Nets of attention: gpt, of texts, and vit-s, of images.
#include <cmath>

#include "nn/graph/layer_kind.h"
#include "nn/presets.h"

namespace gradcast {
namespace {

/// Appends layers to a net; linear ones begin as GPT-2's do.
class Transformer {
public:
    Transformer(NetSpec& spec, const PresetSize& size, bool causal, const char* gelu)
        : layers_(spec.layers), size_(size), causal_(causal), gelu_(gelu) {}

    void add(LayerSpec layer) { layers_.push_back(std::move(layer)); }
    void linear(const std::string& name, uint32_t outputs, double spread) {
        add({.kind = "linear", .name = name, .values = {{"outputs", outputs}, {"initial_std", spread}}});
    }
    /// None where the rate is 0.
    void dropout(const std::string& name) {
        if (size_.dropout > 0) add({.kind = "dropout", .name = name, .values = {{"rate", size_.dropout}}});
    }
    /// Blocks of attention and of two linear layers, each behind a layer_norm and with a residual sum, on the output of the layer `before`;
    /// then a layer_norm.
    void blocks(std::string before) {
        const double residual_std = std / std::sqrt(2.0 * size_.depth);   // of what is added to the residual sum
        for (uint32_t i = 1; i <= size_.depth; ++i) {
            const auto name = [i](const char* part) { return fmt::format("h{}_{}", i, part); };
            const auto sum = [&](const char* part) {
                add({.kind = "add", .name = name(part), .from = before});
                before = name(part);
            };
            add({.kind = "layer_norm", .name = name("ln1")});
            linear(name("qkv"), 3 * size_.width, std);
            add({.kind = "attention", .name = name("attention"), .values = {{"heads", size_.heads}, {"causal", causal_}}});
            if (size_.dropout > 0) layers_.back().values.set("dropout", size_.dropout);
            linear(name("projection"), size_.width, residual_std);
            dropout(name("drop1"));
            sum("middle");
            add({.kind = "layer_norm", .name = name("ln2")});
            linear(name("mlp1"), 4 * size_.width, std);
            LayerSpec gelu{.kind = "gelu", .name = name("gelu")};
            layer_set(gelu, "approximate", std::string_view(gelu_));
            add(std::move(gelu));
            linear(name("mlp2"), size_.width, residual_std);
            dropout(name("drop2"));
            sum("out");
        }
        add({.kind = "layer_norm", .name = "ln"});
    }
    static constexpr double std = 0.02;

private:
    std::vector<LayerSpec>& layers_;
    const PresetSize size_;
    const bool causal_;
    const char* const gelu_;
};

}   // namespace

Status preset_gpt(NetSpec& spec, const PresetSize& size) {
    if (size.width % size.heads != 0)
        return fail(Code::invalid, "net gpt: {} heads (net.heads) do not divide a width of {} (net.width)", size.heads, size.width);
    Transformer made(spec, size, true, "tanh");
    made.add({.kind = "embedding", .name = "wte", .values = {{"outputs", size.width}}});
    made.add({.kind = "positions", .name = "wpe"});
    made.dropout("drop");
    made.blocks(size.dropout > 0 ? "drop" : "wpe");
    made.linear("head", spec.vocabulary, Transformer::std);
    spec.layers.back().values.set("bias", 0);
    if (size.tied_head) spec.layers.back().weights_of = "wte";
    made.add({.kind = "softmax_cross_entropy"});
    return {};
}

Status preset_vit_s(NetSpec& spec) {
    constexpr PresetSize size{.depth = 12, .width = 384, .heads = 6};
    const uint32_t patch = std::min(spec.H, spec.W) >= 64 ? 16 : 4;
    if (spec.H % patch != 0 || spec.W % patch != 0)
        return fail(Code::invalid, "net vit-s takes samples whose sides are multiples of {}, not {}x{}", patch, spec.H, spec.W);
    Transformer made(spec, size, false, "none");
    made.add({.kind = "conv", .name = "patches", .values = {{"outputs", size.width}, {"kernel", patch}, {"stride", patch}}});
    made.add({.kind = "positions", .name = "places"});
    made.blocks("places");
    made.add({.kind = "global_average_pool"});
    made.add({.kind = "inner_product", .name = "head", .values = {{"outputs", spec.classes}}});
    made.add({.kind = "softmax_cross_entropy"});
    return {};
}

}   // namespace gradcast
