// Nets by name, each a list of layers in the form of a job file (sizes: LeCun et al. 1998 with ReLU and max pooling; the CSSGD paper's DNN
// and CNN).
#include <algorithm>
#include <array>

#include "nn/graph/layers.h"
#include "nn/net.h"
#include "nn/presets.h"
#include "runtime/core/nearest.h"

namespace gradcast {
namespace {

LayerSpec conv(uint32_t kernel, uint32_t outputs, uint32_t pad = 0) {
    return {.kind = "conv", .values = {{"outputs", outputs}, {"kernel", kernel}, {"pad", pad}}};
}
LayerSpec fc(uint32_t outputs) { return {.kind = "inner_product", .values = {{"outputs", outputs}}}; }
LayerSpec max_pool(uint32_t kernel) { return {.kind = "max_pool", .values = {{"kernel", kernel}, {"stride", kernel}}}; }
LayerSpec pool(const char* kind, uint32_t kernel, uint32_t stride) {
    return {.kind = kind, .values = {{"kernel", kernel}, {"stride", stride}, {"ceil", true}}};
}
LayerSpec relu() { return {.kind = "relu"}; }
LayerSpec norm() { return {.kind = "batch_norm"}; }
LayerSpec dropout(double rate) { return {.kind = "dropout", .values = {{"rate", rate}}}; }
/// A convolution without bias, batch norm and ReLU.
void unit(NetSpec& spec, uint32_t kernel, uint32_t outputs, uint32_t pad = 0) {
    spec.layers.insert(spec.layers.end(), {conv(kernel, outputs, pad), norm(), relu()});
    spec.layers.end()[-3].values.set("bias", false);
}
LayerSpec loss() { return {.kind = "softmax_cross_entropy"}; }

/// 32x32; 28x28 is padded by 2.
Status square_32(const char* name, NetSpec& spec) {
    if (spec.H != spec.W || (spec.H != 28 && spec.H != 32))
        return fail(Code::invalid, "net {} takes samples of 28x28 or 32x32, not {}x{}", name, spec.H, spec.W);
    spec.pad = (32 - spec.H) / 2;
    return {};
}

Status lenet5(NetSpec& spec) {
    GC_TRY(square_32("lenet5", spec));
    spec.layers = {conv(5, 6), relu(), max_pool(2), conv(5, 16), relu(),           max_pool(2),
                   fc(120),    relu(), fc(84),      relu(),      fc(spec.classes), loss()};
    return {};
}

Status cnn(NetSpec& spec) {
    GC_TRY(square_32("cnn", spec));
    spec.layers = {conv(5, 32), relu(), max_pool(2), conv(5, 64), relu(), max_pool(2), fc(512), relu(), fc(spec.classes), loss()};
    return {};
}

// The same with batch norm after each convolution.
Status cnn_norm(NetSpec& spec) {
    GC_TRY(square_32("cnn-norm", spec));
    unit(spec, 5, 32), spec.layers.push_back(max_pool(2));
    unit(spec, 5, 64), spec.layers.push_back(max_pool(2));
    spec.layers.insert(spec.layers.end(), {fc(512), relu(), fc(spec.classes), loss()});
    return {};
}

// Three layers with weights.
Status lenet3(NetSpec& spec) {
    GC_TRY(square_32("lenet3", spec));
    spec.layers = {conv(5, 20), relu(), max_pool(2), conv(5, 50), relu(), max_pool(2), fc(spec.classes), loss()};
    return {};
}

Status lenet3_wide(NetSpec& spec) {
    GC_TRY(square_32("lenet3-wide", spec));
    unit(spec, 5, 64), spec.layers.push_back(max_pool(2));
    unit(spec, 5, 128), spec.layers.push_back(max_pool(2));
    spec.layers.insert(spec.layers.end(), {fc(spec.classes), loss()});
    return {};
}

Status lenet5_wide(NetSpec& spec) {
    GC_TRY(square_32("lenet5-wide", spec));
    unit(spec, 5, 64), spec.layers.push_back(max_pool(2));
    unit(spec, 5, 128), spec.layers.push_back(max_pool(2));
    spec.layers.insert(spec.layers.end(), {fc(384), relu(), fc(192), relu(), fc(spec.classes), loss()});
    return {};
}

// Network in network (Lin, Chen, Yan 2014).
Status nin(NetSpec& spec) {
    GC_TRY(square_32("nin", spec));
    spec.layers = {
        conv(5, 192, 2), relu(), conv(1, 160), relu(), conv(1, 96),           relu(), pool("max_pool", 3, 2),          dropout(0.5),
        conv(5, 192, 2), relu(), conv(1, 192), relu(), conv(1, 192),          relu(), pool("average_pool", 3, 2),      dropout(0.5),
        conv(3, 192, 1), relu(), conv(1, 192), relu(), conv(1, spec.classes), relu(), {.kind = "global_average_pool"}, loss()};
    return {};
}

// Page's residual net of nine layers with weights (2018), pooling to one pixel before its last layer.
Status resnet9(NetSpec& spec) {
    GC_TRY(square_32("resnet9", spec));
    auto residual = [&](const char* name, uint32_t outputs) {
        spec.layers.back().name = name;
        unit(spec, 3, outputs, 1), unit(spec, 3, outputs, 1);
        spec.layers.push_back({.kind = "add", .from = name});
    };
    unit(spec, 3, 64, 1), unit(spec, 3, 128, 1), spec.layers.push_back(max_pool(2));
    residual("shortcut1", 128);
    unit(spec, 3, 256, 1), spec.layers.push_back(max_pool(2));
    unit(spec, 3, 512, 1), spec.layers.push_back(max_pool(2));
    residual("shortcut2", 512);
    spec.layers.insert(spec.layers.end(), {max_pool(4), fc(spec.classes), loss()});
    return {};
}

/// He, Zhang, Ren, Sun 2016, with the names of torchvision's tensors, so that its files can be a job's `start`.
class ResNet {
public:
    explicit ResNet(NetSpec& spec) : spec_(spec) {
        const bool large = std::min(spec.H, spec.W) >= 64;   // else as for CIFAR: no pixel is skipped
        unit("conv1", "bn1", 64, large ? 7 : 3, large ? 2 : 1);
        if (large) push({.kind = "max_pool", .name = "maxpool", .values = {{"kernel", 3}, {"stride", 2}, {"pad", 1}}});
    }
    /// Four runs of blocks, each of half the side of the one before it; bottlenecks have four times the outputs.
    Status blocks(std::array<uint32_t, 4> counts, bool bottleneck) {
        for (uint32_t run = 0; run < counts.size(); ++run)
            for (uint32_t i = 0; i < counts[run]; ++i)
                block(fmt::format("layer{}.{}", run + 1, i), 64u << run, run > 0 && i == 0 ? 2 : 1, bottleneck);
        push({.kind = "global_average_pool", .name = "avgpool"});
        push({.kind = "inner_product", .name = "fc", .values = {{"outputs", spec_.classes}}});
        push(loss());
        return {};
    }

private:
    void push(LayerSpec layer) { spec_.layers.push_back(std::move(layer)); }
    void unit(const std::string& conv, const std::string& norm, uint32_t outputs, uint32_t kernel, uint32_t stride, bool ends = false,
              const std::string& from = {}) {
        push({.kind = "conv",
              .name = conv,
              .values = {{"outputs", outputs}, {"kernel", kernel}, {"stride", stride}, {"pad", kernel / 2}, {"bias", false}},
              .from = from});
        push({.kind = "batch_norm", .name = norm});
        if (!ends) push({.kind = "relu", .name = conv + ".relu"});
    }
    void block(const std::string& name, uint32_t width, uint32_t stride, bool bottleneck) {
        const std::string before = spec_.layers.back().name;
        const uint32_t outputs = bottleneck ? 4 * width : width;
        const bool turns = stride > 1 || outputs != channels_;
        const auto part = [&](uint32_t number, uint32_t of, uint32_t kernel, uint32_t step, bool ends) {
            unit(fmt::format("{}.conv{}", name, number), fmt::format("{}.bn{}", name, number), of, kernel, step, ends);
        };
        if (bottleneck) {
            part(1, width, 1, 1, false);
            part(2, width, 3, stride, false);
            part(3, outputs, 1, 1, true);
        } else {
            part(1, width, 3, stride, false);
            part(2, outputs, 3, 1, true);
        }
        std::string other = before;
        if (turns) {
            other = spec_.layers.back().name;
            unit(name + ".downsample.0", name + ".downsample.1", outputs, 1, stride, true, before);
        }
        push({.kind = "add", .name = name + ".add", .from = other});
        push({.kind = "relu", .name = name + ".relu"});
        channels_ = outputs;
    }

    NetSpec& spec_;
    uint32_t channels_ = 64;
};

Status resnet18(NetSpec& spec) { return ResNet(spec).blocks({2, 2, 2, 2}, false); }
Status resnet50(NetSpec& spec) { return ResNet(spec).blocks({3, 4, 6, 3}, true); }

// Ronneberger, Fischer, Brox 2015, with batch norm and padded convolutions, from 32 channels on.  It goes down four times, or as often as
// both sides are even, and gives the classes of each pixel.
Status unet(NetSpec& spec) {
    uint32_t depth = 0;
    while (depth < 4 && ((spec.H | spec.W) >> depth) % 2 == 0) ++depth;
    if (depth == 0) return fail(Code::invalid, "net unet takes samples of even height and width, not {}x{}", spec.H, spec.W);
    const auto level = [&spec](uint32_t number) { unit(spec, 3, 32u << number, 1), unit(spec, 3, 32u << number, 1); };
    const auto skip = [](uint32_t number) { return fmt::format("skip{}", number + 1); };
    for (uint32_t number = 0; number < depth; ++number) {
        level(number);
        spec.layers.back().name = skip(number);
        spec.layers.push_back(max_pool(2));
    }
    level(depth);
    for (uint32_t number = depth; number-- > 0;) {
        spec.layers.push_back({.kind = "conv_transposed", .values = {{"outputs", 32u << number}, {"kernel", 2}, {"stride", 2}}});
        spec.layers.push_back({.kind = "concat", .from = skip(number)});
        level(number);
    }
    spec.layers.insert(spec.layers.end(), {conv(1, spec.classes), loss()});
    return {};
}

// Samples as they are.
Status mlp(NetSpec& spec) {
    spec.layers = {fc(1024), relu(), fc(1024), relu(), fc(512), relu(), fc(spec.classes), loss()};
    return {};
}

// Least squares over all features, without a bias; its L2 term is the job's optimiser.weight_decay (twice the factor of ||w||^2).
Status ridge(NetSpec& spec) {
    spec.layers = {fc(1), {.kind = "squared_loss"}};
    spec.layers[0].values.set("bias", false);
    return {};
}

// Multinomial logistic regression.
Status logistic(NetSpec& spec) {
    spec.layers = {fc(spec.classes), loss()};
    return {};
}

struct Row {
    const char* name;
    Status (*make)(NetSpec& spec);
    const char *sides, *purpose;                                        // for people
    Shape sample;                                                       // that presets_help() counts parameters for, with 10 classes
    bool masks = false;                                                 // the net has an output for each pixel
    Status (*sized)(NetSpec& spec, const PresetSize& size) = nullptr;   // in place of `make`
};
constexpr char any[] = "any", square[] = "28x28 or 32x32", even[] = "even sides", text[] = "text";
constexpr Shape grey{1, 28, 28}, colour{3, 32, 32};
constexpr std::array rows = {
    Row{"lenet5", lenet5, square, "LeNet-5 with ReLU and max pooling, for digits and clothes", grey},
    Row{"cnn", cnn, square, "two convolutions and a wide inner product, for small photographs", colour},
    Row{"mlp", mlp, any, "inner products alone: many parameters and little computing, for comparing exchanges", grey},
    Row{"lenet3", lenet3, square, "two convolutions and one inner product: a small net for first tries", grey},
    Row{"lenet3-wide", lenet3_wide, square, "lenet3 with more channels and batch norm", colour},
    Row{"lenet5-wide", lenet5_wide, square, "LeNet-5 with more channels and batch norm", colour},
    Row{"cnn-norm", cnn_norm, square, "cnn with batch norm after each convolution", colour},
    Row{"nin", nin, square, "network in network: convolutions and dropout, no inner product, for small photographs", colour},
    Row{"resnet9", resnet9, square, "residual net of nine layers with weights, for small photographs", colour},
    Row{"resnet18",
        resnet18,
        any,
        "ResNet-18, for photographs: from 64 pixels on with torchvision's stem, below with one of 3x3",
        {3, 224, 224}},
    Row{"resnet50", resnet50, any, "ResNet-50, of bottlenecks, likewise", {3, 224, 224}},
    Row{"unet", unet, even, "U-Net with batch norm, for masks: a class for each pixel", {3, 128, 128}, true},
    Row{"ridge", ridge, any, "least squares for regressions, as import ridge makes them", {1, 1, 500}},
    Row{"logistic", logistic, any, "multinomial logistic regression: one inner product", grey},
    Row{"vit-s",
        preset_vit_s,
        "patches of 16",
        "vision transformer of 12 blocks, for photographs; below 64 pixels with patches of 4",
        {3, 224, 224}},
    Row{"gpt", nullptr, text, "GPT-2's layers, of net.depth, net.width and net.heads, for texts", {1, 1, 257}, false, preset_gpt}};
constexpr auto names = [] {
    std::array<const char*, rows.size()> result{};
    std::transform(rows.begin(), rows.end(), result.begin(), [](const Row& row) { return row.name; });
    return result;
}();

}   // namespace

std::span<const char* const> preset_names() { return names; }

void preset_targets(const std::string& name, NetSpec* spec) {
    const auto row = std::ranges::find_if(rows, [&](const Row& each) { return name == each.name; });
    GC_ASSERT(row != rows.end());
    spec->target_scale = layer_kind_find(spec->layers.back().kind)->regression ? 1 : 0;
    if (row->masks) spec->targets = spec->H * spec->W, spec->target_element = Element::u8;
}

std::string presets_help() {
    std::string all = fmt::format("{:<12} {:<15} {:>10}  {:<10} {}\n", "preset", "samples", "parameters", "for", "purpose");
    for (const Row& row : rows) {
        NetSpec spec;
        std::vector<Layer> layers;
        spec = {.C = row.sample.C, .H = row.sample.H, .W = row.sample.W};
        if (row.sides == text) spec.vocabulary = 256, spec.element = Element::u16;
        GC_ASSERT(preset_layers(row.name, {}, &spec).ok());
        preset_targets(row.name, &spec);
        GC_ASSERT(layers_check(spec, &layers).ok());
        uint64_t parameters = 0;
        for (const Layer& layer : layers) parameters += layer.parameters();
        all += fmt::format("{:<12} {:<15} {:>10}  {:<10} {}\n", row.name, row.sides, parameters,
                           fmt::format("{}x{}x{}", row.sample.C, row.sample.H, row.sample.W), row.purpose);
    }
    return all +
           "\nParameters are those for such samples in 10 classes, of a text for 256 tokens, and of net.depth 4, net.width 128 and "
           "net.heads 4.  Samples of 28x28 are padded to 32x32 where a net needs that.\n"
           "gradcastctl check shows the layers of a job's net.\n";
}

bool preset_sized(std::string_view name) {
    return std::ranges::any_of(rows, [name](const Row& row) { return name == row.name && row.sized; });
}

Status preset_find(const std::string& name, uint32_t C, uint32_t H, uint32_t W, uint32_t classes, NetSpec* spec) {
    NetSpec made{.C = C, .H = H, .W = W, .classes = classes};
    GC_TRY(preset_layers(name, {}, &made));
    *spec = std::move(made);
    return {};
}

Status preset_layers(const std::string& name, const PresetSize& size, NetSpec* spec) {
    std::string known;
    for (const Row& row : rows) {
        known += (known.empty() ? "" : ", ") + std::string(row.name);
        if (name != row.name) continue;
        if ((row.sides == text) != (spec->vocabulary > 0))
            return fail(Code::invalid, "net {} takes {}, and the data are {}", name, row.sides == text ? "a text" : "images or a table",
                        row.sides == text ? "images or a table" : "a text");
        GC_TRY(row.sized ? row.sized(*spec, size) : row.make(*spec));
        if (!size.valid) return {};
        LayerSpec& loss = spec->layers.back();
        if (layer_kind_find(loss.kind)->regression || !layer_set(loss, "mean_over", "valid"))
            return fail(Code::invalid, "net {}: its loss is {}, which has no mean_over: leave net.mean_over out", name, loss.kind);
        return {};
    }
    std::string near = nearest(name, std::vector<std::string>(names.begin(), names.end()));
    return fail(Code::invalid, "no net \"{}\": {}one of {}", name, near.empty() ? "" : fmt::format("did you mean {}? ", near), known);
}

}   // namespace gradcast
