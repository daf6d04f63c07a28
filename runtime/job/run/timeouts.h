// The time limits of a job.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gradcast {

/// All that is derived from the deadline D of a job (runtime/view/VIEWS.md, "Times").
struct Timeouts {
    uint64_t heartbeat_us;    // D/40
    uint64_t settle_us;       // D/40: crossing aborts agree
    uint64_t suspicion_us;    // D/4: silence, or no progress of a trainer that does not wait, is logged; a silent rank that the
                              // exchange can do without is given up
    uint64_t lost_us;         // D/2: the same ends the job; also how long a broken stream may stay away
    uint64_t stall_us;        // D: any wait for other ranks
    uint64_t first_step_us;   // 10 D: the first step
};
Timeouts timeouts_of(uint64_t deadline_us);
std::vector<std::pair<std::string, uint64_t>> timeouts_list(const Timeouts& timeouts);   // for people

}   // namespace gradcast
