// The network interface that datagrams use.  It is always named by the user: a group without one would leave by the default route.
#pragma once
#include <string>

#include "transport/link/socket.h"

namespace gradcast {

struct NetworkInterface {
    std::string name;
    uint32_t index = 0;
    SocketAddress address;   // port 0; IPv4 where a name was given and it has one
    uint32_t mtu = 0;
    bool ipv6() const { return address.storage.ss_family == AF_INET6; }
};
/// By name ("eth0") or by one of its addresses.  The error lists what there is.
Status interface_find(const std::string& wanted, NetworkInterface* found);

}   // namespace gradcast
