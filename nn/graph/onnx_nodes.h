// What kinds of layers write of themselves into an ONNX graph (LayerKind::onnx).
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace gradcast {

/// One layer's nodes.  Values of the graph are named by texts.  All names that it makes begin with the layer's name.
class OnnxNodes {
public:
    virtual ~OnnxNodes() = default;
    struct Attribute {
        const char* name;
        std::variant<int64_t, float, const char*, std::vector<int64_t>> value;
    };
    /// Adds an operator, and returns the name of its first output.  outputs: how many it has; that number k is named output(name, k).
    virtual std::string node(const char* type, const std::vector<std::string>& inputs, const std::vector<Attribute>& attributes = {},
                             uint32_t outputs = 1) = 0;
    static std::string output(const std::string& first, uint32_t k) { return k == 0 ? first : first + "." + std::to_string(k); }
    /// Constants: float32 of that shape (a scalar: {}), and int64 [values].
    virtual std::string reals(std::span<const uint64_t> shape, std::span<const float> values) = 0;
    virtual std::string integers(const std::vector<int64_t>& values) = 0;
    /// reals() of what several layers have: one constant of that name in a graph.  make() gives its values.
    virtual std::string shared(const std::string& name, std::span<const uint64_t> shape,
                               const std::function<std::vector<float>()>& make) = 0;
    std::string real(float value) { return reals({}, std::span(&value, 1)); }
    // The layer's tensors.
    virtual std::string weight() const = 0;
    virtual std::string bias() const = 0;
};

}   // namespace gradcast
