#include "runtime/job/report/job_status.h"

#include <fmt/format.h>

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

std::string progress_text(const JobStatus& status) {
    std::string text = fmt::format("step {}/{}  epoch {}/{}  loss ", status.step, status.steps, status.epoch, status.epochs);
    text += status.stepped() ? fmt::format("{:.4f}", status.loss) : "-";
    if (status.accuracy >= 0) text += fmt::format("  accuracy {:.4f}", status.accuracy);
    else if (status.test_loss >= 0) text += fmt::format("  test loss {:.4f}", status.test_loss);
    return text;
}

}   // namespace gradcast
