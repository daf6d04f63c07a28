// Evaluations on CPUs: memory that layers share one after the other, and pieces of a batch.
#include "nn/evaluation.h"

#include <cstring>

#include "tests/nn/llama.h"
#include "tests/nn/nets.h"
#include "tests/nn/unet.h"

namespace gradcast {
namespace {

struct EvaluatedNet {
    const char* name;
    NetSpec spec;
};
std::vector<EvaluatedNet> evaluated_nets() {
    return {{"lenet5", preset("lenet5")},
            {"mlp", preset("mlp")},
            {"nin", preset("nin", 3, 32)},
            {"resnet9", preset("resnet9", 3, 32)},
            {"resnet18", preset("resnet18", 3, 32)},
            {"everything", everything()},
            {"encoder_decoder", encoder_decoder()},
            {"gpt", small_gpt()},
            {"llama", small_llama()},
            {"masks", of_masks()},
            {"regression", regression_on_floats(Element::f32)},
            {"vit-s", preset("vit-s", 3, 16)},
            {"unet", unet(16)}};
}

/// What a net gives for samples; before that all its memory but the parameters is NaN.
struct Given {
    uint32_t right = ~0u;
    double loss = NAN;
    std::vector<int32_t> predicted;
    std::vector<float> outputs;
    Given(Rig& rig, const NetSpec& spec, const Samples& samples) {
        const std::span<float> parameters = rig.net->parameters();
        const std::vector<float> before(parameters.begin(), parameters.end());
        std::memset(rig.arena.whole().host, 0xff, rig.arena.whole().bytes);
        std::ranges::copy(before, parameters.begin());
        rig.net->refresh();
        const uint64_t positions = uint64_t{samples.count} * spec.positions();
        predicted.resize(positions, -1);
        outputs.resize(positions * std::max(spec.label_classes(), spec.targets), NAN);
        const Status status = rig.net->evaluate(0, samples, &right, &loss, predicted.data(), outputs.data());
        EXPECT_TRUE(status.ok()) << status.what;
    }
};

void expect_alike(const Given& found, const Given& wanted) {
    EXPECT_EQ(found.right, wanted.right);
    EXPECT_EQ(found.loss, wanted.loss);
    EXPECT_EQ(found.predicted, wanted.predicted);
    EXPECT_TRUE(same_bits(found.outputs, wanted.outputs));
    EXPECT_FALSE(std::isnan(found.loss));
}

NetConfig of_sizes(uint32_t block, uint32_t evaluation) {
    NetConfig config = sizes({block});
    config.samples_max = evaluation;
    return config;
}

TEST(Evaluation, HasTheBitsOfAWholeBatchInPieces) {
    for (const auto& [name, spec] : evaluated_nets()) {
        Rig whole(spec, of_sizes(1, 21));
        const Data data(spec, 21);
        const Given wanted(whole, spec, data.samples);
        for (const uint32_t piece : {2u, 20u}) {
            SCOPED_TRACE(fmt::format("{}, {} samples at a time", name, piece));
            Rig rig(spec, of_sizes(1, piece));
            expect_alike(Given(rig, spec, data.samples), wanted);
        }
    }
}

TEST(Evaluation, AddsTheLossesOfPiecesInOrder) {
    const NetSpec spec = preset("lenet5");
    Rig rig(spec, of_sizes(2, 21));
    const Data data(spec, 21);
    const Given wanted(rig, spec, data.samples);
    Rig pieces(spec, of_sizes(2, 10));
    double loss = 0;
    uint32_t all_right = 0;
    for (uint32_t first = 0; first < 21; first += 10) {
        Samples piece = data.samples;
        piece.images += first * spec.sample_bytes();
        piece.labels += first;
        piece.count = std::min(10u, 21 - first);
        uint32_t right = 0;
        ASSERT_TRUE(net_cpu_evaluate_further(*pieces.net, 0, piece, &right, &loss, nullptr).ok());
        all_right += right;
    }
    EXPECT_EQ(loss, wanted.loss);
    EXPECT_EQ(all_right, wanted.right);
}

TEST(Evaluation, PiecesFollowTheNetAndTheBlock) {
    EXPECT_EQ(evaluation_piece(preset("lenet5"), 25, 100), 100u);   // small nets: whole batches
    EXPECT_EQ(evaluation_piece(preset("mlp"), 1, 100), 100u);
    const NetSpec large = preset("resnet18", 3, 64);
    uint32_t before = 0;
    for (const uint32_t block : {1u, 4u, 8u, 20u, 99u, 100u, 400u}) {
        const uint32_t piece = evaluation_piece(large, block, 100);
        EXPECT_EQ(100 % piece, 0u);
        EXPECT_TRUE(piece > block || piece == 100);
        EXPECT_GE(piece, before);
        before = piece;
    }
    EXPECT_EQ(before, 100u);
    EXPECT_LT(evaluation_piece(large, 4, 100), 100u);
    EXPECT_EQ(evaluation_piece(large, 4, 1), 1u);
}

}   // namespace
}   // namespace gradcast
