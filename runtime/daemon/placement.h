// Where the processes of a launcher are: the nodes of one job by rank, as Slurm, MPI or a list names them.  Nothing of a launcher is
// linked: its environment variables are read.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/daemon/config.h"

namespace gradcast {

using Environment = std::function<const char*(const char*)>;   // getenv

struct LaunchedNodes {
    std::vector<NodeAddress> nodes;   // by rank; names differ
    uint32_t rank = 0;
    uint32_t local = 0, locals = 1;   // number of this process among those of its host
    std::string id;                   // of the run, for its folder: "gradcast-4711.0"
    Fd listener;                      // of our address, where the port was chosen here
};

/// The names in a list of Slurm, as "n[1-3,07],login1": n1 n2 n3 n07 login1.  At most ranks_max.
Status hostlist_expand(const std::string& list, std::vector<std::string>* hosts);
/// The step of `srun`, one task a node; ranks are by SLURM_STEP_NODELIST, however tasks are numbered.  Rank k listens on port + k (0: one
/// that follows from the numbers of job and step).
Status placement_slurm(const Environment& environment, uint16_t port, LaunchedNodes* placement);
/// "a,b:4701,c" with the port 4700 + rank where none is given; rank < 0: the one whose address is of this machine.
Status placement_hosts(const std::string& hosts, int rank, uint16_t port, LaunchedNodes* placement);

struct MpiRank {
    uint32_t rank = 0, size = 0, local = 0, locals = 1;
};
/// Variables of Open MPI, of MPICH and of others with hydra.
Status mpi_rank(const Environment& environment, MpiRank* mpi);
/// MPI does not say where its ranks are: they find each other by files in `folder`, which all of them see.  Each opens a listening socket,
/// writes its host and port, and rank 0 writes the list when all are there.  host: of our address; "" : the host's name, or loopback where
/// all ranks are on one machine, or the address of a machine whose name another one has too.  Files of an earlier run are not taken for
/// those of this one.  Waits until `deadline_us` (clock_us).
Status placement_rendezvous(const MpiRank& mpi, const std::string& folder, const std::string& host, uint16_t port, uint64_t deadline_us,
                            LaunchedNodes* placement);

}   // namespace gradcast
