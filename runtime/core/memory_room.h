// The memory that this process can take before the OOM killer acts: the minimum of the machine's available memory and of what each control
// group above this process (version 2 or 1) leaves.  Reclaimable file pages of a group count as free, swap does not.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/core/status.h"

namespace gradcast {

struct MemoryRoom {
    uint64_t bytes = UINT64_MAX;   // UINT64_MAX: nothing could be read
    std::string where;             // "this machine", "control group /system.slice/gradcastd.service"
};
/// Reads small files under `root` (tests use another one).  A file that cannot be read sets no limit.
MemoryRoom memory_room(const std::string& root = "");
/// 15/16 of the memory that this process could take if nothing else ran, which is the minimum of the machine's memory and of the limits of
/// the control groups above this process.  The rest is for the daemon and all else.  As memory_room().
MemoryRoom memory_for_jobs(const std::string& root = "");
/// Before a container of `bytes` is made for `what`: its constructor ends the process where it gets no memory.
/// Error: Code::node_memory with the number of bytes if this process cannot take them.  From 16 MiB on it costs some file reads and a
/// mapping of that size, which is not touched.
Status memory_room_for(uint64_t bytes, const std::string& what);

}   // namespace gradcast
