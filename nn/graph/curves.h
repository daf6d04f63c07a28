// Layers that apply a function of one number to each element.  nn/curves.h computes these functions, also on GPUs.
#pragma once
#include <cstdint>

namespace gradcast {

struct Layer;

enum class Curve : uint8_t { gelu, gelu_tanh, silu, sigmoid, tanh };
constexpr uint32_t curve_count = 5;
namespace curves {
constexpr float root_2_by_pi = 0x1.988454p-1f;   // sqrt(2 / pi), of gelu_tanh
}
/// Returns the function of a layer whose kind is in nn/graph/curves.cc.
Curve curve_of(const Layer& layer);

}   // namespace gradcast
