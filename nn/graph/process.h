// Of nets that a process computes: what their state has beside trained tensors and running statistics.
#pragma once
#include <string>
#include <vector>

#include "nn/graph/layer_kind.h"

namespace gradcast {

/// A layer each, in a list that passes the sample's shape on; neither has parameters.  Model files have them, job files do not.
/// constant: a tensor that training leaves as it is.  alias: a further name of the layer `from`, which is a tensor, a constant, or running
/// statistics with all that belongs to them.
extern const LayerKind constant_kind, alias_kind;

/// A tensor that is not trained.  Its bytes are elsewhere (runtime/job/model/constants.h).
struct Constant {
    std::string name;
    std::vector<uint64_t> shape;   // at most tensor_axes_max
    std::string dtype;             // one of constant_dtypes()
    std::string sha256;            // of the bytes, in hex

    uint64_t bytes() const;   // C order, little-endian.  At most constant_bytes_max, where constant_check() is ok
};
constexpr uint64_t constant_bytes_max = uint64_t{4} << 30;
/// As safetensors names them: "F32", "I64", "BOOL".
std::vector<std::string> constant_dtypes();
/// Returns the bytes of a value; 0: there is no such dtype.
uint32_t dtype_bytes(std::string_view dtype);
/// Error: which member is impossible, with its name.
Status constant_check(const Constant& constant);
/// Make a layer of constant_kind from a checked constant, and a constant from such a layer.
LayerSpec constant_layer(const Constant& constant);
Constant constant_of(const LayerSpec& layer);
LayerSpec alias_layer(const std::string& name, const std::string& of);

/// Returns the first constant, by name, that both nets have and that is not the same; empty: there is none.
std::string constant_difference(const NetSpec& a, const NetSpec& b);

}   // namespace gradcast
