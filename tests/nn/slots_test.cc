// Micro-batches in flight: whatever order the passes of several slots take, each block has the bits of Net::block().
#include "tests/nn/dropping.h"
#include "tests/nn/slot_calls.h"

namespace gradcast {
namespace {

const std::vector<const char*> slot_nets = {"lenet5", "cnn",    "mlp", "nin",          "resnet9", "everything",
                                            "floats", "images", "gpt", "dropping_gpt", "masks"};

NetSpec net_of(const std::string& name) {
    if (name == "everything") return everything();
    if (name == "floats") return regression_on_floats(Element::f32);
    if (name == "images") return encoder_decoder();
    if (name == "gpt") return small_gpt();
    if (name == "dropping_gpt") return dropping_gpt();
    if (name == "masks") return of_masks();
    return name == "lenet5" || name == "mlp" ? preset(name.c_str()) : preset(name.c_str(), 3, 32);
}

/// Blocks take the slots in turn.
void expect_bits_of_blocks(const NetSpec& spec, const NetConfig& config, uint32_t blocks, const std::vector<Call>& calls) {
    const uint32_t samples = config.block_sizes[0];
    std::vector<std::unique_ptr<Data>> data;
    std::vector<Gather> wanted, found;
    Rig rig(spec, sizes({samples}));
    for (uint32_t b = 0; b < blocks; ++b) {
        data.push_back(std::make_unique<Data>(spec, samples, b + 1));
        Gather& one = wanted.emplace_back(rig.net->layout());
        ASSERT_TRUE(rig.net->block(0, {3, b}, data[b]->samples, one).ok());
        found.emplace_back(rig.net->layout());
    }
    Rig cut(spec, config);
    ASSERT_EQ(cut.net->slots(), config.slots);
    if (config.recompute) {
        NetConfig keeps = config;
        keeps.recompute = false;
        EXPECT_LT(activation_bytes(cut), activation_bytes(Rig(spec, keeps)));
    }
    const uint32_t lane = config.lanes - 1;
    for (const auto& [pass, b] : calls) {
        const Block block{{3, b}, data[b]->samples};
        const uint32_t slot = b % config.slots;
        const Status status = pass == Call::forward ? cut.net->forward(lane, slot, {&block, 1}, found[b])
                                                    : cut.net->backward(lane, slot, backward_of(pass), found[b]);
        ASSERT_TRUE(status.ok()) << status.what;
        if (pass != Call::forward) continue;   // nobody reads the samples again
        std::ranges::fill(data[b]->images, uint8_t{0});
        std::ranges::fill(data[b]->labels, 0);
        std::ranges::fill(data[b]->mean, 9.0f);
        std::ranges::fill(data[b]->targets, 9.0f);
        std::ranges::fill(data[b]->position_labels, std::byte{0});
    }
    for (uint32_t b = 0; b < blocks; ++b) {
        EXPECT_EQ(found[b].next, cut.net->layout().buckets.size());
        EXPECT_EQ(found[b].total, wanted[b].total);
        EXPECT_TRUE(same_bits(found[b].gradient, wanted[b].gradient)) << "block " << b;
    }
}

TEST(Slots, AllForwardThenAllBackward) {
    for (const char* name : slot_nets)
        for (const bool recompute : {false, true}) {
            SCOPED_TRACE(fmt::format("{}, recompute {}", name, recompute));
            NetConfig config = sizes({7}, 2);
            config.slots = 3;
            config.recompute = recompute;
            expect_bits_of_blocks(net_of(name), config, 3, all_forward_then_all_backward);
        }
}

TEST(Slots, OneForwardOneBackward) {
    for (const char* name : slot_nets)
        for (const bool recompute : {false, true}) {
            SCOPED_TRACE(fmt::format("{}, recompute {}", name, recompute));
            NetConfig config = sizes({7});
            config.slots = 2;
            config.recompute = recompute;
            expect_bits_of_blocks(net_of(name), config, 4, one_forward_one_backward);
        }
}

// Blocks of a call are kept together.
TEST(Slots, BlocksTogetherAreComputedAgain) {
    const NetSpec spec = preset("lenet5");
    NetConfig config = sizes({16});
    Rig whole(spec, config);
    config.slots = 2;
    config.recompute = true;
    Rig cut(spec, config);
    ASSERT_GE(cut.net->together(), 3u);
    std::vector<std::unique_ptr<Data>> data;
    std::vector<Gather> wanted;
    std::vector<Block> blocks;
    for (uint32_t b = 0; b < 5; ++b) {
        data.push_back(std::make_unique<Data>(spec, 16, b + 1));
        blocks.push_back({{0, b}, data[b]->samples});
        ASSERT_TRUE(whole.net->block(0, blocks[b].id, blocks[b].samples, wanted.emplace_back(whole.net->layout())).ok());
    }
    GatherEach found(cut.net->layout(), 5, true);
    const std::span<const Block> first = std::span(blocks).first(3), second = std::span(blocks).last(2);
    ASSERT_TRUE(cut.net->forward(0, 0, first, found).ok());
    ASSERT_TRUE(cut.net->forward(0, 1, second, found).ok());
    for (const auto& each : data) std::ranges::fill(each->images, uint8_t{0}), std::ranges::fill(each->labels, 0);
    ASSERT_TRUE(cut.net->backward(0, 0, Backward::both, found).ok());
    ASSERT_TRUE(cut.net->backward(0, 1, Backward::both, found).ok());
    for (uint32_t b = 0; b < 5; ++b) {
        EXPECT_EQ(found.each[b].total, wanted[b].total);
        EXPECT_TRUE(same_bits(found.each[b].gradient, wanted[b].gradient)) << "block " << b;
    }
}

// Of eight micro-batches in flight.
TEST(Slots, InputsTakeLessMemoryThanActivations) {
    const NetSpec spec = preset("resnet9", 3, 32);
    NetConfig config = sizes({8});
    config.stage = {15, 30};
    auto bytes = [&](uint32_t slots, bool recompute) {
        config.slots = slots;
        config.recompute = recompute;
        return activation_bytes(Rig(spec, config));
    };
    const uint64_t one = bytes(1, false);
    EXPECT_EQ(bytes(1, true), one);   // nothing to save
    EXPECT_EQ(bytes(8, false), 8 * one);
    EXPECT_LT(bytes(8, true), 4 * one);
}

// A data pass depends on no weights pass: all weights passes come last, and those of different slots in another order.
TEST(Slots, WeightsPassesComeLast) {
    for (const char* name : slot_nets) {
        SCOPED_TRACE(name);
        NetConfig config = sizes({7});
        config.slots = 3;
        config.passes_apart = true;
        expect_bits_of_blocks(net_of(name), config, 3, weights_passes_come_last);
    }
}

// In bf16 conversions of a gradient serve both passes.
TEST(Slots, WeightsPassesComeLastInBf16) {
    if (isa_best() < Isa::avx512_bf16) GTEST_SKIP() << "this CPU has no bf16";
    for (const char* name : {"lenet5", "nin", "resnet9"}) {
        SCOPED_TRACE(name);
        const NetSpec spec = net_of(name);
        NetConfig config = sizes({16});
        config.precision = Precision::bf16;
        Rig whole(spec, config);
        config.slots = 2;
        config.passes_apart = true;
        Rig apart(spec, config);
        Data first(spec, 16, 1), second(spec, 16, 2);
        Gather wanted(whole.net->layout()), found(whole.net->layout()), other(whole.net->layout());
        ASSERT_TRUE(whole.net->block(0, {0, 0}, first.samples, wanted).ok());
        const Block a{{0, 0}, first.samples}, b{{0, 1}, second.samples};
        ASSERT_TRUE(apart.net->forward(0, 0, {&a, 1}, found).ok());
        ASSERT_TRUE(apart.net->backward(0, 0, Backward::data, found).ok());
        ASSERT_TRUE(apart.net->forward(0, 1, {&b, 1}, other).ok());
        ASSERT_TRUE(apart.net->backward(0, 1, Backward::data, other).ok());
        ASSERT_TRUE(apart.net->backward(0, 0, Backward::weights, found).ok());
        EXPECT_TRUE(same_bits(found.gradient, wanted.gradient));
    }
}

}   // namespace
}   // namespace gradcast
