#include "transport/link/interface.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstring>

namespace gradcast {

Status interface_find(const std::string& wanted, NetworkInterface* found) {
    if (wanted.empty())
        return fail(Code::invalid, "no interface is chosen for datagrams: name one, as \"eth0\", or one of its addresses (`interface`)");
    ifaddrs* all = nullptr;
    if (::getifaddrs(&all) != 0) return fail_sys(errno, "cannot list the network interfaces");
    NetworkInterface result;
    std::string names;
    bool named = false;
    for (const ifaddrs* each = all; each; each = each->ifa_next) {
        const std::string name = each->ifa_name;
        if ((", " + names + ", ").find(", " + name + ", ") == std::string::npos) names += (names.empty() ? "" : ", ") + name;
        named |= name == wanted;
        if (!each->ifa_addr) continue;
        const int family = each->ifa_addr->sa_family;
        if (family != AF_INET && family != AF_INET6) continue;
        char text[INET6_ADDRSTRLEN] = "";
        if (family == AF_INET) ::inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(each->ifa_addr)->sin_addr, text, sizeof text);
        else ::inet_ntop(AF_INET6, &reinterpret_cast<sockaddr_in6*>(each->ifa_addr)->sin6_addr, text, sizeof text);
        // Of a named interface the first IPv4 address, else the first IPv6 one.
        if (wanted != text && !(wanted == name && (result.name.empty() || (family == AF_INET && result.ipv6())))) continue;
        result.name = name, result.index = ::if_nametoindex(each->ifa_name);
        result.address.bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
        std::memcpy(&result.address.storage, each->ifa_addr, result.address.bytes);
    }
    ::freeifaddrs(all);
    if (result.name.empty() && named) return fail(Code::invalid, "interface {} has no IP address: give it one, or choose another", wanted);
    if (result.name.empty())
        return fail(Code::invalid, "there is no interface \"{}\" here: one of {}, or an address of one", wanted, names);
    ifreq request{};
    std::strncpy(request.ifr_name, result.name.c_str(), sizeof request.ifr_name - 1);
    Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket || ::ioctl(socket.get(), SIOCGIFMTU, &request) != 0) return fail_sys(errno, "cannot tell the MTU of {}", result.name);
    result.mtu = static_cast<uint32_t>(request.ifr_mtu);
    *found = result;
    return {};
}

}   // namespace gradcast
