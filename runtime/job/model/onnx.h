// ONNX, the format in which runtimes for inference take nets: a graph of operators (operator set 17) with its weights, as a protobuf.
#pragma once
#include "runtime/job/model/model_file.h"

namespace gradcast {

/// Leaves room in a protobuf for the graph and its constants, such as the rotations of a text's positions.
constexpr uint64_t onnx_inside_bytes_max = uint64_t{7} << 28;   // 1.75 GiB

/// Writes the net as it is evaluated, for any N.  Input: "image" float32 [N, C, H, W], normalised samples, or of a text "tokens" int64
/// [N, positions].  Output: "logits" [N, classes], of a regression [N, outputs] (the prediction), of masks [N, classes, H, W], of a text
/// [N, positions, vocabulary].  The tensors' names are those of runtime/job/model/tensors.h; mean, std and digest are in
/// metadata_props.  A protobuf holds less than 2 GiB: where the parameters have more than `inside_bytes_max`, tensors of at least 1 KiB lie
/// in the file onnx_data_path(path) beside it (data_location EXTERNAL), each from a multiple of 4096 on.  Memory: the file, and outside of
/// it one tensor at a time.  Errors: Code::unsupported (a layer without an operator; a file that would be too large); of the disk.  After
/// an error the path has what it had before, and a data file that was there may be replaced.
Status onnx_write(const std::string& path, const Model& model, std::span<const float> parameters,
                  uint64_t inside_bytes_max = onnx_inside_bytes_max);
/// True where onnx_write() makes two files.
inline bool onnx_apart(std::span<const float> parameters, uint64_t inside_bytes_max = onnx_inside_bytes_max) {
    return parameters.size_bytes() > inside_bytes_max;
}
inline std::string onnx_data_path(const std::string& path) { return path + ".data"; }

}   // namespace gradcast
