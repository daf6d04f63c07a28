// The net of a saved model on this machine's CPU, forward only: what evaluate and predict compute with.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/arena.h"
#include "runtime/core/lanes.h"
#include "runtime/job/file/job_file.h"
#include "runtime/job/model/evaluate.h"
#include "runtime/job/model/model_file.h"

namespace gradcast {

struct ModelNet {
    ModelNet() = default;
    ModelNet(const ModelNet&) = delete;
    ModelNet& operator=(const ModelNet&) = delete;

    /// Reads final.h5, a checkpoint, or a file written by safetensors_write() whose name ends in .safetensors.  Plans its net for batches
    /// of `samples` samples, which it computes in pieces (evaluation_piece()), in bf16 if the job was in bf16 and this CPU supports it,
    /// else in float32.  The caller may plan more memory in `arena` until ready().  averaged: with the averaged weights (model_averaged()),
    /// which a file of tensors does not have.
    Status open(const std::string& path, uint32_t threads, uint32_t samples = evaluation_batch, bool averaged = false);
    /// Takes the memory, fills in the parameters and starts the lanes.
    Status ready();

    Model model;
    uint32_t classes = 0;   // the net was trained on the first so many classes of its data; 0: on all, or not known
    Arena arena;
    std::unique_ptr<Net> net;
    Lanes lanes;
    uint32_t threads = 1;

private:
    std::vector<float> parameters_;
};

}   // namespace gradcast
