// The network interface that datagrams use.  It is always named by the user: a group without one would leave by the default route.
#pragma once
#include <string>

#include "transport/link/socket.h"

namespace gradcast {

struct NetworkInterface {
    std::string name;
    uint32_t index = 0;
    SocketAddress address;   // port 0; with the scope of a link-local one
    uint32_t mtu = 0;
    bool ipv6() const { return address.storage.ss_family == AF_INET6; }
};
/// By name ("eth0") or by one of its addresses ("fe80::1%eth0" too).  `family`: of the address that is wanted; 0: that of the address that
/// was given, or IPv4 where the interface has one.  A global IPv6 address goes before a link-local one.
/// The error lists what there is.
Status interface_find(const std::string& wanted, NetworkInterface* found, int family = 0);
/// What it takes now; 0 when it is gone.
uint32_t interface_mtu(const std::string& name);
/// "100mbit", "2.5gbit": a speed in bit/s, as `tc` says it.
Status rate_parse(const std::string& text, uint64_t* bits_per_s);

/// The same for all threads of a network namespace of a running kernel, another one in any other; 0 if that cannot be told.
uint32_t network_place();

}   // namespace gradcast
