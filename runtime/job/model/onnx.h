// ONNX, the format in which runtimes for inference take nets: a graph of operators (operator set 17) with its weights, as a protobuf.
#pragma once
#include "runtime/job/model/model_file.h"

namespace gradcast {

/// Writes the net as it is evaluated, for any N.  Input: "image" float32 [N, C, H, W], normalised samples, or of a text "tokens" int64
/// [N, positions].  Output: "logits" [N, classes], of a regression [N, outputs] (the prediction), of masks [N, classes, H, W], of a text
/// [N, positions, vocabulary].  The tensors' names are those of runtime/job/model/tensors.h; mean, std and digest are in
/// metadata_props. After an error the path has what it had before.
Status onnx_write(const std::string& path, const Model& model, std::span<const float> parameters);

}   // namespace gradcast
