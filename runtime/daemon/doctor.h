// What on this node may stand in the way of jobs: `gradcastctl doctor`.
#pragma once
#include "runtime/control/backend.h"
#include "runtime/daemon/config.h"

namespace gradcast {

/// The checks of this process and machine alone.  Blocks for some milliseconds.
std::vector<Finding> doctor_node(const DaemonConfig& config);
/// The checks of the cluster: which nodes answer, and what the mesh's datagrams have found.
std::vector<Finding> doctor_cluster(const DaemonConfig& config, const std::vector<NodeInfo>& nodes,
                                    const std::vector<uint32_t>& datagram_bytes, const std::optional<DatagramsFound>& found);

}   // namespace gradcast
