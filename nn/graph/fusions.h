// Layers that a device computes as one, and the cuts of a net that this allows.
#pragma once
#include "nn/graph/layers.h"
#include "nn/graph/net_order.h"

namespace gradcast {

/// A pattern of consecutive layers, each the only reader of the one before it.
struct Fusion {
    std::vector<const LayerKind*> kinds;
    bool (*fits)(std::span<const Layer> layers);   // as many as kinds; null: always
};

/// The patterns of nets on GPUs, which other nodes' cuts go by too.
std::vector<Fusion> gpu_fusions();
/// Moves a ReLU just before max pooling behind it: the result is the same, of fewer values.
void layers_pool_first(std::vector<Layer>& layers);
/// By layer: whether it is computed with the one before it.  Patterns are tried in their order at each layer.
std::vector<bool> layers_fused(std::span<const Layer> layers, std::span<const Fusion> patterns);
/// Layers that may begin a stage, ascending: not computed with the one before them, and behind exactly the layers that the list of the net
/// has before them.
std::vector<uint32_t> stage_begins(std::span<const Layer> layers, const std::vector<bool>& fused);
/// The stage with an end that is a number of layers.  Error: it begins or ends inside a fusion, and names the nearest layers that may begin
/// one; its slice groups do not divide a layer's slices.
Status stage_check(std::span<const Layer> layers, std::span<const uint32_t> begins, const Stage& wanted, Stage* stage);
/// `layers` are in the order in which they are computed.
NetOrder net_order(std::span<const Layer> layers, const std::vector<bool>& fused);

}   // namespace gradcast
