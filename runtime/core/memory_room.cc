#include "runtime/core/memory_room.h"

#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "runtime/core/control_groups.h"
#include "runtime/core/fd.h"

namespace gradcast {
namespace {

/// File names and keys, for versions 2 and 1 of control groups.
struct Names {
    std::vector<const char*> limits;
    const char *current, *inactive, *active;
};
const Names version_2{{"/memory.max", "/memory.high"}, "/memory.current", "inactive_file", "active_file"};
const Names version_1{{"/memory.limit_in_bytes"}, "/memory.usage_in_bytes", "total_inactive_file", "total_active_file"};

void group_room(const ControlGroup& group, MemoryRoom* room) {
    const Names& names = group.two ? version_2 : version_1;
    uint64_t current = 0, inactive = 0, active = 0;
    if (!number_in(group.folder + names.current, &current)) return;
    std::string stat;
    if (file_read(group.folder + "/memory.stat", &stat).ok()) {
        (void)number_after(stat, names.inactive, &inactive);
        (void)number_after(stat, names.active, &active);
    }
    const uint64_t files = std::min(current, inactive + active), used = current - files;
    for (const char* each : names.limits)
        if (uint64_t limit = 0; number_in(group.folder + each, &limit) && (limit > used ? limit - used : 0) < room->bytes)
            *room = {limit > used ? limit - used : 0, "control group " + group.path};
}

uint64_t of_machine(const std::string& root, std::string_view name) {
    std::string text;
    uint64_t kilobytes = 0;
    const bool known = file_read(root + "/proc/meminfo", &text).ok() && number_after(text, name, &kilobytes);
    return known ? kilobytes * 1024 : UINT64_MAX;
}

}   // namespace

MemoryRoom memory_for_jobs(const std::string& root) {
    MemoryRoom whole;
    if (const uint64_t bytes = of_machine(root, "MemTotal:"); bytes < UINT64_MAX) whole = {bytes, "this machine"};
    control_groups(root, "memory", [&](const ControlGroup& group) {
        for (const char* each : (group.two ? version_2 : version_1).limits)
            if (uint64_t limit = 0; number_in(group.folder + each, &limit) && limit < whole.bytes)
                whole = {limit, "control group " + group.path};
    });
    constexpr uint64_t reserve = 16;   // one part of so many
    if (whole.bytes < UINT64_MAX) whole.bytes -= whole.bytes / reserve;
    return whole;
}

MemoryRoom memory_room(const std::string& root) {
    MemoryRoom room;
    if (const uint64_t bytes = of_machine(root, "MemAvailable:"); bytes < UINT64_MAX) room = {bytes, "this machine"};
    control_groups(root, "memory", [&](const ControlGroup& group) { group_room(group, &room); });
    return room;
}

Status memory_room_for(uint64_t bytes, const std::string& what) {
    constexpr uint64_t checked_from = 16 << 20;   // asking costs more than a smaller piece could save
    if (bytes < checked_from) return {};
    const MemoryRoom room = memory_room();
    if (bytes <= room.bytes) {
        // Limits of the address space (ulimit -v) and of what may be promised (vm.overcommit_memory) are known to the kernel alone.
        if (void* tried = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); tried != MAP_FAILED) {
            ::munmap(tried, bytes);
            return {};
        }
        return fail(Code::node_memory, "{} needs {} MiB of memory; this process may not take as much (ulimit -v, vm.overcommit_memory)",
                    what, bytes >> 20);
    }
    return fail(Code::node_memory, "{} needs {} MiB of memory, {} MiB are available ({})", what, bytes >> 20, room.bytes >> 20, room.where);
}

}   // namespace gradcast
