// How much memory this process may still take before the kernel ends somebody for it: the least of what the machine has available and of
// what each control group above this process (version 2 or 1) leaves.  File pages that a group could give back count as free, swap does
// not.
#pragma once
#include <cstdint>
#include <string>

namespace gradcast {

struct MemoryRoom {
    uint64_t bytes = UINT64_MAX;   // UINT64_MAX: nothing could be read
    std::string where;             // "this machine", "control group /system.slice/gradcastd.service"
};
/// Reads small files under `root` (another one in tests).  What cannot be read does not limit.
MemoryRoom memory_room(const std::string& root = "");

}   // namespace gradcast
