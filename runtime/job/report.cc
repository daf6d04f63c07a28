#include "runtime/job/report.h"

#include <algorithm>
#include <ctime>

#include "runtime/core/crypto.h"

namespace gradcast {

Status Report::open(const EngineConfig& config) {
    quantiser_ = quantiser_name(config.job.quantiser);
    GC_TRY(log_.open(config.folder + "/log", fmt::format("job {}: ", hex(config.id).substr(0, 8))));
    return steps_log_.open(config.folder + "/steps.jsonl", config.lanes > 0, config.resume.on || config.join, log_);
}

void Report::warn(const std::string& text) {
    log_.warn("{}", text);
    std::lock_guard lock(mutex_);
    status_.warnings.push_back(text);
}

JobStatus Report::status() const {
    std::lock_guard lock(mutex_);
    JobStatus status = status_;
    if (counters_) {
        status.bytes_sent = counters_->bytes_sent.load(std::memory_order_relaxed);
        status.bytes_received = counters_->bytes_received.load(std::memory_order_relaxed);
    }
    return status;
}

void Report::view(ViewRecord view) {
    constexpr size_t views_max = 256;
    view.began_unix = static_cast<uint64_t>(std::time(nullptr));
    std::lock_guard lock(mutex_);
    view.number = status_.views.empty() ? 1 : status_.views.back().number + 1;
    status_.view = view.number;
    status_.change_us = std::max(status_.change_us, view.stood_us);
    if (status_.views.size() == views_max) status_.views.erase(status_.views.begin());
    status_.views.push_back(std::move(view));
}

void Report::begin(uint64_t now_us, uint64_t steps) {
    begin_us_ = now_us;
    first_ = steps;
    if (steps > 0) {
        record_.step = steps - 1;
        steps_log_.keep(steps);
    }
    std::lock_guard lock(mutex_);
    status_.state = JobState::running;
    status_.step = status_.resumed = steps;
}

void Report::step(const Step& step, const std::vector<std::string>& why_lost) {
    record_ = step.record;
    uint64_t sent = 0, received = 0;
    if (counters_) {
        sent = counters_->bytes_sent.load(std::memory_order_relaxed);
        received = counters_->bytes_received.load(std::memory_order_relaxed);
    }
    const uint64_t steps = record_.step + 1;
    line_.clear();
    fmt::format_to(
        std::back_inserter(line_),
        "{{\"step\":{},\"epoch\":{},\"loss\":{:.6f},\"digest\":\"{:016x}\",\"clipped\":{},\"compute_us\":{},\"wait_us\":{},"
        "\"apply_us\":{},"
        "\"bytes_sent\":{},\"bytes_received\":{},\"kernels\":\"{}\",\"kernel_set\":\"{}\",\"exchange\":\"{}\",\"quantiser\":\"{}\"",
        record_.step + 1, step.epoch, record_.loss, record_.digest, record_.clipped, record_.compute_us, record_.wait_us, record_.apply_us,
        sent - sent_, received - received_, step.kernels, step.kernel_set, step.exchange, quantiser_);
    sent_ = sent, received_ = received;

    std::unique_lock lock(mutex_);
    status_.step = steps;
    status_.epoch = step.epoch;
    status_.loss = record_.loss;
    status_.gradients = step.gradients;
    status_.forwards = step.forwards;
    if (status_.losses.size() != why_lost.size()) status_.losses = why_lost;
    status_.step_digest = record_.digest;
    status_.seconds = static_cast<double>(step.now_us - begin_us_) / 1e6;
    status_.samples_per_second = status_.seconds > 0 ? static_cast<double>((steps - first_) * batch_) / status_.seconds : 0;
    status_.load_wait_us = step.load_wait_us;
    status_.exchange_wait_us += record_.wait_us;
    const double rate = status_.samples_per_second;
    const uint64_t steps_of_job = status_.steps;
    lock.unlock();
    if (step.logs && step.now_us - logged_us_ >= 1'000'000) {
        logged_us_ = step.now_us;
        log_.info("step {}/{} epoch {} loss {:.4f} {:.0f} samples/s compute {} us wait {} us apply {} us", steps, steps_of_job, step.epoch,
                  record_.loss, rate, record_.compute_us, record_.wait_us, record_.apply_us);
    }
}

void Report::evaluated(uint64_t epoch, double accuracy, double loss) {
    std::string shown;
    if (accuracy >= 0) {
        shown = fmt::format(" accuracy {:.4f}", accuracy);
        fmt::format_to(std::back_inserter(line_), ",\"accuracy\":{:.6f}", accuracy);
    }
    fmt::format_to(std::back_inserter(line_), ",\"test_loss\":{:.6f}", loss);
    {
        std::lock_guard lock(mutex_);
        status_.accuracy = accuracy;
        status_.test_loss = loss;
    }
    log_.info("epoch {} step {} loss {:.4f} test loss {:.4f}{}", epoch, record_.step + 1, record_.loss, loss, shown);
}

void Report::resumed(double accuracy, double loss) {
    std::lock_guard lock(mutex_);
    status_.accuracy = accuracy;
    status_.test_loss = loss;
}

void Report::step_end() {
    line_.append(std::string_view("}\n"));
    steps_log_.add({line_.data(), line_.size()});
}

void Report::end(Status status, uint64_t steps, const std::string& digest, uint64_t now_us, const std::vector<std::string>& why_lost) {
    steps_log_.close();
    if (status.ok()) log_.info("done after {} steps, digest {}", steps, digest);
    else if (status.code == Code::cancelled) log_.warn("{}", status.what);
    else log_.error("{}", status.what);
    std::lock_guard lock(mutex_);
    status_.state = status.ok() ? JobState::done : status.code == Code::cancelled ? JobState::cancelled : JobState::failed;
    status_.error = status.what;
    status_.losses = why_lost;
    status_.digest = status.ok() ? digest : "";
    if (begin_us_) status_.seconds = static_cast<double>(now_us - begin_us_) / 1e6;
}

}   // namespace gradcast
