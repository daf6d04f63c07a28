// Shapes, names, parameter counts, groups and buckets; presets; initial weights.
#include "nn/presets.h"
#include "tests/nn/rig.h"

namespace gradcast {
namespace {

uint64_t parameters(const NetSpec& spec) {
    std::vector<Layer> layers;
    Status status = layers_check(spec, &layers);
    EXPECT_TRUE(status.ok()) << status.what;
    return layers_layout(layers, 1).elements;
}
std::string mistake(std::vector<LayerSpec> layers, NetSpec spec = {.C = 16, .H = 3, .W = 3}) {
    spec.layers = std::move(layers);
    std::vector<Layer> checked;
    Status status = layers_check(spec, &checked);
    EXPECT_EQ(status.code, Code::invalid);
    EXPECT_TRUE(checked.empty());
    Arena arena;
    std::unique_ptr<Net> net;
    EXPECT_STREQ(net_cpu_plan(spec, {.lanes = 1, .samples_max = 1}, arena, &net).what, status.what);
    return status.what;
}

TEST(Presets, HelpHasALineForEach) {
    const std::string help = presets_help();
    for (const char* name : preset_names()) EXPECT_NE(help.find(fmt::format("\n{:<12} ", name)), help.npos) << name;
    for (const char* line : {"lenet5       28x28 or 32x32       61706  1x28x28  ", "cnn          28x28 or 32x32      878538  3x32x32  ",
                             "mlp          any                2383370  1x28x28  ", "nin          28x28 or 32x32      966986  3x32x32  ",
                             "resnet9      28x28 or 32x32     6573130  3x32x32  ", "resnet18     any               11181642  3x224x224 ",
                             "unet         even sides         7763338  3x128x128 ", "ridge        any                    500  1x1x500  "})
        EXPECT_NE(help.find(line), help.npos) << line << "\n" << help;
}

TEST(Presets, HaveTheirParameterCounts) {
    NetSpec spec;
    ASSERT_TRUE(preset_find("lenet5", 1, 28, 28, 10, &spec).ok());
    EXPECT_EQ(parameters(spec), 61706u);
    EXPECT_EQ(spec.pad, 2u);
    ASSERT_TRUE(preset_find("lenet5", 3, 32, 32, 10, &spec).ok());
    EXPECT_EQ(spec.pad, 0u);
    EXPECT_EQ(parameters(spec), 61706u + 2 * 6 * 25);
    ASSERT_TRUE(preset_find("lenet5", 1, 28, 28, 7, &spec).ok());
    EXPECT_EQ(parameters(spec), 61706u - 3 * 85);
    ASSERT_TRUE(preset_find("cnn", 3, 32, 32, 10, &spec).ok());
    EXPECT_EQ(parameters(spec), 878538u);
    EXPECT_EQ(spec.pad, 0u);
    ASSERT_TRUE(preset_find("cnn", 1, 28, 28, 10, &spec).ok());
    EXPECT_EQ(parameters(spec), 878538u - 2 * 25 * 32);
    EXPECT_EQ(spec.pad, 2u);
    ASSERT_TRUE(preset_find("mlp", 1, 28, 28, 10, &spec).ok());
    EXPECT_EQ(parameters(spec), 785u * 1024 + 1025 * 1024 + 1025 * 512 + 513 * 10);
    ASSERT_TRUE(preset_find("lenet3", 1, 28, 28, 10, &spec).ok());
    EXPECT_EQ(parameters(spec), 26u * 20 + (20u * 25 + 1) * 50 + 1251 * 10);
    ASSERT_TRUE(preset_find("lenet3-wide", 3, 32, 32, 10, &spec).ok());
    EXPECT_EQ(parameters(spec), 75u * 64 + 1600 * 128 + 3201 * 10 + 4 * (64 + 128));   // batch norm: 2 C parameters, 2 C statistics
    ASSERT_TRUE(preset_find("lenet5-wide", 3, 32, 32, 10, &spec).ok());
    EXPECT_EQ(parameters(spec), 75u * 64 + 1600 * 128 + 3201 * 384 + 385 * 192 + 193 * 10 + 4 * (64 + 128));
    ASSERT_TRUE(preset_find("cnn-norm", 3, 32, 32, 10, &spec).ok());
    EXPECT_EQ(parameters(spec), 878538u + 3 * (32 + 64));
    ASSERT_TRUE(preset_find("nin", 3, 32, 32, 10, &spec).ok());
    EXPECT_EQ(parameters(spec), 966986u);
    ASSERT_TRUE(preset_find("nin", 3, 32, 32, 100, &spec).ok());
    EXPECT_EQ(parameters(spec), 984356u);
    ASSERT_TRUE(preset_find("resnet9", 3, 32, 32, 10, &spec).ok());
    EXPECT_EQ(parameters(spec), 6573130u + 2 * (64 + 3 * 128 + 256 + 3 * 512));
    // Of torchvision's, and statistics; that for CIFAR is of 3x3 at first.
    ASSERT_TRUE(preset_find("resnet18", 3, 224, 224, 1000, &spec).ok());
    EXPECT_EQ(parameters(spec), 11689512u + 2 * 4800);
    ASSERT_TRUE(preset_find("resnet50", 3, 224, 224, 1000, &spec).ok());
    EXPECT_EQ(parameters(spec), 25557032u + 2 * 26560);
    ASSERT_TRUE(preset_find("resnet18", 3, 32, 32, 10, &spec).ok());
    EXPECT_EQ(parameters(spec), 11173962u + 2 * 4800);
    // Of PyTorch's modules.  A side that is even twice alone allows two levels.
    const auto unet = [&spec](uint32_t H, uint32_t W) {
        EXPECT_TRUE(preset_find("unet", 3, H, W, 10, &spec).ok());
        spec.layers.insert(spec.layers.end() - 1, global_pool());   // so that the loss is one of classes of the whole sample
        std::vector<Layer> layers;
        EXPECT_TRUE(layers_check(spec, &layers).ok());
        uint64_t count = 0;
        for (const Layer& layer : layers) count += layer.parameters();
        EXPECT_EQ(shape_text(layers.end()[-2].in), fmt::format("10x{}x{}", H, W));
        return count;
    };
    EXPECT_EQ(unet(128, 128), 7763338u);
    EXPECT_EQ(unet(48, 32), unet(128, 128));
    EXPECT_EQ(unet(28, 64), 467466u);
    ASSERT_TRUE(preset_find("mlp", 3, 32, 32, 10, &spec).ok());
    EXPECT_EQ(parameters(spec), 3073u * 1024 + 1025 * 1024 + 1025 * 512 + 513 * 10);
}

TEST(Presets, SayWhatThereIs) {
    NetSpec spec;
    EXPECT_STREQ(preset_find("lenet", 1, 28, 28, 10, &spec).what,
                 "no net \"lenet\": did you mean lenet5? one of lenet5, cnn, mlp, lenet3, lenet3-wide, lenet5-wide, cnn-norm, nin, "
                 "resnet9, resnet18, resnet50, unet, ridge, logistic, vit-s, gpt");
    EXPECT_STREQ(preset_find("lenet5", 1, 30, 28, 10, &spec).what, "net lenet5 takes samples of 28x28 or 32x32, not 30x28");
    EXPECT_STREQ(preset_find("cnn", 3, 32, 31, 10, &spec).what, "net cnn takes samples of 28x28 or 32x32, not 32x31");
    EXPECT_STREQ(preset_find("unet", 3, 32, 31, 10, &spec).what, "net unet takes samples of even height and width, not 32x31");
    EXPECT_TRUE(spec.layers.empty());
    EXPECT_EQ(preset_names().size(), 16u);
    for (const char* name : preset_names()) {
        NetSpec of{.C = 1, .H = 28, .W = 28};
        if (preset_sized(name)) of = {.C = 1, .H = 1, .W = 28, .vocabulary = 9};
        EXPECT_TRUE(preset_layers(name, {}, &of).ok()) << name;
    }
    EXPECT_STREQ(layer_kinds()[3]->name, "inner_product");
}

TEST(Layers, AsText) {
    const LayerSpec spec{
        .kind = "conv", .name = "c", .values = {{"kernel", 3}, {"outputs", 6}, {"stride", 1}, {"bias", false}}, .from = "b"};
    EXPECT_EQ(layer_text(spec), "conv name=c from=b outputs=6 kernel=3 bias=0");
    EXPECT_EQ(layer_text(dropout(0.3)), "dropout rate=0.3");
    LayerSpec read;
    ASSERT_TRUE(layer_parse(layer_text(spec), &read));
    EXPECT_EQ(layer_text(read), layer_text(spec));
    EXPECT_EQ(layer_text({.kind = "gelu"}), "gelu");
    ASSERT_TRUE(layer_parse("gelu approximate=tanh", &(read = LayerSpec{})));
    EXPECT_EQ(layer_value(read, "approximate"), 1);
    EXPECT_EQ(layer_text(read), "gelu approximate=tanh");
    for (const char* wrong : {"", "conv outputs", "conv outputs=-1", "conv outputs=1.5", "conv outputs=99999999", "conv outputs=1x",
                              "conv colour=1", "dropout rate=1", "dropout rate=nan", "conv bias=2", "conv  kernel=1", "gelu approximate=1",
                              "gelu approximate=erf", "conv kernel=tanh"})
        EXPECT_FALSE(layer_parse(wrong, &(read = LayerSpec{}))) << wrong;
}

TEST(Layers, MistakesNameTheLayerAndBothShapes) {
    EXPECT_EQ(mistake({conv(4, 1), conv(4, 5), loss()}), "layer conv2: kernel 5x5 does not fit its input 4x3x3");
    EXPECT_EQ(mistake({conv(4, 8, 1, 2), loss()}), "layer conv1: kernel 8x8 does not fit its input 16x3x3 with pad 2");
    EXPECT_EQ(mistake({max_pool(4), fc(10), loss()}), "layer pool1: kernel 4x4 does not fit its input 16x3x3");
    EXPECT_EQ(mistake({fc(84), loss()}), "layer loss1: its input 84x1x1 does not fit 10 classes (10x1x1)");
    EXPECT_EQ(mistake({conv(10, 2), loss()}), "layer loss1: its input 10x2x2 does not fit 10 classes (10x1x1)");
    EXPECT_EQ(mistake({conv(0, 2), loss()}), "layer conv1: outputs must be at least 1 for its input 16x3x3");
    EXPECT_EQ(mistake({conv(4, 2, 0), loss()}), "layer conv1: kernel and stride must be at least 1");
    EXPECT_EQ(mistake({max_pool(0), fc(10), loss()}), "layer pool1: kernel and stride must be at least 1");
    EXPECT_EQ(mistake({max_pool(2, 2, 2), fc(10), loss()}), "layer pool1: pad 2 must be below its kernel 2x2");
    const std::string kinds =
        "one of conv, conv_transposed, upsample, inner_product, linear, embedding, positions, attention, max_pool, average_pool, "
        "global_average_pool, relu, gelu, silu, sigmoid, tanh, dropout, batch_norm, "
        "layer_norm, group_norm, rms_norm, "
        "add, multiply, concat, softmax_cross_entropy, "
        "squared_loss";
    EXPECT_EQ(mistake({conv(4, 1), {.kind = "tangent"}, loss()}), "layer 2 has the unknown kind \"tangent\": " + kinds);
    EXPECT_EQ(mistake({conv(4, 1), {.kind = "max_pol"}, loss()}),
              "layer 2 has the unknown kind \"max_pol\": did you mean max_pool? " + kinds);
    EXPECT_EQ(mistake({fc(10)}), "the last layer of a net must be a loss: softmax_cross_entropy or squared_loss");
    EXPECT_EQ(mistake({}), "the last layer of a net must be a loss: softmax_cross_entropy or squared_loss");
    EXPECT_EQ(mistake({squared_loss(), fc(10), loss()}), "layer loss1: squared_loss must be the last layer");
    EXPECT_EQ(mistake({fc(9), squared_loss()}), "layer loss1: its input 9x1x1 does not fit 10 classes (10x1x1)");
    EXPECT_EQ(mistake({average_pool(4), fc(10), loss()}), "layer average1: kernel 4x4 does not fit its input 16x3x3");
    EXPECT_EQ(mistake({dropout(1), fc(10), loss()}), "layer dropout1: its rate 1 must be at least 0 and below 1");
    EXPECT_EQ(mistake({dropout(NAN), fc(10), loss()}), "layer dropout1: its rate nan must be at least 0 and below 1");
    EXPECT_EQ(mistake({conv(4, 1), conv(4, 2), add("conv1"), fc(10), loss()}),
              "layer add1: its inputs conv2 4x2x2 and conv1 4x3x3 must be alike");
    EXPECT_EQ(mistake({conv(4, 1), add("conv2"), fc(10), loss()}), "layer add1: from \"conv2\" is no layer before it: did you mean conv1?");
    EXPECT_EQ(mistake({conv(4, 1), named(fc(10), "", "later"), loss()}), "layer fc1: from \"later\" is no layer before it");
    EXPECT_EQ(mistake({{.kind = "inner_product", .values = {{"outputs", 10}, {"kernel", 3}}}, loss()}),
              "layer fc1: inner_product has no kernel, but outputs bias");
    EXPECT_EQ(mistake({fc(10), {.kind = "relu", .values = {{"rate", 0.5}}}, loss()}), "layer relu1: relu has no rate");
    EXPECT_EQ(mistake({conv(4, 1), {.kind = "add"}, fc(10), loss()}),
              "layer add1: it needs `from`, the earlier layer whose output it adds");
    EXPECT_EQ(mistake({conv(4, 1), conv(5, 1), named(fc(10), "", "conv1"), loss()}), "layer conv2: no layer takes its output 5x3x3");
    EXPECT_EQ(mistake({fc(10), loss(), loss()}), "layer loss1: softmax_cross_entropy must be the last layer");
    EXPECT_EQ(mistake({relu(), loss()}, {.C = 10, .H = 1, .W = 1}), "the net has no layer with weights, so there is nothing to train");
    EXPECT_EQ(mistake({fc(10), {.kind = "inner_product", .name = "fc1", .values = {{"outputs", 10}}}, loss()}),
              "two layers have the name fc1: layers without one are named by kind and number");
    EXPECT_EQ(mistake({fc(4294967295u), fc(10), loss()}), "layer fc1: its outputs 4294967295 must be at least 0 and at most 16777216");
    EXPECT_EQ(mistake({fc(1 << 24), fc(10), loss()}), "layer fc1: 16x3x3 to 16777216x1x1 makes a net of more than 2147483648 parameters");
    EXPECT_EQ(mistake({fc(10), loss()}, {.C = 0, .H = 1, .W = 1}),
              "samples of 0x1x1, padded by 0: C, H and W must be 1 to 65536, the padding at most 65536");
    EXPECT_EQ(mistake({fc(1), loss()}, {.C = 1, .H = 1, .W = 1, .classes = 1}), "a net needs at least 2 classes, not 1");
    NetSpec large{.C = 1, .H = 40, .W = 40, .layers = {max_pool(17), fc(10), loss()}};
    Arena arena;
    std::unique_ptr<Net> net;
    EXPECT_STREQ(net_cpu_plan(large, {.lanes = 1, .samples_max = 1}, arena, &net).what,
                 "layer pool1: kernel 17x17: max_pool takes at most 16x16");
}

TEST(Layers, BatchNormLearnsFromMoreThanOneValue) {
    auto why = [](LayerSpec first, uint32_t samples) {
        std::vector<Layer> layers;
        EXPECT_TRUE(
            layers_check({.C = 1, .H = 3, .W = 3, .layers = {std::move(first), {.kind = "batch_norm"}, fc(10), loss()}}, &layers).ok());
        return std::string(blocks_check(layers, samples).what);
    };
    EXPECT_EQ(why(fc(4), 1).find("layer norm1: in a block of 1 sample each channel has one value"), 0u);
    EXPECT_EQ(why(fc(4), 2), "");
    EXPECT_EQ(why(conv(4, 2), 1), "");
}

TEST(Layers, RoundingUpCountsNoWindowThatIsAllPadding) {
    auto out = [](uint32_t side, LayerSpec layer) {
        NetSpec spec{.C = 1, .H = side, .W = side + 1, .classes = 2, .layers = {std::move(layer), fc(2), loss()}};
        std::vector<Layer> layers;
        EXPECT_TRUE(layers_check(spec, &layers).ok());
        return std::pair(layers[0].out.H, layers[0].out.W);
    };
    // Numbers of torch.nn.functional.avg_pool2d(ceil_mode=True).
    EXPECT_EQ(out(32, average_pool(3, 2, 0, true)), std::pair(16u, 16u));
    EXPECT_EQ(out(32, average_pool(3, 2)), std::pair(15u, 16u));
    EXPECT_EQ(out(5, average_pool(2, 2, 1, true)), std::pair(3u, 4u));
    EXPECT_EQ(out(4, average_pool(1, 3, 0, true)), std::pair(2u, 2u));
    EXPECT_EQ(out(5, average_pool(1, 3, 0, true)), std::pair(2u, 2u));
    EXPECT_EQ(out(3, global_pool()), std::pair(1u, 1u));
}

TEST(Layers, StatisticsAreTheLastGroupsAndTheFirstBucket) {
    std::vector<Layer> layers;
    ASSERT_TRUE(layers_check(everything(), &layers).ok());
    for (uint64_t bucket_bytes : {uint64_t{1}, uint64_t{1} << 40}) {
        Layout layout = layers_layout(layers, bucket_bytes);
        ASSERT_EQ(layout.groups.size(), 10u + 3);
        EXPECT_EQ(layout.groups[1].layer, "norm1");
        EXPECT_EQ(layout.groups[10].layer, "norm1 statistics");
        EXPECT_EQ(layout.groups[11].count, 40u);
        EXPECT_EQ(layout.buckets[0].group, 10u);
        EXPECT_EQ(layout.buckets[0].group_count, 3u);
        EXPECT_EQ(layout.buckets[0].offset + layout.buckets[0].count, layout.elements);
        EXPECT_EQ(layout.buckets.size(), bucket_bytes == 1 ? 11u : 2u);
        EXPECT_EQ(layout.buckets.back().offset, 0u);
        std::vector<float> w(layout.elements, NAN);
        weights_initial(everything(), layout, 1, w);
        for (float each : w) ASSERT_FALSE(std::isnan(each));
        EXPECT_EQ(w[layout.groups[1].offset], 1.0f);
        EXPECT_EQ(w[layout.groups[1].offset + 20], 0.0f);
        EXPECT_EQ(w[layout.groups[12].offset], 0.0f);
        EXPECT_EQ(w.back(), 1.0f);
    }
}

TEST(Layers, GroupsAndBucketsCoverEachElementOnce) {
    NetSpec spec;
    ASSERT_TRUE(preset_find("lenet5", 1, 28, 28, 10, &spec).ok());
    for (uint64_t bucket_bytes : {uint64_t{1}, uint64_t{4096}, uint64_t{65536}, uint64_t{1} << 40}) {
        std::vector<Layer> layers;
        ASSERT_TRUE(layers_check(spec, &layers).ok());
        Layout layout = layers_layout(layers, bucket_bytes);
        uint64_t offset = 0;
        for (const Group& group : layout.groups) EXPECT_EQ(group.offset, std::exchange(offset, offset + group.count));
        EXPECT_EQ(offset, layout.elements);
        auto group = static_cast<uint32_t>(layout.groups.size());
        for (size_t i = 0; i < layout.buckets.size(); ++i) {
            const Bucket& bucket = layout.buckets[i];
            EXPECT_EQ(bucket.offset + bucket.count, offset);   // buckets run from the end
            offset = bucket.offset;
            group -= bucket.group_count;
            EXPECT_EQ(bucket.group, group);
            EXPECT_EQ(bucket.offset, layout.groups[group].offset);
            if (i + 1 < layout.buckets.size()) {   // closed as soon as it is large enough
                EXPECT_GE(bucket.count * 4, bucket_bytes);
                EXPECT_LT((bucket.count - layout.groups[group].count) * 4, bucket_bytes);
            }
        }
        EXPECT_EQ(offset, 0u);
        EXPECT_EQ(group, 0u);
    }
    std::vector<Layer> layers;
    ASSERT_TRUE(layers_check(spec, &layers).ok());
    Layout layout = layers_layout(layers, 1);
    ASSERT_EQ(layout.groups.size(), 5u);   // one a layer: weight and bias
    EXPECT_EQ(layout.groups[0].layer, "conv1");
    EXPECT_EQ(layout.groups[1].count, 6u * 16 * 25 + 16);
    EXPECT_EQ(layout.groups[4].layer, "fc3");
    EXPECT_EQ(layout.buckets.size(), 5u);
    EXPECT_EQ(layers_layout(layers, 65536).buckets.size(), 2u);
}

TEST(Weights, AreHeNormalAndDependOnSeedLayerAndElementAlone) {
    NetSpec spec{.C = 1, .H = 20, .W = 20, .layers = {conv(50, 5), relu(), fc(300), fc(300), fc(10), loss()}};
    std::vector<Layer> layers;
    ASSERT_TRUE(layers_check(spec, &layers).ok());
    Layout layout = layers_layout(layers, 1);
    std::vector<float> w(layout.elements, NAN), again(layout.elements), other(layout.elements);
    weights_initial(spec, layout, 1, w);
    weights_initial(spec, layout, 1, again);
    weights_initial(spec, layout, 2, other);
    EXPECT_EQ(w, again);
    EXPECT_NE(w, other);
    for (const Layer& layer : layers) {
        if (layer.parameters() == 0) continue;
        double sum = 0, squares = 0, fourth = 0, lagged = 0, n = static_cast<double>(layer.weights);
        double std = std::sqrt(2.0 / static_cast<double>(layer.weights / layer.biases));
        for (uint64_t i = 0; i < layer.weights; ++i) {
            double x = w[layer.offset + i] / std;
            sum += x;
            squares += x * x;
            fourth += x * x * x * x;
            if (i) lagged += x * w[layer.offset + i - 1] / std;
        }
        // Moments of the standard normal, within 5 standard errors.
        EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n)) << layer.spec.name;
        EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2 / n)) << layer.spec.name;
        EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96 / n)) << layer.spec.name;
        EXPECT_NEAR(lagged / n, 0, 5 / std::sqrt(n)) << layer.spec.name;
        for (uint64_t i = 0; i < layer.biases; ++i) EXPECT_EQ(w[layer.offset + layer.weights + i], 0.0f);
    }
    // Weights do not depend on the size of other layers; two layers of one shape differ.
    NetSpec longer = spec;
    longer.layers[3].values.set("outputs", 301);
    ASSERT_TRUE(layers_check(longer, &layers).ok());
    std::vector<float> moved(layers_layout(layers, 1).elements);
    weights_initial(longer, layers_layout(layers, 1), 1, moved);
    EXPECT_TRUE(std::equal(w.begin(), w.begin() + static_cast<int64_t>(layers[3].offset + layers[3].weights - 300), moved.begin()));
    EXPECT_NE(w[layout.groups[2].offset], w[layout.groups[1].offset]);
    // Computed by an independent Python program: the models of a seed must not change.
    EXPECT_EQ(w[0], 0.4803038003674691f);
    EXPECT_EQ(w[layout.groups[1].offset + 7], 0.0038406095823806394f);
}

}   // namespace
}   // namespace gradcast
