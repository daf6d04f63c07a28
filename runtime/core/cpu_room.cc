#include "runtime/core/cpu_room.h"

#include <algorithm>
#include <thread>

#include "runtime/core/control_groups.h"
#include "runtime/core/fd.h"

namespace gradcast {

uint32_t CpuRoom::threads() const {
    // A thread more than the quota is stopped for a part of each period, and the others of its step wait for it.
    return quota > 0 && quota < cpus ? std::max(static_cast<uint32_t>(quota), 1u) : cpus;
}

CpuRoom cpu_room(const std::string& root) {
    CpuRoom room;
    room.cpus = std::max(1u, std::thread::hardware_concurrency());
    control_groups(root, "cpu", [&](const ControlGroup& group) {
        uint64_t quota = 0, period = 0;
        std::string text;
        if (group.two) {   // "200000 100000" or "max 100000"
            if (!file_read(group.folder + "/cpu.max", &text).ok() || !number_after(text, "", &quota)) return;
            (void)number_after(text.replace(0, std::min(text.find(' '), text.size()), ""), "", &period);
        } else if (!number_in(group.folder + "/cpu.cfs_quota_us", &quota) || !number_in(group.folder + "/cpu.cfs_period_us", &period)) {
            return;   // the quota is -1 where there is none
        }
        if (period == 0) return;
        const double cpus = static_cast<double>(quota) / static_cast<double>(period);
        if (room.quota == 0 || cpus < room.quota) {
            room.quota = cpus;
            room.where = "control group " + group.path;
        }
    });
    return room;
}

}   // namespace gradcast
