#include "transport/datagram/datagram_socket.h"

#include <netinet/udp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/core/digest.h"
#include "runtime/core/net/interface.h"

namespace gradcast {
namespace {

constexpr uint32_t receive_bytes_wanted = 4 << 20;

Status group_address(const std::string& text, SocketAddress* address) {
    GC_TRY(address_resolve(text, false, address));
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address->storage);
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address->storage);
    const bool ipv6 = address->storage.ss_family == AF_INET6;
    if (ipv6 ? !IN6_IS_ADDR_MULTICAST(&v6->sin6_addr) : !IN_MULTICAST(ntohl(v4->sin_addr.s_addr)))
        return fail(Code::invalid, "'{}' is not a multicast group: choose one of 239.192.0.0/14 or ff15::/16", text);
    if ((ipv6 ? v6->sin6_port : v4->sin_port) == 0) return fail(Code::invalid, "the multicast group '{}' has no port", text);
    return {};
}

bool set(int fd, int level, int option, int value) { return ::setsockopt(fd, level, option, &value, sizeof value) == 0; }

// The kernel doubles the value for its own bookkeeping and returns the double.
uint32_t receive_buffer(int fd, uint32_t wanted) {
    const int bytes = static_cast<int>(std::min<uint32_t>(wanted, 1 << 30));
    if (!set(fd, SOL_SOCKET, SO_RCVBUFFORCE, bytes)) set(fd, SOL_SOCKET, SO_RCVBUF, bytes);
    int got = 0;
    socklen_t size = sizeof got;
    if (::getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &got, &size) != 0) return 0;
    return static_cast<uint32_t>(got) / 2;
}

}   // namespace

Status datagram_sockets_open(const DatagramConfig& config, const Log& log, DatagramSockets* sockets) {
    DatagramSockets& s = *sockets;
    GC_TRY(group_address(config.group, &s.group_address));
    const bool ipv6 = s.ipv6();
    NetworkInterface interface;
    GC_TRY(interface_find(config.interface, &interface, ipv6 ? AF_INET6 : AF_INET));
    s.own_address = interface.address;
    s.interface = interface.name;
    s.mtu = interface.mtu;
    s.interface_index = static_cast<int>(interface.index);
    const uint32_t around = datagram_overhead_bytes + (ipv6 ? 48 : 28);   // with IP and UDP headers
    if (config.segment_bytes + around > s.mtu)
        return fail(Code::invalid, "datagrams of {} bytes do not fit interface {}, whose MTU is {}: set it to {}", config.segment_bytes,
                    s.interface, s.mtu, config.segment_bytes + around);
    auto* group6 = reinterpret_cast<sockaddr_in6*>(&s.group_address.storage);
    auto* group4 = reinterpret_cast<sockaddr_in*>(&s.group_address.storage);
    if (ipv6) group6->sin6_scope_id = static_cast<uint32_t>(s.interface_index);
    for (Fd* fd : {&s.group, &s.own}) {
        *fd = Fd(::socket(ipv6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        if (!*fd) return fail_sys(errno, "cannot open a socket for datagrams");
    }

    // Several daemons on a machine share group and port, and each gets every datagram of the groups that it has joined.
    const int group = s.group.get();
    set(group, SOL_SOCKET, SO_REUSEADDR, 1);
    set(group, ipv6 ? IPPROTO_IPV6 : IPPROTO_IP, ipv6 ? IPV6_MULTICAST_ALL : IP_MULTICAST_ALL, 0);
    if (::bind(group, reinterpret_cast<const sockaddr*>(&s.group_address.storage), s.group_address.bytes) != 0)
        return fail_sys(errno, "cannot bind to the multicast group {} (if another program has its port: ss -ulnp tells which)",
                        config.group);
    int joined;
    if (ipv6) {
        ipv6_mreq join{group6->sin6_addr, static_cast<unsigned>(s.interface_index)};
        joined = ::setsockopt(group, IPPROTO_IPV6, IPV6_ADD_MEMBERSHIP, &join, sizeof join);
    } else {
        ip_mreqn join{group4->sin_addr, reinterpret_cast<sockaddr_in*>(&s.own_address.storage)->sin_addr, s.interface_index};
        joined = ::setsockopt(group, IPPROTO_IP, IP_ADD_MEMBERSHIP, &join, sizeof join);
    }
    if (joined != 0) return fail_sys(errno, "interface {} cannot join the multicast group {}", s.interface, config.group);

    const int own = s.own.get();
    if (::bind(own, reinterpret_cast<const sockaddr*>(&s.own_address.storage), s.own_address.bytes) != 0 ||
        ::getsockname(own, reinterpret_cast<sockaddr*>(&s.own_address.storage), &s.own_address.bytes) != 0)
        return fail_sys(errno, "cannot bind to an address of interface {}", s.interface);
    // Index and address: with the index alone datagrams on lo have the source 0.0.0.0.  The time to live stays 1: routers do not forward
    // the group.  PMTUDISC_PROBE: no fragments and no path MTU; too large is EMSGSIZE.
    bool out;
    if (ipv6) {
        out = set(own, IPPROTO_IPV6, IPV6_MULTICAST_IF, s.interface_index);
        set(own, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE);
    } else {
        ip_mreqn leave{{}, reinterpret_cast<sockaddr_in*>(&s.own_address.storage)->sin_addr, s.interface_index};
        out = ::setsockopt(own, IPPROTO_IP, IP_MULTICAST_IF, &leave, sizeof leave) == 0;
        set(own, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE);
    }
    if (!out) return fail_sys(errno, "cannot send to multicast groups by interface {}", s.interface);
    datagram_loop(s, true);
    s.place = network_place();
    // A segment size of 0 changes nothing and shows whether the kernel has the option.
    s.segments = set(own, SOL_UDP, UDP_SEGMENT, 0);
    s.joins = set(own, SOL_UDP, UDP_GRO, 1) && set(group, SOL_UDP, UDP_GRO, 1);

    const uint32_t wanted = config.socket_bytes ? config.socket_bytes : receive_bytes_wanted;
    const uint32_t got = std::min(receive_buffer(own, wanted), receive_buffer(group, wanted));
    if (got < wanted)
        log.warn("datagram sockets get a receive buffer of {} KiB instead of {} KiB, so bursts may be lost: sysctl -w net.core.rmem_max={}",
                 got / 1024, wanted / 1024, wanted);
    return {};
}

void datagram_loop(const DatagramSockets& sockets, bool on) {
    if (sockets.ipv6()) set(sockets.own.get(), IPPROTO_IPV6, IPV6_MULTICAST_LOOP, on);
    else set(sockets.own.get(), IPPROTO_IP, IP_MULTICAST_LOOP, on);
}

}   // namespace gradcast
