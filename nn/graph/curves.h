// Layers that apply a function of nn/curves.h to each element.
#pragma once
#include "nn/curves.h"
#include "nn/graph/layers.h"

namespace gradcast {

/// Of a layer of a kind in nn/graph/curves.cc.
Curve curve_of(const Layer& layer);

}   // namespace gradcast
