// Models out and in: files for other programs, checked by PyTorch where it is installed, and files from them, good and bad.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/core/digest.h"
#include "runtime/core/fd.h"
#include "runtime/core/rng.h"
#include "runtime/job/model/onnx.h"
#include "runtime/job/model/safetensors.h"
#include "runtime/job/model/tensors.h"
#include "tests/datasets/support.h"
#include "tests/nn/llama.h"
#include "tests/nn/nets.h"
#include "tests/nn/unet.h"

namespace gradcast {
namespace {

using Json = nlohmann::ordered_json;

NetSpec preset(const char* name, uint32_t C, uint32_t side) {
    NetSpec spec;
    Status status = preset_find(name, C, side, side, 10, &spec);
    EXPECT_TRUE(status.ok()) << status.what;
    return spec;
}

struct Trained {
    Model model;
    std::vector<Layer> layers;
    std::vector<float> parameters;
    /// As if trained: nothing is 0 or 1 any more.
    explicit Trained(const NetSpec& spec, uint64_t seed = 1) {
        model.net = spec;
        model.mean.assign(spec.C, 0.4f);
        model.std.assign(spec.C, 0.3f);
        model.digest = std::string(64, 'd');
        model.kernel_set = std::string(16, 'c');
        model.step = 7;
        model.accuracy = 0.5;
        EXPECT_TRUE(layers_check(spec, &layers).ok());
        const Layout layout = layers_layout(layers, 1);
        parameters.resize(layout.elements);
        weights_initial(spec, layout, seed, parameters);
        auto random = [&](uint64_t i) { return uniform(random4(Purpose::test, seed, 1, static_cast<uint32_t>(i))[0]); };
        for (const NetTensor& tensor : net_tensors(layers)) {
            float* value = parameters.data() + tensor.offset;
            for (uint64_t i = 0; i < tensor.count; ++i) {
                const float draw = random(tensor.offset + i);
                if (tensor.variance) value[i] = 0.5f + draw + value[i - tensor.count] * value[i - tensor.count];
                else if (tensor.name.ends_with("running_mean") || tensor.name.ends_with("bias")) value[i] = draw - 0.5f;
                else if (tensor.shape.size() == 1) value[i] = 0.5f + draw;
            }
        }
    }
};

/// The net's own logits [n, classes]: a last layer adds a class whose logit is 0, and the losses of the same sample as each class tell the
/// differences.
std::vector<float> logits_of(const Trained& trained, const Samples& samples) {
    NetSpec spec = trained.model.net;
    const uint32_t classes = spec.classes++;
    spec.layers.back().kind = "softmax_cross_entropy";
    spec.layers.insert(spec.layers.end() - 1,
                       {.kind = "inner_product", .name = "logits", .values = {{"outputs", spec.classes}, {"bias", false}}});
    Rig rig(spec, sizes({1}));
    const uint64_t learnt = trained.layers.back().offset + trained.layers.back().parameters(), own = uint64_t{classes} * spec.classes;
    std::span<float> parameters = rig.net->parameters();
    EXPECT_EQ(parameters.size(), trained.parameters.size() + own);
    std::copy_n(trained.parameters.begin(), learnt, parameters.begin());
    std::copy(trained.parameters.begin() + static_cast<ptrdiff_t>(learnt), trained.parameters.end(),
              parameters.begin() + static_cast<ptrdiff_t>(learnt + own));
    std::fill_n(parameters.begin() + static_cast<ptrdiff_t>(learnt), own, 0.0f);
    for (uint32_t k = 0; k < classes; ++k) parameters[learnt + uint64_t{k} * classes + k] = 1;
    rig.net->refresh();
    std::vector<float> logits;
    for (uint32_t n = 0; n < samples.count; ++n) {
        auto loss = [&](uint32_t as) {
            const auto label = static_cast<int32_t>(as);
            Samples one = samples;
            one.images += uint64_t{n} * one.C * one.H * one.W;
            one.labels = &label;
            one.count = 1;
            return rig.loss(one);
        };
        const double zero = loss(classes);
        for (uint32_t k = 0; k < classes; ++k) logits.push_back(static_cast<float>(zero - loss(k)));
    }
    return logits;
}

/// Of a net with labels by position: its own probabilities [n, positions, classes].
std::vector<float> probabilities_of(const Trained& trained, const Samples& samples) {
    const NetSpec& spec = trained.model.net;
    Rig rig(spec, sizes({samples.count}));
    std::ranges::copy(trained.parameters, rig.net->parameters().begin());
    rig.net->refresh();
    std::vector<int32_t> predicted(uint64_t{samples.count} * spec.positions());
    std::vector<float> outputs(predicted.size() * spec.label_classes());
    uint32_t right = 0;
    double loss = 0;
    const Status status = rig.net->evaluate(0, samples, &right, &loss, predicted.data(), outputs.data());
    EXPECT_TRUE(status.ok()) << status.what;
    return outputs;
}

template <typename T>
void write_values(const std::string& path, const std::vector<T>& values) {
    write_file(path, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
}

/// The samples as a net reads them, a text as its tokens, and their shape.
void write_input(const Data& data, const std::string& input, const std::string& shape) {
    const Samples& of = data.samples;
    std::vector<float> values;
    const uint64_t plane = uint64_t{of.H} * of.W;
    for (size_t i = 0; i < data.images.size(); ++i) {
        const uint64_t c = i / plane % of.C;
        if (of.element == Element::u8) values.push_back((static_cast<float>(data.images[i]) / 255 - data.mean[c]) / data.std[c]);
        else if (i % 2 == 0) values.push_back(data.images[i]);   // tokens of 2 bytes, below 256
    }
    write_values(input, values);
    write_values(shape, std::vector<uint32_t>{of.count, of.C, of.H, of.W});
}

// A file with torchvision's names fits the preset: PyTorch's logits come out.
TEST(SlowModels, ResNetStartsWithPyTorchsFile) {
    if (std::system("/usr/bin/python3 -c 'import torch' >/dev/null 2>&1") != 0) GTEST_SKIP() << "python3-torch is missing";
    TestFolder folder;
    Trained read(preset("resnet18", 3, 32));
    Data data(read.model.net, 3);
    write_input(data, folder.file("resnet.input"), folder.file("resnet.shape"));
    const std::string here = __FILE__, said = folder.file("said");
    const std::string command = "/usr/bin/python3 " + here.substr(0, here.rfind('/')) + "/resnet.py " + folder.path.string();
    ASSERT_EQ(std::system((command + " >" + said + " 2>&1").c_str()), 0) << read_file(said);
    std::string digest, notes;
    const Status status = safetensors_read(folder.file("resnet.safetensors"), read.model.net, read.parameters, &digest, &notes);
    ASSERT_TRUE(status.ok()) << status.what;
    const std::string bytes = read_file(folder.file("resnet.logits"));
    std::vector<float> wanted(30);
    ASSERT_EQ(bytes.size(), wanted.size() * sizeof(float));
    std::memcpy(wanted.data(), bytes.data(), bytes.size());
    const std::vector<float> found = logits_of(read, data.samples);
    float largest = 0;
    for (const float each : wanted) largest = std::max(largest, std::abs(each));
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(found[i], wanted[i], 1e-4f * std::max(1.0f, largest)) << i;
}

/// Exports nets of many kinds, each with its input and what this net makes of it.  Returns how many.
size_t export_nets(const TestFolder& folder) {
    // A net whose values go from features to planes and back, which only ONNX tells apart.
    const NetSpec mixed{.C = 2,
                        .H = 6,
                        .W = 5,
                        .pad = 1,
                        .classes = 10,
                        .layers = {conv(8, 3), named(global_pool(), "pixel"), fc(8), named(norm(), "flat"), add("pixel"), conv(12, 1),
                                   relu(), max_pool(1), fc(8), add("flat"), average_pool(1), concat("pixel"), fc(10), squared_loss()}};
    NetSpec masks = of_masks();
    masks.ignore = -1;   // a position without a label has no probabilities
    NetSpec tied = small_gpt();
    tied.layers[tied.layers.size() - 2].weights_of = "wte";
    // Values go from planes to rows, to features and back.
    const NetSpec patches{.C = 3,
                          .H = 12,
                          .W = 8,
                          .classes = 10,
                          .layers = {conv(16, 4, 4),
                                     {.kind = "positions"},
                                     named({.kind = "layer_norm"}, "before"),
                                     named(linear(48), "qkv"),
                                     attention(4),
                                     add("before"),
                                     {.kind = "gelu"},
                                     {.kind = "group_norm", .values = {{"groups", 4}}},
                                     named(conv(8, 1), "less"),
                                     {.kind = "layer_norm"},
                                     concat("less"),
                                     global_pool(),
                                     {.kind = "layer_norm"},
                                     fc(10),
                                     loss()}};
    const std::pair<const char*, NetSpec> nets[] = {{"apart", everything()},   // these two with their tensors in a file of their own
                                                    {"apart-tied", tied},
                                                    {"llama", small_llama()},
                                                    {"gpt", small_gpt()},
                                                    {"tied", tied},
                                                    {"masks", masks},
                                                    {"patches", patches},
                                                    {"lenet5", preset("lenet5", 1, 28)},
                                                    {"nin", preset("nin", 3, 32)},
                                                    {"resnet9", preset("resnet9", 3, 32)},
                                                    {"resnet18", preset("resnet18", 3, 64)},
                                                    {"resnet50", preset("resnet50", 3, 32)},
                                                    {"unet", unet(32)},
                                                    {"vit-s", preset("vit-s", 3, 32)},
                                                    {"everything", everything()},
                                                    {"mixed", mixed},
                                                    {"curves", differences()[0].spec},
                                                    {"images", encoder_decoder()}};
    for (const auto& [name, spec] : nets) {
        auto file = [&, which = name](const char* end) { return folder.file(fmt::format("{}.{}", which, end)); };
        Trained trained(spec);
        Data data(spec, 3);
        EXPECT_TRUE(safetensors_write(file("safetensors"), trained.model, trained.parameters).ok());
        const uint64_t inside = std::string_view(name).starts_with("apart") ? 0 : onnx_inside_bytes_max;
        EXPECT_TRUE(onnx_write(file("onnx"), trained.model, trained.parameters, inside).ok());
        write_input(data, file("input"), file("shape"));
        if (spec.by_position()) write_values(file("probabilities"), probabilities_of(trained, data.samples));
        else write_values(file("logits"), logits_of(trained, data.samples));
    }
    return std::size(nets);
}

/// Runs a program of this folder, which must say that so many files agree.
void expect_agreement(const TestFolder& folder, const std::string& program, const std::string& behind, size_t files) {
    const std::string here = __FILE__, said = folder.file("said");
    const std::string command = fmt::format("{} {}/{} {} {} >{} 2>&1", program.ends_with("py") ? "/usr/bin/python3" : "node",
                                            here.substr(0, here.rfind('/')), program, folder.path.string(), behind, said);
    EXPECT_EQ(std::system(command.c_str()), 0);
    EXPECT_NE(read_file(said).find(fmt::format("{} files agree", files)), std::string::npos) << read_file(said);
}

TEST(SlowModels, GiveTheSameLogitsInPyTorch) {
    if (std::system("/usr/bin/python3 -c 'import torch' >/dev/null 2>&1") != 0) GTEST_SKIP() << "python3-torch is missing";
    TestFolder folder;
    const size_t nets = export_nets(folder);
    expect_agreement(folder, "models.py", "", 2 * nets);
}

TEST(SlowModels, GiveTheSameLogitsInOnnxRuntime) {
    const auto module = std::filesystem::canonical("/proc/self/exe").parent_path().parent_path() / "npm/node_modules/onnxruntime-web";
    if (std::system("command -v node >/dev/null") != 0 || !std::filesystem::exists(module))
        GTEST_SKIP() << "onnxruntime-web is missing (make deps-onnx)";
    TestFolder folder;
    const size_t nets = export_nets(folder);
    expect_agreement(folder, "onnx_reader.mjs", module.string(), nets);
}

// Large tensors lie in a file beside the model, from a page on; small ones, the shapes among them, in the model.
TEST(Onnx, AModelAboveTheLimitIsTwoFiles) {
    TestFolder folder;
    const std::string path = folder.file("model.onnx"), data = folder.file("model.onnx.data");
    const Trained trained(preset("lenet5", 1, 28));
    const uint64_t bytes = trained.parameters.size() * sizeof(float);
    ASSERT_TRUE(onnx_write(path, trained.model, trained.parameters, bytes).ok());
    EXPECT_EQ(folder.names(), std::vector<std::string>{"model.onnx"});
    const std::string whole = read_file(path);
    ASSERT_TRUE(onnx_write(path, trained.model, trained.parameters, bytes - 1).ok());
    EXPECT_EQ(folder.names(), (std::vector<std::string>{"model.onnx", "model.onnx.data"}));
    const std::string model = read_file(path), tensors = read_file(data);
    EXPECT_LT(model.size(), whole.size() - bytes * 9 / 10);
    for (const char* said : {"location", "model.onnx.data", "offset", "length"}) EXPECT_NE(model.find(said), std::string::npos) << said;
    uint64_t at = 0;
    for (const NetTensor& tensor : net_tensors(trained.layers)) {
        const std::vector<float> values = tensor.values(trained.parameters);
        const std::string_view its(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
        EXPECT_NE(whole.find(its), std::string::npos) << tensor.name;
        EXPECT_EQ(model.find(its) != std::string::npos, its.size() < 1024) << tensor.name;
        if (its.size() < 1024) continue;
        at = (at + 4095) / 4096 * 4096;
        EXPECT_EQ(tensors.substr(at, its.size()), its) << tensor.name;
        EXPECT_NE(model.find(fmt::format("{}", at)), std::string::npos) << tensor.name;
        at += its.size();
    }
    EXPECT_EQ(tensors.size(), at);

    // What cannot be written leaves nothing behind, and the file as it was.
    std::filesystem::remove(data), std::filesystem::create_directory(data);
    EXPECT_FALSE(onnx_write(path, trained.model, trained.parameters, 0).ok());
    EXPECT_EQ(read_file(path), model);
    std::filesystem::create_directory(folder.file("taken"));
    EXPECT_FALSE(onnx_write(folder.file("taken"), trained.model, trained.parameters, 0).ok());
    EXPECT_FALSE(onnx_write(folder.file("absent/model.onnx"), trained.model, trained.parameters, 0).ok());
    EXPECT_EQ(folder.names(), (std::vector<std::string>{"model.onnx", "model.onnx.data", "taken"}));
}

TEST(Safetensors, ComesBackAsItWas) {
    TestFolder folder;
    const std::string path = folder.file("model.safetensors");
    for (const NetSpec& spec : {preset("lenet5", 1, 28), preset("cnn-norm", 3, 32), everything()}) {
        Trained trained(spec);
        ASSERT_TRUE(safetensors_write(path, trained.model, trained.parameters).ok());
        EXPECT_EQ(folder.names(), std::vector<std::string>{"model.safetensors"});
        std::vector<float> read(trained.parameters.size(), NAN);
        std::string digest, again, notes;
        Status status = safetensors_read(path, spec, read, &digest, &notes);
        ASSERT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(digest.size(), 64u);
        for (const NetTensor& tensor : net_tensors(trained.layers))
            for (uint64_t i = tensor.offset; i < tensor.offset + tensor.count; ++i) {
                if (!tensor.variance) ASSERT_EQ(read[i], trained.parameters[i]) << tensor.name;
                else ASSERT_NEAR(read[i], trained.parameters[i], 1e-6f * trained.parameters[i]) << tensor.name;
            }
        ASSERT_TRUE(safetensors_read(path, spec, read, &again, &notes).ok());
        EXPECT_EQ(again, digest);
    }
    EXPECT_FALSE(
        safetensors_write(folder.file("absent/model.safetensors"), Trained(everything()).model, Trained(everything()).parameters).ok());
    std::filesystem::create_directory(folder.file("taken"));
    EXPECT_FALSE(safetensors_write(folder.file("taken"), Trained(everything()).model, Trained(everything()).parameters).ok());
    EXPECT_EQ(folder.names(), (std::vector<std::string>{"model.safetensors", "taken"}));
}

/// A file of that header and so many bytes of data.
std::string file_of(const std::string& header, size_t data_bytes, uint64_t length = ~uint64_t{0}) {
    if (length == ~uint64_t{0}) length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + std::string(data_bytes, '\0');
}

struct SafetensorsFrom : testing::Test {
    TestFolder folder;
    const std::string path = folder.file("model.safetensors");
    const NetSpec spec{.C = 1, .H = 2, .W = 3, .classes = 2, .layers = {fc(2), norm(), loss()}};
    // fc1.weight [2,6], fc1.bias [2], norm1.weight, .bias, .running_mean, .running_var [2]
    static constexpr size_t data_bytes = (12 + 2 + 4 * 2) * 4;
    std::string notes;                                                         // of the last read()
    std::vector<float> parameters = std::vector<float>(data_bytes / 4, NAN);   // likewise

    static Json header() {
        Json json;
        uint64_t at = 0;
        auto tensor = [&](const char* name, std::vector<uint64_t> shape) {
            uint64_t bytes = 4;
            for (uint64_t side : shape) bytes *= side;
            json[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {at, at + bytes}}};
            at += bytes;
        };
        tensor("fc1.weight", {2, 6}), tensor("fc1.bias", {2});
        for (const char* name : {"norm1.weight", "norm1.bias", "norm1.running_mean", "norm1.running_var"}) tensor(name, {2});
        return json;
    }
    Status read(const std::string& bytes) {
        write_file(path, bytes);
        std::string digest;
        notes.clear();
        return safetensors_read(path, spec, parameters, &digest, &notes);
    }
    void expect_refused(const std::string& bytes, std::initializer_list<std::string> parts) {
        Status status = read(bytes);
        expect_error(status, parts);
        expect_error(status, {path});
    }
    /// The header with one thing changed.
    static std::string changed(const std::function<void(Json&)>& change, size_t more = 0) {
        Json json = header();
        change(json);
        return file_of(json.dump(), data_bytes + more);
    }
};

TEST_F(SafetensorsFrom, TakesWhatPyTorchWrites) {
    EXPECT_TRUE(read(file_of(header().dump(), data_bytes)).ok());
    EXPECT_TRUE(read(file_of(header().dump() + "   ", data_bytes)).ok());
    // Any order, and the count of batches beside them.
    auto more = [](Json& json) {
        Json last = json["fc1.weight"];
        json.erase("fc1.weight");
        json["fc1.weight"] = last;
        json["norm1.num_batches_tracked"] = {{"dtype", "I64"}, {"shape", Json::array()}, {"data_offsets", {data_bytes, data_bytes + 8}}};
        json["__metadata__"] = {{"format", "pt"}};
    };
    Status status = read(changed(more, 8));
    EXPECT_TRUE(status.ok()) << status.what;
}

TEST_F(SafetensorsFrom, LeavesOutAPrefixThatAllNamesShare) {
    for (const std::string prefix : {"module.", "_orig_mod.", "module._orig_mod."}) {
        Json json = {{"__metadata__", {{"format", "pt"}}}};
        const Json plain = header();
        for (const auto& [name, value] : plain.items()) json[prefix + name] = value;
        json[prefix + "norm1.num_batches_tracked"] = {
            {"dtype", "I64"}, {"shape", Json::array()}, {"data_offsets", {data_bytes, data_bytes + 8}}};
        Status status = read(file_of(json.dump(), data_bytes + 8));
        EXPECT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(notes, "its names without their common \"" + prefix + "\"");
    }
    expect_refused(changed([](Json& json) {
                       json["module.fc1.weight"] = json["fc1.weight"];
                       json.erase("fc1.weight");
                   }),
                   {"tensor module.fc1.weight: the net has none of this name"});
}

TEST_F(SafetensorsFrom, ConvertsWhatFloat32Holds) {
    struct {
        const char* dtype;
        std::string one, tiny, max;   // bytes of 1.5, of the least number above 0 (of f64: float32's), of -65504 or the like
        float least, most;
    } cases[] = {{"F16", std::string("\x00\x3e", 2), std::string("\x01\x00", 2), std::string("\xff\xfb", 2), 0x1p-24f, -65504},
                 {"BF16", std::string("\xc0\x3f", 2), std::string("\x01\x00", 2), std::string("\x80\xff", 2).replace(0, 1, "\x7f"),
                  0x1p-133f, -0x1.fep127f},
                 {"F64", {}, {}, {}, 0x1p-149f, -65504}};
    for (auto& each : cases) {
        SCOPED_TRACE(each.dtype);
        const bool wide = each.dtype == std::string("F64");
        auto bytes = [](double value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); };
        if (wide) each.one = bytes(1.5), each.tiny = bytes(0x1p-149), each.max = bytes(-65504);
        Json json = header();
        uint64_t at = 0;
        for (auto& [name, value] : json.items()) {   // all are of that type
            const uint64_t size =
                (value["data_offsets"][1].get<uint64_t>() - value["data_offsets"][0].get<uint64_t>()) / 4 * each.one.size();
            value["dtype"] = each.dtype;
            value["data_offsets"] = {at, at + size};
            at += size;
        }
        const uint64_t bias = json["fc1.bias"]["data_offsets"][0].get<uint64_t>(), weight = json["fc1.weight"]["data_offsets"][0];
        std::string file = file_of(json.dump(), at);
        const size_t data = file.size() - at;
        file.replace(data + bias, each.one.size(), each.one);
        file.replace(data + weight, each.tiny.size(), each.tiny);
        file.replace(data + weight + each.one.size(), each.max.size(), each.max);
        Status status = read(file);
        ASSERT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(notes, std::string(each.dtype) + " converted to F32 exactly");
        EXPECT_EQ(std::count(parameters.begin(), parameters.end(), 1.5f), 1);
        EXPECT_EQ(std::count(parameters.begin(), parameters.end(), each.least), 1);
        EXPECT_EQ(std::count(parameters.begin(), parameters.end(), each.most), 1);
        if (wide) expect_refused(file.replace(data + bias, 8, bytes(0.1)), {"tensor fc1.bias: 0.1 is F64 and no float32: python3 -c "});
        else
            expect_refused(file.replace(data + bias, 2, std::string(each.dtype[0] == 'F' ? "\x00\x7c" : "\x80\x7f", 2)),
                           {"fc1.bias holds NaN or Inf"});
    }
    expect_refused(changed([](Json& json) { json["fc1.bias"]["dtype"] = "I32"; }),
                   {"its dtype is \"I32\", not F32, F16, BF16 or F64: python3 -c "});
}

TEST(Safetensors, ExportsHoldTheNamesOfTheClasses) {
    TestFolder folder;
    Trained trained(everything());
    trained.model.class_names = "cat,a \"dog\"";
    ASSERT_TRUE(safetensors_write(folder.file("a.safetensors"), trained.model, trained.parameters).ok());
    EXPECT_NE(read_file(folder.file("a.safetensors")).find(R"("class_names":"[\"cat\",\"a \\\"dog\\\"\"]")"), std::string::npos)
        << read_file(folder.file("a.safetensors")).substr(0, 3000);
    ASSERT_TRUE(onnx_write(folder.file("a.onnx"), trained.model, trained.parameters).ok());
    EXPECT_NE(read_file(folder.file("a.onnx")).find(R"(["cat","a \"dog\""])"), std::string::npos);
    // And the model itself.
    Model model;
    std::vector<float> parameters;
    trained.model.digest = sha256_hex(std::as_bytes(std::span(trained.parameters)));
    ASSERT_TRUE(model_write(folder.file("final.h5"), trained.model, {trained.parameters, {}, {}, {}}).ok());
    Status status = model_read(folder.file("final.h5"), &model, &parameters);
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(model.class_names, trained.model.class_names);
}

TEST_F(SafetensorsFrom, NamesWhatIsWrongWithAFile) {
    std::vector<float> none(data_bytes / 4);
    std::string digest;
    expect_error(safetensors_read(folder.file("absent"), spec, none, &digest, &notes), {"cannot start", "absent: No such file"});
    expect_error(safetensors_read(folder.path.string(), spec, none, &digest, &notes), {"a folder, not a file"});
    expect_refused("", {"0 bytes are too few"});
    expect_refused("1234567", {"7 bytes are too few"});
    const std::string good = file_of(header().dump(), data_bytes);
    for (size_t size = 0; size < good.size(); ++size) expect_refused(good.substr(0, size), {});
    expect_refused(good.substr(0, good.size() - 1), {"norm1.running_var", "cut short"});
    expect_refused(file_of("{}", 0, ~uint64_t{0} - 1), {"its header would have 18446744073709551614 bytes", "cut short"});
    expect_refused(file_of(std::string((16 << 20) + 1, ' '), 0), {"header of 16777217 bytes is longer than 16777216"});
    expect_refused(file_of("[1, 2]", 0), {"not a JSON object"});
    expect_refused(file_of("{\"a\": {\"dtype\"", 0), {"not a JSON object"});
    expect_refused(file_of(std::string(1 << 20, '['), 0), {"not a JSON object"});
    expect_refused(file_of("{\"\xff\": 1}", 0), {"not a JSON object"});
    expect_refused(good + "x", {fmt::format("bytes {} to {} of its data belong to no tensor", data_bytes, data_bytes + 1)});
}

TEST_F(SafetensorsFrom, NamesTheTensorThatDoesNotFit) {
    auto expect = [&](const std::function<void(Json&)>& change, std::initializer_list<std::string> parts) {
        expect_refused(changed(change), parts);
    };
    expect([](Json& json) { json["fc1.weight"]["shape"] = {6, 2}; }, {"fc1.weight", "[6,2]", "[2,6]"});
    expect([](Json& json) { json["fc1.weight"]["shape"] = {-2, 6}; }, {"fc1.weight", "[-2,6]", "[2,6]"});
    expect([](Json& json) { json["fc1.weight"]["shape"] = {2, 6, 1}; }, {"fc1.weight", "[2,6,1]"});
    expect([](Json& json) { json["fc1.weight"]["shape"] = "12"; }, {"fc1.weight", "\"12\""});
    expect([](Json& json) { json["fc1.weight"]["dtype"] = "F16"; }, {"fc1.weight", "48 bytes instead of 24"});
    expect([](Json& json) { json["fc1.weight"]["dtype"] = 7; }, {"fc1.weight", "7", "not F32"});
    expect([](Json& json) { json["fc1.weight"] = 7; }, {"fc1.weight", "lacks dtype"});
    expect([](Json& json) { json["fc1.weight"].erase("shape"); }, {"fc1.weight", "lacks dtype"});
    expect([](Json& json) { json.erase("fc1.bias"); }, {"has no tensor fc1.bias of shape [2]"});
    expect([](Json& json) { json["fc1.weights"] = json["fc1.weight"]; }, {"fc1.weights", "did you mean fc1.weight?"});
    expect([](Json& json) { json["module\n.layer"] = json["fc1.weight"]; }, {"module?.layer", "named by"});
    expect([](Json& json) { json["fc1.bias"]["data_offsets"] = {40, 48}; }, {"fc1.weight", "fc1.bias", "overlap"});
    expect([](Json& json) { json["fc1.bias"]["data_offsets"] = {48, 60}; }, {"fc1.bias", "12 bytes instead of 8"});
    expect([](Json& json) { json["fc1.bias"]["data_offsets"] = {56, 48}; }, {"fc1.bias", "begins at byte 56 and ends at 48"});
    expect([](Json& json) { json["fc1.bias"]["data_offsets"] = {-8, 0}; }, {"fc1.bias", "data_offsets"});
    expect([](Json& json) { json["fc1.bias"]["data_offsets"] = {48}; }, {"fc1.bias", "data_offsets"});
    expect([](Json& json) { json["fc1.bias"]["data_offsets"] = {48, 1e300}; }, {"fc1.bias", "data_offsets"});
    expect([](Json& json) { json["fc1.bias"]["data_offsets"] = {~uint64_t{0} - 7, ~uint64_t{0}}; }, {"fc1.bias", "cut short"});
    // Numbers that no training can go on from.
    auto with = [&](size_t at, float value) {
        std::string bytes = file_of(header().dump(), data_bytes);
        std::memcpy(bytes.data() + bytes.size() - data_bytes + at * 4, &value, 4);
        return bytes;
    };
    expect_refused(with(13, NAN), {"fc1.bias", "NaN or Inf"});
    expect_refused(with(data_bytes / 4 - 1, -0.5f), {"norm1.running_var", "-0.5", "below 0"});
}

// The names and shapes of torchvision's ResNet-18 with 1000 classes, for a net of 10.
TEST(Safetensors, GivesANetWithANewHeadTheRest) {
    TestFolder folder;
    const std::string path = folder.file("resnet18.safetensors");
    NetSpec thousand = preset("resnet18", 3, 32);
    for (LayerSpec& layer : thousand.layers)
        if (layer.name == "fc") layer.values.set("outputs", 1000);
    thousand.classes = 1000;
    const Trained from(thousand, 2), fresh(preset("resnet18", 3, 32), 1);
    ASSERT_TRUE(safetensors_write(path, from.model, from.parameters).ok());
    std::string digest, notes;
    std::vector<float> read = fresh.parameters;
    const auto take = [&](const TensorChoice& choice) {
        notes.clear();
        return safetensors_read(path, fresh.model.net, read, &digest, &notes, nullptr, choice);
    };
    expect_error(take({}), {"tensor fc.weight: its shape is [1000,512], the net's is [10,512]"});
    read = fresh.parameters;
    const Status status = take({.only = {}, .skip = {"fc.*"}});
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(notes, "fc.weight and fc.bias keep their initial values; the file's fc.bias and fc.weight are not taken");
    const std::vector<NetTensor> theirs = net_tensors(from.layers), ours = net_tensors(fresh.layers);
    ASSERT_EQ(theirs.size(), ours.size());
    EXPECT_EQ(ours.front().name, "conv1.weight");
    for (size_t t = 0; t < ours.size(); ++t)
        for (uint64_t i = 0; i < ours[t].count; ++i) {
            const float is = read[ours[t].offset + i];
            if (ours[t].name.starts_with("fc.")) ASSERT_EQ(is, fresh.parameters[ours[t].offset + i]) << ours[t].name;
            else if (!ours[t].variance) ASSERT_EQ(is, from.parameters[theirs[t].offset + i]) << ours[t].name;
            else ASSERT_NEAR(is, from.parameters[theirs[t].offset + i], 1e-5f * is) << ours[t].name;
        }
}

TEST_F(SafetensorsFrom, TakesWhatTheChoiceSays) {
    const std::string file = file_of(header().dump(), data_bytes);
    const auto take = [&](const std::string& bytes, const TensorChoice& choice) {
        write_file(path, bytes);
        std::string digest;
        notes.clear();
        std::ranges::fill(parameters, 0.5f);
        return safetensors_read(path, spec, parameters, &digest, &notes, nullptr, choice);
    };
    const auto taken = [&] { return std::ranges::count(parameters, 0.0f); };
    ASSERT_TRUE(take(file, {{}, {}}).ok());
    EXPECT_EQ(taken(), 22);
    ASSERT_TRUE(take(file, {{"fc1.*"}, {}}).ok());
    EXPECT_EQ(taken(), 14);
    EXPECT_EQ(notes,
              "norm1.weight, norm1.bias, norm1.running_mean and 1 more keep their initial values; the file's norm1.bias, "
              "norm1.running_mean, norm1.running_var and 1 more are not taken");
    ASSERT_TRUE(take(file, {{"fc1.*", "norm1.bias"}, {"*.weight"}}).ok());
    EXPECT_EQ(taken(), 4);
    // A prefix stays outside of the patterns, also where the first tensor is missing; tensors without a place in the net may have any type.
    Json json;
    const Json plain = header();
    for (const auto& [name, value] : plain.items())
        if (name != "fc1.weight" && name != "fc1.bias") json["module." + name] = value;
    json["module.head.weight"] = {{"dtype", "F8"}, {"shape", {56}}, {"data_offsets", {0, 56}}};
    ASSERT_TRUE(take(file_of(json.dump(), data_bytes), {{}, {"fc1.*", "head.*"}}).ok())
        << take(file_of(json.dump(), data_bytes), {{}, {"fc1.*", "head.*"}}).what;
    EXPECT_EQ(taken(), 8);
    expect_error(take(file_of(json.dump(), data_bytes), {{}, {"fc1.*"}}), {"tensor head.weight: the net has none of this name"});
    expect_error(take(file_of(json.dump(), data_bytes), {{}, {"head.*"}}),
                 {"has no tensor fc1.weight of shape [2,6]", "net.start_skip can leave it out"});
    // Bytes of what is not taken count, too.
    expect_error(take(file + "x", {{"fc1.*"}, {}}), {"of its data belong to no tensor"});
    expect_error(take(file, {{"gc1.*"}, {}}), {"net.start_only: \"gc1.*\" matches no tensor of the net, which has fc1.weight, fc1.bias"});
    expect_error(take(file, {{"fc1.*"}, {"*"}}), {"net.start_skip: the net takes no tensor of"});
}

TEST(Models, ReadingALargeOneWithoutMemoryIsAnError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "ulimit -v: a sanitizer maps terabytes";
#endif
    TestFolder folder;
    Model model;
    model.net.layers = {{.kind = "inner_product", .values = {{"outputs", 20'000}}},
                        {.kind = "inner_product", .values = {{"outputs", 10}}},
                        {.kind = "softmax_cross_entropy"}};
    model.mean = {0.1f}, model.std = {0.3f};
    std::vector<Layer> layers;
    ASSERT_TRUE(layers_check(model.net, &layers).ok());
    std::vector<float> parameters(layers_layout(layers, 1).elements, 0.5f);
    model.digest = sha256_hex(std::as_bytes(std::span(parameters)));
    const std::string path = folder.file("large.h5"), tensors = folder.file("large.safetensors");
    ASSERT_TRUE(model_write(path, model, {parameters, {}, {}, {}}).ok());
    ASSERT_TRUE(safetensors_write(tensors, model, parameters).ok());
    const pid_t pid = ::fork();
    if (pid == 0) {
        std::string text;
        (void)file_read("/proc/self/statm", &text).ok();
        const rlim_t most = std::strtoull(text.c_str(), nullptr, 10) * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (32 << 20);
        const rlimit limit{most, most};
        ::setrlimit(RLIMIT_AS, &limit);
        const Status checked = model_check(path, &model);   // by pieces
        const Status of_h5 = model_read(path, &model, &parameters), of_tensors = safetensors_model(tensors, &model, &parameters);
        const bool good = checked.ok() && of_h5.code == Code::node_memory && of_tensors.code == Code::node_memory &&
                          std::string(of_h5.what).starts_with(path + ": its parameters needs 60 MiB of memory") &&
                          std::string(of_tensors.what).starts_with(tensors + " needs 60 MiB of memory");
        if (!good) std::fprintf(stderr, "%s\n%s\n%s\n", checked.what, of_h5.what, of_tensors.what);
        ::_exit(good ? 0 : 1);
    }
    int ended = 0;
    ::waitpid(pid, &ended, 0);
    EXPECT_EQ(ended, 0);
}

// A tensor with two names may lie in a file under either of them.
TEST(Models, TiedWeightsAreFoundUnderTheirOtherName) {
    const TestFolder folder;
    NetSpec spec = small_gpt();
    spec.layers[spec.layers.size() - 2].weights_of = "wte";
    const Trained trained(spec);
    const std::string path = folder.file("tied.safetensors");
    ASSERT_TRUE(safetensors_write(path, trained.model, trained.parameters).ok());
    std::string file;
    ASSERT_TRUE(file_read(path, &file).ok());
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof length);
    auto root = nlohmann::json::parse(file.substr(sizeof length, length));
    EXPECT_EQ(root["head.weight"]["shape"], root["wte.weight"]["shape"]);
    root.erase("wte.weight");
    std::string data;
    for (auto& [name, tensor] : root.items()) {
        if (name == "__metadata__") continue;
        const uint64_t begin = tensor["data_offsets"][0], end = tensor["data_offsets"][1];
        tensor["data_offsets"] = {data.size(), data.size() + end - begin};
        data += file.substr(sizeof length + length + begin, end - begin);
    }
    const std::string header = root.dump();
    length = header.size();
    ASSERT_TRUE(file_write(path, std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data).ok());
    Model model;
    std::vector<float> parameters;
    const Status status = safetensors_model(path, &model, &parameters);
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(parameters, trained.parameters);
}

}   // namespace
}   // namespace gradcast
