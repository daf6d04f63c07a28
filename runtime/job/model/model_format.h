// What model_writer.cc and model_reader.cc must have alike: names and versions of the file format, its texts, the digest of its content.
#pragma once
#include <string>

#include "datasets/hdf5.h"
#include "runtime/job/model/model_file.h"

namespace gradcast {

constexpr char model_format_name[] = "gradcast model";
// 2: with the states that a training goes on from; 3: with class_names; 4: layers by layer_text(); 5: trained with
// runtime/core/elementary.h
constexpr uint32_t model_format_version = 5, model_elementary_version = 5;
// 6: a part of a state.  Whole states keep version 5, which earlier versions of gradcast read.
constexpr uint32_t model_part_version = 6;
// 7: as 6, with the types of samples and targets, of a net that is typed().
constexpr uint32_t model_typed_version = 7;
// 8: as 7, with pictures_side, of a model that was evaluated on pictures.
constexpr uint32_t model_pictures_version = 8, model_newest_version = 8;
constexpr uint64_t targets_max = uint64_t{1} << 28;   // of a sample: a shard has no more bytes a sample

constexpr uint64_t model_piece_bytes = 1 << 20;   // of a vector, at a time; others may use HDF5 between two pieces

/// The type of a vector's elements in the file.  The caller holds the Hdf5Lock.
hid_t stored_type(StateVector which);

/// The data set "layers" of that version; false: some line is not a layer.
std::string layers_text(const NetSpec& net, uint64_t version);
bool layers_parse(const std::string& text, uint64_t version, NetSpec* net);

/// The attribute "content": SHA-256 of a text that has all that a file holds.  digests: SHA-256 in hex of each vector; sizes and runs are
/// in it where the file is a part.
std::string model_content(const Model& model, const PerVector<std::string>& digests, uint64_t version, const StateSizes& sizes,
                          const StateRuns& runs);

}   // namespace gradcast
