// Slices: runs of a layer's outputs that are computed apart, so that nodes can share a layer.  How many there are is part of the net: sums
// over slices are a binary tree, whoever computes them.  A slice of an embedding has rows of its weights, and nothing is summed.
#pragma once
#include "nn/graph/layers.h"

namespace gradcast {

/// The key by which a layer has slices (1: it is not sliced).  slices_choose() sets it; job files have no such key.
inline constexpr LayerKey slices_key{
    .name = "slices", .type = LayerKey::Type::integer, .value = 1, .min = 1, .max = 256, .help = "", .of_job_files = false};

/// Where slice t of `slices` begins in `outputs` (of an embedding: rows); of t = slices its end.
constexpr uint32_t slice_begin(uint32_t t, uint32_t outputs, uint32_t slices) {
    return static_cast<uint32_t>(uint64_t{t} * outputs / slices);
}

constexpr uint64_t sliced_weights = 1 << 18;   // of layers that are sliced where no layer is named

/// Cuts the layers of these names into `slices`.  If no layer is named, slices the inner products of at least sliced_weights weights.
/// If the net has none, slices linear layers and embeddings of that size whose weights no other layer takes.  If it has none of these
/// either, slices layers that share weights of that size (LayerSpec::weights_of), all of them.  Error: a name that is no such layer; a
/// layer without the others of the same weights; a number that does not fit.  *about becomes the key of the job file that it is about.
Status slices_choose(uint32_t slices, std::span<const std::string> names, NetSpec* spec, std::string* about);
/// Names of the layers that are sliced.
std::vector<std::string> sliced_layers(std::span<const Layer> layers);
/// Sets Layer::slices of a layer whose shape and places are known.  Error: names the layer and the numbers that are possible.
Status slices_make(Layer& layer);

}   // namespace gradcast
