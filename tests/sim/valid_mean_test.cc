// mean_over = "valid": the loss of a mini-batch is a mean over its positions whose label counts.  Beside PyTorch's numbers
// (make_valid_mean.py), and with one digest whatever computes it.
#include <fmt/ranges.h>

#include <array>
#include <numeric>

#include "tests/sim/stages_job.h"

namespace gradcast {
namespace {

constexpr uint32_t samples = 24, side = 8, classes = 4, ignored = 255;

uint32_t pixel(uint32_t n, uint32_t p) { return (n * 31 + p * 17 + n * p % 13 * 5) % 256; }
/// Sample n ignores about n of 24 positions.
uint32_t label(uint32_t n, uint32_t p) { return (p * 5 + n) % samples < n ? ignored : (pixel(n, p) / 64 + n) % classes; }
float weight(uint32_t i, uint32_t tensor) { return (static_cast<float>((i * 37 + tensor * 11) % 64) - 32) / 64; }

std::string masks_shard(bool without_labels = false) {
    const std::string path = fmt::format("{}/masks-{}.h5", test_folder(), without_labels);
    if (std::filesystem::exists(path)) return path;
    std::vector<uint8_t> images(samples * side * side);
    std::vector<std::byte> labels(images.size());
    for (uint32_t i = 0; i < images.size(); ++i) {
        images[i] = static_cast<uint8_t>(pixel(i / (side * side), i % (side * side)));
        labels[i] = static_cast<std::byte>(without_labels ? ignored : label(i / (side * side), i % (side * side)));
    }
    const DataInfo info{.count = samples,
                        .C = 1,
                        .H = side,
                        .W = side,
                        .classes = classes,
                        .mean = {0.4f},
                        .std = {0.3f},
                        .source = "formula",
                        .targets = side * side,
                        .target_element = Element::u8,
                        .ignore = ignored};
    const Status status = shard_write(path, info, images.data(), labels.data());
    EXPECT_TRUE(status.ok()) << status.what;
    return path;
}

/// The initial weights, as a safetensors file.
std::string start() {
    const std::string path = test_folder() + "/start.safetensors";
    const std::pair<const char*, std::vector<uint32_t>> tensors[] = {
        {"conv1.weight", {6, 1, 3, 3}}, {"conv1.bias", {6}}, {"linear1.weight", {4, 6}}, {"linear1.bias", {4}}};
    std::string header, floats;
    for (uint32_t t = 0; t < std::size(tensors); ++t) {
        const auto& [name, shape] = tensors[t];
        const uint32_t count = std::accumulate(shape.begin(), shape.end(), 1u, std::multiplies<>());
        header += fmt::format(R"({}"{}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}})", t == 0 ? "{" : ",", name,
                              fmt::join(shape, ","), floats.size(), floats.size() + count * sizeof(float));
        for (uint32_t i = 0; i < count; ++i) {
            const float value = weight(i, t);
            floats.append(reinterpret_cast<const char*>(&value), sizeof value);
        }
    }
    header += "}";
    const uint64_t size = header.size();
    EXPECT_TRUE(file_write(path, std::string(reinterpret_cast<const char*>(&size), sizeof size) + header + floats).ok());
    return path;
}

struct ValidMeanCase {
    const char* what;
    uint32_t ranks = 1;
    const char *parallel = "", *exchange = "ring", *options = "", *quantiser = "auto32", *slices = "", *keys = "";
};

constexpr const char* plain_sgd = "lr = 0.5\nmomentum = 0.9\nweight_decay = 0.01\n";
constexpr const char* clipped_sgd = "lr = 0.5\nmomentum = 0.9\nweight_decay = 0.01\nclip_norm = 0.05\n";

StagesJob valid_mean_job(const ValidMeanCase& each, const char* optimiser = plain_sgd, const char* mean_over = "valid") {
    StagesJob job;
    job.preset.clear();
    job.train = masks_shard();
    job.start = start();
    job.net = fmt::format(
        "[[net.layers]]\nkind = \"conv\"\noutputs = 6\nkernel = 3\npad = 1\n[[net.layers]]\nkind = \"relu\"\n"
        "[[net.layers]]\nkind = \"linear\"\noutputs = 4\n"
        "[[net.layers]]\nkind = \"softmax_cross_entropy\"\nmean_over = \"{}\"\n",
        mean_over);
    job.blocks = 4, job.evaluate = 3, job.optimiser = optimiser;
    job.parallel = each.parallel, job.slices = each.slices, job.exchange = each.exchange, job.options = each.options;
    job.quantiser = each.quantiser;
    job.checkpoints += each.keys;
    job.sim.ranks = each.ranks;
    job.sim.jitter_us = 200;
    return job;
}

struct Numbers {
    const char* optimiser;
    std::array<double, 3> losses;
    double evaluated;
    std::vector<float> first, last;   // of the trained parameters: conv1's first filter; conv1's biases and all of linear1's
};

const Numbers pytorch_numbers[] = {
    {plain_sgd,
     {1.411813070, 1.449919810, 1.406760800},
     1.390854354,
     {-0.4553419f, 0.0811112f, -0.3143584f, 0.216619f, -0.2071266f, 0.3405892f, -0.0127548f, -0.4316812f, 0.1232359f},
     {-0.3373949f, 0.1838065f,  -0.1207926f, 0.3984695f,  -0.1050024f, -0.4487804f, -0.1018102f, 0.3796549f,  -0.0353984f,
      -0.3830991f, 0.1127695f,  -0.2119573f, 0.2629000f,  -0.0510012f, 0.4700251f,  0.0239506f,  -0.2667586f, 0.1583500f,
      -0.1897261f, 0.2769462f,  -0.0640112f, -0.4721394f, -0.0051346f, -0.2976204f, 0.2108993f,  -0.1195649f, 0.4191913f,
      -0.0192732f, -0.3876655f, 0.1082102f,  -0.0392512f, -0.3033952f, 0.0724664f,  -0.1854778f}},
    {clipped_sgd,
     {1.411813070, 1.463289716, 1.429455511},
     1.414997640,
     {-0.4784886f, 0.0768152f, -0.3291166f, 0.2257263f, -0.1877144f, 0.3703004f, -0.0262659f, -0.4384162f, 0.1222437f},
     {-0.3229881f, 0.2237482f,  -0.1539992f, 0.3984175f,  -0.0414328f, -0.4301337f, -0.1385369f, 0.3997005f,  -0.0101797f,
      -0.4060790f, 0.1398428f,  -0.2458452f, 0.2940971f,  -0.0897329f, 0.4608980f,  0.0431854f,  -0.3371652f, 0.1880933f,
      -0.2078895f, 0.3284930f,  -0.0628218f, -0.4725705f, 0.0631213f,  -0.3144402f, 0.2345924f,  -0.1524257f, 0.4019103f,
      -0.0150971f, -0.4125882f, 0.1291747f,  -0.0024638f, -0.3678113f, 0.1389742f,  -0.2243569f}},
};

// Labels are ignored unevenly over samples and blocks, so that the mean over blocks would be another one.
TEST(ValidMean, TrainsAsPyTorch) {
    for (const Numbers& right : pytorch_numbers) {
        SCOPED_TRACE(right.optimiser);
        StagesJob job = valid_mean_job({"alone"}, right.optimiser);
        const Status status = job.run();
        ASSERT_TRUE(status.ok()) << status.what;
        const Outcome found = job.outcome(0);
        ASSERT_EQ(found.losses.size(), right.losses.size());
        for (size_t step = 0; step < right.losses.size(); ++step) EXPECT_NEAR(found.losses[step], right.losses[step], 2e-6) << step;
        EXPECT_NEAR(job.engines[0]->status().test_loss, right.evaluated, 2e-6);
        Model model;
        std::vector<float> parameters;
        ASSERT_TRUE(model_read(job.folders[0] + "/final.h5", &model, &parameters).ok());
        std::vector<float> wanted(right.first);
        wanted.insert(wanted.end(), right.last.begin(), right.last.end());
        std::vector<float> its(parameters.begin(), parameters.begin() + 9);
        its.insert(its.end(), parameters.begin() + 54, parameters.end());
        ASSERT_EQ(its.size(), wanted.size());
        for (size_t i = 0; i < its.size(); ++i) EXPECT_NEAR(its[i], wanted[i], 2e-6) << i;
    }
}

constexpr ValidMeanCase valid_mean_cases[] = {
    {"two ranks by ring", 2},
    {"four ranks by ring", 4},
    {"four ranks by coded-rs", 4, "", "coded-rs", "m = 2\n"},
    {"four ranks, one of which is not waited for", 4, "", "coded-rs", "m = 2\ns = 1\n"},
    {"two stages", 2, "stages = 2\n"},
    {"two stages, blocks together", 2, "stages = 2\nmicro_batch = 2\n"},
    {"two stages, activations computed again", 2, "stages = 2\nrecompute = true\n"},
    {"replicas of two stages", 4, "stages = 2\nschedule = \"zero-bubble\"\n"},
    {"replicas of two stages, one of which is not waited for", 6, "stages = 2\n", "coded-rs", "m = 2\ns = 1\n"},
    {"a spare node", 5, "stages = 2\n", "ring", "", "auto32", "", "survive = true\n"},
    {"stages that buddies keep", 2, "stages = 2\nbuddy = true\n", "ring", "", "auto32", "", "survive = true\n"},
    {"words of 16 bits", 4, "", "ring", "", "auto16"},
    {"words of 64 bits", 2, "stages = 2\n", "unicast", "", "fixed"},
    {"slice groups", 2, "slice_groups = 2\n", "ring", "", "auto32", "slices = 2\nsliced = [\"linear1\"]\n"},
    {"slice groups in stages", 4, "stages = 2\nslice_groups = 2\n", "ring", "", "auto32", "slices = 2\nsliced = [\"linear1\"]\n"},
};

TEST(ValidMean, HasOneDigestWhateverComputesIt) {
    for (const ValidMeanCase& each : valid_mean_cases)
        for (const char* optimiser : {plain_sgd, clipped_sgd}) {
            SCOPED_TRACE(fmt::format("{}, {}", each.what, optimiser));
            StagesJob job = valid_mean_job(each, optimiser);
            const Status status = job.run();
            ASSERT_TRUE(status.ok()) << status.what;
            expect_wanted(job);
        }
}

TEST(ValidMean, IsAnotherOneThanOverAllPositions) {
    StagesJob job = valid_mean_job({"alone"}, plain_sgd, "positions");
    ASSERT_TRUE(job.run().ok());
    EXPECT_NE(job.outcome(0).digest, wanted(valid_mean_job({"alone"})).digest);
    // 370 of the 768 positions of the first mini-batch count.
    EXPECT_NEAR(job.outcome(0).losses[0] * 768 / 370, pytorch_numbers[0].losses[0], 4e-6);
}

TEST(ValidMean, ResumesWithTheSameBits) {
    for (const ValidMeanCase& each : {ValidMeanCase{"four ranks", 4}, ValidMeanCase{"two stages", 2, "stages = 2\n"}}) {
        SCOPED_TRACE(each.what);
        const uint32_t cells = each.parallel[0] ? 2 : 1;
        StagesJob first = valid_mean_job(each);
        first.checkpoints = "checkpoint_every = 2\n";
        ASSERT_TRUE(first.run().ok());
        StagesJob rest = valid_mean_job(each);
        rest.resume = resume_from(first, 2, cells);
        const Status status = rest.run();
        ASSERT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(rest.outcome(0).digest, wanted(valid_mean_job(each)).digest);
        EXPECT_EQ(rest.outcome(0).losses.back(), wanted(valid_mean_job(each)).losses.back());
    }
}

// PyTorch's mean over nothing is NaN.
TEST(ValidMean, AMiniBatchWithoutAnyHasNoGradient) {
    for (const ValidMeanCase& each : {ValidMeanCase{"alone"}, ValidMeanCase{"two stages", 2, "stages = 2\n"}}) {
        StagesJob job = valid_mean_job(each, "lr = 0.5\nmomentum = 0.9\n");
        job.train = masks_shard(true), job.tested = false;
        const Status status = job.run();
        ASSERT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(job.outcome(0).losses, (std::vector<double>{0, 0, 0}));
        Model model;
        std::vector<float> parameters;
        ASSERT_TRUE(model_read(job.folders[0] + "/final.h5", &model, &parameters).ok());
        for (uint32_t i = 0; i < 54; ++i) EXPECT_EQ(parameters[i], weight(i, 0)) << i;
    }
}

}   // namespace
}   // namespace gradcast
