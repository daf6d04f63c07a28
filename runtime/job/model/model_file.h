// A state of a training in a file that any HDF5 tool opens: final.h5 with the trained model, and checkpoints
// (runtime/job/run/checkpoint.h).
//   parameters float32 [elements]   flat: layer after layer, weight then bias      optimiser float32 []   exponents int32 [groups]
//   algorithm uint8 []              state of the algorithm; absent where it has none
//   layers text, one a line: kind name outputs kernel stride pad ceil bias rate from                   job        text, the job file
//   attributes of the root: format "gradcast model", version 5, sample [C, H, W], pad, classes, mean [C], std [C],
//                           digest (SHA-256 of the parameters), step, accuracy and test_loss (-1: not known), evaluated, kernel_set,
//                           data_digest, id of the job, base (folder of the job file's relative paths), state (digest of what the next step
//                           begins from), agreed, content (SHA-256 of all of this, as model_content() puts it); target_scale of a
//                           regression
// A part of a checkpoint has version 6 and the vectors' elements of one cell: ranges uint64 [k, 3], each (vector, place, elements), and the
// attribute whole [4], the sizes of the whole vectors.
// Version 7 adds the types of samples and targets that are not bytes with labels; version 8 the attribute pictures_side.
// Version 1 has no attributes after kernel_set and no algorithm: a model, but no checkpoint.  Versions before 5 were trained with the C
// library's elementary functions.
#pragma once
#include <string>
#include <vector>

#include "nn/net.h"
#include "runtime/job/model/state_vectors.h"

namespace gradcast {

struct Model {
    NetSpec net;
    std::vector<float> mean, std;   // [C], of the data that it was trained on
    std::string job, base;          // the text of the job file, and JobConfig::base
    std::string digest, kernel_set, data_digest;
    std::string class_names;                // of the classes that it distinguishes, as in DataInfo; empty: not known
    std::string alphabet;                   // of a text of characters, as in DataInfo; empty: not known
    uint32_t pictures_side = 0;             // evaluations cut samples out of the middle of pictures whose short side has so many pixels;
                                            // 0: samples of one size, or, before version 8, not known
    std::string id;                         // of the job, 32 hex digits; empty in version 1
    uint64_t step = 0;                      // that are done
    uint64_t state = 0;                     // Context::state; of a part Context::part()
    double accuracy = -1, test_loss = -1;   // of the last evaluation
    uint64_t evaluated = 0;                 // the step after which that was; 0: none
    bool agreed = false;                    // all ranks that took part had this state
    bool other_functions = false;           // of a file before version 5, whose kernel_set no other can equal
};

// Of a state that is in memory.  ModelWriter and ModelReader do the same by ranges.

/// Makes `path`, with room on the disk for all that model_write() will put there.  Error: names the size and the folder.
Status model_reserve(const std::string& path, const Model& model, uint64_t state_bytes);
/// Writes into what model_reserve() made, else into a new file; the caller renames.  Error: names the file; also where model.digest is
/// not empty and not that of the parameters.  After an error no file remains.
Status model_write(const std::string& path, const Model& model, const ModelState& state);
/// A part of the state with these sizes; state: the elements of `runs`.
Status model_write(const std::string& path, const Model& model, const ModelState& state, const StateSizes& sizes, const StateRuns& runs);
/// final.h5 in the folder of a job that does not run any more, also where it was ended before the model got that name.  Empty: there is
/// none, and no room is reserved for it any more.
std::string model_kept(const std::string& folder);
/// Errors name the file and the thing: not a model, damaged.  The parameters are as many as the net's layers have.
Status model_read(const std::string& path, Model* model, std::vector<float>* parameters);
/// The same with the averaged weights in place of the weights (optimiser.ema), and their digest.  Error: the job keeps none.
Status model_averaged(const std::string& path, Model* model, std::vector<float>* parameters);
/// The same of a checkpoint, with all of its state.  Error also where it is of version 1.
Status checkpoint_read(const std::string& path, Model* model, ModelVectors* state);
/// The same without the vectors: a piece of them at a time is in memory.
Status model_check(const std::string& path, Model* model);
Status checkpoint_check(const std::string& path, Model* model);

}   // namespace gradcast
