// The two sockets of a rank's datagrams: one receives from the group, the other sends and receives what is for this rank alone.
#pragma once
#include "runtime/core/log.h"
#include "transport/link/link.h"
#include "transport/link/socket.h"

namespace gradcast {

struct DatagramSockets {
    Fd group, own;
    SocketAddress group_address, own_address;   // own: of the interface, with the port that was picked
    std::string interface;                      // its name
    int interface_index = 0;
    uint32_t mtu = 0;
    uint32_t place = 0;                     // network_place()
    bool segments = false, joins = false;   // UDP_SEGMENT and UDP_GRO are there
    bool ipv6() const { return group_address.storage.ss_family == AF_INET6; }
};
/// Error: Code::invalid, naming the interface, address or group that is wrong and what there is instead; Code::node_io.
/// A receive buffer below what is wanted is one warning.
Status datagram_sockets_open(const DatagramConfig& config, const Log& log, DatagramSockets* sockets);
/// Whether own multicasts are delivered in this network namespace (IP_MULTICAST_LOOP).  On at first; without effect on lo.
void datagram_loop(const DatagramSockets& sockets, bool on);

}   // namespace gradcast
