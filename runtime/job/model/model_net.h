// The net of a saved model on this machine's CPU, forward only: what evaluate and predict compute with.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/arena.h"
#include "runtime/core/lanes.h"
#include "runtime/job/file/job_file.h"
#include "runtime/job/model/model_file.h"

namespace gradcast {

struct ModelNet {
    ModelNet() = default;
    ModelNet(const ModelNet&) = delete;
    ModelNet& operator=(const ModelNet&) = delete;

    /// Reads final.h5, a checkpoint, or a file that ends in .safetensors and was written by safetensors_write(), and plans its net for
    /// batches of evaluation_batch samples: in bf16 where the job was and this CPU can, else in float32.  The caller may plan more in
    /// `arena` until ready().
    Status open(const std::string& path, uint32_t threads);
    /// Takes the memory, fills in the parameters and starts the lanes.
    Status ready();

    Model model;
    uint32_t classes = 0;   // of its data the first ones that it was trained on; 0: all, or not known
    Arena arena;
    std::unique_ptr<Net> net;
    Lanes lanes;
    uint32_t threads = 1;

private:
    std::vector<float> parameters_;
};

}   // namespace gradcast
