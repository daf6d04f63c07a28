#include "runtime/attach/group.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <string_view>

#include "runtime/core/control_groups.h"

namespace gradcast {
namespace {

/// Writes to a file of a group.  False: errno says why.
bool put(const std::string& path, std::string_view text) {
    const Fd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    return file && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

/// A list of words, as cgroup.controllers has it, has this one.
bool lists(const std::string& path, const std::string& word) {
    std::string text;
    if (!file_read(path, &text).ok()) return false;
    std::replace(text.begin(), text.end(), '\n', ' ');
    return (" " + text + " ").find(" " + word + " ") != text.npos;
}

/// The processes that a file such as cgroup.procs lists.  One of another PID namespace is listed as 0, and kill(0) would end this process's
/// own process group: only numbers above 1 count.
std::vector<pid_t> processes(const std::string& path) {
    std::string text;
    std::vector<pid_t> all;
    if (!file_read(path, &text).ok()) return all;
    for (const char *at = text.data(), *end = at + text.size(); at < end; ++at) {
        pid_t pid = 0;
        at = std::from_chars(at, end, pid).ptr;
        if (pid > 1 && pid != ::getpid()) all.push_back(pid);
    }
    return all;
}

std::vector<std::string> folders_below(const std::string& path) {
    std::vector<std::string> all;
    for (const std::string& name : folder_names(path)) {
        struct stat info;
        if (::lstat((path + "/" + name).c_str(), &info) == 0 && S_ISDIR(info.st_mode)) all.push_back(path + "/" + name);
    }
    return all;
}

/// A group, the deepest groups below it first.
void remove_all(const std::string& path) {
    for (const std::string& below : folders_below(path)) remove_all(below);
    ::rmdir(path.c_str());
}

void members_of(const std::string& path, std::vector<pid_t>* all) {
    for (pid_t pid : processes(path + "/cgroup.procs")) all->push_back(pid);
    for (const std::string& below : folders_below(path)) members_of(below, all);
}

std::string name_of(std::string_view what) { return fmt::format("gradcast-{}-{}", ::getpid(), what); }

/// Groups that daemons which are no more have left: rmdir() takes none that has a process.
void remove_left(const std::string& folder) {
    for (const std::string& path : folders_below(folder)) {
        const std::string_view prefix = "gradcast-";
        std::string_view name = path;
        name.remove_prefix(name.rfind('/') + 1);
        if (!name.starts_with(prefix)) continue;
        name.remove_prefix(prefix.size());
        pid_t pid = 0;
        std::from_chars(name.data(), name.data() + name.size(), pid);
        if (pid > 1 && ::kill(pid, 0) != 0 && errno == ESRCH) remove_all(path);
    }
}

/// Whether groups can be made below this one.
bool can_make(const std::string& folder) {
    const std::string path = folder + "/" + name_of("probe");
    const bool made = ::mkdir(path.c_str(), 0755) == 0 || errno == EEXIST;
    if (made) ::rmdir(path.c_str());
    return made && ::access((folder + "/cgroup.procs").c_str(), W_OK) == 0;
}

bool alone_in(const std::string& folder) {
    std::string text;
    return file_read(folder + "/cgroup.procs", &text).ok() && text == fmt::format("{}\n", ::getpid());
}

/// Groups below `folder` get a controller.  False: they cannot.
bool pass_on(const std::string& folder, const std::string& controller) {
    const std::string path = folder + "/cgroup.subtree_control";
    if (lists(path, controller)) return true;
    if (!lists(folder + "/cgroup.controllers", controller)) return false;
    const std::string text = "+" + controller;
    if (put(path, text)) return true;
    if (errno != EBUSY || !alone_in(folder)) return false;
    const std::string self = folder + "/" + name_of("self");
    if (::mkdir(self.c_str(), 0755) != 0 && errno != EEXIST) return false;
    return put(self + "/cgroup.procs", "0") && put(path, text);
}

/// Why no group below the own one can have limits of a controller.
std::string why_not(const GroupRoom& room, const std::string& own, const std::string& controller) {
    if (own.empty()) return "no control groups of version 2 are mounted";
    if (room.two.empty())
        return fmt::format(
            "this user may not make control groups below {} (Delegate=pids memory cpu and ProtectControlGroups=no in the "
            "unit, or systemd-run --user --scope -p Delegate=yes)",
            own);
    if (!lists(room.two + "/cgroup.controllers", controller))
        return fmt::format("control group {} does not have the controller {} (Delegate={} in the unit)", own, controller, controller);
    return fmt::format(
        "control group {} has other processes, so it cannot pass {} on: start the daemon in a group of its own, as its unit does", own,
        controller);
}

}   // namespace

GroupRoom group_room_find(const std::string& root) {
    GroupRoom room;
    std::string own;   // this process's group, for messages
    std::string one_pids, one_memory;
    for (const char* controller : {"pids", "memory"}) {
        std::string& one = controller == std::string_view("pids") ? one_pids : one_memory;
        std::string first_two, first_one;
        control_groups(root, controller, [&](const ControlGroup& group) {   // the first one of each hierarchy is this process's own
            std::string& first = group.two ? first_two : first_one;
            if (!first.empty()) return;
            first = group.folder;
            if (group.two && own.empty()) own = group.path;
        });
        if (room.two.empty() && !first_two.empty() && can_make(first_two)) room.two = first_two;
        if (!first_one.empty() && can_make(first_one)) one = first_one;
    }
    for (const std::string* folder : {&room.two, &one_pids, &one_memory})
        if (!folder->empty()) remove_left(*folder);
    room.pids = !room.two.empty() && pass_on(room.two, "pids") ? room.two : one_pids;
    room.memory = !room.two.empty() && pass_on(room.two, "memory") ? room.two : one_memory;
    if (!room.bounds_tasks()) room.why = why_not(room, own, "pids");
    if (!room.bounds_memory()) room.why_memory = why_not(room, own, "memory");
    return room;
}

const GroupRoom& group_room() {
    static const GroupRoom room = group_room_find();   // a second search would find the group to which the first one has moved
    return room;
}

std::unique_ptr<ProcessGroup> ProcessGroup::make(const GroupRoom& room, uint64_t memory_max, uint32_t pids_max) {
    static std::atomic<uint64_t> count = 0;   // of this process: names differ
    const std::string name = name_of(std::to_string(count.fetch_add(1, std::memory_order_relaxed)));
    std::unique_ptr<ProcessGroup> group(new ProcessGroup);
    for (const std::string* folder : {&room.two, &room.pids, &room.memory}) {
        const std::string path = *folder + "/" + name;
        const auto same = [&](const Folder& each) { return each.path == path; };
        if (folder->empty() || std::any_of(group->folders_.begin(), group->folders_.end(), same)) continue;
        if (::mkdir(path.c_str(), 0755) != 0) continue;
        const bool two = folder == &room.two;
        if (pids_max > 0 && *folder == room.pids) put(path + "/pids.max", std::to_string(pids_max));
        Fd procs(::open((path + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
        if (procs) group->folders_.push_back({path, two, *folder == room.memory, std::move(procs)});
        else ::rmdir(path.c_str());
    }
    if (memory_max > 0) group->limit_memory(memory_max);
    return group->folders_.empty() ? nullptr : std::move(group);
}

ProcessGroup::~ProcessGroup() { remove(); }

std::vector<int> ProcessGroup::entries() const {
    std::vector<int> all;
    for (const Folder& each : folders_) all.push_back(each.procs.get());
    return all;
}

std::vector<pid_t> ProcessGroup::members() const {
    std::vector<pid_t> all;
    for (const Folder& each : folders_) members_of(each.path, &all);
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
}

void ProcessGroup::kill(bool freeze) const {
    for (const Folder& each : folders_) {
        if (each.two && !freeze && put(each.path + "/cgroup.kill", "1")) continue;
        const bool frozen = each.two && put(each.path + "/cgroup.freeze", "1");
        if (!each.two) put(each.path + "/pids.max", "0");
        std::vector<pid_t> all;
        members_of(each.path, &all);
        for (pid_t pid : all) ::kill(pid, SIGKILL);
        if (frozen) put(each.path + "/cgroup.freeze", "0");
    }
}

void ProcessGroup::limit_memory(uint64_t bytes) {
    for (const Folder& each : folders_) {
        if (!each.memory) continue;
        const std::string text = std::to_string(bytes);
        bounds_memory_.store(put(each.path + (each.two ? "/memory.max" : "/memory.limit_in_bytes"), text), std::memory_order_relaxed);
        // Files that a kernel without swap lacks.
        if (each.two) put(each.path + "/memory.swap.max", "0");
        else put(each.path + "/memory.memsw.limit_in_bytes", text);
        if (!each.two) put(each.path + "/memory.max_usage_in_bytes", "0");   // of the limit before
        if (each.two) put(each.path + "/memory.oom.group", "1");             // no half of a process and its workers stays
    }
}

ProcessGroup::OutOfMemory ProcessGroup::out_of_memory() const {
    for (const Folder& each : folders_) {
        std::string text;
        uint64_t ended = 0;
        if (!file_read(each.path + (each.two ? "/memory.events" : "/memory.oom_control"), &text).ok() ||
            !number_after(text, "oom_kill ", &ended) || ended == 0)
            continue;
        uint64_t times = 0, most = 0, limit = 0;
        if (each.two) return number_after(text, "oom ", &times) && times > 0 ? OutOfMemory::limit : OutOfMemory::elsewhere;
        // Version 1 counts no failures in a group whose limit with swap is the same.  One huge page may not have fitted any more.
        constexpr uint64_t page = 2 << 20;
        const bool read =
            number_in(each.path + "/memory.max_usage_in_bytes", &most) && number_in(each.path + "/memory.limit_in_bytes", &limit);
        return read && most + page >= limit ? OutOfMemory::limit : OutOfMemory::elsewhere;
    }
    return OutOfMemory::no;
}

bool ProcessGroup::remove() {
    std::erase_if(folders_, [](Folder& each) {
        remove_all(each.path);
        return ::access(each.path.c_str(), F_OK) != 0;
    });
    return folders_.empty();
}

}   // namespace gradcast
