// Layers of texts and masks, norms without statistics, and what resizes, on a GPU: against finite differences, the CPU and PyTorch.
#include <tuple>

#include "tests/cuda/nn_rig.h"
#include "tests/nn/chain.h"
#include "tests/nn/dropping.h"
#include "tests/nn/llama.h"
#include "tests/nn/position_reference.h"

namespace gradcast {
namespace {

NetSpec with_layers(NetSpec spec, const std::vector<std::string>& texts) {
    spec.layers.clear();
    for (const std::string& text : texts) spec.layers.push_back(layer(text));
    return spec;
}

/// Heads wider than a slice of the kernel, and more positions than its tiles have.
NetSpec long_text() {
    return with_layers({.C = 1, .H = 1, .W = 75, .classes = 1, .element = Element::u32, .vocabulary = 300},
                       {"embedding outputs=70 initial_std=0.5", "positions initial_std=0.5", "linear outputs=210 initial_std=0.2",
                        "attention heads=1 causal=1", "linear outputs=300", "softmax_cross_entropy"});
}
NetSpec resized(bool bilinear) {
    return of(2, 5, 4, 1, 4,
              {conv(6, 3), named(conv(8, 2), "low"), upsample(3, bilinear), conv(5, 3, 3), concat("low"), named(conv(7, 1), "both"),
               upsample(2, !bilinear), conv(9, 2, 2), concat("both"), fc(4), loss()});
}
NetSpec normed() {
    return of(3, 6, 5, 0, 4,
              {conv(12, 3), layer("group_norm groups=3"), conv(10, 2), layer("layer_norm"), conv(7, 1), layer("group_norm"), fc(9),
               layer("layer_norm epsilon=0.1"), fc(4), loss()});
}
/// Convolutions in groups with odd shapes; the last ones take several chunks of the rows for their gradient.
NetSpec grouped_net() {
    return of(
        6, 13, 12, 1, 4,
        {grouped(conv(4, 3, 2, 1), 2), relu(), grouped(conv(12, 3, 1, 2), 4, 2), grouped(conv(12, 2, 2), 12), max_pool(2), fc(4), loss()});
}
NetSpec dilated() {
    return of(5, 13, 11, 0, 4, {conv(8, 3), grouped(conv(9, 3, 1, 2), 1, 2), relu(), grouped(conv(8, 2, 2, 1), 1, 3), fc(4), loss()});
}
NetSpec transposed() {
    return of(3, 5, 4, 0, 4,
              {conv(7, 2), conv_transposed(6, 3, 2, 1), relu(), conv_transposed(8, 2, 2), conv_transposed(5, 1), fc(4), loss()});
}
NetSpec transposed_first() { return of(3, 4, 4, 0, 4, {conv_transposed(6, 3, 2, 1), grouped(conv(6, 3), 3), fc(4), loss()}); }
NetSpec smoothed() {
    NetSpec spec = of(2, 5, 4, 0, 5, {conv(6, 2), fc(5), layer("softmax_cross_entropy label_smoothing=0.2")});
    return spec;
}
NetSpec smoothed_text() {
    NetSpec spec = small_gpt();
    spec.layers.back().values.set("label_smoothing", 0.1);
    return spec;
}

NetSpec small_text() {
    return with_layers({.C = 1, .H = 1, .W = 8, .classes = 1, .element = Element::u16, .vocabulary = 9},
                       {"embedding outputs=6 initial_std=0.5", "positions initial_std=0.5", "layer_norm", "linear outputs=18",
                        "attention heads=2 causal=1", "linear outputs=9 bias=0", "softmax_cross_entropy label_smoothing=0.1"});
}

/// The same with attention that drops.
NetSpec dropping_text() {
    NetSpec spec = small_text();
    for (LayerSpec& each : spec.layers)
        if (each.kind == "attention") each.values.set("dropout", 0.3);
    return spec;
}
/// Over several tiles of queries and keys, which end within a draw.
NetSpec dropping_long_text() {
    NetSpec spec = long_text();
    for (LayerSpec& each : spec.layers)
        if (each.kind == "attention") each.values.set("dropout", 0.3);
    return spec;
}

const std::vector<std::string> two_heads = {"embedding name=wte outputs=6 initial_std=0.5",
                                            "linear name=up outputs=9 weights_of=wte bias=0", "linear name=down outputs=6",
                                            "linear name=head outputs=9 weights_of=up bias=0", "softmax_cross_entropy"};
/// Three layers take the weights of `wte`.
NetSpec tied_heads() { return with_layers({.C = 1, .H = 1, .W = 6, .classes = 1, .element = Element::u16, .vocabulary = 9}, two_heads); }
NetSpec tied_gpt() {
    NetSpec spec{.C = 1, .H = 1, .W = 10, .classes = 1, .element = Element::u16, .vocabulary = 7};
    EXPECT_TRUE(preset_layers("gpt", {.depth = 2, .width = 24, .heads = 3, .tied_head = true}, &spec).ok());
    return spec;
}
/// Its shared weights lie at a place that is not aligned, so products take copies of them.
NetSpec tied_unaligned() {
    return with_layers({.C = 1, .H = 1, .W = 6, .classes = 1, .element = Element::u16, .vocabulary = 9},
                       {"embedding outputs=5 initial_std=0.5", "linear name=a outputs=5 bias=0", "layer_norm",
                        "linear name=b outputs=5 weights_of=a bias=0", "linear outputs=9", "softmax_cross_entropy"});
}

/// Its embedding is not small: the slopes of a norm of small values change within a difference.
NetSpec tiny_llama() {
    NetSpec spec = llama({.depth = 1, .width = 8, .heads = 2, .hidden = 6}, 7, 5);
    spec.layers.front().values.set("initial_std", 0.5);
    return spec;
}
NetSpec rms_normed() {
    return of(5, 6, 5, 0, 4, {conv(19, 3), layer("rms_norm"), conv(6, 2), fc(9), layer("rms_norm epsilon=0.1"), fc(4), loss()});
}
NetSpec multiplied() {
    return of(3, 6, 5, 0, 4,
              {named(conv(7, 3, 1, 1), "a"), relu(), conv(7, 3, 1, 1), layer("sigmoid"), multiply("a"), conv(16, 3), named(norm(), "b"),
               conv(16, 1), multiply("b"), fc(4), loss()});
}
NetSpec multiplied_by_input() {
    return of(3, 6, 5, 0, 4, {named(relu(), "x"), conv(3, 3, 1, 1), multiply("x"), conv(4, 3, 1, 1), fc(4), loss()});
}

std::vector<Difference> small_kinds() {
    return {Difference{"text", small_text(), 4, false},
            {"dropping_text", dropping_text(), 4, false, true},
            {"masks", of_masks(), 5, false},
            {"norms", normed(), 5, false},
            {"floats", regression_on_floats(Element::f32), 5, true},
            {"resized", resized(false), 4, false},
            {"resized_between", resized(true), 4, false},
            {"grouped", grouped_net(), 5, true},
            {"dilated", dilated(), 5, true},
            {"transposed", transposed(), 5, true},
            {"transposed_first", transposed_first(), 5, false},
            {"llama", tiny_llama(), 4, false},
            {"tied_heads", tied_heads(), 4, false},
            {"tied_unaligned", tied_unaligned(), 4, false},
            {"rms_norm", rms_normed(), 5, false},
            {"multiply", multiplied(), 5, true, true},
            {"multiply_with_itself", of(1, 6, 5, 0, 4, {conv(3, 2), multiply("conv1"), fc(4), loss()}), 5, false},
            {"multiply_by_what_does_not_learn", multiplied_by_input(), 5, false},
            {"smoothed", smoothed(), 6, false}};
}
/// Also nets whose finite differences would take the stand-in minutes.
std::vector<Difference> kinds() {
    std::vector<Difference> all = small_kinds();
    all.insert(all.end(), {Difference{"gpt", small_gpt(), 4, false},
                           {"tied_gpt", tied_gpt(), 4, false},
                           {"small_llama", small_llama(), 4, false},
                           {"long_llama", llama({.depth = 1, .width = 28, .heads = 2, .hidden = 24}, 76, 90), 2, false},
                           {"smoothed_text", smoothed_text(), 3, false},
                           {"long_text", long_text(), 2, false},
                           {"dropping_long_text", dropping_long_text(), 2, false, true},
                           {"dropping_gpt", dropping_gpt(), 4, false, true},
                           {"halves", regression_on_floats(Element::u16), 5, true},
                           {"encoder_decoder", encoder_decoder(), 3, true, true}});
    return all;
}

class CudaMoreSlopes : public testing::TestWithParam<Difference> {};
TEST_P(CudaMoreSlopes, MatchFiniteDifferences) {
    GC_NEED_GPU();
    CudaRig rig(GetParam().spec, sizes({GetParam().samples}));
    expect_slopes(rig, GetParam());
}
INSTANTIATE_TEST_SUITE_P(Small, CudaMoreSlopes, testing::ValuesIn(small_kinds()), [](const auto& p) { return p.param.name; });

class CudaMoreKinds : public testing::TestWithParam<Difference> {};
TEST_P(CudaMoreKinds, AreAsOnTheCpu) {
    GC_NEED_GPU();
    expect_as_cpu(GetParam().spec, GetParam().samples, Precision::f32, 2e-5);
}
TEST_P(CudaMoreKinds, AreNearInBf16) {
    GC_NEED_GPU();
    expect_as_cpu(smooth(GetParam().spec), GetParam().samples, Precision::bf16, 8e-2);   // through up to 20 layers, see nn_layers_test.cc
}
INSTANTIATE_TEST_SUITE_P(All, CudaMoreKinds, testing::ValuesIn(kinds()), [](const auto& p) { return p.param.name; });

struct CudaPositions : PositionReference {};
TEST_P(CudaPositions, GiveTheNumbersOfPyTorch) {
    GC_NEED_GPU();
    CudaRig rig(spec, sizes({n}), sgd);
    expect_numbers(rig);
}
INSTANTIATE_TEST_SUITE_P(Nets, CudaPositions, testing::Values("gpt", "long", "masks", "gated", "tied"),
                         [](const auto& p) { return p.param; });

// The bits of a block depend on the block alone: not on the run, the lane or the other blocks.
TEST(CudaMoreNets, BitsAreTheSameInEveryRun) {
    GC_NEED_GPU();
    for (const NetSpec& spec : {small_gpt(), tied_gpt(), small_llama(), of_masks(), encoder_decoder(), normed()})
        for (const Precision precision : {Precision::f32, Precision::bf16}) {
            NetConfig config = sizes({3, 4}, 2);
            config.precision = precision;
            CudaRig rig(spec, config);
            Data first(spec, 4, 1), second(spec, 3, 2);
            const std::vector<float> wanted = rig.block(first.samples).gradient;
            rig.block(second.samples, 1);
            EXPECT_TRUE(same_bits(wanted, rig.block(first.samples, 1).gradient));
            EXPECT_TRUE(same_bits(wanted, rig.block(first.samples).gradient));
        }
}

// With mean_over = "valid" a block also says how many of its positions count; losses and gradients are those of the mean over all.
TEST(CudaMoreNets, BlocksSayHowManyPositionsCount) {
    GC_NEED_GPU();
    struct Counts : Gather {
        using Gather::Gather;
        uint64_t counted = 0;
        void valid(uint32_t, BlockId, uint64_t positions) override { counted = positions; }
    };
    const NetSpec plain = of_masks();
    NetSpec spec = plain;
    spec.layers.back().values.set("mean_over", 1);
    for (const uint32_t slots : {1u, 2u}) {   // blocks as graphs, and as passes
        NetConfig config = sizes({5});
        CudaRig without(plain, config);
        config.slots = slots;
        CudaRig rig(spec, config);
        Rig cpu(spec, sizes({5}));
        const Data data(spec, 5, 3);
        Counts found(rig.net->layout()), wanted(cpu.net->layout());
        ASSERT_TRUE(rig.net->block(0, {0, 0}, data.samples, found).ok());
        ASSERT_TRUE(cpu.net->block(0, {0, 0}, data.samples, wanted).ok());
        EXPECT_EQ(found.counted, wanted.counted);
        EXPECT_TRUE(found.counted > 0 && found.counted < uint64_t{5} * spec.positions());
        EXPECT_TRUE(same_bits(found.gradient, without.block(data.samples).gradient));
    }
}

// The labels of a text are its tokens, and those of the loss's stage come from there although another stage reads them as input.
TEST(CudaMoreNets, StagesHaveTheBitsOfTheWhole) {
    GC_NEED_GPU();
    for (const NetSpec& spec : {small_gpt(), dropping_gpt(), small_llama(), of_masks(), normed(), grouped_net(), transposed()}) {
        NetOrder order;
        ASSERT_TRUE(net_gpu_order(spec, &order).ok());
        const size_t count = order.begins.size();
        for (const bool apart : {false, true})
            expect_bits_of_the_whole<CudaRig>(spec, {0, order.begins[count / 3], order.begins[2 * count / 3]}, apart);
        if (!spec.by_position()) expect_evaluations_of_the_whole<CudaRig>(spec, {0, order.begins[count / 2]}, false, false);
    }
}

// Each stage with the weights hands in the gradients of its own layers: their sum is that of the whole net.
TEST(CudaMoreNets, TiedWeightsOfTwoStagesHaveTheirOwnGradients) {
    GC_NEED_GPU();
    for (const NetSpec& spec : {tied_gpt()})
        for (const bool apart : {false, true}) {
            NetOrder order;
            ASSERT_TRUE(net_gpu_order(spec, &order).ok());
            NetConfig config = sizes({3});
            CudaRig whole(spec, config, adam);
            config.passes_apart = apart;
            Chain<CudaRig> chain(spec, config, {0, order.begins[order.begins.size() / 2]});
            const Data data(spec, 3);
            const Block block{{0, 0}, data.samples};
            const Gather wanted = whole.block(data.samples);
            chain.blocks({&block, 1}, 3, apart);
            EXPECT_EQ(chain.found.back().total, wanted.total);
            std::vector<float> sum(wanted.gradient.size());
            for (size_t i = 0; i < 2; ++i) {
                const Layout& layout = chain.net(i).layout();
                ASSERT_EQ(chain.found[i].gradient.size(), layout.elements);
                for (const Group& group : layout.groups)
                    for (uint64_t at = 0; at < group.count; ++at) sum[group.place() + at] += chain.found[i].gradient[group.offset + at];
            }
            EXPECT_TRUE(same_bits(sum, wanted.gradient));
        }
}

// Kernels are chosen by the alignment of weights in the whole net.
TEST(CudaMoreNets, AStageWhoseWeightsWouldLieOtherwiseIsRefused) {
    GC_NEED_GPU();
    const NetSpec spec = with_layers({.C = 1, .H = 1, .W = 6, .classes = 1, .element = Element::u16, .vocabulary = 9},
                                     {"embedding name=wte outputs=5", "linear outputs=5", "layer_norm name=norm",
                                      "linear outputs=9 weights_of=wte bias=0", "softmax_cross_entropy"});
    NetConfig config = sizes({3});
    config.stage = {2, ~0u};   // without the linear layer, which has 30 parameters
    cuda::CudaDevice device;
    ASSERT_TRUE(device.open({.lanes_max = 1, .lanes_per_gpu = 1, .numbers = {0}}).ok());
    std::unique_ptr<Net> net;
    EXPECT_EQ(
        std::string(cuda::net_plan(spec, config, device, &net).what),
        "layer norm: in this stage it would lie at another alignment than in the whole net, by which GPUs choose kernels: cut the net "
        "elsewhere (parallel.cuts), or take device cpu");
}

// Kernels count rows by 32 bits.  The error comes before memory is taken.
TEST(CudaMoreNets, BlocksOfTooManyRowsAreRefused) {
    GC_NEED_GPU();
    for (const char* text : {"layer_norm name=x", "rms_norm name=x", "group_norm name=x", "attention name=x", "linear name=x outputs=4",
                             "conv name=x outputs=3 kernel=1 groups=3"}) {
        const NetSpec spec = of(3, 8, 8, 0, 4, {layer(text), fc(4), loss()});
        cuda::CudaDevice device;
        ASSERT_TRUE(device.open({.lanes_max = 1, .lanes_per_gpu = 1, .numbers = {0}}).ok());
        std::unique_ptr<Net> net;
        const Status status = cuda::net_plan(spec, sizes({1u << 26}), device, &net);
        EXPECT_EQ(std::string(status.what),
                  "layer x: a block of 67108864 samples has 4294967296 rows there, and GPUs take at most 2147483647: take smaller blocks")
            << text;
    }
}

TEST(CudaMoreNets, NanShows) {
    GC_NEED_GPU();
    NetSpec spec = small_gpt();
    CudaRig rig(spec, sizes({4}));
    Data data(spec, 4);
    rig.net->parameters()[3] = NAN;
    rig.net->refresh();
    Gather gather(rig.net->layout());
    ASSERT_TRUE(rig.net->block(0, {0, 0}, data.samples, gather).ok());
    EXPECT_TRUE(std::isnan(gather.total));
    EXPECT_TRUE(std::isnan(gather.gradient.back()));
}

}   // namespace
}   // namespace gradcast
