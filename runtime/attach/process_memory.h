// What a process takes of the machine's memory, as /proc says it.
//
// Pss is read where the kernel tells it: a page that n processes have counts 1/n for each.  So the sum over a process and the workers that
// it has forked counts each page once.  Rss counts such a page n times: four workers of a data loader would seem to need four times the
// memory of the process that forked them.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>

namespace gradcast {

struct ProcessMemory {
    uint64_t own = 0;     // bytes that go with the process: anonymous and swapped pages, and shared memory but that of the border
    uint64_t files = 0;   // bytes of mapped files, mostly libraries; the kernel can drop them, and other processes may have the same pages
    uint64_t above = 0;   // bytes that the process had more of when it had most
    uint64_t peak() const { return own + above; }
};

/// The names of the border's memfds begin with it.  This memory is planned, and is no process's own.
constexpr const char* border_memory = "gradcast-";

/// Adds what the process has.  It adds nothing where the process is gone.  Without smaps_rollup, or where the kernel denies it, pages count
/// as Rss counts them.  Reads files under `root` (tests use another one).  Walks the page tables: about 10 ms for 1 GiB.
void process_memory_add(pid_t pid, ProcessMemory* memory, const std::string& root = "");
/// Pss, else Rss, in bytes, of all pages, those of the border included.  Costs as much.
uint64_t process_pss(pid_t pid, const std::string& root = "");
/// Rss in bytes: never less than Pss.  Costs some microseconds.
uint64_t process_rss(pid_t pid, const std::string& root = "");

}   // namespace gradcast
