// The CPUs that this process may use: those of the machine, less what a quota of a control group takes away.
#pragma once
#include <cstdint>
#include <string>

namespace gradcast {

struct CpuRoom {
    uint32_t cpus = 1;          // that the process may run on
    double quota = 0;           // CPUs' worth of time, the tightest of all groups; 0: none
    std::string where;          // "control group /system.slice/gradcastd.service"; "": no quota
    uint32_t threads() const;   // that can compute at once, at least 1
};
/// Reads small files under `root` (tests use another one).
CpuRoom cpu_room(const std::string& root = "");

}   // namespace gradcast
