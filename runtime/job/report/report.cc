#include "runtime/job/report/report.h"

#include <algorithm>
#include <chrono>
#include <ctime>

#include "algos/algorithm.h"
#include "runtime/core/crypto.h"
#include "runtime/job/model/evaluate.h"
#include "runtime/job/report/step_lines.h"

namespace gradcast {
namespace {

constexpr size_t curve_points_max = 512;

/// Names of drop counters, by DatagramFault; null: not shown.
constexpr const char* drop_names[] = {nullptr, "truncated", "foreign",    "other_job", "other_view", "no_member",
                                      nullptr, "type",      "before_key", "replayed",  "forged",     "no_room"};
static_assert(std::size(drop_names) == static_cast<size_t>(DatagramFault::kinds));

constexpr size_t nodes_later_max = 64;   // whose times are shown too, of those that the roster gets while the job runs

enum SentKind : size_t { sent_own, sent_repairs, sent_feedback };

double wall_seconds() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

}   // namespace

Status Report::open(const EngineConfig& config) {
    quantiser_ = quantiser_name(config.job.quantiser);
    nodes_ = config.roster;
    std::vector<std::string> nodes;
    for (size_t node = 0; node < nodes_.size(); ++node) nodes.push_back(nodes_[node].name);
    self_ = config.self;
    nodes_times_.plan(nodes.size() + nodes_later_max);
    if (config.job.stages > 1 || config.job.slice_groups > 1) nodes_stages_.plan(nodes.size() + nodes_later_max);
    status_.curve.reserve(curve_points_max);
    status_.workers.reserve(workers_reported_max);
    status_.staleness.reserve(Staleness::bins);
    std::vector<std::string> phases, reasons = {"stream_refused"};
    for (size_t i = 0; i < step_phases; ++i) phases.emplace_back(step_phase_name(static_cast<StepPhase>(i)));
    for (const char* each : drop_names)
        if (each) reasons.emplace_back(each);
    metrics_.plan(Metric::phase_time, phases);
    metrics_.plan(Metric::peer_wait, nodes);
    metrics_.plan(Metric::sent, {"own", "repairs", "feedback"});
    metrics_.plan(Metric::dropped, reasons);
    GC_TRY(log_.open(config.folder + "/log", fmt::format("job {}: ", hex(config.id).substr(0, 8))));
    if (config.job.tensorboard) {
        const std::string node = nodes.empty() ? "" : nodes[static_cast<size_t>(self_)];
        GC_TRY(events_.open(config.folder, node, wall_seconds(), config.lanes > 0, log_));
    }
    // A node that was shut out may have trained a step that the others have repeated.
    const AlgorithmKind* kind;
    GC_TRY(algorithm_find(config.job.algorithm, &kind));
    const bool goes_on = config.resume.on || (config.join && !follows_clock(*kind, config.job.settings));
    return steps_log_.open(config.folder + "/steps.jsonl", config.lanes > 0, goes_on, log_);
}

void Report::warn(const std::string& text) {
    log_.warn("{}", text);
    std::lock_guard lock(mutex_);
    status_.warnings.push_back(text);
}

JobStatus Report::status() const {
    JobStatus status = known();
    if (status.pipeline) pipeline_status_derive(&*status.pipeline);
    return status;
}

JobStatus Report::known() const {
    std::lock_guard lock(mutex_);
    JobStatus status = status_;
    if (evaluator_) status.evaluating = evaluator_->share();
    if (counters_) {
        status.bytes_sent = counters_->bytes_sent.load(std::memory_order_relaxed);
        status.bytes_received = counters_->bytes_received.load(std::memory_order_relaxed);
    }
    if (!status.views.empty())
        for (const std::string& member : status.views.back().members) {
            const size_t node = nodes_.find(member);
            const RankTimes times = node == static_cast<size_t>(self_) ? times_.read() : nodes_times_.get(node);
            if (times.steps > 0) status.times.push_back({member, times});
        }
    if (status.pipeline) {
        std::vector<StageNode>& all = status.pipeline->nodes;
        const auto own =
            std::ranges::find_if(all, [&](const StageNode& each) { return nodes_.find(each.node) == static_cast<size_t>(self_); });
        const uint32_t drawn = own == all.end() ? 1 : std::max(own->replica, 1u);
        for (StageNode& each : all) {
            const size_t node = nodes_.find(each.node);
            each.news = node == static_cast<size_t>(self_) ? stages_.read() : nodes_stages_.get(node);
            if (each.replica == 0) each.news = {};   // a spare computes nothing: these are of its time in a replica
            else if (each.replica != drawn) each.news.passes.clear();
        }
    }
    // Stages differ by what they compute.
    if (status.state == JobState::running && status.stage.empty()) status.stragglers = stragglers_of(status.times);
    fill_metrics(status);
    return status;
}

/// What is counted elsewhere, then all.
void Report::fill_metrics(JobStatus& status) const {
    auto relaxed = [](const auto& value) { return uint64_t{value.load(std::memory_order_relaxed)}; };
    if (counters_) {
        const uint64_t repairs = relaxed(repairs_bytes_), feedback = relaxed(feedback_bytes_);
        metrics_.set(Metric::sent, status.bytes_sent - std::min(status.bytes_sent, repairs + feedback), sent_own);
        metrics_.set(Metric::sent, repairs, sent_repairs);
        metrics_.set(Metric::sent, feedback, sent_feedback);
        metrics_.set(Metric::received, status.bytes_received);
        metrics_.set(Metric::reconnects, relaxed(counters_->reconnects));
        metrics_.set(Metric::unsent, relaxed(counters_->datagrams_unsent));
        size_t reason = 0;
        metrics_.set(Metric::dropped, relaxed(counters_->packets_refused), reason++);
        for (size_t fault = 0; fault < std::size(drop_names); ++fault)
            if (drop_names[fault]) metrics_.set(Metric::dropped, relaxed(counters_->datagrams_dropped[fault]), reason++);
    }
    metrics_.set(Metric::gradients, status.gradients);
    metrics_.set(Metric::forwards, status.forwards);
    auto gauge = [&](Metric metric, double value, bool known = true) {
        if (known) metrics_.gauge(metric, value);
    };
    gauge(Metric::step, static_cast<double>(status.step));
    gauge(Metric::steps_planned, static_cast<double>(status.steps));
    gauge(Metric::epoch, static_cast<double>(status.epoch));
    gauge(Metric::loss, status.loss, status.stepped());
    gauge(Metric::accuracy, status.accuracy, status.accuracy >= 0);
    gauge(Metric::test_loss, status.test_loss, status.test_loss >= 0);
    gauge(Metric::view, status.view);
    gauge(Metric::members, static_cast<double>(status.views.empty() ? 0 : status.views.back().members.size()));
    gauge(Metric::view_change, static_cast<double>(status.change_us) * 1e-6);
    gauge(Metric::checkpoint, static_cast<double>(status.checkpoint));
    std::vector<std::string> purposes;
    for (const MemoryUse& place : status.memory)
        for (const auto& [purpose, bytes] : place.bytes) purposes.push_back(place.place.empty() ? purpose : place.place + ": " + purpose);
    metrics_.plan(Metric::memory, purposes);
    size_t at = 0;
    for (const MemoryUse& place : status.memory)
        for (const auto& [purpose, bytes] : place.bytes) metrics_.gauge(Metric::memory, static_cast<double>(bytes), at++);
    status.metrics = metrics_.read();
}

/// Trainer thread: does not allocate, and no lock is held for long.
void Report::measure(const Step& step) {
    auto us = [&](StepPhase phase) { return step.phases_us[static_cast<size_t>(phase)]; };
    metrics_.add(Metric::steps, 1);
    metrics_.add(Metric::samples, batch_);
    metrics_.add(Metric::clipped, step.record.clipped);
    metrics_.observe(Metric::step_time, us(StepPhase::compute) + us(StepPhase::wait) + us(StepPhase::apply));
    for (size_t i = 0; i < step_phases; ++i) metrics_.observe(Metric::phase_time, step.phases_us[i], i);
    if (step.waited_for) metrics_.add(Metric::peer_wait, us(StepPhase::wait), static_cast<size_t>(*step.waited_for));
    times_.step(step.phases_us, step.blocks);
    if (step.stage) stages_.step(step.record.step + 1, *step.stage, us(StepPhase::compute) + us(StepPhase::wait));
    // The counters of a view begin at zero with it.
    if (std::exchange(bulk_view_, step.bulk_view) != step.bulk_view) bulk_seen_ = {};
    const std::atomic<uint64_t>* const counters[] = {&step.bulk.packets_sent,  &step.bulk.repairs_sent, &step.bulk.lost,
                                                     &step.bulk.repaired,      &step.bulk.duplicates,   &step.bulk.repairs_bytes,
                                                     &step.bulk.feedback_bytes};
    std::array<uint64_t, std::size(counters)> more;
    for (size_t i = 0; i < more.size(); ++i) {
        const uint64_t now = counters[i]->load(std::memory_order_relaxed);
        more[i] = now - std::exchange(bulk_seen_[i], now);
    }
    constexpr Metric metrics[] = {Metric::datagrams, Metric::retransmissions, Metric::losses, Metric::repaired, Metric::duplicates};
    for (size_t i = 0; i < std::size(metrics); ++i) metrics_.add(metrics[i], more[i]);
    repairs_bytes_.fetch_add(more[5], std::memory_order_relaxed);
    feedback_bytes_.fetch_add(more[6], std::memory_order_relaxed);
}

/// Holding mutex_.  When there are too many points, every second one goes; the room is taken already.
void Report::point(const CurvePoint& point) {
    std::vector<CurvePoint>& curve = status_.curve;
    if (point.step % curve_every_ != 0 && curve_every_ > 1) return;
    if (curve.size() == curve_points_max) {
        curve_every_ *= 2;
        size_t kept = 0;
        double accuracy = -1;
        for (const CurvePoint& each : curve) {
            if (each.accuracy >= 0) accuracy = each.accuracy;
            if (each.step % curve_every_ != 0) continue;
            curve[kept] = each;
            curve[kept++].accuracy = std::exchange(accuracy, -1);
        }
        curve.resize(kept);
        if (point.step % curve_every_ != 0) return;
    }
    curve.push_back(point);
}

void Report::pipeline(PipelineStatus status) {
    std::lock_guard lock(mutex_);
    status_.pipeline = std::move(status);
}

void Report::views(std::vector<ViewRecord> views) {
    std::lock_guard lock(mutex_);
    for (const ViewRecord& view : views) status_.change_us = std::max(status_.change_us, view.stood_us);
    if (!views.empty()) status_.view = views.back().number;
    status_.views = std::move(views);
}

std::vector<ViewRecord> Report::views() const {
    std::lock_guard lock(mutex_);
    return status_.views;
}

void Report::begin(uint64_t now_us, uint64_t steps, uint64_t epoch) {
    begin_us_ = now_us;
    begin_wall_ = wall_seconds();
    first_ = steps;
    logged_ = 0;
    if (events_.is_open() && steps > 0) events_.resume(begin_wall_, steps);
    if (steps > 0) {
        record_.step = steps - 1;
        logged_ = steps_log_.keep(steps);
        log_gap(steps);
    }
    std::lock_guard lock(mutex_);
    status_.state = JobState::running;
    status_.step = status_.resumed = steps;
    status_.epoch = epoch;
}

std::pair<uint64_t, uint64_t> Report::take_bytes() {
    if (!counters_) return {};
    const uint64_t sent = counters_->bytes_sent.load(std::memory_order_relaxed);
    const uint64_t received = counters_->bytes_received.load(std::memory_order_relaxed);
    return {sent - std::exchange(sent_, sent), received - std::exchange(received_, received)};
}

void Report::log_gap(uint64_t steps) {
    if (!logged_ || *logged_ >= steps) return;
    const StepGap gap{*logged_ + 1, steps, steps == state_from_.second ? state_from_.first : std::string()};
    steps_log_.add(step_gap_line(gap));
    log_.info("{}", step_gap_text(gap));
    logged_ = steps;
}

void Report::step(const Step& step, const std::vector<std::string>& why_lost) {
    log_gap(step.record.step);
    logged_ = step.record.step + 1;
    record_ = step.record;
    const uint64_t bound = std::exchange(bound_, step.bytes_bound), edge_bytes = std::exchange(edge_bytes_, step.edge_bytes);
    const bool goes_on = bulk_view_ == step.bulk_view;
    measure(step);
    const uint64_t steps = record_.step + 1;
    const double before = std::exchange(trained_seconds_, static_cast<double>(step.now_us - begin_us_ - evaluation_us_) * 1e-6);
    line_.clear();
    fmt::format_to(std::back_inserter(line_),
                   "{{\"step\":{},\"epoch\":{},\"loss\":{:.6f},\"digest\":\"{:016x}\",\"clipped\":{},\"compute_us\":{},\"wait_us\":{},"
                   "\"apply_us\":{},"
                   "\"bytes_sent\":{},\"bytes_received\":{},\"kernels\":\"{}\",\"kernel_set\":\"{}\",\"exchange\":\"{}\",\"quantiser\":\"{}"
                   "\",\"samples\":{}",
                   steps, step.epoch, record_.loss, record_.digest, record_.clipped, record_.compute_us, record_.wait_us, record_.apply_us,
                   step.bytes_sent, step.bytes_received, step.kernels, step.kernel_set, step.exchange, quantiser_, steps * batch_);
    if (step.edge_bytes > 0)
        fmt::format_to(std::back_inserter(line_), ",\"word_bytes\":{},\"edge_bytes\":{}", step.bytes_bound, step.edge_bytes);
    if (events_.is_open()) {
        wall_seconds_ = begin_wall_ + static_cast<double>(step.now_us - begin_us_) * 1e-6;
        const double seconds = trained_seconds_ - before;
        scalars_count_ = 0;
        scalar("train/loss", record_.loss);
        if (seconds > 0) scalar("speed/samples_per_second", static_cast<double>(batch_) / seconds);
        scalar("network/bytes_sent", static_cast<double>(sent_));
        scalar("network/bytes_received", static_cast<double>(received_));
        scalar("network/wait_seconds", record_.wait_us * 1e-6);
    }

    std::unique_lock lock(mutex_);
    status_.step = steps;
    status_.epoch = step.epoch;
    status_.loss = record_.loss;
    status_.samples = step.samples;
    status_.gradients = step.gradients;
    status_.forwards = step.forwards;
    status_.workers.clear();
    for (const WorkerCounts& each : step.workers)
        if (each.rounds > 0 && status_.workers.size() < workers_reported_max) status_.workers.push_back(each);
    status_.staleness.clear();
    for (uint32_t i = 0; i < Staleness::bins; ++i)
        if (const StalenessBin bin = step.staleness.bin(i); bin.pushes > 0) status_.staleness.push_back(bin);
    if (status_.losses != why_lost) status_.losses = why_lost;
    status_.step_digest = record_.digest;
    status_.seconds = static_cast<double>(step.now_us - begin_us_) / 1e6;
    status_.samples_per_second = trained_seconds_ > 0 ? static_cast<double>((steps - first_) * batch_) / trained_seconds_ : 0;
    point({.step = steps, .loss = record_.loss, .seconds = status_.seconds, .bytes_sent = sent_});
    if (goes_on) status_.bytes_bound += bound, status_.edge_bytes += edge_bytes;
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

void Report::evaluation_begin(const Evaluator& evaluator, uint64_t now_us) {
    evaluation_begin_us_ = now_us;
    std::lock_guard lock(mutex_);
    evaluator_ = &evaluator;
}

void Report::evaluation_end(uint64_t now_us) {
    evaluation_us_ += now_us - evaluation_begin_us_;
    std::lock_guard lock(mutex_);
    evaluator_ = nullptr;
}

void Report::evaluated(uint64_t epoch, double accuracy, double loss) {
    std::string shown;
    if (accuracy >= 0) {
        shown = fmt::format(" accuracy {:.4f}", accuracy);
        fmt::format_to(std::back_inserter(line_), ",\"accuracy\":{:.6f}", accuracy);
    }
    const std::string number = std::isfinite(loss) ? fmt::format("{:.6f}", loss) : "null";   // JSON has no infinity
    fmt::format_to(std::back_inserter(line_), ",\"test_loss\":{}", number);
    if (events_.is_open()) {
        if (accuracy >= 0) scalar("test/accuracy", accuracy);
        scalar("test/loss", loss);
    }
    {
        std::lock_guard lock(mutex_);
        status_.accuracy = accuracy;
        status_.test_loss = loss;
        if (!status_.curve.empty()) status_.curve.back().accuracy = accuracy;
    }
    log_.info("epoch {} step {} loss {:.4f} test loss {:.4f}{}", epoch, record_.step + 1, record_.loss, loss, shown);
}

void Report::workers(std::span<const std::pair<uint32_t, double>> accuracies) {
    const char* before = ",\"workers\":{";
    for (const auto& [worker, accuracy] : accuracies) {
        fmt::format_to(std::back_inserter(line_), "{}\"{}\":{:.6f}", before, worker, accuracy);
        before = ",";
    }
    if (!accuracies.empty()) line_.push_back('}');
}

void Report::resumed(double accuracy, double loss) {
    std::lock_guard lock(mutex_);
    status_.accuracy = accuracy;
    status_.test_loss = loss;
}

void Report::step_end() {
    line_.append(std::string_view("}\n"));
    steps_log_.add({line_.data(), line_.size()});
    if (events_.is_open()) events_.scalars(wall_seconds_, record_.step + 1, {scalars_.data(), scalars_count_});
}

void Report::end(Status status, uint64_t steps, const std::string& digest, uint64_t now_us, const std::vector<std::string>& why_lost) {
    steps_end(steps);
    if (status.ok()) log_.info("done after {} steps, digest {}", steps, digest);
    else if (status.code == Code::cancelled) log_.warn("{}", status.what);
    else log_.error("{}", status.what);
    std::lock_guard lock(mutex_);
    status_.state = status.ok() ? JobState::done : status.code == Code::cancelled ? JobState::cancelled : JobState::failed;
    status_.error = status.what;
    status_.losses = why_lost;
    status_.digest = status.ok() ? digest : "";
    if (status.ok()) status_.bytes_bound += bound_, status_.edge_bytes += edge_bytes_;
    if (begin_us_) status_.seconds = static_cast<double>(now_us - begin_us_) / 1e6;
}

}   // namespace gradcast
