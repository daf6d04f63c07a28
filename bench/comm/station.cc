#include "bench/comm/station.h"

#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/if_link.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>

#include "runtime/core/clock.h"
#include "runtime/core/isa.h"
#include "runtime/core/net/interface.h"
#include "transport/kernel/rdma.h"

namespace gradcast {
namespace {

constexpr uint64_t stream_deadline_us = 30'000'000;
constexpr uint16_t group_port = 4702;

std::string cpu_name() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);)
        if (line.starts_with("model name")) return line.substr(line.find(": ") + 2);
    return "unknown";
}

uint64_t cpu_us(clockid_t clock) {
    timespec now{};
    ::clock_gettime(clock, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
}

// The facts of the interface's driver; unknown ones are omitted.
void ask_driver(const std::string& name, nlohmann::json& facts) {
    Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    auto ask = [&](void* command) {
        ifreq request{};
        std::strncpy(request.ifr_name, name.c_str(), sizeof request.ifr_name - 1);
        request.ifr_data = static_cast<char*>(command);
        return ::ioctl(socket.get(), SIOCETHTOOL, &request) == 0;
    };
    ethtool_drvinfo driver{};
    driver.cmd = ETHTOOL_GDRVINFO;
    facts["driver"] = ask(&driver) ? driver.driver : "";
    ethtool_cmd speed{};
    speed.cmd = ETHTOOL_GSET;
    if (ask(&speed) && ethtool_cmd_speed(&speed) != 0 && ethtool_cmd_speed(&speed) != static_cast<uint32_t>(SPEED_UNKNOWN))
        facts["speed_mbit"] = ethtool_cmd_speed(&speed);
    std::string on;
    for (auto [command, offload] : {std::pair{ETHTOOL_GTSO, "TSO"}, {ETHTOOL_GGSO, "GSO"}, {ETHTOOL_GGRO, "GRO"}}) {
        ethtool_value value{};
        value.cmd = static_cast<uint32_t>(command);
        if (ask(&value) && value.data) on += (on.empty() ? "" : " ") + std::string(offload);
    }
    facts["offloads"] = on;
}

}   // namespace

uint64_t process_cpu_us() { return cpu_us(CLOCK_PROCESS_CPUTIME_ID); }

double percentile(std::vector<double> values, double share) {
    std::sort(values.begin(), values.end());
    return values[std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())))];
}

Status node_facts(const Rendezvous& rendezvous, const std::string& interface, const std::string& rdma, nlohmann::json* facts) {
    const std::vector<std::string> devices = names_split(rdma);
    std::vector<std::string> interfaces = names_split(interface);
    RdmaDevice device;
    if (const RdmaModule * module; !devices.empty()) {
        GC_TRY(rdma_module(&module));
        GC_TRY(module->find(devices[0], &device));
    }
    if (interfaces.empty()) interfaces.push_back(rendezvous.address());
    if (interfaces[0].starts_with('[')) interfaces[0] = interfaces[0].substr(1, interfaces[0].size() - 2);
    NetworkInterface found;
    std::vector<std::string> names;
    for (size_t i = interfaces.size(); i-- > 0;) {   // ends with the first one
        GC_TRY(interface_find(interfaces[i], &found));
        names.insert(names.begin(), found.name);
    }
    utsname system{};
    ::uname(&system);
    char name[256] = "";
    ::gethostname(name, sizeof name - 1);
    std::string address = address_text(found.address);
    address.resize(address.rfind(':'));
    *facts = {{"name", name},
              {"cpu", cpu_name()},
              {"cores", std::thread::hardware_concurrency()},
              {"kernel", system.release},
              {"isa", isa_name(isa_best())},
              {"interface", fmt::format("{}", fmt::join(names, ","))},
              {"interfaces", names.size()},
              {"devices", devices.size()},
              {"address", address},
              {"ipv6", found.ipv6()},
              {"mtu", found.mtu},
              {"rdma", device.name},
              {"rdma_mtu", device.mtu},
              {"loopback", address == "[::1]" || address.starts_with("127.")},
              {"multicast", !interface.empty()}};
    ask_driver(found.name, *facts);
    return {};
}

Status bench_agree(Bench& bench) {
    nlohmann::json mine;
    GC_TRY(node_facts(bench.rendezvous, bench.options.interface, bench.options.rdma, &mine));
    GC_TRY(bench.rendezvous.gather(mine, &bench.nodes));
    const auto& first = bench.nodes[0];
    bench.datagrams = first["multicast"];
    bench.rate = bench.options.rate;
    bench.alone = first["loopback"] || bench.options.server.empty();
    uint64_t slowest = UINT64_MAX;
    for (size_t rank = 0; rank < bench.nodes.size(); ++rank) {
        const auto& node = bench.nodes[rank];
        if (node["multicast"] != first["multicast"] || node["ipv6"] != first["ipv6"])
            return fail(Code::invalid, "rank {} ({}) differs from rank 0 in --interface: name one at every node, all IPv4 or all IPv6",
                        rank, node["name"].get<std::string>());
        if (node["loopback"] != first["loopback"])
            return fail(Code::invalid, "rank {} is at {} and rank 0 at {}: give --server an address of the network, not a loopback one",
                        rank, node["address"].get<std::string>(), first["address"].get<std::string>());
        const bool rdma = node["rdma"] != "";
        if (rdma != (first["rdma"] != ""))
            return fail(Code::invalid, "rank {} ({}) differs from rank 0 in --rdma: name a device at every node", rank,
                        node["name"].get<std::string>());
        const uint32_t fits = rdma ? rdma_segment(node["rdma_mtu"]) : datagram_segment(node["mtu"], node["ipv6"]);
        bench.datagram_bytes = rank == 0 ? fits : std::min(bench.datagram_bytes, fits);
        const uint32_t rails = std::clamp<uint32_t>(node[rdma ? "devices" : "interfaces"], 1, rails_max);
        bench.rails = rank == 0 ? rails : std::min(bench.rails, rails);
        slowest = std::min(slowest, node.value("speed_mbit", uint64_t{0}) * 1'000'000);
    }
    if (bench.rate == 0) bench.rate = slowest;
    if (bench.options.segment_bytes > 0 && bench.datagrams) {
        if (bench.options.segment_bytes > bench.datagram_bytes)
            return fail(Code::invalid, "--segment {}: a datagram between these nodes carries at most {} bytes", bench.options.segment_bytes,
                        bench.datagram_bytes);
        bench.datagram_bytes = bench.options.segment_bytes;
    }
    return {};
}

InterfaceBytes interface_bytes(const std::string& list) {
    const std::vector<std::string> names = names_split(list);
    InterfaceBytes bytes;
    ifaddrs* all = nullptr;
    if (::getifaddrs(&all) != 0) return bytes;
    for (const ifaddrs* each = all; each; each = each->ifa_next)
        if (each->ifa_addr && each->ifa_addr->sa_family == AF_PACKET && each->ifa_data &&
            std::find(names.begin(), names.end(), each->ifa_name) != names.end()) {
            const auto* counted = static_cast<const rtnl_link_stats*>(each->ifa_data);
            bytes.sent += counted->tx_bytes;
            bytes.received += counted->rx_bytes;
        }
    ::freeifaddrs(all);
    return bytes;
}

Status Station::open(Protocol& protocol, Buffer memory, bool datagrams) {
    Rendezvous& rendezvous = bench_.rendezvous;
    const BenchOptions& options = bench_.options;
    datagrams_ = datagrams;
    log_level(Level::warn);
    LinkConfig link;
    link.self.name = fmt::format("rank-{}", rendezvous.rank());
    random_bytes(link.self.uuid);
    link.self.incarnation = 1;
    Log log;
    std::vector<std::string> hosts = {bench_.nodes[rendezvous.rank()]["address"]}, addresses;
    link.rails = bench_.rails;
    const std::vector<std::string> interfaces = names_split(options.interface);
    if (link.rails > 1 && interfaces.size() >= link.rails) {
        hosts.clear();
        for (uint32_t i = 0; i < link.rails; ++i) {
            NetworkInterface found;
            GC_TRY(interface_find(interfaces[i], &found));
            hosts.push_back(address_text(found.address));
            hosts.back().resize(hosts.back().rfind(':'));
            link.interfaces.push_back(found.name);
        }
    }
    for (const std::string& host : hosts) {
        GC_TRY(listener_open({host + ":0", -1, link.self, rendezvous.keys()}, log, &listeners_.emplace_back()));
        addresses.push_back(listeners_.back()->address());
    }

    // Rank 0's random bytes are the job's id, so streams and datagrams of other jobs are refused.
    random_bytes(link.job);
    std::vector<nlohmann::json> all;
    GC_TRY(rendezvous.gather({{"addresses", addresses}, {"uuid", link.self.uuid}, {"job", link.job}}, &all));
    link.job = all[0]["job"].get<JobId>();
    link.kind = options.link;
    link.rank = rendezvous.rank();
    for (Rank rank = 0; rank < rendezvous.ranks(); ++rank)
        link.peers.push_back(
            {{fmt::format("rank-{}", rank), all[rank]["uuid"].get<JobId>(), 1}, all[rank]["addresses"][0], all[rank]["addresses"]});
    link.keys = rendezvous.keys();
    link.protect = options.protect;
    link.deadline_us = stream_deadline_us;
    if (options.segment_bytes > 0 && !datagrams) link.segment_bytes = options.segment_bytes;
    if (datagrams)
        link.datagrams = {.interface = interfaces[0],
                          .group = multicast_group(link.job, link.view, bench_.nodes[0]["ipv6"], group_port),
                          .segment_bytes = bench_.datagram_bytes};
    if (!options.rdma.empty()) link.rdma = {.streams = true, .datagrams = datagrams, .devices = names_split(options.rdma)};
    GC_TRY(driver_open(link, log, &driver_));
    if (datagrams) driver_->attach_datagrams(1, &protocol);
    else driver_->attach(1, &protocol);
    driver_->register_memory(memory);
    for (auto& listener : listeners_)
        GC_TRY(listener->start([this](const JobId& job, std::unique_ptr<AcceptedStream> stream) {
            (void)job;
            driver_->adopt(std::move(stream));
            return true;
        }));
    network_ = std::thread([this] { network_status_ = driver_->run(); });
    return {};
}

Status Station::wait(std::vector<Completion>* out, uint64_t end_us) {
    constexpr uint64_t look_us = 50'000;   // interval of checks for another rank's failure
    for (;;) {
        Status status = driver_->host().wait(out, std::min(end_us, clock_us() + look_us));
        if (status.code != Code::deadline || clock_us() >= end_us) return status;
        GC_TRY(bench_.rendezvous.check());
    }
}

uint64_t Station::network_cpu_us() const {
    clockid_t clock;
    return ::pthread_getcpuclockid(const_cast<std::thread&>(network_).native_handle(), &clock) == 0 ? cpu_us(clock) : 0;
}

std::string Station::path() const {
    return datagrams_ ? fmt::format("{} and {}: {}", driver_->name(), driver_->datagrams_name(),
                                    driver_->datagrams_found() ? datagrams_text(*driver_->datagrams_found()) : "")
                      : driver_->name();
}

Status Station::leave() {
    log_level(Level::error);   // other ranks leave, which is no error
    std::vector<nlohmann::json> all;
    GC_TRY(bench_.rendezvous.gather({}, &all));
    return close();
}

Status Station::close() {
    listeners_.clear();
    if (network_.joinable()) driver_->stop(), network_.join();
    driver_.reset();
    return network_status_;
}

}   // namespace gradcast
