// A net of texts whose blocks are those of Llama: rms_norm, attention with rotary, a gated pair of linear layers.
#pragma once
#include "nn/graph/layer_kind.h"
#include "tests/nn/rig.h"

namespace gradcast {

struct LlamaSize {
    uint32_t depth, width, heads, hidden;   // blocks, channels, heads, channels of the gated layers
};
/// Of texts of `side` tokens, the last of which is a label alone.
inline NetSpec llama(const LlamaSize& size, uint32_t side, uint32_t vocabulary) {
    NetSpec spec{.C = 1, .H = 1, .W = side, .classes = 1, .element = Element::u16, .vocabulary = vocabulary};
    const auto add = [&](const std::string& text) { EXPECT_TRUE(layer_parse(text, &spec.layers.emplace_back())) << text; };
    const auto linear = [&](uint32_t outputs, const std::string& from = "") {
        add(fmt::format("linear outputs={} bias=0{}", outputs, from));
    };
    add(fmt::format("embedding name=b0 outputs={}", size.width));
    for (uint32_t i = 1; i <= size.depth; ++i) {
        add("rms_norm");
        linear(3 * size.width);
        add(fmt::format("attention heads={} causal=1 rotary=10000", size.heads));
        linear(size.width);
        add(fmt::format("add name=a{} from=b{}", i, i - 1));
        add(fmt::format("rms_norm name=n{}", i));
        linear(size.hidden);
        add(fmt::format("silu name=g{}", i));
        linear(size.hidden, fmt::format(" from=n{}", i));
        add(fmt::format("multiply from=g{}", i));
        linear(size.width);
        add(fmt::format("add name=b{} from=a{}", i, i));
    }
    add("rms_norm");
    linear(vocabulary);
    add("softmax_cross_entropy");
    return spec;
}
inline NetSpec small_llama() { return llama({.depth = 2, .width = 12, .heads = 3, .hidden = 20}, 9, 7); }

}   // namespace gradcast
