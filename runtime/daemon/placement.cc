#include "runtime/daemon/placement.h"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>

#include "runtime/core/clock.h"
#include "runtime/core/crypto.h"
#include "runtime/core/digest.h"
#include "runtime/core/net/interface.h"
#include "runtime/core/net/socket.h"

namespace gradcast {
namespace {

constexpr uint32_t port_default = 4700;
constexpr uint32_t port_slurm = 10'000, ports_slurm = 18'000;   // below the ports that kernels give to connections
constexpr uint64_t poll_us = 50'000;

bool number(std::string_view text, uint32_t* value) {
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
    return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

/// A number of the environment.  Error: names the variable and says what is missing.
Status variable(const Environment& environment, const char* name, const char* missing, uint32_t* value) {
    const char* text = environment(name);
    if (!text) return fail(Code::invalid, "{} is not set: {}", name, missing);
    if (!number(text, value)) return fail(Code::invalid, "{}={} is not a number", name, text);
    return {};
}

Status too_many() { return fail(Code::invalid, "more than {} nodes", ranks_max); }

/// "[1-3,07]" from `*at` on, appended to each of the prefixes.
Status brackets(const std::string& list, size_t* at, std::vector<std::string>* hosts) {
    const size_t close = list.find(']', *at);
    if (close == list.npos) return fail(Code::invalid, "the list of nodes {} has no ']' for its '['", list);
    std::vector<std::string> numbers;
    for (size_t from = *at + 1; from <= close;) {
        const size_t end = std::min(list.find(',', from), close);
        const std::string part = list.substr(from, end - from);
        const size_t dash = part.find('-');
        const std::string first = part.substr(0, dash), last = dash == part.npos ? first : part.substr(dash + 1);
        uint32_t low = 0, high = 0;
        if (!number(first, &low) || !number(last, &high) || low > high)
            return fail(Code::invalid, "the list of nodes {} has the range '{}'", list, part);
        if (high - low >= ranks_max) return too_many();
        for (uint32_t each = low; each <= high; ++each) numbers.push_back(fmt::format("{:0{}}", each, first.size()));
        if (numbers.size() > ranks_max) return too_many();
        from = end + 1;
    }
    std::vector<std::string> all;
    if (hosts->size() * numbers.size() > ranks_max) return too_many();
    for (const std::string& host : *hosts)
        for (const std::string& each : numbers) all.push_back(host + each);
    *hosts = std::move(all);
    *at = close + 1;
    return {};
}

/// A name as gradcastd.toml takes it.
std::string name_of(const std::string& host) {
    std::string name;
    for (const char c : host.substr(0, 60))
        name += std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.' ? c : '-';
    return name;
}

/// Hosts with several ranks get names that differ.
void names_set(const std::vector<std::string>& hosts, LaunchedNodes* placement) {
    std::map<std::string, uint32_t> count, next;
    for (const std::string& host : hosts) ++count[name_of(host)];
    for (size_t rank = 0; rank < hosts.size(); ++rank) {
        const std::string name = name_of(hosts[rank]);
        placement->nodes[rank].name = count[name] == 1 ? name : fmt::format("{}.{}", name, next[name]++);
    }
}

/// Where the port begins in "host:port" or "[v6]:port", with its colon; npos: there is none.
size_t port_at(const std::string& host) {
    const size_t colon = host.rfind(':'), bracket = host.rfind(']');
    return bracket == std::string::npos || colon > bracket ? colon : std::string::npos;
}
bool host_is_loopback(const std::string& host) { return host_loopback(host.substr(0, port_at(host))); }

std::string host_name() {
    char name[256] = "";
    ::gethostname(name, sizeof name - 1);
    return name;
}

/// Whether one of the addresses is of this machine: of an interface, or of loopback, as Debian has 127.0.1.1 for a host's own name.
bool is_here(const std::string& address) {
    std::vector<SocketAddress> resolved;
    if (!addresses_resolve(address, false, &resolved).ok()) return false;
    ifaddrs* all = nullptr;
    if (::getifaddrs(&all) != 0) return false;
    const bool here = std::any_of(resolved.begin(), resolved.end(), [&](const SocketAddress& own) {
        const auto same = [&](const sockaddr* other) {
            if (!other || other->sa_family != own.storage.ss_family) return false;
            if (other->sa_family == AF_INET)
                return std::memcmp(&reinterpret_cast<const sockaddr_in*>(other)->sin_addr,
                                   &reinterpret_cast<const sockaddr_in*>(&own.storage)->sin_addr, sizeof(in_addr)) == 0;
            return other->sa_family == AF_INET6 &&
                   std::memcmp(&reinterpret_cast<const sockaddr_in6*>(other)->sin6_addr,
                               &reinterpret_cast<const sockaddr_in6*>(&own.storage)->sin6_addr, sizeof(in6_addr)) == 0;
        };
        if (address_loopback(own)) return true;
        for (const ifaddrs* each = all; each; each = each->ifa_next)
            if (same(each->ifa_addr)) return true;
        return false;
    });
    ::freeifaddrs(all);
    return here;
}

/// The address from which this machine reaches others by its default route, else one of its addresses; "-": it has none but loopback.
std::string own_address() {
    std::string own = "-";
    const auto take = [&](const sockaddr* from, socklen_t bytes) {
        SocketAddress address;
        std::memcpy(&address.storage, from, bytes);
        address.bytes = bytes;
        if (own != "-" || address_loopback(address)) return;
        own = address_text(address);
        own.resize(own.rfind(':'));
    };
    const Fd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    SocketAddress outside, from;
    from.bytes = sizeof from.storage;
    // TEST-NET-1 of RFC 5737.  Nothing is sent.
    if (fd && address_resolve("192.0.2.1:9", false, &outside).ok() &&
        ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&outside.storage), outside.bytes) == 0 &&
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&from.storage), &from.bytes) == 0)
        take(reinterpret_cast<const sockaddr*>(&from.storage), from.bytes);
    ifaddrs* all = nullptr;
    if (::getifaddrs(&all) != 0) return own;
    for (const ifaddrs* each = all; each; each = each->ifa_next)
        if (each->ifa_addr && each->ifa_addr->sa_family == AF_INET && each->ifa_flags & IFF_UP) take(each->ifa_addr, sizeof(sockaddr_in));
    ::freeifaddrs(all);
    return own;
}

struct RendezvousRank {
    std::string nonce, host, port, place, address;
    bool chosen = false;   // the host was named by an option
};

/// What the others connect to, without the port.  Error: machines of one name, of which one has no address.
Status rendezvous_hosts(const std::vector<RendezvousRank>& all, std::vector<std::string>* hosts) {
    const bool one_machine =
        std::all_of(all.begin(), all.end(), [&](const RendezvousRank& each) { return each.place == all[0].place && !each.chosen; });
    for (size_t rank = 0; rank < all.size(); ++rank) {
        const RendezvousRank& own = all[rank];
        const auto clone = std::find_if(all.begin(), all.end(), [&](const RendezvousRank& each) {
            return each.host == own.host && each.place != own.place && !each.chosen && !own.chosen;
        });
        if (clone != all.end() && own.address == "-")
            return fail(Code::invalid,
                        "ranks {} and {} are on different machines that both have the name {}: name their network by --interface", rank,
                        clone - all.begin(), own.host);
        hosts->push_back(one_machine ? "127.0.0.1" : clone != all.end() ? own.address : own.host);
    }
    return {};
}

}   // namespace

Status hostlist_expand(const std::string& list, std::vector<std::string>* hosts) {
    hosts->clear();
    for (size_t at = 0; at < list.size();) {
        std::vector<std::string> some = {""};
        while (at < list.size() && list[at] != ',') {
            if (list[at] == '[') {
                GC_TRY(brackets(list, &at, &some));
                continue;
            }
            for (std::string& each : some) each += list[at];
            ++at;
        }
        ++at;
        if (some[0].empty()) return fail(Code::invalid, "the list of nodes {} has an empty name", list);
        hosts->insert(hosts->end(), some.begin(), some.end());
        if (hosts->size() > ranks_max) return too_many();
    }
    return {};
}

Status placement_slurm(const Environment& environment, uint16_t port, LaunchedNodes* placement) {
    constexpr const char* start = "start it by srun, one task a node: srun --ntasks-per-node=1 gradcastd --from-slurm job.toml";
    const char* list = environment("SLURM_STEP_NODELIST");
    if (!list) return fail(Code::invalid, "SLURM_STEP_NODELIST is not set: {}", start);
    std::vector<std::string> hosts;
    GC_TRY(hostlist_expand(list, &hosts));
    for (const char* each : {"SLURM_HET_SIZE", "SLURM_PACK_SIZE"})
        if (const char* components = environment(each))
            return fail(Code::invalid,
                        "{}={}: this is a heterogeneous job, whose components have lists of nodes of their own: ask for all nodes by one "
                        "component",
                        each, components);
    uint32_t rank = 0, tasks = 0, job = 0, step = 0, local = 0;
    GC_TRY(variable(environment, "SLURM_NODEID", start, &rank));
    GC_TRY(variable(environment, "SLURM_STEP_ID", start, &step));
    if (environment("SLURM_LOCALID")) GC_TRY(variable(environment, "SLURM_LOCALID", start, &local));
    GC_TRY(variable(environment, environment("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", start, &tasks));
    GC_TRY(variable(environment, environment("SLURM_JOB_ID") ? "SLURM_JOB_ID" : "SLURM_JOBID", start, &job));
    if (tasks < hosts.size())
        return fail(Code::invalid,
                    "{} task{} for {} nodes ({}): the allocation has shrunk, or not each node has a task: srun --nodes={} "
                    "--ntasks-per-node=1",
                    tasks, tasks == 1 ? "" : "s", hosts.size(), list, hosts.size());
    if (tasks > hosts.size() || local > 0)
        return fail(Code::invalid, "{} tasks on {} node{} ({}): one task a node uses all its CPUs: srun --ntasks-per-node=1", tasks,
                    hosts.size(), hosts.size() == 1 ? "" : "s", list);
    if (rank >= hosts.size()) return fail(Code::invalid, "SLURM_NODEID={} of {} nodes ({})", rank, hosts.size(), list);
    // With --distribution=arbitrary the list has another order than the nodes' numbers.
    if (const char* name = environment("SLURMD_NODENAME"))
        if (const auto own = std::find(hosts.begin(), hosts.end(), name); own != hosts.end())
            rank = static_cast<uint32_t>(own - hosts.begin());
    // Jobs and steps that share a node seldom have ports in common, whatever the difference of their numbers.
    const uint64_t mixed = splitmix64(uint64_t{job} << 32 | step);
    const uint32_t first = port ? port : port_slurm + static_cast<uint32_t>(mixed % ports_slurm);
    placement->nodes.resize(hosts.size());
    names_set(hosts, placement);
    for (size_t each = 0; each < hosts.size(); ++each) placement->nodes[each].address = fmt::format("{}:{}", hosts[each], first + each);
    placement->rank = rank;
    placement->id = fmt::format("gradcast-{}.{}", job, step);
    return {};
}

Status placement_hosts(const std::string& list, int rank, uint16_t port, LaunchedNodes* placement) {
    std::vector<std::string> hosts;
    for (size_t at = 0; at <= list.size();) {
        const size_t end = std::min(list.find(',', at), list.size());
        hosts.push_back(list.substr(at, end - at));
        if (hosts.back().empty()) return fail(Code::invalid, "--hosts {}: a name is empty", list);
        at = end + 1;
    }
    if (hosts.size() > ranks_max) return too_many();
    const auto local = std::find_if(hosts.begin(), hosts.end(), host_is_loopback);
    if (const auto other = std::find_if_not(hosts.begin(), hosts.end(), host_is_loopback); local != hosts.end() && other != hosts.end())
        return fail(Code::invalid,
                    "--hosts {}: {} is another machine for each that reads it, and {} is not: give the name that the others reach", list,
                    *local, *other);
    placement->nodes.resize(hosts.size());
    std::vector<uint32_t> here;
    for (uint32_t each = 0; each < hosts.size(); ++each) {
        std::string& address = placement->nodes[each].address;
        const size_t colon = port_at(hosts[each]);
        const bool ported = colon != std::string::npos;
        address = ported ? hosts[each] : fmt::format("{}:{}", hosts[each], (port ? port : port_default) + each);
        if (ported) hosts[each].resize(colon);
        for (uint32_t other = 0; other < each; ++other)
            if (placement->nodes[other].address == address)
                return fail(Code::invalid, "--hosts: ranks {} and {} both are {}: two processes on one host need ports of their own", other,
                            each, address);
        if (rank < 0 && is_here(address)) here.push_back(each);
    }
    names_set(hosts, placement);
    if (rank >= static_cast<int>(hosts.size()))
        return fail(Code::invalid, "--rank {}: --hosts has {} of them, from 0 on", rank, hosts.size());
    if (rank < 0 && here.size() != 1)
        return fail(Code::invalid, "--hosts {}: {} this machine: say which one by --rank", list,
                    here.empty() ? "none of them is" : fmt::format("ranks {} are", fmt::join(here, ", ")));
    placement->rank = rank < 0 ? here[0] : static_cast<uint32_t>(rank);
    return {};
}

Status mpi_rank(const Environment& environment, MpiRank* mpi) {
    struct Names {
        const char *rank, *size, *local, *locals;
    };
    constexpr Names kinds[] = {
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
        {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    };
    for (const Names& each : kinds) {
        if (!environment(each.rank)) continue;
        GC_TRY(variable(environment, each.rank, "", &mpi->rank));
        GC_TRY(variable(environment, each.size, "start it by mpirun", &mpi->size));
        if (environment(each.local)) GC_TRY(variable(environment, each.local, "", &mpi->local));
        if (environment(each.locals)) GC_TRY(variable(environment, each.locals, "", &mpi->locals));
        if (mpi->rank >= mpi->size || mpi->size > ranks_max || mpi->local >= mpi->locals)
            return fail(Code::invalid, "{}={} of {} ranks ({} at most)", each.rank, mpi->rank, mpi->size, ranks_max);
        return {};
    }
    return fail(Code::invalid,
                "neither OMPI_COMM_WORLD_RANK nor PMI_RANK is set: start it by mpirun (Open MPI, MPICH), or name the hosts by --hosts");
}

// rank-K: "<nonce of rank 0> <own nonce> <host> <port> <1: the host was chosen> <place of the network> <own address>"
// list: "<own nonce> <name> <address>" by rank
// Each nonce is of this run, so files of an earlier run are never taken: a rank takes the list that has its own.
Status placement_rendezvous(const MpiRank& mpi, const std::string& folder, const std::string& host, uint16_t port, uint64_t deadline_us,
                            LaunchedNodes* placement) {
    GC_TRY(make_directories(folder));
    std::string address;
    const std::string wanted = port ? std::to_string(port + mpi.local) : "0";
    Status listens = socket_listen((host.empty() ? "[::]" : host) + ":" + wanted, &placement->listener, &address);
    if (!listens.ok() && host.empty() && listens.sys != EADDRINUSE)
        listens = socket_listen("0.0.0.0:" + wanted, &placement->listener, &address);
    GC_TRY(listens);
    const std::string own_port = address.substr(address.rfind(':') + 1);
    std::array<uint8_t, 8> random;
    random_bytes(random);
    const std::string nonce = hex(random), own = fmt::format("{}/rank-{}", folder, mpi.rank), list = folder + "/list";
    auto words = [](const std::string& text) {
        std::vector<std::string> all;
        for (size_t at = 0; at < text.size();) {
            const size_t end = std::min(text.find_first_of(" \n", at), text.size());
            all.push_back(text.substr(at, end - at));
            at = end + 1;
        }
        return all;
    };
    const std::string tail = fmt::format("{} {} {} {} {:08x} {}", nonce, host.empty() ? host_name() : host, own_port, host.empty() ? 0 : 1,
                                         network_place(), own_address());
    std::string first = nonce, quoted;   // the nonce of rank 0
    if (mpi.rank == 0) GC_TRY(file_write(own, nonce + " " + tail + "\n"));
    for (std::string missing;;) {
        std::string text;
        if (mpi.rank > 0 && file_read(folder + "/rank-0", &text).ok() && !text.empty()) first = words(text)[0];
        if (mpi.rank > 0 && !text.empty() && first != quoted) {
            GC_TRY(file_write(own, first + " " + tail + "\n"));
            quoted = first;
        }
        if (mpi.rank == 0) {
            missing.clear();
            std::vector<std::vector<std::string>> all(mpi.size);
            for (uint32_t rank = 0; rank < mpi.size; ++rank) {
                if (file_read(fmt::format("{}/rank-{}", folder, rank), &text).ok()) all[rank] = words(text);
                if (all[rank].size() != 7 || all[rank][0] != nonce) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", rank);
            }
            if (missing.empty()) {
                LaunchedNodes made;
                made.nodes.resize(mpi.size);
                std::vector<RendezvousRank> ranks;
                std::vector<std::string> names, hosts;
                for (const auto& each : all) {
                    ranks.push_back({each[1], each[2], each[3], each[5], each[6], each[4] == "1"});
                    names.push_back(each[2]);
                }
                names_set(names, &made);
                GC_TRY(rendezvous_hosts(ranks, &hosts));
                text.clear();
                for (uint32_t rank = 0; rank < mpi.size; ++rank)
                    text += fmt::format("{} {} {}:{}\n", ranks[rank].nonce, made.nodes[rank].name, hosts[rank], ranks[rank].port);
                GC_TRY(file_write(list, text));
            }
        }
        std::vector<std::string> made;
        if (file_read(list, &text).ok()) made = words(text);
        if (made.size() == size_t{3} * mpi.size && made[size_t{3} * mpi.rank] == nonce) {
            placement->nodes.clear();
            for (uint32_t rank = 0; rank < mpi.size; ++rank) placement->nodes.push_back({made[3 * rank + 1], made[3 * rank + 2]});
            placement->rank = mpi.rank;
            placement->local = mpi.local;
            placement->locals = mpi.locals;
            return {};
        }
        if (clock_us() > deadline_us)
            return fail(Code::deadline, "{} in {}: is it on a disk that all nodes share? Else name the hosts by --hosts",
                        mpi.rank > 0 ? "rank 0 has not written the list of ranks" : "nothing came from ranks " + missing, folder);
        ::usleep(poll_us);
    }
}

}   // namespace gradcast
