// A job as one node is to run it: the job file, the nodes, and where it goes on from.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/identity.h"
#include "runtime/core/isa.h"
#include "runtime/core/memory_budget.h"
#include "runtime/job/file/job_file.h"
#include "runtime/job/file/sources.h"
#include "runtime/mesh/roster.h"

namespace gradcast {

/// Where a job goes on that has run before.
struct Resume {
    bool on = false;
    uint64_t steps = 0;   // that are done
    uint64_t state = 0;   // digest of the state after them (Model::state)
    /// Who has the checkpoint, or by cell who has the part of each; the others get the state from them.
    std::vector<NodeId> holders;
    std::vector<std::string> paths;   // by cell, at its holder: of the file
    std::string notes;                // for people, a line each: what is otherwise than they may think
};

/// In a job's folder: the parameters that a net of net.command began with.
constexpr char start_file[] = "start.safetensors";

class KernelsMemo;   // runtime/job/run/kernels_memo.h

struct EngineConfig {
    JobId id{};
    JobConfig job;
    Roster roster;              // all nodes of the job; the owner may add some while it runs (job.survive), as to the link
    uint32_t first_nodes = 0;   // so many of the roster's first are the ranks of the first view; 0: all
    bool join = false;          // the job runs without this node, which becomes a member of its next view
    uint32_t nodes() const { return first_nodes > 0 ? first_nodes : static_cast<uint32_t>(roster.size()); }   // of the first view
    NodeId self{};
    uint32_t datagram_bytes = 0;     // payload of one datagram between these nodes; 0: streams alone
    uint64_t pace_bytes_per_s = 0;   // of our datagrams; 0: as the link takes them
    std::string folder;              // of the job; made if missing
    uint32_t lanes = 1;              // the trainer is one of them; 0: it alone, at the priority that it has (the simulator)
    bool loader_threaded = true;
    std::vector<uint32_t> cpus;        // lanes are pinned to these where given
    std::vector<uint32_t> gpus = {};   // that a job on GPUs uses, by CUDA's numbers; empty: all
    uint64_t spend_us = 0;             // see Context (the simulator)
    std::string verified = {};         // the record of data_verify_once(); empty: every byte of the data is read
    MemoryBudget* budget = nullptr;    // of the daemon's jobs; null: what the machine has
    std::string grid = {};             // why the job has its stages and cuts, for people; empty: as its file says
    Resume resume;
    uint64_t until = 0;                    // an audit: the run ends after so many steps, evaluates nothing and keeps no model; 0: the job
    const ClusterKey* key = nullptr;       // signs transcript.json; null: nobody does
    KernelsMemo* kernels_memo = nullptr;   // of tests; null: the job measures its kernels
    uint32_t change_every = 0;             // steps after which a session ends and the next one begins, as tests want it; 0: never
    std::string isa_setting = isa_setting_in_file;   // what messages call it
    bool commands = false;                           // the program of net.command may be started
    std::shared_ptr<const Sources> sources = {};     // it is started from copies of these, which are checked; null: as it is
    std::string sources_at = {};                     // the folder of these copies
    bool confidential = false;                       // see DataOptions
    const std::atomic<bool>* stop = nullptr;         // ends open() with Code::cancelled
};

}   // namespace gradcast
