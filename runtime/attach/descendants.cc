#include "runtime/attach/descendants.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "runtime/core/fd.h"

namespace gradcast {
namespace {

struct Seen {
    pid_t parent = 0, session = 0;
    bool zombie = false;
};

struct Leaders {
    std::mutex mutex;
    std::map<pid_t, std::string> markers;   // by the leader's number
    uint32_t starting = 0;
};
Leaders& leaders() {
    static Leaders all;   // orphans come to the process, whichever object has started their parents
    return all;
}

/// A file of /proc, which may be gone at any time.
bool read_proc(pid_t pid, const char* name, size_t bytes_max, std::string* text) {
    const Fd file(::open(("/proc/" + std::to_string(pid) + "/" + name).c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) return false;
    text->clear();
    char chunk[4096];
    for (ssize_t got; text->size() < bytes_max && (got = ::read(file.get(), chunk, sizeof chunk)) > 0;)
        text->append(chunk, static_cast<size_t>(got));
    return !text->empty();
}

bool seen_of(pid_t pid, Seen* seen) {
    std::string text;
    if (!read_proc(pid, "stat", 4096, &text)) return false;
    const size_t name = text.rfind(") ");   // "pid (name) state parent group session …"
    if (name == text.npos || name + 4 > text.size()) return false;
    const char state = text[name + 2];
    const char *at = text.data() + name + 4, *end = text.data() + text.size();
    int64_t numbers[17] = {};   // from the parent to the number of threads
    for (int64_t& number : numbers) {
        at = std::from_chars(at, end, number).ptr;
        if (at < end) ++at;
    }
    // Where the first thread alone has ended, the state is that of a zombie, too.
    const bool ended = state == 'X' || (state == 'Z' && numbers[16] <= 1);
    *seen = {static_cast<pid_t>(numbers[0]), static_cast<pid_t>(numbers[2]), ended};
    return true;
}

std::map<pid_t, Seen> see_all() {
    std::map<pid_t, Seen> all;
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"), &::closedir);
    while (const dirent* entry = folder ? ::readdir(folder.get()) : nullptr) {
        const std::string_view name = entry->d_name;
        pid_t pid = 0;
        if (Seen seen; std::from_chars(name.data(), name.data() + name.size(), pid).ec == std::errc() && seen_of(pid, &seen))
            all[pid] = seen;
    }
    return all;
}

/// The environment of a process, between zero bytes.  While a process executes a program it has neither words nor environment for a moment:
/// it is waited for, at most 100 ms.
std::string environment_of(pid_t pid) {
    std::string words, text;
    for (int tries = 0; tries < 100; ++tries) {
        const bool has_words = read_proc(pid, "cmdline", 1, &words);   // first: an environment that is empty after it is none
        Seen seen;
        if (read_proc(pid, "environ", 4 << 20, &text) || has_words || !seen_of(pid, &seen) || seen.zombie) break;
        ::usleep(1000);
    }
    return std::string(1, '\0') + text + '\0';
}

bool has_marker(const std::string& environment, const std::string& marker) {
    return environment.find(std::string(1, '\0') + descendant_marker + "=" + marker + '\0') != environment.npos;
}

/// The leader from which a process descends; 0: an unknown one; none: it is no descendant of a leader.
std::optional<pid_t> leader_of(pid_t pid, const std::map<pid_t, Seen>& all, const std::map<pid_t, std::string>& markers) {
    const pid_t self = ::getpid(), session = ::getsid(0);
    // The numbers of a list that is read while processes come and go may form a ring: the way is bounded.
    for (size_t steps = 0; steps <= all.size(); ++steps) {
        if (markers.contains(pid)) return pid;
        const auto at = all.find(pid);
        if (pid == self || at == all.end()) break;
        if (at->second.session == session) return {};
        if (markers.contains(at->second.session)) return at->second.session;
        if (at->second.parent == self) {
            const std::string environment = environment_of(pid);
            for (const auto& [leader, marker] : markers)
                if (has_marker(environment, marker)) return leader;
            return 0;
        }
        pid = at->second.parent;
    }
    return {};
}

}   // namespace

void Descendants::starting() {
    const std::lock_guard lock(leaders().mutex);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    ++leaders().starting;
}

void Descendants::started(pid_t leader, const std::string& marker) {
    const std::lock_guard lock(leaders().mutex);
    --leaders().starting;
    leaders().markers[leader] = marker;
}

void Descendants::not_started() {
    const std::lock_guard lock(leaders().mutex);
    --leaders().starting;
}

void Descendants::ended(pid_t leader) {
    const std::lock_guard lock(leaders().mutex);
    leaders().markers.erase(leader);
}

std::vector<pid_t> Descendants::of(pid_t leader) {
    const std::lock_guard lock(leaders().mutex);   // no other process is started between the list and the end of the search
    const auto& markers = leaders().markers;
    const bool last = markers.size() == 1 && leaders().starting == 0;
    const std::map<pid_t, Seen> all = see_all();
    std::vector<pid_t> found;
    for (const auto& [pid, seen] : all) {
        if (pid == leader || seen.zombie) continue;
        const auto of = leader_of(pid, all, markers);
        if (of && (*of == leader || (*of == 0 && last))) found.push_back(pid);
    }
    return found;
}

void Descendants::reap() {
    siginfo_t ended{};
    // Cheap where nothing has ended.  WNOWAIT: the status stays for whoever waits for this child.
    if (::waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0) return;
    const std::lock_guard lock(leaders().mutex);
    if (leaders().starting > 0) return;   // a child that is no leader yet
    const pid_t self = ::getpid(), session = ::getsid(0);
    for (const auto& [pid, seen] : see_all())
        if (seen.zombie && seen.parent == self && seen.session != session && !leaders().markers.contains(pid))
            ::waitpid(pid, nullptr, WNOHANG);
}

}   // namespace gradcast
