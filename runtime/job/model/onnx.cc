// Field numbers are those of onnx.proto.  What is written stays the same in every protobuf: numbers as varints,
// texts, bytes and messages with their length before them.
#include "runtime/job/model/onnx.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <set>

#include "nn/graph/onnx_nodes.h"
#include "runtime/core/fd.h"
#include "runtime/core/version.h"
#include "runtime/job/model/new_file.h"
#include "runtime/job/model/tensors.h"

namespace gradcast {
namespace {

constexpr uint64_t file_bytes_max = (uint64_t{1} << 31) - 1;   // of a protobuf
constexpr int64_t operator_set = 17, ir_version = 8;

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

/// The tensors that lie in a file of their own.
struct DataFile {
    static constexpr uint64_t tensor_bytes_min = 1024, page_bytes = 4096;   // from a page on, so that a runtime can map a tensor
    struct Place {
        const NetTensor* tensor;
        uint64_t begin;
    };
    std::string name;   // beside the model
    std::vector<Place> places = {};
    uint64_t bytes = 0;

    Message add(const NetTensor& tensor) {
        bytes = (bytes + page_bytes - 1) / page_bytes * page_bytes;
        places.push_back({&tensor, bytes});
        const uint64_t length = tensor.count * sizeof(float);
        Message made;
        for (uint64_t side : tensor.shape) made.number(1, static_cast<int64_t>(side));
        made.number(2, type_float);
        made.text(8, tensor.name);
        for (const auto& [key, value] :
             {std::pair{"location", name}, {"offset", fmt::format("{}", bytes)}, {"length", fmt::format("{}", length)}}) {
            Message entry;
            entry.text(1, key), entry.text(2, value);
            made.message(13, entry);
        }
        made.number(14, 1);   // EXTERNAL
        bytes += length;
        return made;
    }
    Status write(const std::string& path, std::span<const float> parameters) const {
        const std::vector<std::byte> zeros(page_bytes);
        NewFile file(path);
        GC_TRY(file.open());
        uint64_t at = 0;
        for (const Place& place : places) {
            GC_TRY(file.add(std::span(zeros).first(place.begin - at)));
            const std::vector<float> values = place.tensor->values(parameters);
            GC_TRY(file.add(std::as_bytes(std::span(values))));
            at = place.begin + values.size() * sizeof(float);
        }
        return file.close();
    }
};

using Form = OnnxOperator::Form;

/// A value of the graph: a layer's output, or the net's input.
struct Value {
    std::string name;
    Form form = Form::planes;
    Shape shape{};
};

class Graph {
public:
    /// data: takes the large tensors; null: all are in the graph.
    Graph(const Model& model, const std::vector<Layer>& layers, const std::vector<NetTensor>& tensors, std::span<const float> parameters,
          DataFile* data)
        : net_(model.net), layers_(layers), tensors_(tensors), parameters_(parameters), data_(data) {}

    Message make() {
        const bool text = net_.vocabulary > 0;
        Value in{text ? "tokens" : "image", text ? Form::rows : Form::planes};
        if (text) end(11, in.name, type_int64, {net_.positions()});
        else end(11, in.name, type_float, {net_.C, net_.H, net_.W});
        if (net_.pad) {
            const int64_t pad = net_.pad, pads[] = {0, 0, pad, pad, 0, 0, pad, pad};
            integers("image.pads", pads);
            in.name = node("Pad", {"image", "image.pads"}, {"image.padded"}, {});
        }
        for (const Layer& layer : layers_) {
            if (layer.input == Layer::none) in.shape = layer.in;
            values_.push_back(value(layer, layer.input == Layer::none ? in : values_[layer.input]));
        }
        const Shape& out = layers_.back().out;
        const Form form = text ? Form::rows : layers_.back().by_position ? Form::planes : Form::flat;
        node("Identity", {formed(values_.back(), form).name}, {"logits"}, {});
        if (form == Form::rows) end(12, "logits", type_float, {out.H, out.C});
        else if (form == Form::planes) end(12, "logits", type_float, {out.C, out.H, out.W});
        else end(12, "logits", type_float, {out.C});
        graph_.text(2, "gradcast");
        for (const NetTensor& tensor : tensors_) {
            const bool apart = data_ && tensor.count * sizeof(float) >= DataFile::tensor_bytes_min;
            graph_.message(
                5, apart ? data_->add(tensor)
                         : tensor_of<float>(tensor.name, type_float, tensor.shape, std::span<const float>(tensor.values(parameters_))));
        }
        return std::move(graph_);
    }

private:
    /// Nodes of one layer.  The last one's output is the layer's.
    class Nodes : public OnnxNodes {
    public:
        Nodes(Graph& graph, const Layer& layer) : graph_(graph), layer_(layer) {}
        std::string node(const char* type, const std::vector<std::string>& inputs, const std::vector<Attribute>& attributes,
                         uint32_t outputs) override {
            const std::string name = next();
            std::vector<std::string> names;
            for (uint32_t k = 0; k < outputs; ++k) names.push_back(output(name, k));
            return graph_.node(type, inputs, names, attributes);
        }
        std::string reals(std::span<const uint64_t> shape, std::span<const float> values) override {
            std::string name = next();
            graph_.graph_.message(5, tensor_of<float>(name, type_float, shape, values));
            return name;
        }
        std::string shared(const std::string& name, std::span<const uint64_t> shape,
                           const std::function<std::vector<float>()>& make) override {
            if (graph_.shared_.insert(name).second)
                graph_.graph_.message(5, tensor_of<float>(name, type_float, shape, std::span<const float>(make())));
            return name;
        }
        std::string integers(const std::vector<int64_t>& values) override {
            std::string name = next();
            graph_.integers(name, values);
            return name;
        }
        std::string weight() const override {
            const Layer& of = layer_.tied == Layer::none ? layer_ : graph_.layers_[layer_.tied];
            return of.spec.name + ".weight";
        }
        std::string bias() const override { return layer_.spec.name + ".bias"; }

    private:
        std::string next() { return fmt::format("{}.value{}", layer_.spec.name, count_++); }
        Graph& graph_;
        const Layer& layer_;
        uint32_t count_ = 0;
    };

    /// The value that a layer makes of x.
    Value value(const Layer& layer, const Value& x) {
        const OnnxOperator& op = layer.kind->onnx;
        const std::string& name = layer.spec.name;
        if (op.passes) return x;
        const Value* other = layer.other == Layer::none ? nullptr : &values_[layer.other];
        Form form = op.form;
        if (form == Form::any) form = other && other->form != x.form ? Form::planes : x.form;
        std::vector<std::string> inputs = {formed(x, form).name};
        if (other) inputs.push_back(formed(*other, form).name);
        Nodes nodes(*this, layer);
        if (op.make) return {op.make(nodes, layer, inputs[0]), form, layer.out};
        if (layer.weights) inputs.push_back(nodes.weight());
        if (layer.biases) inputs.push_back(nodes.bias());
        if (layer.statistics) inputs.insert(inputs.end(), {name + ".running_mean", name + ".running_var"});
        std::vector<OnnxNodes::Attribute> attributes = op.windowed ? window(layer) : std::vector<OnnxNodes::Attribute>();
        for (const OnnxOperator::Attribute& each : op.attributes) {
            const double is = each.key ? layer.value(each.key->name) : static_cast<double>(each.value);
            if (each.real) attributes.push_back({each.name, static_cast<float>(is)});
            else attributes.push_back({each.name, static_cast<int64_t>(is)});
        }
        return {node(op.type, inputs, {name + ".output"}, attributes), form, layer.out};
    }

    /// The same value in that form.
    Value formed(const Value& x, Form form) {
        if (x.form == form) return x;
        const int64_t C = x.shape.C, H = x.shape.H, W = x.shape.W;
        auto reshaped = [&](const std::string& from, const char* as, std::vector<int64_t> sides) {
            const std::string name = fmt::format("{}.{}{}", x.name, as, forms_++);
            integers(name + ".shape", sides);
            return node("Reshape", {from, name + ".shape"}, {name}, {});
        };
        auto turned = [&](const std::string& from, const char* as) {   // the last two of three sides
            return node("Transpose", {from}, {fmt::format("{}.{}{}", x.name, as, forms_++)}, {{"perm", std::vector<int64_t>{0, 2, 1}}});
        };
        // Any form becomes [N, C, positions] or planes on its way to another.
        std::string name = x.name;
        if (x.form == Form::rows) name = turned(name, "channels");
        if (form == Form::rows) name = turned(reshaped(name, "channels", {0, C, H * W}), "rows");
        else if (form == Form::flat) name = node("Flatten", {name}, {fmt::format("{}.flat{}", x.name, forms_++)}, {{"axis", 1}});
        else name = reshaped(name, "planes", {0, C, H, W});
        return {name, form, x.shape};
    }

    /// A window that begins inside but is partly outside counts where `ceil` is set.  Runtimes do not agree on what their own ceil_mode
    /// does at the end, so the padding there is what such windows need, and the rounding is always down.
    static std::vector<OnnxNodes::Attribute> window(const Layer& layer) {
        const Window& of = layer.window;
        const int64_t kernel = of.kernel, stride = of.stride, pad = of.pad, dilation = of.dilation;
        auto end = [&, rounds_up = of.ceil](uint32_t side, uint32_t windows) {
            return rounds_up ? std::max<int64_t>((int64_t{windows} - 1) * stride + kernel - side - pad, 0) : pad;
        };
        using Numbers = std::vector<int64_t>;
        std::vector<OnnxNodes::Attribute> all = {{"kernel_shape", Numbers{kernel, kernel}},
                                                 {"strides", Numbers{stride, stride}},
                                                 {"pads", Numbers{pad, pad, end(layer.in.H, layer.out.H), end(layer.in.W, layer.out.W)}}};
        if (dilation > 1) all.push_back({"dilations", Numbers{dilation, dilation}});
        if (layer.groups > 1) all.push_back({"group", layer.groups});
        return all;
    }

    /// Returns the name of its first output.
    std::string node(const char* type, const std::vector<std::string>& inputs, const std::vector<std::string>& outputs,
                     const std::vector<OnnxNodes::Attribute>& attributes) {
        Message made;
        for (const std::string& name : inputs) made.text(1, name);
        for (const std::string& name : outputs) made.text(2, name);
        made.text(3, outputs[0]);
        made.text(4, type);
        for (const OnnxNodes::Attribute& each : attributes) {
            Message attribute;
            attribute.text(1, each.name);
            attribute.number(20, attribute_types[each.value.index()]);
            std::visit(Fields{attribute}, each.value);
            made.message(5, attribute);
        }
        graph_.message(1, made);
        return outputs[0];
    }
    /// By the alternative of OnnxNodes::Attribute::value.
    static constexpr int64_t attribute_types[] = {2, 1, 3, 7};
    struct Fields {
        Message& to;
        void operator()(int64_t value) const { to.number(3, value); }
        void operator()(float value) const { to.real(2, value); }
        void operator()(const char* value) const { to.text(4, value); }
        void operator()(const std::vector<int64_t>& values) const {
            for (const int64_t value : values) to.number(8, value);
        }
    };
    void integers(const std::string& name, std::span<const int64_t> values) {
        const uint64_t sides[] = {values.size()};
        graph_.message(5, tensor_of(name, type_int64, sides, values));
    }
    /// An input (11) or output (12) of the graph, [N, sides].
    void end(uint32_t field, const std::string& name, DataType elements, const std::vector<uint32_t>& sides) {
        Message shape, dim, tensor, type, value;
        dim.text(2, "N");
        shape.message(1, dim);
        for (uint32_t side : sides) {
            Message fixed;
            fixed.number(1, side);
            shape.message(1, fixed);
        }
        tensor.number(1, elements), tensor.message(2, shape);
        type.message(1, tensor);
        value.text(1, name), value.message(2, type);
        graph_.message(field, value);
    }

    const NetSpec& net_;
    const std::vector<Layer>& layers_;
    const std::vector<NetTensor>& tensors_;
    const std::span<const float> parameters_;
    DataFile* const data_;
    std::vector<Value> values_;   // by layer
    uint32_t forms_ = 0;          // changes of form, for names
    std::set<std::string> shared_;
    Message graph_;
};

}   // namespace

Status onnx_write(const std::string& path, const Model& model, std::span<const float> parameters, uint64_t inside_bytes_max) {
    std::vector<Layer> layers;
    GC_TRY(layers_check(model.net, &layers));
    for (const Layer& layer : layers)
        if (!layer.kind->onnx.exists())
            return fail(Code::unsupported, "{}: ONNX has no operator for layer {}, a {}: export to safetensors", path, layer.spec.name,
                        layer.kind->name);
    const std::vector<NetTensor> tensors = net_tensors(layers);
    const std::string data_path = onnx_data_path(path);
    DataFile data{.name = data_path.substr(data_path.rfind('/') + 1)};
    const bool apart = onnx_apart(parameters, inside_bytes_max);
    Message file, operators;
    operators.text(1, ""), operators.number(2, operator_set);
    file.number(1, ir_version);
    file.text(2, "gradcast"), file.text(3, version_text);
    file.message(7, Graph(model, layers, tensors, parameters, apart ? &data : nullptr).make());
    file.message(8, operators);
    auto property = [&](const char* key, const std::string& value) {
        Message entry;
        entry.text(1, key), entry.text(2, value);
        file.message(14, entry);
    };
    property("mean", fmt::format("[{}]", fmt::join(model.mean, ",")));
    property("std", fmt::format("[{}]", fmt::join(model.std, ",")));
    property("digest", model.digest);
    if (model.pictures_side > 0) property("pictures_side", fmt::format("{}", model.pictures_side));
    property("class_names",
             nlohmann::json(class_names_split(model.class_names)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    if (const uint64_t bytes = file.bytes().size(); bytes > file_bytes_max)
        return fail(Code::unsupported, "{}: an ONNX file holds at most {} bytes beside its data, not {}: export to safetensors", path,
                    file_bytes_max, bytes);
    const bool replaces = ::access(data_path.c_str(), F_OK) == 0;
    if (apart) GC_TRY(data.write(data_path, parameters));
    const Status status = file_write(path, file.bytes());
    if (!status.ok() && apart && !replaces) ::unlink(data_path.c_str());
    return status;
}

}   // namespace gradcast
