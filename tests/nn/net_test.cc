#include <gtest/gtest.h>

#include <random>

#include "nn/net.h"
#include "nn/optimiser.h"

namespace gradcast {
namespace {

struct Data {
    std::vector<uint8_t> images;
    std::vector<int32_t> labels;
    std::vector<float> mean, std;
    Samples samples;
    Data(const NetSpec& spec, uint32_t count, uint32_t seed = 1) : images(uint64_t{count} * spec.C * spec.H * spec.W), labels(count), mean(spec.C, 0.4f), std(spec.C, 0.3f) {
        std::mt19937 random(seed);
        for (uint8_t& pixel : images) pixel = static_cast<uint8_t>(random());
        for (int32_t& label : labels) label = static_cast<int32_t>(random() % spec.classes);
        samples = {images.data(), labels.data(), count, spec.C, spec.H, spec.W, mean.data(), std.data()};
    }
};

struct Sink : GradientSink {
    std::vector<std::vector<float>> buckets;
    double total = 0;
    Status bucket(uint32_t, BlockId, uint32_t bucket, Buffer gradient) override {
        EXPECT_EQ(bucket, buckets.size());
        buckets.emplace_back(gradient.as<float>(), gradient.as<float>() + gradient.bytes / sizeof(float));
        return {};
    }
    void loss(uint32_t, BlockId, double sum) override {
        EXPECT_TRUE(buckets.empty());
        total = sum;
    }
};

struct Rig {
    Arena arena;
    std::unique_ptr<Net> net;
    std::unique_ptr<Optimiser> optimiser;
    Rig(const NetSpec& spec, const NetConfig& config, const OptimiserConfig& how = {}) {
        Status status = net_cpu_plan(spec, config, arena, &net);
        EXPECT_TRUE(status.ok()) << status.what;
        EXPECT_TRUE(optimiser_plan(how, net->layout().elements, arena, &optimiser).ok());
        EXPECT_TRUE(arena.seal().ok());
        EXPECT_TRUE(net_cpu_ready(*net).ok());
    }
};

TEST(Net, Lenet5LearnsRandomData) {
    NetSpec spec;
    ASSERT_TRUE(preset_find("lenet5", 1, 28, 28, 10, &spec).ok());
    Rig rig(spec, {.lanes = 1, .samples_max = 32});
    Data data(spec, 32);
    double first = 0, last = 0;
    for (uint64_t step = 0; step < 60; ++step) {
        Sink sink;
        ASSERT_TRUE(rig.net->block(0, {step, 0}, data.samples, sink).ok());
        (step ? last : first) = sink.total / 32;
        rig.optimiser->step(step);
        for (uint32_t b = 0; b < sink.buckets.size(); ++b) {
            std::vector<int32_t> words;
            for (float value : sink.buckets[b]) words.push_back(static_cast<int32_t>(std::lrint(value * 0x1p16)));
            std::vector<double> units(rig.net->layout().buckets[b].group_count, 0x1p-16 / 32);
            Sum sum;
            sum.step = step, sum.bucket = b, sum.words = {reinterpret_cast<std::byte*>(words.data()), nullptr, words.size() * 4};
            ASSERT_TRUE(rig.net->apply(*rig.optimiser, sum, units).ok());
        }
    }
    EXPECT_GT(first, 2.0);
    EXPECT_LT(last, 0.5 * first);
    uint32_t right = 0;
    double loss = 0;
    ASSERT_TRUE(rig.net->evaluate(0, data.samples, &right, &loss, nullptr).ok());
    EXPECT_GT(right, 16u);
}

}   // namespace
}   // namespace gradcast
