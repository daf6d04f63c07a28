// What every member must know of a job before it opens its engine.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/core/identity.h"
#include "runtime/core/protocol.h"

namespace gradcast {

struct JobConfig;   // runtime/job/file/job_file.h

constexpr uint32_t job_text_max = 1 << 20;   // bytes of a job file

/// What a node computes a job with, as its open engine says.  All nodes must have the same, but for the inventory.
struct ComputesWith {
    std::string kernel_set, data_digest, start_digest;   // at most reason_max bytes each
    std::string inventory;                               // runtime/core/inventory.h: names what differs where a digest does
};

struct JobPlan {
    JobId id{};
    std::string name, text, path, base;        // of the job file: see Submission
    std::shared_ptr<const JobConfig> parsed;   // `text`; at the coordinator alone
    uint64_t deadline_us = 0;                  // D: of the job file; once it runs, the longest that a member needs
    uint64_t submitted_unix = 0;
    std::vector<Member> members;                   // by rank; 0 coordinates.  From `first` on: who may join while it runs
    uint32_t first = 0;                            // so many begin it; 0: all
    bool elastic = false;                          // those that may join are invited by themselves, else by add() alone
    uint32_t datagram_bytes = 0;                   // payload of one datagram that every member's interface can carry; 0: streams alone
    bool rdma = false;                             // streams and datagrams go by RDMA at every member that has it
    uint32_t rails = 1;                            // LinkConfig's
    std::vector<std::string> addresses;            // by rank, with more than one rail: as PeerState's; else empty
    bool resumes = false;                          // a run of the job before this one has a checkpoint:
    uint64_t resume_steps = 0, resume_state = 0;   // see Resume
    std::vector<Rank> resume_holders;              // by cell
    bool copies = false;                           // resumes: programs are started from copies in the job's folder, where a node has some
    uint32_t stages = 0;                           // in place of parallel.stages; 0: stages and cuts are those of the job file
    std::vector<std::string> cuts;                 // in place of parallel.cuts
    uint32_t slice_groups = 1;                     // in place of parallel.slice_groups, where `stages` is above 0
    std::string grid;                              // why these, for people
    std::string notes;                             // of the coordinator about this run, a line each; the job reports them
    bool survive = false;   // job.survive: the job goes on without lost members, and a member that is started anew rejoins it
    bool joins = false;     // the receiver does: the job runs, and what it computes with must be these
    ComputesWith with;      // of the other nodes, where `joins`
    std::string server;     // of a benchmark: the rendezvous of its ranks, and `text` is its command line, a word a line; empty: a job
    std::shared_ptr<Fd> listener;   // of that address; at the coordinator alone
    uint32_t first_nodes() const { return first > 0 ? first : static_cast<uint32_t>(members.size()); }
    bool grows() const { return survive && !rdma; }   // nodes that it did not begin with may join it
    /// Of these nodes those that are not in it go behind the others, in this order, so that all number them alike.  Where it grows.
    void extend(std::span<const std::string> names);
    /// How long a member may take to open its engine: like the first step, 10 D (runtime/view/VIEWS.md, "Times").
    uint64_t prepare_us() const { return 10 * deadline_us; }
};
/// The wire form of a plan (of PREPARE); parse returns false where bytes are not one.
std::vector<std::byte> plan_write(const JobPlan& plan);
bool plan_parse(std::span<const std::byte> bytes, JobPlan* plan);

}   // namespace gradcast
