// safetensors, the format in which PyTorch and others exchange tensors: 8 bytes with the length of a JSON header, the header (dtype, shape
// and place of every tensor), the data, little-endian.
#pragma once
#include "runtime/job/model/model_file.h"

namespace gradcast {

/// Writes the net's tensors (runtime/job/model/tensors.h) as float32; in __metadata__, each as JSON: net (its layers), sample [C, H, W],
/// pad, classes, class_names (a list, empty: not known), mean and std [C] of the data, digest (of final.h5's parameters), step, accuracy,
/// kernel_set, target_scale (0: classes), pictures_side (of pictures). The file is whole or not there.
/// Of a net that a process computes it has all names of the state: tensors with several names under each, PyTorch's counts of batches (the
/// number of steps), and the constants out of constants.safetensors (constants.h) in that folder.  folder empty: without constants.  Error:
/// there are some, and no such file, or that of another net.
Status safetensors_write(const std::string& path, const Model& model, std::span<const float> parameters, const std::string& folder = {});

/// Which tensors of a file a net takes: those that match one of `only` (none: all) and none of `skip`.  Patterns of fnmatch(3), in which *
/// also stands for dots, of names without the prefix.  What the net does not take keeps its values; in the file it may have any shape, or
/// be missing, and the file may have tensors of such names that the net does not have.
struct TensorChoice {
    std::vector<std::string> only = {}, skip = {};
};

/// Reads such a file, whoever wrote it, into the flat vector of the net.  It must hold the net's tensors, all that `choice` takes, in the
/// net's shapes, and nothing else but PyTorch's count of batches (LAYER.num_batches_tracked), aliases and constants of the net, which must
/// have the net's values.  A prefix that all names share is omitted ("module.", "_orig_mod."). F16, BF16 and F64 are converted to float32;
/// an F64 value that float32 does not hold is an error.  Errors name file and tensor. A pattern that no tensor of net and file matches is
/// an error that begins with its key, "net.start_skip: ...". *digest: SHA-256 of the file.  *notes: what was omitted or converted, for
/// people.  own: of a stage, whose elements `parameters` are; other tensors are checked and dropped, one at a time in memory.  Null:
/// `parameters` are those of the whole net.
Status safetensors_read(const std::string& path, const NetSpec& net, std::span<float> parameters, std::string* digest, std::string* notes,
                        const Layout* own = nullptr, const TensorChoice& choice = {});
/// Reads a model from what safetensors_write() wrote: net, sample, mean, std and class names from the metadata.  It has no job, id, step or
/// kernel set.  Its digest is of the parameters as read: batch norm's variances were rounded.
Status safetensors_model(const std::string& path, Model* model, std::vector<float>* parameters);

}   // namespace gradcast
