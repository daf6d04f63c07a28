// Nets that test every kind of layer, and the test of gradients, for CPU and GPU.
#pragma once
#include <cstring>

#include "nn/graph/layer_kind.h"
#include "tests/nn/rig.h"

namespace gradcast {

inline NetSpec preset(const char* name, uint32_t C = 1, uint32_t side = 28) {
    NetSpec spec;
    EXPECT_TRUE(preset_find(name, C, side, side, 10, &spec).ok());
    return spec;
}

/// Of texts of 7 tokens.
inline NetSpec small_gpt() {
    NetSpec spec{.C = 1, .H = 1, .W = 10, .classes = 1, .element = Element::u16, .vocabulary = 7};
    EXPECT_TRUE(preset_layers("gpt", {.depth = 2, .width = 24, .heads = 3}, &spec).ok());
    return spec;
}
/// Of texts of `vocabulary` tokens: embedding, attention and a hidden layer.
inline NetSpec small_text(uint32_t vocabulary, uint32_t context) {
    return {.C = 1,
            .H = 1,
            .W = context + 1,
            .classes = 1,
            .element = Element::u16,
            .vocabulary = vocabulary,
            .layers = {named({.kind = "embedding", .values = {{"outputs", 12}}}, "wte"),
                       {.kind = "positions"},
                       named(linear(36), "qkv"),
                       attention(2),
                       named(linear(12), "projection"),
                       add("positions1"),
                       named(linear(vocabulary), "head"),
                       {.kind = "softmax_cross_entropy"}}};
}
/// Of images with masks.
inline NetSpec of_masks() {
    const LayerSpec first{.kind = "conv", .values = {{"outputs", 6}, {"kernel", 3}, {"pad", 1}}},
        last{.kind = "linear", .values = {{"outputs", 3}}};
    return {
        .C = 2,
        .H = 5,
        .W = 4,
        .classes = 3,
        .targets = 20,
        .target_element = Element::u16,
        .ignore = 9,
        .layers = {first, {.kind = "attention", .values = {{"heads", 2}}}, {.kind = "positions"}, last, {.kind = "softmax_cross_entropy"}}};
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// max over layers of ||a - b|| / ||a||; NaN counts as the largest.
template <typename T>
double distance(const Layout& layout, const std::vector<T>& a, const std::vector<T>& b, std::string* where) {
    double worst = 0;
    for (const Group& group : layout.groups) {
        double apart = 0, size = 0;
        for (uint64_t i = group.offset; i < group.offset + group.count; ++i) {
            apart += std::pow(static_cast<double>(a[i]) - b[i], 2);
            size += std::pow(static_cast<double>(a[i]), 2);
        }
        const double share = apart == 0 ? 0 : std::sqrt(apart / size);
        if (share <= worst) continue;
        worst = share;
        *where = group.layer;
        if (std::isnan(worst)) break;
    }
    return worst;
}

/// The same net without kinks: average pooling instead of another one, and a dropout that drops nothing instead of a ReLU.
inline NetSpec smooth(NetSpec spec) {
    for (LayerSpec& layer : spec.layers)
        if (const LayerKind* kind = layer_kind_find(layer.kind); kind->kinks) layer.kind = kind->onnx.windowed ? "average_pool" : "dropout";
    return spec;
}

struct Difference {
    const char* name;
    NetSpec spec;
    uint32_t samples;
    bool kinks, trains_otherwise = false;   // trains_otherwise: the loss of a block is not that of an evaluation
};
inline void PrintTo(const Difference& d, std::ostream* out) { *out << d.name; }

// Central differences of the loss along random directions, layer by layer.  The loss is a float32 sum over at most 9 samples: its rounding
// error of about 1e-6, divided by 2 h, is below 3e-4 at h = 2^-8.  Near the kinks of ReLU and pooling the quotient mixes two slopes, so
// nets with kinks may differ by 2% of the gradient; a wrong term differs by far more.
inline void expect_slopes(AnyRig& rig, const Difference& p) {
    Data data(p.spec, p.samples);
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    // Initial biases of 0 would put the ReLUs of blank patches at their kink.
    for (float& w : rig.net->parameters()) w += 0.05f * normal(random);
    rig.net->refresh();
    Gather at = rig.block(data.samples);
    if (!p.trains_otherwise) {
        EXPECT_DOUBLE_EQ(at.total, rig.loss(data.samples));
    }
    std::vector<float> start(rig.net->parameters().begin(), rig.net->parameters().end());
    for (const Group& group : rig.net->layout().groups)
        for (int trial = 0; trial < 6 && !group.layer.ends_with("statistics"); ++trial) {
            std::vector<float> direction(group.count);
            double norm = 0, slope = 0, size = 0;
            for (float& d : direction) {
                d = normal(random);
                norm += static_cast<double>(d) * d;
            }
            const float h = 0x1p-8f;
            double loss[2];
            for (int side : {0, 1}) {
                for (uint64_t i = 0; i < group.count; ++i)
                    rig.net->parameters()[group.offset + i] =
                        start[group.offset + i] + (side ? h : -h) * direction[i] / static_cast<float>(std::sqrt(norm));
                rig.net->refresh();
                loss[side] = rig.block(data.samples).total;
            }
            std::copy(start.begin(), start.end(), rig.net->parameters().begin());
            for (uint64_t i = 0; i < group.count; ++i) {
                double g = at.gradient[group.offset + i];
                slope += g * direction[i] / std::sqrt(norm);
                size += g * g;
            }
            EXPECT_NEAR((loss[1] - loss[0]) / (2 * static_cast<double>(h)), slope, 1e-3 + std::sqrt(size) * (p.kinks ? 2e-2 : 2e-3))
                << "layer " << group.layer << ", |gradient| " << std::sqrt(size);
        }
}

/// For nets with several buckets and no dropout (lenet5), in blocks of 4.
inline void expect_nan_shows(AnyRig& rig) {
    Data data(rig.net->spec(), 4);
    rig.net->parameters()[3] = NAN;
    rig.net->refresh();
    Gather gather(rig.net->layout());
    ASSERT_TRUE(rig.net->block(0, {0, 0}, data.samples, gather).ok());
    EXPECT_TRUE(std::isnan(gather.total));
    EXPECT_TRUE(std::isnan(gather.gradient.back()));
}

inline void expect_cancel_ends_a_block(AnyRig& rig) {
    Data data(rig.net->spec(), 4);
    struct CancelAtFirst : GradientSink {
        Net* net = nullptr;
        uint32_t buckets = 0;
        Status bucket(uint32_t, BlockId id, uint32_t, Buffer) override {
            ++buckets;
            net->cancel(id.step);
            return {};
        }
        void loss(uint32_t, BlockId, double) override {}
    } sink;
    sink.net = rig.net.get();
    const std::vector<float> before = rig.block(data.samples).gradient;
    EXPECT_EQ(rig.net->block(0, {5, 0}, data.samples, sink).code, Code::cancelled);
    EXPECT_EQ(sink.buckets, 1u);
    EXPECT_TRUE(same_bits(before, rig.block(data.samples, 0, 6).gradient));   // another step is not cancelled
    EXPECT_EQ(rig.net->block(0, {5, 1}, data.samples, sink).code, Code::cancelled);
    EXPECT_EQ(sink.buckets, 1u);
    rig.net->cancel(Net::no_step);
    EXPECT_TRUE(same_bits(before, rig.block(data.samples, 0, 5).gradient));
    rig.loss(data.samples);
}

inline void expect_errors_end_a_block(AnyRig& rig) {
    Data data(rig.net->spec(), 4);
    struct Refuses : GradientSink {
        Status bucket(uint32_t, BlockId, uint32_t, Buffer) override { return {Code::diverged, 0, "refused"}; }
        void loss(uint32_t, BlockId, double) override {}
    } sink;
    const std::vector<float> before = rig.block(data.samples).gradient;
    EXPECT_STREQ(rig.net->block(0, {6, 0}, data.samples, sink).what, "refused");
    EXPECT_TRUE(same_bits(before, rig.block(data.samples).gradient));
}

inline NetSpec of(uint32_t C, uint32_t H, uint32_t W, uint32_t pad, uint32_t classes, std::vector<LayerSpec> layers) {
    return {.C = C, .H = H, .W = W, .pad = pad, .classes = classes, .layers = std::move(layers)};
}
inline LayerSpec curve(const char* kind) { return {.kind = kind}; }
inline LayerSpec gelu_tanh() { return {.kind = "gelu", .values = {{"approximate", 1}}}; }

inline std::vector<Difference> differences() {
    return {
        Difference{"curves",
                   of(3, 9, 8, 0, 4,
                      {conv(19, 3), curve("gelu"), conv(6, 2), curve("sigmoid"), conv(5, 2), gelu_tanh(), fc(13), curve("silu"), fc(7),
                       curve("tanh"), fc(4), loss()}),
                   5, false},
        Difference{"curves_first", of(2, 6, 5, 0, 4, {curve("sigmoid"), fc(9), curve("gelu"), add("fc1"), fc(4), loss()}), 5, false},
        Difference{"inner_product", of(3, 5, 3, 0, 4, {fc(13), fc(4), loss()}), 5, false},
        Difference{"conv", of(3, 11, 9, 0, 5, {conv(7, 3, 2, 1), conv(17, 2), fc(5), loss()}), 4, false},
        Difference{"conv_to_loss", of(2, 6, 6, 0, 3, {conv(20, 4), conv(3, 3), loss()}), 9, false},
        Difference{"conv_padded_input", of(1, 7, 7, 2, 3, {conv(33, 5, 2), conv(5, 1), fc(3), loss()}), 3, false},
        Difference{"relu", of(1, 6, 5, 0, 4, {conv(6, 3), relu(), fc(21), relu(), fc(4), loss()}), 6, true},
        Difference{"max_pool", of(3, 13, 10, 0, 4, {conv(19, 3, 1, 1), max_pool(3, 2, 1), conv(9, 2), max_pool(2), fc(4), loss()}), 4,
                   true},
        Difference{"max_pool_overlaps", of(1, 9, 9, 0, 3, {max_pool(2), conv(4, 2), max_pool(2, 1), relu(), fc(3), loss()}), 4, true},
        Difference{"max_pool_gaps", of(1, 14, 14, 0, 3, {conv(5, 3), relu(), max_pool(2, 3), fc(3), loss()}), 4, true},
        Difference{"average_pool",
                   of(3, 13, 10, 0, 4, {conv(19, 3, 1, 1), average_pool(3, 2, 1, true), conv(9, 2), average_pool(2, 1), fc(4), loss()}), 4,
                   false},
        Difference{"global_pool", of(2, 9, 6, 0, 3, {conv(5, 2), conv(3, 2), global_pool(), loss()}), 5, false},
        Difference{"squared_loss", of(2, 4, 5, 0, 3, {conv(5, 2), fc(3), squared_loss()}), 5, false},
        Difference{"no_bias",
                   of(2, 6, 5, 0, 3,
                      {{.kind = "conv", .values = {{"outputs", 5}, {"kernel", 2}, {"bias", false}}},
                       {.kind = "inner_product", .values = {{"outputs", 3}, {"bias", false}}},
                       loss()}),
                   5, false},
        Difference{"batch_norm", of(3, 9, 8, 0, 4, {conv(19, 3), norm(), conv(6, 2), norm(), fc(9), norm(), fc(4), loss()}), 7, false,
                   true},
        Difference{"batch_norm_first", of(3, 5, 6, 0, 4, {norm(), fc(4), loss()}), 7, false, true},
        Difference{"dropout", of(3, 9, 8, 0, 4, {dropout(0.1), conv(19, 3), dropout(0.5), fc(30), dropout(0.3), fc(4), loss()}), 5, false,
                   true},
        Difference{
            "add",
            of(3, 6, 8, 0, 4, {conv(7, 3, 1, 1), conv(7, 3, 1, 1), add("conv1"), conv(7, 1), add("add1"), add("conv2"), fc(4), loss()}), 5,
            false},
        Difference{
            "add_in_place",
            of(3, 6, 8, 0, 4, {named(relu(), "x"), conv(3, 3, 1, 1), relu(), add("x"), relu(), dropout(0.3), add("add1"), fc(4), loss()}),
            5, true, true},
        Difference{"add_to_itself", of(1, 6, 5, 0, 4, {fc(21), add("fc1"), fc(4), loss()}), 5, false},
        Difference{"branch",
                   of(2, 7, 7, 0, 4,
                      {named(conv(5, 3, 2, 1), "a"), conv(8, 3, 1, 1), named(conv(8, 1), "b"), named(conv(8, 1), "c", "a"), add("b"), fc(4),
                       loss()}),
                   5, false},
        Difference{"shortcut_first",
                   of(2, 6, 6, 0, 4,
                      {named(conv(5, 3, 1, 1), "x"), named(conv(9, 1), "s"), named(conv(5, 3, 1, 1), "c", "x"), conv(6, 3, 1, 1),
                       conv(9, 3, 1, 1), add("s"), fc(4), loss()}),
                   5, false},
        Difference{"wide_shortcut_first",
                   of(3, 6, 6, 0, 4,
                      {conv(16, 3, 1, 1), named(relu(), "x"), named(conv(32, 1), "s"), named(conv(16, 3, 1, 1), "c", "x"), relu(),
                       conv(32, 3, 1, 1), add("s"), relu(), fc(4), loss()}),
                   5, true},
        Difference{"skip",
                   of(1, 4, 4, 0, 4,
                      {named(fc(8), "x"), named(fc(8), "s"), named(fc(8), "c", "x"), fc(8), fc(8), add("s"), named(relu(), "r"), fc(5),
                       named(fc(5), "q", "r"), fc(5), add("fc6"), fc(4), loss()}),
                   5, true},
        Difference{
            "pool_of_shared_relu",
            of(2, 6, 6, 0, 4, {conv(8, 3, 1, 1), named(relu(), "r"), max_pool(2), fc(4), named(fc(4), "f", "r"), add("fc1"), loss()}), 5,
            true},
        Difference{"wide", of(3, 9, 7, 0, 4, {conv(16, 3, 1, 1), conv(32, 5, 1, 2), conv(16, 3), conv(48, 1), fc(4), loss()}), 5, false},
        Difference{"wide_relu",
                   of(3, 9, 7, 0, 4,
                      {conv(16, 3, 1, 1), relu(), conv(32, 5, 1, 2), relu(), dropout(0.25), conv(16, 3, 1, 1), relu(), conv(16, 1), relu(),
                       conv(16, 3, 1, 1), relu(), fc(4), loss()}),
                   5, true, true},
        Difference{"wide_shared_relu",
                   of(3, 8, 8, 0, 4,
                      {conv(16, 3, 1, 1), named(relu(), "r"), conv(16, 5, 1, 2), named(relu(), "s"), add("r"), conv(16, 3, 1, 1), relu(),
                       add("s"), conv(16, 3, 1, 1), max_pool(2), relu(), conv(32, 3, 1, 1), fc(4), loss()}),
                   5, true},
        Difference{"everything", everything(), 6, true, true},
        Difference{"relu_first", of(2, 5, 5, 1, 3, {relu(), conv(4, 3), relu(), fc(3), loss()}), 2, true}};
}

}   // namespace gradcast
