// What on this node may stand in the way of jobs: `gradcastctl doctor`.
#pragma once
#include "runtime/control/backend.h"
#include "runtime/daemon/config.h"
#include "runtime/mesh/membership.h"

namespace gradcast {

/// The checks of this process and machine alone.  Blocks for some milliseconds.
/// root: of /proc and /sys, for limits of control groups (tests use another one).
std::vector<Finding> doctor_node(const DaemonConfig& config, const std::string& root = "");
/// With `commands`: what who submits jobs with net.command can do, for doctor and --check.
std::string command_warning(const DaemonConfig& config);
/// The checks of the cluster: which nodes answer (`nodes` and `peers` have the same order), what the mesh's datagrams have found, and how
/// many of its streams have not answered their probe (LinkCounters::probing).
std::vector<Finding> doctor_cluster(const DaemonConfig& config, const std::vector<NodeInfo>& nodes, const std::vector<PeerState>& peers,
                                    const std::optional<DatagramsFound>& found, uint32_t unanswered);

}   // namespace gradcast
