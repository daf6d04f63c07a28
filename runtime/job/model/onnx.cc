// Field numbers are those of onnx.proto.  What is written stays the same in every protobuf: numbers as varints,
// texts, bytes and messages with their length before them.
#include "runtime/job/model/onnx.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "runtime/core/fd.h"
#include "runtime/core/version.h"
#include "runtime/job/model/tensors.h"

namespace gradcast {
namespace {

constexpr uint64_t file_bytes_max = (uint64_t{1} << 31) - 1;   // of a protobuf
constexpr int64_t operator_set = 13, ir_version = 7;

/// A message in the making.
class Message {
public:
    void number(uint32_t field, int64_t value) { varint(field << 3), varint(static_cast<uint64_t>(value)); }
    void real(uint32_t field, float value) {
        varint(field << 3 | 5);
        bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    void text(uint32_t field, std::string_view value) {
        varint(field << 3 | 2), varint(value.size());
        bytes_ += value;
    }
    void message(uint32_t field, const Message& value) { text(field, value.bytes_); }
    const std::string& bytes() const { return bytes_; }

private:
    void varint(uint64_t value) {
        for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
        bytes_ += static_cast<char>(value);
    }
    std::string bytes_;
};

enum DataType : int64_t { type_float = 1, type_int64 = 7 };

template <typename T>
Message tensor_of(std::string_view name, DataType type, std::span<const uint64_t> shape, std::span<const T> values) {
    Message tensor;
    for (uint64_t side : shape) tensor.number(1, static_cast<int64_t>(side));
    tensor.number(2, type);
    tensor.text(8, name);
    tensor.text(9, {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
    return tensor;
}

/// A value of the graph; flat: [N, C] instead of [N, C, H, W].
struct Value {
    std::string name;
    bool flat = false;
};

class Graph {
public:
    Graph(const Model& model, const std::vector<Layer>& layers, std::span<const float> parameters)
        : net_(model.net), layers_(layers), parameters_(parameters) {}

    Message make() {
        Value image{"image"};
        input(image.name, {net_.C, net_.H, net_.W}, 11);
        if (net_.pad) {
            const int64_t pad = net_.pad, pads[] = {0, 0, pad, pad, 0, 0, pad, pad};
            constant("image.pads", pads);
            image.name = node("Pad", {"image", "image.pads"}, "image.padded");
        }
        for (const Layer& layer : layers_) {
            const Value& x = layer.input == Layer::none ? image : values_[layer.input];
            values_.push_back(value(layer, x));
        }
        const Shape& out = layers_.back().out;
        if (layers_.back().by_position) {
            node("Identity", {spatial(values_.back(), layers_.back()).name}, "logits", {});
            input("logits", {out.C, out.H, out.W}, 12);
        } else {
            node("Flatten", {values_.back().name}, "logits", {number("axis", 1)});
            input("logits", {out.C}, 12);
        }
        graph_.text(2, "gradcast");
        for (const NetTensor& tensor : net_tensors(layers_))
            graph_.message(5, tensor_of<float>(tensor.name, type_float, tensor.shape, tensor.values(parameters_)));
        return std::move(graph_);
    }

private:
    /// The value that a layer makes of x.
    Value value(const Layer& layer, const Value& x) {
        const OnnxOperator& op = layer.kind->onnx;
        const std::string& name = layer.spec.name;
        if (op.passes) return x;
        bool flattened = op.input == OnnxOperator::Input::flat || (op.input == OnnxOperator::Input::any && x.flat);
        if (layer.other != Layer::none) flattened |= values_[layer.other].flat;   // of one pixel
        auto as_input = [&](const Value& from) {
            if (op.input == OnnxOperator::Input::spatial) return spatial(from, layer).name;
            return flattened ? flat(from, layer).name : from.name;
        };
        std::vector<std::string> inputs = {as_input(x)};
        if (layer.other != Layer::none) inputs.push_back(as_input(values_[layer.other]));
        if (layer.weights) inputs.push_back(name + ".weight");
        if (layer.biases) inputs.push_back(name + ".bias");
        if (layer.statistics) inputs.insert(inputs.end(), {name + ".running_mean", name + ".running_var"});
        std::vector<Message> attributes = op.windowed ? window(layer) : std::vector<Message>();
        for (const OnnxOperator::Attribute& each : op.attributes) {
            const double is = each.key ? layer.value(each.key->name) : static_cast<double>(each.value);
            attributes.push_back(each.real ? real(each.name, static_cast<float>(is)) : number(each.name, static_cast<int64_t>(is)));
        }
        if (op.resizes) resize(layer, inputs, attributes);
        if (op.steps) return {steps(op.steps(layer), inputs[0], name), flattened};
        return {node(op.type, inputs, name + ".output", attributes), flattened};
    }

    std::string steps(std::span<const OnnxOperator::Step> all, const std::string& x, const std::string& name) {
        auto output = [&](size_t step) { return step + 1 == all.size() ? name + ".output" : fmt::format("{}.step{}", name, step); };
        for (size_t i = 0; i < all.size(); ++i) {
            const OnnxOperator::Step& step = all[i];
            std::vector<std::string> inputs;
            for (const int operand : {step.first, step.second}) {
                if (operand == OnnxOperator::Step::none) continue;
                inputs.push_back(operand == OnnxOperator::Step::input      ? x
                                 : operand == OnnxOperator::Step::constant ? fmt::format("{}.constant{}", name, i)
                                                                           : output(static_cast<size_t>(operand)));
                if (operand == OnnxOperator::Step::constant)
                    graph_.message(5, tensor_of<float>(inputs.back(), type_float, std::vector<uint64_t>{}, std::span(&step.value, 1)));
            }
            node(step.type, inputs, output(i));
        }
        return output(all.size() - 1);
    }

    /// What makes a Resize of upsample.
    void resize(const Layer& layer, std::vector<std::string>& inputs, std::vector<Message>& attributes) {
        const bool bilinear = layer.value("mode") != 0;
        const auto scale = static_cast<float>(layer.value("scale"));
        const float scales[] = {1, 1, scale, scale};
        inputs.insert(inputs.end(), {"", layer.spec.name + ".scales"});   // no region of interest
        graph_.message(5, tensor_of<float>(inputs.back(), type_float, std::vector<uint64_t>{std::size(scales)}, scales));
        attributes.push_back(text("mode", bilinear ? "linear" : "nearest"));
        attributes.push_back(text("coordinate_transformation_mode", bilinear ? "half_pixel" : "asymmetric"));
        if (!bilinear) attributes.push_back(text("nearest_mode", "floor"));
    }

    Value flat(const Value& x, const Layer& layer) {
        return x.flat ? x : Value{node("Flatten", {x.name}, layer.spec.name + ".flat", {number("axis", 1)}), true};
    }
    Value spatial(const Value& x, const Layer& layer) {
        if (!x.flat) return x;
        const std::string shape = layer.spec.name + ".shape";
        const int64_t sides[] = {0, layer.in.C, layer.in.H, layer.in.W};   // 0: as it is
        constant(shape, sides);
        return {node("Reshape", {x.name, shape}, layer.spec.name + ".spatial")};
    }

    /// A window that begins inside but is partly outside counts where `ceil` is set.  Runtimes do not agree on what their own ceil_mode
    /// does at the end, so the padding there is what such windows need, and the rounding is always down.
    static std::vector<Message> window(const Layer& layer) {
        const Window& of = layer.window;
        const int64_t kernel = of.kernel, stride = of.stride, pad = of.pad, dilation = of.dilation;
        auto end = [&, rounds_up = of.ceil](uint32_t side, uint32_t windows) {
            return rounds_up ? std::max<int64_t>((int64_t{windows} - 1) * stride + kernel - side - pad, 0) : pad;
        };
        std::vector<Message> all = {numbers("kernel_shape", {kernel, kernel}), numbers("strides", {stride, stride}),
                                    numbers("pads", {pad, pad, end(layer.in.H, layer.out.H), end(layer.in.W, layer.out.W)})};
        if (dilation > 1) all.push_back(numbers("dilations", {dilation, dilation}));
        if (layer.groups > 1) all.push_back(number("group", layer.groups));
        return all;
    }

    std::string node(const char* kind, const std::vector<std::string>& inputs, const std::string& output,
                     const std::vector<Message>& attributes = {}) {
        Message made;
        for (const std::string& name : inputs) made.text(1, name);
        made.text(2, output);
        made.text(3, output);
        made.text(4, kind);
        for (const Message& attribute : attributes) made.message(5, attribute);
        graph_.message(1, made);
        return output;
    }

    static Message attribute(const char* name, int64_t type) {
        Message made;
        made.text(1, name), made.number(20, type);
        return made;
    }
    static Message real(const char* name, float value) {
        Message made = attribute(name, 1);
        made.real(2, value);
        return made;
    }
    static Message number(const char* name, int64_t value) {
        Message made = attribute(name, 2);
        made.number(3, value);
        return made;
    }
    static Message text(const char* name, std::string_view value) {
        Message made = attribute(name, 3);
        made.text(4, value);
        return made;
    }
    static Message numbers(const char* name, const std::vector<int64_t>& values) {
        Message made = attribute(name, 7);
        for (int64_t value : values) made.number(8, value);
        return made;
    }
    void constant(const std::string& name, std::span<const int64_t> values) {
        graph_.message(5, tensor_of(name, type_int64, std::vector<uint64_t>{values.size()}, values));
    }
    /// An input (11) or output (12) of the graph, float32 [N, sides].
    void input(const std::string& name, const std::vector<uint32_t>& sides, uint32_t field) {
        Message shape, dim, tensor, type, value;
        dim.text(2, "N");
        shape.message(1, dim);
        for (uint32_t side : sides) {
            Message fixed;
            fixed.number(1, side);
            shape.message(1, fixed);
        }
        tensor.number(1, type_float), tensor.message(2, shape);
        type.message(1, tensor);
        value.text(1, name), value.message(2, type);
        graph_.message(field, value);
    }

    const NetSpec& net_;
    const std::vector<Layer>& layers_;
    const std::span<const float> parameters_;
    std::vector<Value> values_;   // by layer
    Message graph_;
};

}   // namespace

Status onnx_write(const std::string& path, const Model& model, std::span<const float> parameters) {
    std::vector<Layer> layers;
    GC_TRY(layers_check(model.net, &layers));
    for (const Layer& layer : layers)
        if (!layer.kind->onnx.exists())
            return fail(Code::unsupported, "{}: ONNX has no operator for layer {}, a {}: export to safetensors", path, layer.spec.name,
                        layer.kind->name);
    Message file, operators;
    if (parameters.size_bytes() < file_bytes_max) {
        operators.text(1, ""), operators.number(2, operator_set);
        file.number(1, ir_version);
        file.text(2, "gradcast"), file.text(3, version_text);
        file.message(7, Graph(model, layers, parameters).make());
        file.message(8, operators);
        auto property = [&](const char* key, const std::string& value) {
            Message entry;
            entry.text(1, key), entry.text(2, value);
            file.message(14, entry);
        };
        property("mean", fmt::format("[{}]", fmt::join(model.mean, ",")));
        property("std", fmt::format("[{}]", fmt::join(model.std, ",")));
        property("digest", model.digest);
        property("class_names",
                 nlohmann::json(class_names_split(model.class_names)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    }
    if (const uint64_t bytes = std::max<uint64_t>(file.bytes().size(), parameters.size_bytes()); bytes > file_bytes_max)
        return fail(Code::unsupported, "{}: an ONNX file holds at most {} bytes, not {}: export to safetensors", path, file_bytes_max,
                    bytes);
    return file_write(path, file.bytes());
}

}   // namespace gradcast
