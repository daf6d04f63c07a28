// The whole net: gradients against finite differences, bits that depend on the block alone, cancelling, block sizes, invalid input.
#include <omp.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>

#include "runtime/core/rng.h"
#include "tests/nn/nets.h"

namespace gradcast {
namespace {

TEST(Net, Lenet5LearnsRandomData) {
    NetSpec spec = preset("lenet5");
    Rig rig(spec, sizes({32}), {.kind = "sgd", .lr = 0.05, .momentum = 0.9});
    Data data(spec, 32);
    EXPECT_GT(rig.loss(data.samples) / 32, 2.0);
    for (StepId step = 0; step < 60; ++step) rig.step(step, rig.block(data.samples, 0, step).gradient, 32);
    EXPECT_LT(rig.loss(data.samples) / 32, 0.3);
    uint32_t right = 0;
    double sum = 0;
    std::vector<int32_t> predicted(32, -1);
    ASSERT_TRUE(rig.net->evaluate(0, data.samples, &right, &sum, predicted.data()).ok());
    uint32_t counted = 0;
    for (size_t i = 0; i < 32; ++i) counted += predicted[i] == data.labels[i];
    EXPECT_EQ(right, counted);
    EXPECT_GT(right, 28u);
    std::vector<float> outputs(32 * 10, -1.0f);
    ASSERT_TRUE(rig.net->evaluate(0, data.samples, &right, &sum, nullptr, outputs.data()).ok());
    double loss = 0;
    for (size_t i = 0; i < 32; ++i) {
        const std::span<const float> row = std::span(outputs).subspan(i * 10, 10);
        EXPECT_NEAR(std::accumulate(row.begin(), row.end(), 0.0f), 1, 1e-5);
        EXPECT_EQ(std::max_element(row.begin(), row.end()) - row.begin(), predicted[i]);
        loss -= std::log(static_cast<double>(row[static_cast<size_t>(data.labels[i])]));
    }
    EXPECT_NEAR(loss, sum, 1e-4 * sum);
}

// A caller asks how many whole steps a net computes, and one that asks for them all the same gets an error.
TEST(Net, ComputesNoWholeStepsOnTheCpu) {
    Rig rig(preset("lenet5"), sizes({4}));
    EXPECT_EQ(rig.net->steps_ahead(), 0u);
    EXPECT_EQ(rig.net->step_begin(0, {}).code, Code::unsupported);
    WholeStep done;
    EXPECT_EQ(rig.net->step_end(&done).code, Code::unsupported);
    EXPECT_EQ(rig.net->engines(), 0u);
    EXPECT_TRUE(rig.net->engine_list().empty());
}

class Differences : public testing::TestWithParam<Difference> {};

TEST_P(Differences, MatchTheGradient) {
    Rig rig(GetParam().spec, sizes({GetParam().samples}));
    expect_slopes(rig, GetParam());
}
INSTANTIATE_TEST_SUITE_P(Layers, Differences, testing::ValuesIn(differences()), [](const auto& p) { return p.param.name; });

// A block reads no memory that it has not written: all memory is NaN before.
TEST(Net, PoisonedMemoryDoesNotShow) {
    for (const Difference& odd :
         {Difference{"", preset("lenet5"), 5, true}, Difference{"", preset("mlp"), 5, true},
          Difference{"", of(3, 13, 11, 1, 4, {conv(19, 3, 2, 1), relu(), max_pool(3, 2, 1), conv(5, 2), max_pool(2, 3), fc(4), loss()}), 5,
                     true},
          Difference{"", of(3, 9, 7, 0, 4, {conv(16, 3, 1, 1), relu(), conv(32, 5, 1, 2), relu(), conv(16, 3), relu(), fc(4), loss()}), 5,
                     true},
          Difference{"", everything(), 5, true}, Difference{"", encoder_decoder(), 5, true}}) {
        Rig rig(odd.spec, sizes({5, 8}));
        Data data(odd.spec, 5), batch(odd.spec, 3);
        std::vector<float> parameters(rig.net->parameters().begin(), rig.net->parameters().end());
        Gather clean = rig.block(data.samples);
        double loss = rig.loss(batch.samples);
        auto poison = [&] {
            std::memset(rig.arena.whole().host, 0xff, rig.arena.whole().bytes);
            std::copy(parameters.begin(), parameters.end(), rig.net->parameters().begin());
            rig.net->refresh();
        };
        poison();
        Gather poisoned = rig.block(data.samples);
        EXPECT_EQ(clean.total, poisoned.total);
        EXPECT_TRUE(same_bits(clean.gradient, poisoned.gradient));
        for (float g : poisoned.gradient) ASSERT_FALSE(std::isnan(g));
        poison();
        EXPECT_EQ(loss, rig.loss(batch.samples));
    }
}

TEST(Net, BlockBitsDependOnTheBlockAlone) {
    for (const char* name : {"lenet5", "cnn", "mlp", "everything"}) {
        NetSpec spec = name == std::string("everything") ? everything() : preset(name);
        Rig alone(spec, sizes({12, 13}));
        Data a(spec, 13, 1), b(spec, 12, 2);
        std::vector<float> bits_a = alone.block(a.samples).gradient, bits_b = alone.block(b.samples).gradient;
        EXPECT_TRUE(same_bits(bits_a, alone.block(a.samples).gradient));

        // Two lanes at once, many times; their threads ask OpenMP for 2 threads.
        Rig both(spec, sizes({12, 13, 40}, 2));
        bool same[2] = {true, true};
        std::thread threads[2];
        for (uint32_t lane : {0u, 1u})
            threads[lane] = std::thread([&, lane] {
                omp_set_num_threads(2);
                for (StepId step = 0; step < 20; ++step) {
                    bool first = (lane + step) % 2;
                    same[lane] = same[lane] && same_bits(first ? bits_a : bits_b, both.block(first ? a.samples : b.samples, lane).gradient);
                }
                EXPECT_EQ(omp_get_max_threads(), 2);   // the caller's setting is unchanged
            });
        for (std::thread& thread : threads) thread.join();
        EXPECT_TRUE(same[0] && same[1]) << name;
    }
}

// Any blocks, numbers and sizes computed together, in memory that is NaN before.
TEST(Net, BlocksComputedTogetherHaveTheBitsOfEach) {
    const NetSpec plain = of(1, 9, 7, 0, 5, {fc(40), relu(), dropout(0.4), fc(700), relu(), fc(400), dropout(0.2), fc(5), loss()}),
                  strips = of(2, 12, 10, 1, 4, {conv(7, 3), relu(), conv(9, 3), max_pool(2, 2), relu(), fc(50), relu(), fc(4), loss()}),
                  none = of(2, 12, 10, 1, 4, {conv(7, 3), max_pool(3, 2), relu(), fc(4), loss()});
    for (const auto& [spec, all, most] : {std::tuple{preset("lenet5"), std::vector{16u, 32u, 16u, 16u, 32u}, 4u},
                                          {preset("mlp"), std::vector{12u, 13u, 13u, 12u, 13u, 12u, 13u, 13u, 13u}, 9u},
                                          {preset("mlp"), std::vector{40u, 37u, 21u}, 3u},
                                          {plain, std::vector{1u, 2u, 2u, 1u, 2u, 2u, 2u, 2u, 2u, 2u, 2u, 2u, 1u, 1u, 1u, 1u}, 16u},
                                          {strips, std::vector{16u, 16u, 16u, 16u}, 8u},
                                          {strips, std::vector{16u, 17u}, 1u},
                                          {none, std::vector{16u, 16u}, 1u}}) {
        NetSpec net = spec;
        Rig rig(net, sizes(all));
        EXPECT_EQ(rig.net->together(), most);
        std::vector<std::unique_ptr<Data>> data;
        std::vector<Block> blocks;
        std::vector<Gather> wanted;
        const std::vector<float> parameters(rig.net->parameters().begin(), rig.net->parameters().end());
        for (uint32_t i = 0; i < all.size(); ++i) {
            data.push_back(std::make_unique<Data>(net, all[i], i));
            blocks.push_back({{7, i}, data[i]->samples});
            wanted.emplace_back(rig.net->layout());
            ASSERT_TRUE(rig.net->block(0, blocks[i].id, blocks[i].samples, wanted[i]).ok());
        }
        for (const auto& [first, count] : {std::pair<size_t, size_t>{0, blocks.size()}, {1, 1}, {0, 2}, {1, 3}})
            for (bool by_pieces : {false, true}) {
                if (count > most || first + count > blocks.size()) continue;
                std::memset(rig.arena.whole().host, 0xff, rig.arena.whole().bytes);
                std::copy(parameters.begin(), parameters.end(), rig.net->parameters().begin());
                rig.net->refresh();
                GatherEach found(rig.net->layout(), blocks.size(), by_pieces);
                const Status status = rig.net->blocks(0, std::span(blocks).subspan(first, count), found);
                ASSERT_TRUE(status.ok()) << status.what;
                for (size_t i = first; i < first + count; ++i) {
                    EXPECT_EQ(found.each[i].total, wanted[i].total);
                    EXPECT_EQ(found.each[i].next, wanted[i].next);
                    EXPECT_TRUE(same_bits(found.each[i].gradient, wanted[i].gradient)) << i << " of " << first << " and " << count;
                }
            }
    }
}

// The mask is read from the gradient of an inner product behind the dropout.
TEST(Net, DropoutDependsOnSeedStepBlockSampleAndElementAlone) {
    const double rate = 0.25;
    NetSpec spec = of(3, 5, 7, 0, 2, {dropout(rate), fc(2), loss()}), whole = of(3, 5, 7, 0, 2, {dropout(0), fc(2), loss()});
    const uint32_t pixels = 35, elements = 3 * pixels;
    auto kept = [&](Rig& rig, Rig& other, const Samples& samples, BlockId id) {   // by element of the last sample
        std::vector<bool> bits;
        Gather gather(rig.net->layout()), full(other.net->layout());
        EXPECT_TRUE(rig.net->block(0, id, samples, gather).ok() && other.net->block(0, id, samples, full).ok());
        float factor = 0;
        for (uint32_t i = 0; i < elements; ++i) {
            bits.push_back(gather.gradient[i] != 0);
            float share = gather.gradient[i] / full.gradient[i];   // equal for all kept elements: the scale times a factor of the loss
            if (bits[i] && factor == 0) factor = share;
            if (bits[i]) {
                EXPECT_NEAR(share, factor, 1e-4f * std::abs(factor));
            }
        }
        return bits;
    };
    NetConfig config = sizes({1});
    config.seed = 9;
    Rig rig(spec, config), other(whole, config), eight(spec, sizes({1}));
    Data data(spec, 1);
    for (uint8_t& pixel : data.images) pixel = static_cast<uint8_t>(pixel | 128);   // no normalised pixel is 0
    std::vector<bool> first = kept(rig, other, data.samples, {3, 5});
    EXPECT_EQ(first, kept(rig, other, data.samples, {3, 5}));
    EXPECT_NE(first, kept(rig, other, data.samples, {4, 5}));
    EXPECT_NE(first, kept(rig, other, data.samples, {3, 6}));
    EXPECT_NE(first, kept(eight, other, data.samples, {3, 5}));   // another seed
    // An independent computation: two draws make the seed, each draw gives eight elements of 16 bits.
    auto mixed = [](uint64_t seed, uint64_t with) {
        Philox bits = random4(Purpose::dropout, seed, with, ~0u);
        return uint64_t{bits[1]} << 32 | bits[0];
    };
    uint64_t seed = mixed(mixed(9, 0), 3);
    for (uint32_t c = 0; c < 3; ++c)
        for (uint32_t pixel = 0; pixel < pixels; ++pixel) {
            uint32_t element = pixel * 16 + c;
            Philox bits = random4(Purpose::dropout, seed, uint64_t{5} << 32, element / 8);
            bool keeps = (bits[element % 8 / 2] >> (element % 2 * 16) & 0xffff) >= rate * 65536;
            EXPECT_EQ(first[c * pixels + pixel], keeps) << c << " " << pixel;
        }
    // An evaluation drops nothing.
    EXPECT_NEAR(rig.loss(data.samples), other.loss(data.samples), 1e-6);
}

// Each block has its own statistics; their exact sum moves the running ones towards those of the mini-batch.
TEST(Net, RunningStatisticsAreThoseOfTheMiniBatch) {
    NetSpec spec = of(3, 6, 7, 0, 4, {norm(), fc(4), loss()});
    Rig rig(spec, sizes({3, 4}));
    const Layout& layout = rig.net->layout();
    Data data(spec, 7);
    Samples first = data.samples, second = data.samples;
    first.count = 4;
    second.count = 3;
    second.images += 4 * 126;
    second.labels += 4;
    std::vector<float> sum = rig.block(first).gradient, more = rig.block(second).gradient;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
    rig.step(0, sum, 7);
    for (uint32_t c = 0; c < 3; ++c) {
        double mean = 0, square = 0;
        for (uint32_t i = 0; i < 7 * 42; ++i) {
            double x = (data.images[i / 42 * 126 + c * 42 + i % 42] / 255.0 - 0.4) / 0.3;
            mean += x / (7 * 42);
            square += x * x / (7 * 42);
        }
        EXPECT_NEAR(rig.net->parameters()[layout.groups.back().offset + c], 0.1 * mean, 1e-6);
        EXPECT_NEAR(rig.net->parameters()[layout.groups.back().offset + 3 + c], 0.9 + 0.1 * square, 1e-6);
    }
}

// Convolutions of few channels cut a small group of samples into strips of their images.  The same samples in blocks of other sizes use
// other strips or none, some of them longer than the image, with and without pooling.
TEST(Net, GradientsOfSamplesAddUpWhateverTheSizesOfBlocks) {
    for (const NetSpec& spec : {preset("lenet5"), of(3, 12, 9, 0, 4, {conv(7, 3), relu(), max_pool(2), conv(5, 2), relu(), fc(4), loss()}),
                                of(2, 9, 8, 1, 4, {conv(3, 4), relu(), conv(4, 2), relu(), conv(5, 3), max_pool(2), fc(4), loss()}),
                                of(1, 6, 9, 0, 3, {conv(3, 5), relu(), conv(2, 1), relu(), fc(3), loss()})}) {
        const std::vector<std::vector<uint32_t>> companies = {{12, 12, 16}, {8, 16, 16}, {4, 20, 16}, {1, 3, 5, 6, 25}, {18, 2, 13, 7}};
        Rig rig(spec, sizes({1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 18, 20, 25}));
        Data data(spec, 40);
        std::vector<double> wanted;
        double wanted_loss = 0;
        for (const std::vector<uint32_t>& company : companies) {
            std::vector<double> sum(rig.net->layout().elements);
            double total = 0;
            Samples block = data.samples;
            for (uint32_t count : company) {
                block.count = count;
                const Gather gather = rig.block(block);
                total += gather.total;
                for (size_t i = 0; i < sum.size(); ++i) sum[i] += gather.gradient[i];
                block.images += count * spec.C * spec.H * spec.W;
                block.labels += count;
            }
            if (wanted.empty()) {
                wanted = sum;
                wanted_loss = total;
            }
            EXPECT_NEAR(total, wanted_loss, 1e-5 * wanted_loss);
            std::string layer;
            EXPECT_LE(distance(rig.net->layout(), wanted, sum, &layer), 2e-6) << layer << " in blocks of " << company[0] << " and others";
        }
    }
}

TEST(Net, ALaneHasTheGradientOfOneBucket) {
    NetConfig config = sizes({4}, 3);
    config.bucket_bytes = 1;   // a bucket a layer
    Rig rig(preset("resnet9", 3, 32), config);
    uint64_t most = 0;
    for (const Bucket& bucket : rig.net->layout().buckets) most = std::max(most, bucket.count * sizeof(float));
    EXPECT_LT(3 * most, rig.net->layout().elements * sizeof(float) * 2);
    const MemoryUse memory = rig.arena.use("");
    const auto found = std::ranges::find(memory.bytes, "gradients", &std::pair<std::string, uint64_t>::first);
    ASSERT_NE(found, memory.bytes.end());
    EXPECT_EQ(found->second, 3 * ((most + 63) / 64 * 64));
}

TEST(Net, CancelEndsABlockBetweenLayers) {
    Rig rig(preset("lenet5"), sizes({4}));
    expect_cancel_ends_a_block(rig);
}

TEST(Net, ErrorsOfTheSinkEndTheBlock) {
    Rig rig(preset("lenet5"), sizes({4}));
    expect_errors_end_a_block(rig);
}

TEST(Net, SizesAndSamplesAreChecked) {
    NetSpec spec = preset("lenet5");
    NetConfig config;
    config.samples_max = 6;   // without block_sizes: sizes 6 and 5
    Rig rig(spec, config);
    Data six(spec, 6), five(spec, 5), four(spec, 4);
    rig.block(six.samples);
    rig.block(five.samples);
    Gather gather(rig.net->layout());
    EXPECT_STREQ(rig.net->block(0, {0, 0}, four.samples, gather).what, "a block of 4 samples, but the net was planned for blocks of 5, 6");
    uint32_t right;
    double sum;
    // The loss of a part of a batch does not depend on the program's size.
    double whole = rig.loss(six.samples), parts = 0;
    for (uint32_t n = 0; n < 6; ++n) {
        Samples one = six.samples;
        one.images += n * 28 * 28;
        one.labels += n;
        one.count = 1;
        parts += rig.loss(one);
    }
    EXPECT_NEAR(whole, parts, 1e-5);
    Samples wrong = six.samples;
    wrong.H = 32;
    EXPECT_STREQ(rig.net->block(0, {0, 0}, wrong, gather).what, "samples of 1x32x28 do not fit the net's input 1x28x28");
    six.labels[2] = 10;
    EXPECT_STREQ(rig.net->block(0, {0, 0}, six.samples, gather).what, "sample 2 of a block has the label 10, but the net has 10 classes");
    six.labels[2] = -1;
    EXPECT_STREQ(rig.net->evaluate(0, six.samples, &right, &sum, nullptr).what,
                 "sample 2 of a block has the label -1, but the net has 10 classes");
    EXPECT_EQ(gather.next, 0u);
}

TEST(Net, NanReachesLossAndGradient) {
    Rig rig(preset("lenet5"), sizes({4}));
    expect_nan_shows(rig);
}

// The gradient of a large layer has the same bits in pieces and whole: with and without biases, with no reader of the pieces, with several
// readers of the output.
TEST(Net, GradientsInPiecesAreTheSame) {
    NetSpec mlp, without{.C = 3, .H = 20, .W = 20, .classes = 7}, shared = without;
    ASSERT_TRUE(preset_find("mlp", 1, 28, 28, 10, &mlp).ok());
    without.layers = {{.kind = "inner_product", .values = {{"outputs", 301}, {"bias", false}}},
                      {.kind = "relu"},
                      {.kind = "inner_product", .values = {{"outputs", 7}}}};
    shared.layers = {{.kind = "inner_product", .name = "a", .values = {{"outputs", 300}}},
                     {.kind = "inner_product", .name = "b", .values = {{"outputs", 300}}},
                     {.kind = "add", .from = "a"},
                     {.kind = "inner_product", .values = {{"outputs", 7}}}};
    for (const auto& [spec, buckets] : {std::pair{&mlp, 3u}, {&without, 1u}, {&shared, 1u}}) {
        NetSpec whole = *spec;
        if (spec != &mlp) whole.layers.push_back({.kind = "softmax_cross_entropy"});
        Rig rig(whole, sizes({5, 64}));
        for (uint32_t count : {5u, 64u}) {
            Data data(whole, count);
            const Gather wanted = rig.block(data.samples);
            Gather found(rig.net->layout());
            found.by_pieces = true;
            ASSERT_TRUE(rig.net->block(0, {0, 0}, data.samples, found).ok());
            EXPECT_EQ(found.in_pieces, buckets);
            EXPECT_EQ(found.total, wanted.total);
            EXPECT_TRUE(same_bits(wanted.gradient, found.gradient));
        }
    }
}

}   // namespace
}   // namespace gradcast
