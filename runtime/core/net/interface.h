// Network interfaces, of datagrams and of rails.  The user always names them: without one a multicast would use the default route.
#pragma once
#include <string>
#include <vector>

#include "runtime/core/net/socket.h"

namespace gradcast {

struct NetworkInterface {
    std::string name;
    uint32_t index = 0;
    SocketAddress address;   // port 0; a link-local one has its scope
    uint32_t mtu = 0;
    bool ipv6() const { return address.storage.ss_family == AF_INET6; }
};
/// Finds an interface by name ("eth0") or by one of its addresses (also "fe80::1%eth0").  family: of the wanted address; 0: of the given
/// address, else IPv4 if the interface has one.  Prefers global IPv6 addresses to link-local ones.  The error lists the interfaces.
Status interface_find(const std::string& wanted, NetworkInterface* found, int family = 0);
/// Splits a list "eth0,eth1".
std::vector<std::string> names_split(const std::string& list);
/// The present MTU; 0 if the interface is gone.
uint32_t interface_mtu(const std::string& name);
/// Returns the rate that its driver states, bit/s; 0: it states none, or the interface is gone.
uint64_t interface_rate(const std::string& name);
/// A rate in bit/s, as tc writes it: "100mbit", "2.5gbit".
Status rate_parse(const std::string& text, uint64_t* bits_per_s);

/// A number that identifies this thread's network namespace and the running kernel; 0: not known.
uint32_t network_place();

}   // namespace gradcast
