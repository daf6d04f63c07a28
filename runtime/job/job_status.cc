#include "runtime/job/job_status.h"

namespace gradcast {

const char* job_state_name(JobState state) {
    switch (state) {
        case JobState::preparing: return "preparing";
        case JobState::running: return "running";
        case JobState::done: return "done";
        case JobState::failed: return "failed";
        case JobState::cancelled: return "cancelled";
    }
    return "?";
}

}   // namespace gradcast
