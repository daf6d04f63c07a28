// The net as a whole: gradients against finite differences, bits that depend on nothing but the block, cancelling, sizes, wrong input.
#include <omp.h>

#include <cstring>
#include <thread>

#include "tests/nn/rig.h"

namespace gradcast {
namespace {

NetSpec preset(const char* name, uint32_t C = 1, uint32_t side = 28) {
    NetSpec spec;
    EXPECT_TRUE(preset_find(name, C, side, side, 10, &spec).ok());
    return spec;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

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
}

// Central differences of the loss along random directions, for each layer alone.  The loss is a sum over at most 9 samples, float32 all the
// way: its rounding error of some 1e-6 divided by 2 h is below 3e-4 at h = 2^-8.  Where ReLU or pooling make kinks, the difference quotient
// mixes two slopes for the few units within h of one, so its error is a share of the gradient: 2% is allowed there.  A wrong term is off by
// far more.
struct Difference {
    const char* name;
    NetSpec spec;
    uint32_t samples;
    bool kinks;
};
void PrintTo(const Difference& d, std::ostream* out) { *out << d.name; }
class Differences : public testing::TestWithParam<Difference> {};

TEST_P(Differences, MatchTheGradient) {
    const Difference& p = GetParam();
    Rig rig(p.spec, sizes({p.samples}));
    Data data(p.spec, p.samples);
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    // Biases are 0 at first, which would put ReLUs on blank patches exactly at their kink.
    for (float& w : rig.net->parameters()) w += 0.05f * normal(random);
    rig.net->refresh();
    Gather at = rig.block(data.samples);
    EXPECT_DOUBLE_EQ(at.total, rig.loss(data.samples));
    std::vector<float> start(rig.net->parameters().begin(), rig.net->parameters().end());
    for (const Group& group : rig.net->layout().groups)
        for (int trial = 0; trial < 6; ++trial) {
            std::vector<float> direction(group.count);
            double norm = 0, slope = 0, size = 0;
            for (float& d : direction) d = normal(random), norm += static_cast<double>(d) * d;
            const float h = 0x1p-8f;
            double loss[2];
            for (int side : {0, 1}) {
                for (uint64_t i = 0; i < group.count; ++i)
                    rig.net->parameters()[group.offset + i] =
                        start[group.offset + i] + (side ? h : -h) * direction[i] / static_cast<float>(std::sqrt(norm));
                rig.net->refresh();
                loss[side] = rig.loss(data.samples);
            }
            std::copy(start.begin(), start.end(), rig.net->parameters().begin());
            for (uint64_t i = 0; i < group.count; ++i) {
                double g = at.gradient[group.offset + i];
                slope += g * direction[i] / std::sqrt(norm), size += g * g;
            }
            EXPECT_NEAR((loss[1] - loss[0]) / (2 * static_cast<double>(h)), slope, 1e-3 + std::sqrt(size) * (p.kinks ? 2e-2 : 2e-3))
                << "layer " << group.layer << ", |gradient| " << std::sqrt(size);
        }
}
NetSpec of(uint32_t C, uint32_t H, uint32_t W, uint32_t pad, uint32_t classes, std::vector<LayerSpec> layers) {
    return {C, H, W, pad, classes, std::move(layers)};
}
INSTANTIATE_TEST_SUITE_P(
    Layers, Differences,
    testing::Values(
        Difference{"inner_product", of(3, 5, 3, 0, 4, {fc(13), fc(4), loss()}), 5, false},
        Difference{"conv", of(3, 11, 9, 0, 5, {conv(7, 3, 2, 1), conv(17, 2), fc(5), loss()}), 4, false},
        Difference{"conv_to_loss", of(2, 6, 6, 0, 3, {conv(20, 4), conv(3, 3), loss()}), 9, false},
        Difference{"conv_padded_input", of(1, 7, 7, 2, 3, {conv(33, 5, 2), conv(5, 1), fc(3), loss()}), 3, false},
        Difference{"relu", of(1, 6, 5, 0, 4, {conv(6, 3), relu(), fc(21), relu(), fc(4), loss()}), 6, true},
        Difference{"max_pool", of(3, 13, 10, 0, 4, {conv(19, 3, 1, 1), max_pool(3, 2, 1), conv(9, 2), max_pool(2), fc(4), loss()}), 4,
                   true},
        Difference{"max_pool_overlaps", of(1, 9, 9, 0, 3, {max_pool(2), conv(4, 2), max_pool(2, 1), relu(), fc(3), loss()}), 4, true},
        Difference{"max_pool_gaps", of(1, 14, 14, 0, 3, {conv(5, 3), relu(), max_pool(2, 3), fc(3), loss()}), 4, true},
        Difference{"relu_first", of(2, 5, 5, 1, 3, {relu(), conv(4, 3), relu(), fc(3), loss()}), 2, true}),
    [](const auto& p) { return p.param.name; });

// Nothing in a block may come from memory that the block did not write: all of it is NaN before.
TEST(Net, PoisonedMemoryDoesNotShow) {
    for (const Difference& odd :
         {Difference{"", preset("lenet5"), 5, true}, Difference{"", preset("mlp"), 5, true},
          Difference{"", of(3, 13, 11, 1, 4, {conv(19, 3, 2, 1), relu(), max_pool(3, 2, 1), conv(5, 2), max_pool(2, 3), fc(4), loss()}), 5,
                     true}}) {
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
    for (const char* name : {"lenet5", "cnn", "mlp"}) {
        NetSpec spec = preset(name);
        Rig alone(spec, sizes({12, 13}));
        Data a(spec, 13, 1), b(spec, 12, 2);
        std::vector<float> bits_a = alone.block(a.samples).gradient, bits_b = alone.block(b.samples).gradient;
        EXPECT_TRUE(same_bits(bits_a, alone.block(a.samples, 0, 1).gradient));

        // Two lanes at once, many times, and a thread that would like more threads.
        Rig both(spec, sizes({12, 13, 40}, 2));
        bool same[2] = {true, true};
        std::thread threads[2];
        for (uint32_t lane : {0u, 1u})
            threads[lane] = std::thread([&, lane] {
                omp_set_num_threads(2);
                for (StepId step = 0; step < 20; ++step) {
                    bool first = (lane + step) % 2;
                    same[lane] =
                        same[lane] && same_bits(first ? bits_a : bits_b, both.block(first ? a.samples : b.samples, lane, step).gradient);
                }
                EXPECT_EQ(omp_get_max_threads(), 2);   // the caller's setting is left as it was
            });
        for (std::thread& thread : threads) thread.join();
        EXPECT_TRUE(same[0] && same[1]) << name;
    }
}

TEST(Net, CancelEndsABlockBetweenLayers) {
    NetSpec spec = preset("lenet5");
    Rig rig(spec, sizes({4}));
    Data data(spec, 4);
    struct CancelAtFirst : GradientSink {
        Net* net;
        uint32_t buckets = 0;
        Status bucket(uint32_t, BlockId id, uint32_t, Buffer) override {
            ++buckets;
            net->cancel(id.step);
            return {};
        }
        void loss(uint32_t, BlockId, double) override {}
    } sink;
    sink.net = rig.net.get();
    EXPECT_EQ(rig.net->block(0, {5, 0}, data.samples, sink).code, Code::cancelled);
    EXPECT_EQ(sink.buckets, 1u);
    rig.block(data.samples, 0, 6);   // another step is not cancelled
    EXPECT_EQ(rig.net->block(0, {5, 1}, data.samples, sink).code, Code::cancelled);
    EXPECT_EQ(sink.buckets, 1u);
    rig.net->cancel(Net::no_step);
    rig.block(data.samples, 0, 5);
    rig.loss(data.samples);
}

TEST(Net, ErrorsOfTheSinkEndTheBlock) {
    NetSpec spec = preset("lenet5");
    Rig rig(spec, sizes({4}));
    Data data(spec, 4);
    struct Refuses : GradientSink {
        Status bucket(uint32_t, BlockId, uint32_t, Buffer) override { return {Code::diverged, 0, "refused"}; }
        void loss(uint32_t, BlockId, double) override {}
    } sink;
    EXPECT_STREQ(rig.net->block(0, {0, 0}, data.samples, sink).what, "refused");
}

TEST(Net, SizesAndSamplesAreChecked) {
    NetSpec spec = preset("lenet5");
    NetConfig config;
    config.samples_max = 6;   // no block_sizes: 6 and 5
    Rig rig(spec, config);
    Data six(spec, 6), five(spec, 5), four(spec, 4), seven(spec, 7);
    rig.block(six.samples), rig.block(five.samples);
    Gather gather(rig.net->layout());
    EXPECT_STREQ(rig.net->block(0, {0, 0}, four.samples, gather).what, "a block of 4 samples, but the net was planned for blocks of 5, 6");
    uint32_t right;
    double sum;
    EXPECT_STREQ(rig.net->evaluate(0, seven.samples, &right, &sum, nullptr).what, "a batch of 7 samples, but the net was planned for 6");
    // A part of a batch has the loss of its samples, whatever size computes it.
    double whole = rig.loss(six.samples), parts = 0;
    for (uint32_t n = 0; n < 6; ++n) {
        Samples one = six.samples;
        one.images += n * 28 * 28, one.labels += n, one.count = 1;
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
    NetSpec spec = preset("lenet5");
    Rig rig(spec, sizes({4}));
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
