#include "runtime/daemon/doctor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/capability.h>
#include <pwd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>

#include "runtime/attach/group.h"
#include "runtime/core/control_groups.h"
#include "runtime/core/cpu_room.h"
#include "runtime/core/fd.h"
#include "runtime/core/gpu_count.h"
#include "runtime/core/net/interface.h"
#include "runtime/core/program.h"
#include "runtime/job/run/cuda_libraries.h"
#include "transport/kernel/proactor.h"
#include "transport/kernel/rdma.h"

namespace gradcast {
namespace {

constexpr uint64_t lock_wanted = 64 << 20;      // of RDMA: rings of streams and datagrams
constexpr int64_t clock_apart_us = 2'000'000;   // HELLO takes some time, too
constexpr uint64_t disk_wanted = 1 << 30;
constexpr uint64_t files_wanted = 256;                // of a job's files and of streams to some peers
constexpr uint64_t receive_buffer_wanted = 4 << 20;   // transport/datagram/datagram_socket.cc

std::string first_line(const std::string& path) {
    std::string text;
    if (!file_read(path, &text).ok()) return "";
    return text.substr(0, text.find('\n'));
}

bool may(unsigned capability) {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2] = {};
    return ::syscall(SYS_capget, &header, data) == 0 && (data[capability / 32].effective >> capability % 32 & 1);
}

Finding key(const DaemonConfig& config) {
    struct stat file;
    if (::stat(config.key.c_str(), &file) != 0)
        return {"key", Finding::Verdict::error, fmt::format("{}: {}", config.key, std::strerror(errno))};
    if (file.st_mode & 077)
        return {"key", Finding::Verdict::error,
                fmt::format("{} may be read by others (mode {:04o}): chmod 600 {}", config.key, file.st_mode & 0777u, config.key)};
    return {"key", Finding::Verdict::ok, fmt::format("{}, mode {:04o}", config.key, file.st_mode & 0777u)};
}

Finding interface(const DaemonConfig& config) {
    if (config.interface.empty())
        return {"interface", Finding::Verdict::warning,
                fmt::format("none is set, so multicast exchanges go over TCP: {}",
                            config.launched() ? "--interface eth0" : "interface = \"eth0\" in gradcastd.toml")};
    NetworkInterface found;
    if (Status status = interface_find(config.interface, &found); !status.ok()) return {"interface", Finding::Verdict::error, status.what};
    if (const uint32_t now = datagram_segment(found.mtu, found.ipv6()); now != config.datagram_bytes)
        return {"interface", Finding::Verdict::error,
                fmt::format("the MTU of {} is {} and was another when gradcastd started: restart gradcastd", found.name, found.mtu)};
    std::vector<std::string> all = {fmt::format("{}, MTU {}", found.name, found.mtu)};
    for (size_t i = 1; i < config.interfaces.size(); ++i) {
        if (Status status = interface_find(config.interfaces[i], &found); !status.ok())
            return {"interface", Finding::Verdict::error, status.what};
        all.push_back(fmt::format("{}, MTU {}", found.name, found.mtu));
    }
    return {"interface", Finding::Verdict::ok, fmt::format("{}", fmt::join(all, "; "))};
}

Finding socket_buffers() {
    const uint64_t most = std::strtoull(first_line("/proc/sys/net/core/rmem_max").c_str(), nullptr, 10);
    if (may(CAP_NET_ADMIN)) return {"socket buffers", Finding::Verdict::ok, "any size (CAP_NET_ADMIN)"};
    if (most >= receive_buffer_wanted) return {"socket buffers", Finding::Verdict::ok, fmt::format("up to {} KiB", most / 1024)};
    return {"socket buffers", Finding::Verdict::warning,
            fmt::format("at most {} KiB, so bursts of datagrams may be lost: sysctl -w net.core.rmem_max={}", most / 1024,
                        receive_buffer_wanted)};
}

Finding memlock(const DaemonConfig& config) {
    rlimit limit{};
    ::getrlimit(RLIMIT_MEMLOCK, &limit);
    if (limit.rlim_cur == RLIM_INFINITY || may(CAP_IPC_LOCK)) return {"memlock", Finding::Verdict::ok, "no limit"};
    const std::string size = fmt::format("{} KiB", limit.rlim_cur / 1024);
    if (limit.rlim_cur >= lock_wanted) return {"memlock", Finding::Verdict::ok, size};
    if (config.rdma.empty()) return {"memlock", Finding::Verdict::ok, size + ", which is enough without RDMA"};
    return {
        "memlock", Finding::Verdict::error,
        fmt::format("{} are too little for RDMA, which locks up to {} KiB a job: LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited",
                    size, lock_wanted / 1024)};
}

Finding rdma(const DaemonConfig& config) {
    const RdmaModule* module;
    std::vector<RdmaDevice> all;
    Status status = rdma_module(&module);
    if (status.ok()) status = module->devices(&all);
    std::vector<std::string> active;
    for (const RdmaDevice& each : all)
        if (each.active) active.push_back(each.interface.empty() ? each.name : fmt::format("{} ({})", each.name, each.interface));
    if (config.rdma.empty()) {
        if (active.empty()) return {"rdma", Finding::Verdict::ok, "not used; no device is active"};
        return {"rdma", Finding::Verdict::warning,
                fmt::format("not used, though {} {} active: rdma = \"auto\" in gradcastd.toml", fmt::join(active, ", "),
                            active.size() == 1 ? "is" : "are")};
    }
    std::vector<std::string> used;
    for (const std::string& each : config.rdma) {
        RdmaDevice found;
        if (status.ok()) status = module->find(each, &found);
        if (!status.ok()) return {"rdma", Finding::Verdict::error, status.what};
        std::string gid;
        for (size_t i = 0; i < found.gid.size(); ++i) gid += fmt::format("{}{:02x}", i > 0 && i % 2 == 0 ? ":" : "", found.gid[i]);
        used.push_back(
            fmt::format("{} port {} is {}, MTU {}, GID {} ({})", found.name, found.port, found.state, found.mtu, found.gid_index, gid));
    }
    return {"rdma", Finding::Verdict::ok, fmt::format("{}", fmt::join(used, "; "))};
}

Finding cuda(const DaemonConfig& config, const std::string& root) {
    const uint32_t count = gpu_count(root);
    for (const uint32_t number : config.gpus)
        if (count > 0 && number >= count)
            return {
                "cuda", Finding::Verdict::error,
                fmt::format("`gpus` in gradcastd.toml names GPU {}, and this machine has {}, counted from 0: jobs with device = \"cuda\" "
                            "are refused",
                            number, count)};
    const std::string module = program_file("libgradcast_cuda.so", {".", "../lib"});
    if (module.empty() && config.gpus.empty()) return {"cuda", Finding::Verdict::ok, "not built: jobs compute on CPUs"};
    std::vector<std::string> texts;
    if (module.empty()) texts.push_back("libgradcast_cuda.so is not built, though `gpus` is set");
    const std::vector<CudaLibrary> libraries = cuda_libraries_open(module);
    if (std::string missing = cuda_libraries_missing(libraries); !missing.empty()) texts.push_back(std::move(missing));
    const std::string driver = cuda_driver_open();
    if (driver.empty()) texts.push_back("libcuda.so.1 is not found: install the driver of the GPU");
    if (!texts.empty())
        return {"cuda", Finding::Verdict::warning,
                fmt::format("{}, because {}", config.gpus.empty() ? "jobs compute on CPUs" : "jobs with device = \"cuda\" are refused",
                            fmt::join(texts, "; "))};
    const std::vector<uint32_t> used = config.gpus_used(root);
    texts.push_back(used.empty() ? driver : gpus_text(used) + " for the jobs here, " + driver);
    for (const CudaLibrary& each : libraries) texts.push_back(each.path);
    return {"cuda", Finding::Verdict::ok, fmt::format("{}", fmt::join(texts, ", "))};
}

Finding io_uring() {
    std::unique_ptr<Proactor> ring;
    if (Status status = proactor_uring(&ring); !status.ok())
        return {
            "io_uring", Finding::Verdict::warning,
            fmt::format("{}: epoll is used, which is slower (sysctl kernel.io_uring_disabled, the unit's SystemCallFilter)", status.what)};
    return {"io_uring", Finding::Verdict::ok, "allowed"};
}

Finding governor() {
    std::map<std::string, uint32_t> cpus;
    std::vector<std::string> paths;
    (void)file_glob("/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor", &paths);
    for (const std::string& path : paths) ++cpus[first_line(path)];
    if (cpus.empty()) return {"CPU governor", Finding::Verdict::ok, "the system has none"};
    if (cpus.size() == 1 && cpus.contains("performance")) return {"CPU governor", Finding::Verdict::ok, "performance"};
    std::vector<std::string> texts;
    for (const auto& [name, count] : cpus) texts.push_back(fmt::format("{} on {} CPUs", name, count));
    return {"CPU governor", Finding::Verdict::warning, fmt::format("{}: cpupower frequency-set -g performance", fmt::join(texts, ", "))};
}

Finding cpus(const DaemonConfig& config, const std::string& root) {
    const CpuRoom room = cpu_room(root);
    const uint32_t lanes = config.lanes(root);
    const std::string all = fmt::format("{} lane{} on {} CPU{}", lanes, lanes == 1 ? "" : "s", room.cpus, room.cpus == 1 ? "" : "s");
    if (room.quota == 0) return {"CPUs", Finding::Verdict::ok, all + ", no quota"};
    const std::string quota = fmt::format("{}; {} has a quota of {:.1f} CPUs", all, room.where, room.quota);
    if (lanes <= room.threads() && room.quota >= 1) return {"CPUs", Finding::Verdict::ok, quota};
    return {"CPUs", Finding::Verdict::warning,
            fmt::format("{}, so lanes are stopped again and again: {}raise it (cpu.max, CPUQuota= of systemd)", quota,
                        lanes > 1 ? "list fewer in `cpus`, or " : "")};
}

Finding threads(const std::string& root) {
    constexpr uint64_t wanted = 64;   // of a job beside those that compute, of a control plane and of tools
    uint64_t room = UINT64_MAX;
    std::string where;
    control_groups(root, "pids", [&](const ControlGroup& group) {
        uint64_t most = 0, now = 0;
        if (!number_in(group.folder + "/pids.max", &most) || !number_in(group.folder + "/pids.current", &now)) return;
        if (most - std::min(now, most) < room) room = most - std::min(now, most), where = "control group " + group.path;
    });
    if (room == UINT64_MAX) return {"threads", Finding::Verdict::ok, "no limit of a control group"};
    const std::string text = fmt::format("{} has room for {} threads", where, room);
    if (room >= wanted) return {"threads", Finding::Verdict::ok, text};
    return {"threads", room == 0 ? Finding::Verdict::error : Finding::Verdict::warning,
            text + ", and jobs are refused that get none: raise it (pids.max, TasksMax= of systemd)"};
}

std::string user_name() {
    const uid_t uid = ::geteuid();
    passwd entry{}, *found = nullptr;
    char room[4096];
    if (::getpwuid_r(uid, &entry, room, sizeof room, &found) == 0 && found) return entry.pw_name;
    return fmt::format("number {}", uid);
}

/// What who submits net.command can do, and whether its processes are bounded.
std::vector<Finding> commands(const DaemonConfig& config, const std::string& root) {
    if (!config.commands) return {{"commands", Finding::Verdict::ok, "jobs with net.command are refused here"}};
    std::vector<Finding> all = {{"commands", Finding::Verdict::warning, command_warning(config)}};
    const GroupRoom room = root.empty() ? group_room() : group_room_find(root);
    std::vector<std::string> bounded, not_bounded;
    if (room.bounds_tasks()) bounded.emplace_back("number of processes");
    else not_bounded.push_back(fmt::format("a program that starts processes without end (a fork bomb) is not bounded: {}", room.why));
    if (room.bounds_memory()) bounded.emplace_back("memory");
    else
        not_bounded.push_back(
            fmt::format("the memory of a program is looked at once a second, so one that grows fast can take all of this machine's: {}",
                        room.why_memory));
    const std::string by_group =
        bounded.empty() ? ""
                        : fmt::format("each program has a control group, which bounds its {} and ends it", fmt::join(bounded, " and "));
    if (not_bounded.empty()) all.push_back({"command limits", Finding::Verdict::ok, by_group});
    else
        all.push_back({"command limits", Finding::Verdict::warning,
                       fmt::format("{}{}{}", by_group, by_group.empty() ? "" : "; but ", fmt::join(not_bounded, "; "))});
    return all;
}

Finding files() {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    const size_t open = folder_names("/proc/self/fd").size();
    const std::string text = fmt::format("{} of {} are open", open, limit.rlim_cur);
    if (limit.rlim_cur - std::min<rlim_t>(open, limit.rlim_cur) >= files_wanted) return {"open files", Finding::Verdict::ok, text};
    return {"open files", Finding::Verdict::warning, text + ": LimitNOFILE=65536 in the unit, or ulimit -n 65536"};
}

Finding disk(const DaemonConfig& config) {
    struct statvfs info;
    if (::statvfs(config.state.c_str(), &info) != 0)
        return {"disk", Finding::Verdict::error, fmt::format("{}: {}", config.state, std::strerror(errno))};
    const uint64_t free = uint64_t{info.f_bavail} * info.f_frsize;
    const std::string text = fmt::format("{:.1f} GiB free in {}", static_cast<double>(free) / 0x1p30, config.state);
    if (info.f_flag & ST_RDONLY) return {"disk", Finding::Verdict::error, config.state + " is read-only: no job can keep its files"};
    const bool full = info.f_favail == 0 && info.f_files > 0;   // some file systems do not count inodes
    if (free >= disk_wanted && !full) return {"disk", Finding::Verdict::ok, text};
    return {"disk", Finding::Verdict::warning,
            text + (full ? ", and no inode" : "") +
                ": models and checkpoints need room; jobs_kept and jobs_bytes in gradcastd.toml bound what stays"};
}

Finding huge_pages() {
    const std::string modes = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
    if (modes.empty()) return {"huge pages", Finding::Verdict::ok, "the kernel has none"};
    if (modes.find("[never]") != std::string::npos)
        return {"huge pages", Finding::Verdict::warning, "never: echo madvise >/sys/kernel/mm/transparent_hugepage/enabled"};
    return {"huge pages", Finding::Verdict::ok, modes.substr(modes.find('[') + 1, modes.find(']') - modes.find('[') - 1)};
}

Finding clock_synchronised() {
    timex now{};
    if (::adjtimex(&now) == TIME_ERROR || (now.status & STA_UNSYNC))
        return {"clock", Finding::Verdict::warning,
                "not synchronised, so the times in logs of nodes differ: systemctl enable --now systemd-timesyncd (or chrony)"};
    return {"clock", Finding::Verdict::ok, "synchronised"};
}

}   // namespace

std::string command_warning(const DaemonConfig& config) {
    return fmt::format(
        "programs of jobs are started as the daemon's user ({}), so who may submit jobs with net.command (the role admin, and the group "
        "of the control socket) can read the cluster key {} and do what this user may: let nobody in whom you would not give the key",
        user_name(), config.key);
}

std::vector<Finding> doctor_node(const DaemonConfig& config, const std::string& root) {
    std::vector<Finding> all = {key(config),  interface(config),   socket_buffers(), memlock(config), rdma(config), cuda(config, root),
                                io_uring(),   cpus(config, root),  governor(),       threads(root),   files(),      disk(config),
                                huge_pages(), clock_synchronised()};
    for (Finding& each : commands(config, root)) all.push_back(std::move(each));
    return all;
}

std::vector<Finding> doctor_cluster(const DaemonConfig& config, const std::vector<NodeInfo>& nodes, const std::vector<PeerState>& peers,
                                    const std::optional<DatagramsFound>& found, uint32_t unanswered) {
    std::vector<Finding> findings;
    std::vector<std::string> versions, isas, sizes, apart;
    for (size_t i = 0; i < nodes.size(); ++i) {
        const NodeInfo& node = nodes[i];
        if (!node.alive) {
            findings.push_back({"node " + node.name, Finding::Verdict::error, node.why});
            continue;
        }
        versions.push_back(fmt::format("{} {}", node.name, node.version));
        isas.push_back(fmt::format("{} {}", node.name, node.isa));
        sizes.push_back(fmt::format("{} {}", node.name, peers[i].datagram_bytes));
        if (const auto ahead = peers[i].ahead_us; !node.self && ahead && std::abs(*ahead) >= clock_apart_us)
            apart.push_back(fmt::format("{} is {:.0f} s {}", node.name, static_cast<double>(std::abs(*ahead)) / 1e6,
                                        *ahead > 0 ? "ahead of" : "behind"));
        if (!node.self) findings.push_back({"node " + node.name, Finding::Verdict::ok, node.address});
    }
    auto differ = [&](const char* check, const std::vector<std::string>& texts, Finding::Verdict verdict, const std::string& way_out) {
        auto what = [](const std::string& text) { return text.substr(text.find(' ')); };
        const bool same = std::all_of(texts.begin(), texts.end(), [&](const std::string& each) { return what(each) == what(texts[0]); });
        if (same) findings.push_back({check, Finding::Verdict::ok, what(texts[0]).substr(1) + " at every node"});
        else findings.push_back({check, verdict, fmt::format("{}: {}", fmt::join(texts, ", "), way_out)});
    };
    differ("version", versions, Finding::Verdict::error, "install one version everywhere");
    differ("instruction set", isas, Finding::Verdict::warning, fmt::format("a job needs one: set {}", config.setting_in("isa")));
    differ("bytes of a datagram", sizes, Finding::Verdict::warning,
           "jobs use the smallest: give every interface one MTU (0: no interface is set)");
    if (nodes.size() < 2) return findings;
    if (apart.empty()) findings.push_back({"clocks", Finding::Verdict::ok, "those of the nodes that answer differ by less than 2 s"});
    else
        findings.push_back({"clocks", Finding::Verdict::warning,
                            fmt::format("{} this one's, so times in logs do not fit together: let all follow one server (chrony, "
                                        "systemd-timesyncd)",
                                        fmt::join(apart, ", "))});
    if (unanswered == 0) findings.push_back({"large packets", Finding::Verdict::ok, "pass to all nodes that answer"});
    else
        findings.push_back({"large packets", Finding::Verdict::warning,
                            fmt::format("{} node{} did not answer a full packet within 4 s: is the MTU on the way smaller than that of the "
                                        "interface? Ask again, and see the log of gradcastd",
                                        unanswered, unanswered == 1 ? "" : "s")});
    if (!found) findings.push_back({"multicast", Finding::Verdict::warning, "not used: this node has no " + config.setting("interface")});
    else if (!found->probed)
        findings.push_back(
            {"multicast", Finding::Verdict::warning,
             fmt::format("no answer to what was sent on {} within 4 s: is a node about to start or to end?", config.interface)});
    else if (found->reached < found->peers || found->peers == 0)
        findings.push_back({"multicast", Finding::Verdict::warning,
                            fmt::format("{}: open UDP in the firewall, and start gradcastd with {} at every node", datagrams_text(*found),
                                        config.setting("interface"))});
    else if (found->multicast) findings.push_back({"multicast", Finding::Verdict::ok, datagrams_text(*found)});
    else
        findings.push_back(
            {"multicast", Finding::Verdict::warning,
             datagrams_text(*found) +
                 ": is it filtered by a switch (IGMP snooping without a querier) or a firewall, or has the node no `interface`?"});
    return findings;
}

}   // namespace gradcast
