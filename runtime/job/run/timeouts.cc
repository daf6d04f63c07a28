#include "runtime/job/run/timeouts.h"

namespace gradcast {

Timeouts timeouts_of(uint64_t deadline_us) {
    return {deadline_us / 40, deadline_us / 40, deadline_us / 4, deadline_us / 2, deadline_us, 10 * deadline_us};
}

std::vector<std::pair<std::string, uint64_t>> timeouts_list(const Timeouts& timeouts) {
    return {{"heartbeat", timeouts.heartbeat_us}, {"aborts agree", timeouts.settle_us}, {"suspicion", timeouts.suspicion_us},
            {"peer lost", timeouts.lost_us},      {"longest stall", timeouts.stall_us}, {"first step", timeouts.first_step_us}};
}

}   // namespace gradcast
