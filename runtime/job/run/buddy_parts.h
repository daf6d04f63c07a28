// With `buddy`: what a node has beside the net of its own stage, from before the first step on.  Nets of all runs of stages that it may
// come to compute; the one of the longest run also holds the state of the stages that the node keeps meanwhile.
//
//     while no node is lost    net of stage 0: computes              net of stages 0 and 1: has the state of 1, which follows step by step
//     node of stage 1 lost     its parameters, optimiser state and scales go over -->      computes both
#pragma once
#include <vector>

#include "algos/grid/buddies.h"
#include "algos/kept_stages.h"
#include "runtime/job/model/state_vectors.h"
#include "runtime/job/run/cuda_module.h"

namespace gradcast {

struct JobParts;
struct EngineConfig;
struct ViewStages;

/// A part of a state in memory.
struct StateMemory {
    StateRuns runs;   // offsets are those in `vectors`
    PerVector<std::span<std::byte>> vectors;
    static constexpr uint32_t none = ~0u;
    uint32_t kept = none;   // the stage that it is of; none: it is of those that the node computes
    /// Where elements lie that are neighbours in it; empty: they are not there.
    std::span<std::byte> at(StateVector which, uint64_t place, uint64_t count) const;
};

class BuddyParts {
public:
    /// Plans nets and kept stages.  `like`: the configuration of the own stage's net.  `parts` have planned that one.
    Status plan(JobParts& parts, const EngineConfig& config, const NetConfig& like);
    /// Takes the memory, with the job's first parameters.
    Status ready(const EngineConfig& config);
    const Arena& arena() const { return arena_; }

    /// This node's state of a stage is that after so many steps, as of the last note(); Context::no_part: it has none.
    StepId held(const JobParts& parts, uint32_t stage) const;
    /// `part_step`: of the present run and the kept stages; Context::no_part: held() stays.
    void note(const JobParts& parts, StepId part_step);
    void hold(uint32_t stage, StepId step) { held_[stage] = step; }

    /// Between sessions: the node computes what it has to in a view, from the state that it has.
    void turn(JobParts& parts, const ViewStages& view, Rank self);
    /// The stages that it keeps in the present view.
    std::vector<KeptStage*> kept();
    /// Their states.  owned: also weights for which another stage stands (Group::shared).
    std::vector<StateMemory> kept_memory(const JobParts& parts, bool owned = true);
    /// Returns the computer of the node's longest run, which has the most elements, values of the optimiser and scales.
    const Computer& longest(const JobParts& parts) const;

private:
    struct Other {
        StageRun run;
        Computer computer;
    };
    Computer& computer_of(JobParts& parts, const StageRun& run);
    StateMemory memory_of(const JobParts& parts, KeptStage& stage, bool owned = true);

    Arena arena_;
    std::vector<Other> others_;
    StageRun longest_;
    std::vector<KeptStage> all_;    // that this node may keep
    std::vector<uint32_t> keeps_;   // in the present view
    std::vector<StepId> held_;      // by stage
};

}   // namespace gradcast
