// What a node has of a job that has run: its answer to a search for checkpoints.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace gradcast {

/// A checkpoint that is whole, or whole as a part (runtime/job/model/checkpoint_files.h).
struct FoundState {
    uint64_t steps = 0, state = 0;   // as Model has them
    bool agreed = false;
    uint32_t cell = 0, cells = 1;   // which part, of how many
};
constexpr size_t found_states_max = 1024;   // a node may have all parts of a checkpoint, one for each stage

struct Found {
    bool active = false;              // it runs, or is being prepared
    std::vector<FoundState> states;   // at most found_states_max
    std::string name, text, base;     // of the job file of the newest
    std::string notes;                // newer checkpoints that are damaged, a line each
};

}   // namespace gradcast
