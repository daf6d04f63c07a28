#include "runtime/job/report/job_status.h"

#include <fmt/format.h>

#include "runtime/core/elementary.h"

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
    if (status.tokens > 0 && status.test_loss >= 0)
        text += fmt::format("  test loss {:.4f}  perplexity {:.2f}", status.test_loss, elementary::exp(status.test_loss));
    else if (status.accuracy >= 0) text += fmt::format("  accuracy {:.4f}", status.accuracy);
    else if (status.test_loss >= 0) text += fmt::format("  test loss {:.4f}", status.test_loss);
    return text;
}

std::string speed_text(const JobStatus& status) {
    if (status.tokens > 0) return fmt::format("{:.0f} tokens/s", status.samples_per_second * status.tokens);
    return fmt::format("{:.0f} samples/s", status.samples_per_second);
}

std::string quality_text(const JobStatus& status) {
    if (status.tokens > 0 && status.test_loss >= 0)
        return fmt::format("test loss {:.6f}\nperplexity {:.4f}\n", status.test_loss, elementary::exp(status.test_loss));
    if (status.accuracy >= 0) return fmt::format("accuracy {:.4f}\n", status.accuracy);
    return status.test_loss >= 0 ? fmt::format("test loss {:.6f}\n", status.test_loss) : "";
}

}   // namespace gradcast
