// Losses, gradients, classes and SGD steps against PyTorch's in double precision (make_reference.py), for CPU and GPU.
//
// Tolerance: float32 rounds to 6e-8; a gradient is a sum of some hundred terms through at most seven layers, so its error is below a few
// 1e-6 of the layer's largest element.  2e-5 holds for every instruction set; a wrong sum has an error of its own size.
#pragma once
#include <fstream>
#include <sstream>

#include "tests/nn/rig.h"

namespace gradcast {

constexpr const char* reference_names[] = {"inner_product", "conv",          "conv_narrow", "max_pool",       "lenet5",         "mlp",
                                           "average_pool",  "batch_norm",    "residual",    "shortcut_first", "curves",         "norms",
                                           "conv_groups",   "conv_dilation", "concat",      "upsample",       "conv_transposed"};

template <typename T>
std::vector<T> reference_read(std::ifstream& file, uint64_t count) {
    std::vector<T> values(count);
    file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(count * sizeof(T)));
    EXPECT_TRUE(file.good());
    return values;
}

inline void expect_near(const Layout& layout, std::span<const float> have, const std::vector<float>& want, float share) {
    ASSERT_EQ(have.size(), want.size());
    for (const Group& group : layout.groups) {
        float largest = 0, off = 0;
        uint64_t where = 0;
        for (uint64_t i = group.offset; i < group.offset + group.count; ++i) {
            ASSERT_FALSE(std::isnan(have[i]));
            largest = std::max(largest, std::abs(want[i]));
            if (float d = std::abs(have[i] - want[i]); d > off) {
                off = d;
                where = i - group.offset;
            }
        }
        EXPECT_LE(off, share * largest) << "layer " << group.layer << ", element " << where;
    }
}

/// R: Rig or CudaRig.
template <typename R>
void expect_reference(const char* name) {
    std::string folder = __FILE__;
    std::string path = folder.substr(0, folder.rfind('/')) + "/reference/" + name + ".bin";
    std::ifstream file(path, std::ios::binary);
    if (!file) GTEST_SKIP() << path << " (run from the top of the source tree)";
    NetSpec spec;
    OptimiserConfig sgd;
    uint32_t n = 0, steps = 0;
    std::string last = "softmax_cross_entropy";
    for (std::string line; std::getline(file, line) && line != "end";) {
        std::istringstream words(line);
        std::string word;
        words >> word;
        if (word == "net") words >> spec.C >> spec.H >> spec.W >> spec.pad >> spec.classes;
        if (word == "samples") words >> n;
        if (word == "loss") words >> last;
        if (word == "steps") words >> steps >> sgd.lr >> sgd.momentum >> sgd.weight_decay;
        if (word == "layer") {
            LayerSpec& layer = spec.layers.emplace_back();
            words >> layer.kind;
            for (const char* key : {"outputs", "kernel", "stride", "pad"}) {
                double value = 0;
                words >> value;
                layer.values.set(key, value);
            }
            for (std::string key, value; words.good() && words >> key >> value;) {
                if (key == "approximate" || key == "mode") {
                    EXPECT_TRUE(layer_set(layer, key, std::string_view(value)));
                }
                if (key == "groups" || key == "dilation" || key == "scale") layer.values.set(key, std::stod(value));
                if (key == "ceil" || key == "bias") layer.values.set(key, value == "1");
                if (key == "name") layer.name = value;
                if (key == "from") layer.from = value;
            }
            words.clear();
        }
        ASSERT_FALSE(words.fail()) << line;
    }
    spec.layers.push_back({.kind = last});
    R rig(spec, sizes({n}), sgd);
    const Layout& layout = rig.net->layout();
    auto images = reference_read<uint8_t>(file, uint64_t{n} * spec.C * spec.H * spec.W);
    auto labels = reference_read<int32_t>(file, n);
    auto mean = reference_read<float>(file, spec.C), std = reference_read<float>(file, spec.C);
    std::vector<float> start = reference_read<float>(file, layout.elements);
    double sum = reference_read<double>(file, 1)[0];
    auto gradient = reference_read<float>(file, layout.elements);
    auto predicted = reference_read<int32_t>(file, n);
    auto end = reference_read<float>(file, layout.elements);
    double evaluated = file.peek() == std::ifstream::traits_type::eof() ? sum : reference_read<double>(file, 1)[0];   // with batch norm
    EXPECT_EQ(file.peek(), std::ifstream::traits_type::eof());

    std::copy(start.begin(), start.end(), rig.net->parameters().begin());
    rig.net->refresh();
    Samples samples{images.data(), labels.data(), n, spec.C, spec.H, spec.W, mean.data(), std.data()};
    Gather first = rig.block(samples);
    auto near = [n](double loss) { return std::max(2e-6 * n, 3e-7 * loss); };   // relative for large losses (squared differences)
    EXPECT_NEAR(first.total, sum, near(sum));
    expect_near(layout, first.gradient, gradient, 2e-5f);
    std::vector<int32_t> classes(n, -1);
    uint32_t right = 0;
    double loss_sum = 0;
    ASSERT_TRUE(rig.net->evaluate(0, samples, &right, &loss_sum, classes.data()).ok());
    EXPECT_EQ(classes, predicted);
    EXPECT_NEAR(loss_sum, evaluated, near(evaluated));

    for (uint32_t step = 0; step < steps; ++step) rig.step(step, rig.block(samples, 0, step).gradient, n);
    expect_near(layout, rig.net->parameters(), end, 2e-5f);
}

}   // namespace gradcast
