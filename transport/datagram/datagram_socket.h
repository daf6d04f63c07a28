// The two sockets of a rank's datagrams: one receives from the group, the other sends and receives what is for this rank alone.
#pragma once
#include "runtime/core/log.h"
#include "runtime/core/net/socket.h"
#include "transport/link/link.h"

namespace gradcast {

struct DatagramSockets {
    Fd group, own;
    SocketAddress group_address, own_address;   // own: the interface's address and a port that the kernel chose
    std::string interface;                      // name
    int interface_index = 0;
    uint32_t mtu = 0;
    uint32_t place = 0;                     // network_place()
    bool segments = false, joins = false;   // the kernel has UDP_SEGMENT; UDP_GRO
    bool rdma = false;                      // no sockets: the addresses are as in rdma.h
    bool ipv6() const { return group_address.storage.ss_family == AF_INET6; }
};
/// Errors: Code::invalid names the wrong interface, address or group and the ones that exist; Code::node_io.  A receive buffer smaller than
/// asked for is a warning in the log.
Status datagram_sockets_open(const DatagramConfig& config, const Log& log, DatagramSockets* sockets);
/// Whether own multicasts are delivered in this network namespace (IP_MULTICAST_LOOP).  On at first; without effect on lo.
void datagram_loop(const DatagramSockets& sockets, bool on);

}   // namespace gradcast
