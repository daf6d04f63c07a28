// final.h5: a trained model in a file that any HDF5 tool opens.
//   parameters float32 [elements]   flat: layer after layer, weight then bias      optimiser float32 []   exponents int32 [groups]
//   layers text, one a line: kind name outputs kernel stride pad ceil bias rate from                   job        text, the job file
//   attributes of the root: format "gradcast model", version 1, sample [C, H, W], pad, classes, mean [C], std [C],
//                           digest (SHA-256 of the parameters), step, accuracy (-1: not known), kernel_set; target_scale of a regression
#pragma once
#include <string>
#include <vector>

#include "nn/net.h"

namespace gradcast {

struct Model {
    NetSpec net;
    std::vector<float> mean, std;   // [C], of the data that it was trained on
    std::string job;                // the text of the job file
    std::string digest, kernel_set;
    uint64_t step = 0;
    double accuracy = -1;
};

/// Makes `path`, with room on the disk for all that model_write() will put there.  Error: names the size and the folder.
Status model_reserve(const std::string& path, const Model& model, uint64_t parameters, uint64_t optimiser, uint64_t exponents);
/// Writes into what model_reserve() made, else into a new file; the caller renames.  Error: names the file.  Nothing is left behind then.
Status model_write(const std::string& path, const Model& model, std::span<const float> parameters, std::span<const float> optimiser,
                   std::span<const int32_t> exponents);
/// final.h5 in the folder of a job that does not run any more, also where it was ended before the model got that name.  Empty: there is
/// none, and no room is reserved for it any more.
std::string model_kept(const std::string& folder);
/// Errors name the file and the thing: not a model, damaged.  The parameters are as many as the net's layers have.
Status model_read(const std::string& path, Model* model, std::vector<float>* parameters);

}   // namespace gradcast
