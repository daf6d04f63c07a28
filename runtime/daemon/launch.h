// gradcastd under Slurm, MPI or by hand, for one job: it makes its own configuration from where the launcher has put it (placement.h), rank
// 0 submits the job when all nodes see each other, and every process ends with it.
//
// WORK, a folder of this run, holds `job` (the job's id), `key` where none is given, `meet` (of MPI), and for each rank `rank-K/log` and
// `rank-K/state`, as of any daemon.  The same WORK once more: the job goes on from its newest checkpoint, on the same nodes or on others.
// A job file of another training is refused there.
#pragma once
#include <string>

#include "runtime/core/status.h"

namespace gradcast {

enum class Launcher : uint8_t { none, slurm, mpi, hosts };

struct LaunchOptions {
    Launcher launcher = Launcher::none;
    std::string job;     // path of the job file
    std::string hosts;   // of Launcher::hosts
    int rank = -1;       // in hosts; < 0: found by its address
    uint16_t port = 0;   // of rank 0, rank k has port + k; 0: chosen
    std::string work;    // ""; gradcast-<job>.<step> of Slurm, else the job file's name with .run for its ending, in the working folder
    std::string key;     // a file; "": the environment's GRADCAST_KEY, else WORK/key, which rank 0 makes
    std::string interface, isa = "auto";
    bool anew = false;       // a job begins anew where all checkpoints of WORK's job are damaged
    uint32_t wait_s = 120;   // for the other nodes
};

enum LaunchExit {
    launch_done = 0,
    launch_failed = 1,
    launch_usage = 2,
    launch_again = 75
};   // 75: interrupted by a signal; started again it goes on

/// Runs to the end of the job.  Progress and errors go to stderr, accuracy and digest to stdout, both of rank 0, or of the lowest rank that
/// lives where the job goes on without rank 0; every process's errors begin with its rank.  SIGTERM, SIGINT and SIGUSR1 end the job with a
/// checkpoint.  Returns the exit code of the process.
int launch(const LaunchOptions& options);

}   // namespace gradcast
