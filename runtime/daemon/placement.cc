#include "runtime/daemon/placement.h"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>

#include "runtime/core/clock.h"
#include "runtime/core/crypto.h"
#include "transport/link/socket.h"

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
void names_set(const std::vector<std::string>& hosts, Placement* placement) {
    std::map<std::string, uint32_t> count, next;
    for (const std::string& host : hosts) ++count[name_of(host)];
    for (size_t rank = 0; rank < hosts.size(); ++rank) {
        const std::string name = name_of(hosts[rank]);
        placement->nodes[rank].name = count[name] == 1 ? name : fmt::format("{}.{}", name, next[name]++);
    }
}

std::string host_name() {
    char name[256] = "";
    ::gethostname(name, sizeof name - 1);
    return name;
}

/// Whether the address is of an interface of this machine.
bool is_here(const std::string& address) {
    SocketAddress resolved;
    if (!address_resolve(address, false, &resolved).ok()) return false;
    auto same = [&](const sockaddr* other) {
        if (!other || other->sa_family != resolved.storage.ss_family) return false;
        if (other->sa_family == AF_INET)
            return std::memcmp(&reinterpret_cast<const sockaddr_in*>(other)->sin_addr,
                               &reinterpret_cast<const sockaddr_in*>(&resolved.storage)->sin_addr, sizeof(in_addr)) == 0;
        return other->sa_family == AF_INET6 &&
               std::memcmp(&reinterpret_cast<const sockaddr_in6*>(other)->sin6_addr,
                           &reinterpret_cast<const sockaddr_in6*>(&resolved.storage)->sin6_addr, sizeof(in6_addr)) == 0;
    };
    ifaddrs* all = nullptr;
    if (::getifaddrs(&all) != 0) return false;
    bool here = false;
    for (const ifaddrs* each = all; each && !here; each = each->ifa_next) here = same(each->ifa_addr);
    ::freeifaddrs(all);
    return here;
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

Status placement_slurm(const Environment& environment, uint16_t port, Placement* placement) {
    constexpr const char* start = "start it by srun, one task a node: srun --ntasks-per-node=1 gradcastd --from-slurm job.toml";
    const char* list = environment("SLURM_STEP_NODELIST");
    if (!list) return fail(Code::invalid, "SLURM_STEP_NODELIST is not set: {}", start);
    std::vector<std::string> hosts;
    GC_TRY(hostlist_expand(list, &hosts));
    uint32_t rank = 0, tasks = 0, job = 0;
    GC_TRY(variable(environment, "SLURM_PROCID", start, &rank));
    GC_TRY(variable(environment, environment("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", start, &tasks));
    GC_TRY(variable(environment, environment("SLURM_JOB_ID") ? "SLURM_JOB_ID" : "SLURM_JOBID", start, &job));
    if (tasks < hosts.size())
        return fail(Code::invalid,
                    "{} task{} for {} nodes ({}): the allocation has shrunk, or not each node has a task: srun --nodes={} "
                    "--ntasks-per-node=1",
                    tasks, tasks == 1 ? "" : "s", hosts.size(), list, hosts.size());
    if (tasks > hosts.size())
        return fail(Code::invalid, "{} tasks on {} node{} ({}): one task a node uses all its CPUs: srun --ntasks-per-node=1", tasks,
                    hosts.size(), hosts.size() == 1 ? "" : "s", list);
    if (rank >= tasks) return fail(Code::invalid, "SLURM_PROCID={} of {} tasks", rank, tasks);
    const uint32_t first = port ? port : port_slurm + job % ports_slurm;
    placement->nodes.resize(hosts.size());
    names_set(hosts, placement);
    for (size_t each = 0; each < hosts.size(); ++each) placement->nodes[each].address = fmt::format("{}:{}", hosts[each], first + each);
    placement->rank = rank;
    placement->id = fmt::format("gradcast-{}", job);
    return {};
}

Status placement_hosts(const std::string& list, int rank, uint16_t port, Placement* placement) {
    std::vector<std::string> hosts;
    for (size_t at = 0; at <= list.size();) {
        const size_t end = std::min(list.find(',', at), list.size());
        hosts.push_back(list.substr(at, end - at));
        if (hosts.back().empty()) return fail(Code::invalid, "--hosts {}: a name is empty", list);
        at = end + 1;
    }
    if (hosts.size() > ranks_max) return too_many();
    placement->nodes.resize(hosts.size());
    std::vector<uint32_t> here;
    for (uint32_t each = 0; each < hosts.size(); ++each) {
        std::string& address = placement->nodes[each].address;
        const size_t colon = hosts[each].rfind(':'), bracket = hosts[each].rfind(']');
        const bool ported = colon != std::string::npos && (bracket == std::string::npos || colon > bracket);
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

// rank-0: "<nonce>"     rank-K: "<nonce of rank 0> <own nonce> <host> <port> <1: the host was chosen>"     list: "<own nonce> <name>
// <address>" by rank Each nonce is of this run, so what an earlier run has left is never taken: a rank takes the list that has its own.
Status placement_meet(const MpiRank& mpi, const std::string& folder, const std::string& host, uint16_t port, uint64_t deadline_us,
                      Placement* placement) {
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
    const std::string tail = fmt::format("{} {} {} {}", nonce, host.empty() ? host_name() : host, own_port, host.empty() ? 0 : 1);
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
                if (all[rank].size() != 5 || all[rank][0] != nonce) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", rank);
            }
            if (missing.empty()) {
                Placement made;
                made.nodes.resize(mpi.size);
                std::vector<std::string> hosts;
                for (const auto& each : all) hosts.push_back(each[2]);
                names_set(hosts, &made);
                const bool one_host =
                    std::all_of(all.begin(), all.end(), [&](const auto& each) { return each[2] == all[0][2] && each[4] == "0"; });
                text.clear();
                for (uint32_t rank = 0; rank < mpi.size; ++rank)
                    text += fmt::format("{} {} {}:{}\n", all[rank][1], made.nodes[rank].name, one_host ? "127.0.0.1" : hosts[rank],
                                        all[rank][3]);
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
