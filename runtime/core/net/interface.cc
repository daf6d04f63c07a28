#include "runtime/core/net/interface.h"

#include <arpa/inet.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "runtime/core/digest.h"
#include "runtime/core/fd.h"
#include "runtime/core/nearest.h"

namespace gradcast {
namespace {

struct Candidate {   // an interface with one of its addresses, or without
    std::string name, text;
    SocketAddress address;
    bool up;
    int family() const { return address.storage.ss_family; }
    bool link_local() const {
        return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr);
    }
};

Status candidates(std::vector<Candidate>* found) {
    ifaddrs* all = nullptr;
    if (::getifaddrs(&all) != 0) return fail_sys(errno, "cannot list the network interfaces");
    for (const ifaddrs* each = all; each; each = each->ifa_next) {
        Candidate candidate{each->ifa_name, "", {}, (each->ifa_flags & IFF_UP) != 0};
        const int family = each->ifa_addr ? each->ifa_addr->sa_family : AF_UNSPEC;
        if (family == AF_INET || family == AF_INET6) {
            candidate.address.bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
            std::memcpy(&candidate.address.storage, each->ifa_addr, candidate.address.bytes);
            char text[INET6_ADDRSTRLEN] = "";
            if (family == AF_INET) ::inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(each->ifa_addr)->sin_addr, text, sizeof text);
            else ::inet_ntop(AF_INET6, &reinterpret_cast<sockaddr_in6*>(each->ifa_addr)->sin6_addr, text, sizeof text);
            candidate.text = text;
        }
        found->push_back(std::move(candidate));
    }
    ::freeifaddrs(all);
    return {};
}

/// The better address first.
bool before(const Candidate& a, const Candidate& b) {
    if ((a.family() == AF_INET) != (b.family() == AF_INET)) return a.family() == AF_INET;
    return !a.link_local() && b.link_local();
}

}   // namespace

Status interface_find(const std::string& wanted, NetworkInterface* found, int family) {
    std::vector<Candidate> all;
    GC_TRY(candidates(&all));
    std::vector<std::string> names, addresses;
    for (const Candidate& each : all) {
        if (std::find(names.begin(), names.end(), each.name) == names.end()) names.push_back(each.name);
        if (!each.text.empty()) addresses.push_back(each.text);
    }
    if (wanted.empty())
        return fail(Code::invalid, "no interface is chosen for datagrams: name one of {}, or one of their addresses (`interface`)",
                    fmt::join(names, ", "));
    const std::string plain = wanted.substr(0, wanted.find('%'));
    const std::string scope = wanted.substr(std::min(plain.size() + 1, wanted.size()));
    in6_addr parsed;
    const bool is_address = ::inet_pton(AF_INET, plain.c_str(), &parsed) == 1 || ::inet_pton(AF_INET6, plain.c_str(), &parsed) == 1;
    std::string name;
    bool up = false;
    int given = family;
    for (const Candidate& each : all) {
        if (is_address ? each.text != plain || (!scope.empty() && scope != each.name) : each.name != wanted) continue;
        name = each.name;
        up = each.up;
        if (is_address && !family) given = each.family();
    }
    if (name.empty() && is_address)
        return fail(Code::invalid, "{} is not an address of this machine, which has {}", wanted, fmt::join(addresses, ", "));
    if (name.empty()) {
        const std::string near = nearest(wanted, names);
        return fail(Code::invalid, "there is no interface \"{}\" here{}: one of {}, or an address of one", wanted,
                    near.empty() ? "" : fmt::format(", did you mean \"{}\"", near), fmt::join(names, ", "));
    }
    if (!up) return fail(Code::invalid, "interface {} is down: ip link set {} up, or choose another", name, name);
    const Candidate* best = nullptr;
    for (const Candidate& each : all) {
        if (each.name != name || each.text.empty() || (given && each.family() != given)) continue;
        if (!best || (best->text != plain && (each.text == plain || before(each, *best)))) best = &each;
    }
    if (!best)
        return fail(Code::invalid, "interface {} has no IP{} address: give it one, or choose another{}", name,
                    given == AF_INET6 ? "v6"
                    : given           ? "v4"
                                      : "",
                    given ? " (or give an address of the other family)" : "");
    found->name = name;
    found->index = ::if_nametoindex(name.c_str());
    found->address = best->address;
    found->mtu = interface_mtu(name);
    return {};
}

std::vector<std::string> names_split(const std::string& list) {
    std::vector<std::string> names;
    for (size_t at = 0; at < list.size();) {
        const size_t end = std::min(list.find(',', at), list.size());
        if (end > at) names.push_back(list.substr(at, end - at));
        at = end + 1;
    }
    return names;
}

uint32_t interface_mtu(const std::string& name) {
    Fd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    name.copy(request.ifr_name, IFNAMSIZ - 1);
    return ::ioctl(fd.get(), SIOCGIFMTU, &request) == 0 ? static_cast<uint32_t>(request.ifr_mtu) : 0;
}

uint64_t interface_rate(const std::string& name) {
    std::string text;
    if (!file_read("/sys/class/net/" + name + "/speed", &text).ok()) return 0;
    const int64_t mbits = std::strtoll(text.c_str(), nullptr, 10);   // -1 where it is not known
    return mbits > 0 ? static_cast<uint64_t>(mbits) * 1'000'000 : 0;
}

uint32_t network_place() {
    struct stat space;
    std::string boot;
    if (::stat("/proc/thread-self/ns/net", &space) != 0 || !file_read("/proc/sys/kernel/random/boot_id", &boot).ok()) return 0;
    uint64_t digest = splitmix64(splitmix64(space.st_dev) ^ space.st_ino);
    for (const char c : boot) digest = splitmix64(digest ^ static_cast<uint8_t>(c));
    return static_cast<uint32_t>(digest) | 1;   // never 0
}

Status rate_parse(const std::string& text, uint64_t* bits_per_s) {
    double value = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
    const double scale = unit == "kbit" ? 1e3 : unit == "mbit" ? 1e6 : unit == "gbit" ? 1e9 : 0;
    if (error != std::errc() || !(value > 0) || scale == 0 || value * scale < 1 || value * scale > 1e13)
        return fail(Code::invalid, "{}: not a rate like 100mbit or 2.5gbit", text);
    *bits_per_s = static_cast<uint64_t>(value * scale);
    return {};
}

}   // namespace gradcast
