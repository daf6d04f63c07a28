#include "runtime/core/memory_room.h"

#include <charconv>
#include <string_view>
#include <vector>

#include "runtime/core/fd.h"

namespace gradcast {
namespace {

/// The number after `name` at the start of a line; false: none.
bool number_after(std::string_view text, std::string_view name, uint64_t* number) {
    for (size_t at = text.find(name); at != text.npos; at = text.find(name, at + 1)) {
        if (at > 0 && text[at - 1] != '\n') continue;
        at = text.find_first_not_of(" \t", at + name.size());
        return at != text.npos && std::from_chars(text.data() + at, text.data() + text.size(), *number).ec == std::errc();
    }
    return false;
}

bool number_in(const std::string& path, uint64_t* number) {   // false for "max"
    std::string text;
    return file_read(path, &text).ok() && number_after(text, "", number);
}

std::vector<std::string_view> cut(std::string_view text, char by) {
    std::vector<std::string_view> parts;
    for (size_t at = 0; at <= text.size();) {
        const size_t end = std::min(text.find(by, at), text.size());
        parts.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    return parts;
}

bool has(std::string_view list, std::string_view word) {
    for (std::string_view each : cut(list, ','))
        if (each == word) return true;
    return false;
}

/// File names and keys, for versions 2 and 1 of control groups.
struct Names {
    std::vector<const char*> limits;
    const char *current, *inactive, *active;
};
const Names version_2{{"/memory.max", "/memory.high"}, "/memory.current", "inactive_file", "active_file"};
const Names version_1{{"/memory.limit_in_bytes"}, "/memory.usage_in_bytes", "total_inactive_file", "total_active_file"};

/// `at`: where the hierarchy is mounted; `path`: this process's group in it.
void group_room(const std::string& root, const std::string& at, std::string path, const Names& names, MemoryRoom* room) {
    for (;; path.resize(path.rfind('/'))) {
        const std::string folder = root + at + path;
        uint64_t current = 0, inactive = 0, active = 0;
        if (number_in(folder + names.current, &current)) {
            std::string stat;
            if (file_read(folder + "/memory.stat", &stat).ok()) {
                (void)number_after(stat, names.inactive, &inactive);
                (void)number_after(stat, names.active, &active);
            }
            const uint64_t files = std::min(current, inactive + active), used = current - files;
            for (const char* each : names.limits)
                if (uint64_t limit = 0; number_in(folder + each, &limit) && (limit > used ? limit - used : 0) < room->bytes)
                    *room = {limit > used ? limit - used : 0, "control group " + (path.empty() ? "/" : path)};
        }
        if (path.find('/') == path.npos) return;
    }
}

}   // namespace

MemoryRoom memory_room(const std::string& root) {
    MemoryRoom room;
    std::string text, mounts, groups;
    uint64_t kilobytes = 0;
    if (file_read(root + "/proc/meminfo", &text).ok() && number_after(text, "MemAvailable:", &kilobytes))
        room = {kilobytes * 1024, "this machine"};
    if (!file_read(root + "/proc/self/mountinfo", &mounts).ok() || !file_read(root + "/proc/self/cgroup", &groups).ok()) return room;
    for (std::string_view line : cut(mounts, '\n')) {
        const size_t dash = line.find(" - ");   // id parent device root mount-point options… - type source super-options
        if (dash == line.npos) continue;
        const auto mount = cut(line, ' '), type = cut(line.substr(dash + 3), ' ');
        if (mount.size() < 5 || type.size() < 3) continue;
        const bool two = type[0] == "cgroup2";
        if (!two && (type[0] != "cgroup" || !has(type[2], "memory"))) continue;
        for (std::string_view group : cut(groups, '\n')) {   // number:controllers:/path
            const size_t first = group.find(':'), second = group.find(':', first + 1);
            if (second == group.npos) continue;
            const std::string_view controllers = group.substr(first + 1, second - first - 1);
            if (two ? !controllers.empty() : !has(controllers, "memory")) continue;
            std::string_view path = group.substr(second + 1);
            if (mount[3] != "/" && path.starts_with(mount[3]))
                path.remove_prefix(mount[3].size());   // a container sees a part of the hierarchy
            while (path.ends_with('/')) path.remove_suffix(1);
            group_room(root, std::string(mount[4]), std::string(path), two ? version_2 : version_1, &room);
        }
    }
    return room;
}

Status memory_room_for(uint64_t bytes, const std::string& what) {
    constexpr uint64_t checked_from = 16 << 20;   // asking costs more than a smaller piece could save
    if (bytes < checked_from) return {};
    const MemoryRoom room = memory_room();
    if (bytes <= room.bytes) return {};
    return fail(Code::node_memory, "{} needs {} MiB of memory, {} MiB are available ({})", what, bytes >> 20, room.bytes >> 20, room.where);
}

}   // namespace gradcast
