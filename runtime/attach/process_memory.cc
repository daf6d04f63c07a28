#include "runtime/attach/process_memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "runtime/core/control_groups.h"
#include "runtime/core/fd.h"

namespace gradcast {
namespace {

std::string read(const std::string& root, pid_t pid, const char* name) {
    std::string text;
    (void)file_read(fmt::format("{}/proc/{}/{}", root, pid, name), &text);
    return text;
}

/// Of a line "name:  12 kB"; 0: there is none.
uint64_t bytes_of(std::string_view text, std::string_view name) {
    uint64_t kilobytes = 0;
    return number_after(text, name, &kilobytes) ? kilobytes * 1024 : 0;
}

/// Pss of the mappings of the border's memory.  In smaps a mapping is a line that ends with its name, and then its numbers.
uint64_t border_pss(std::string_view smaps) {
    const std::string name = std::string("/memfd:") + border_memory;
    uint64_t bytes = 0;
    for (size_t at = smaps.find(name); at != smaps.npos; at = smaps.find(name, at + 1)) {
        const size_t from = smaps.find("\nPss:", at);
        uint64_t kilobytes = 0;
        if (from != smaps.npos && number_after(smaps.substr(from + 1, 64), "Pss:", &kilobytes)) bytes += kilobytes * 1024;
    }
    return bytes;
}

}   // namespace

void process_memory_add(pid_t pid, ProcessMemory* memory, const std::string& root) {
    const std::string status = read(root, pid, "status"), rollup = read(root, pid, "smaps_rollup");
    const uint64_t rss = bytes_of(status, "VmRSS:");
    memory->above += std::max(bytes_of(status, "VmHWM:"), rss) - rss;
    if (uint64_t any = 0; number_after(rollup, "Pss_Anon:", &any)) {
        const uint64_t shared = bytes_of(rollup, "Pss_Shmem:"), border = shared > 0 ? border_pss(read(root, pid, "smaps")) : 0;
        memory->own += bytes_of(rollup, "Pss_Anon:") + bytes_of(rollup, "SwapPss:") + shared - std::min(shared, border);
        memory->files += bytes_of(rollup, "Pss_File:");
    } else {
        memory->own += bytes_of(status, "RssAnon:") + bytes_of(status, "VmSwap:") + bytes_of(status, "RssShmem:");
        memory->files += bytes_of(status, "RssFile:");
    }
}

uint64_t process_pss(pid_t pid, const std::string& root) {
    const std::string rollup = read(root, pid, "smaps_rollup");
    uint64_t any = 0;
    return number_after(rollup, "Pss:", &any) ? bytes_of(rollup, "Pss:") + bytes_of(rollup, "SwapPss:") : process_rss(pid, root);
}

uint64_t process_rss(pid_t pid, const std::string& root) {
    const std::string status = read(root, pid, "status");
    return bytes_of(status, "VmRSS:") + bytes_of(status, "VmSwap:");
}

}   // namespace gradcast
