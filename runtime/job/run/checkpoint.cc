#include "runtime/job/run/checkpoint.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "runtime/core/crypto.h"
#include "runtime/core/fd.h"

namespace gradcast {
namespace {

constexpr uint64_t sync_deadlines = 10;    // for the records of a checkpoint's steps to reach the disk
constexpr uint64_t copy_bytes = 1 << 20;   // that a lane copies at a time

}   // namespace

Status Checkpoints::open(const EngineConfig& config, JobParts& parts, Report& report, const Model& like) {
    parts_ = &parts;
    model_ = like;
    report_ = &report;
    folder_ = config.folder;
    keep_ = config.job.checkpoint_keep;
    threaded_ = config.lanes > 0;
    if (keep_ == 0) return {};
    take_part();
    plan_ = CheckpointPlan(config.job, *parts.sampler, parts.steps);
    const Computer& largest = parts.largest();
    arena_.plan("checkpoint", largest.net->layout().elements * sizeof(float), &parameters_);
    arena_.plan("checkpoint", largest.optimiser->state_size() * sizeof(float), &optimiser_);
    arena_.plan("checkpoint", largest.codec->exponents().size_bytes(), &exponents_);
    const bool travel = parts.pipeline && parts_travel(config.job, config.nodes());
    if (travel) arena_.plan("checkpoint", PartCopies::rooms_bytes(parts), &rooms_);
    GC_TRY(arena_.seal());
    if (travel)
        copies_.open({.folder = folder_,
                      .due = [this] { wake(); },
                      .name = [this](const CheckpointName& name) { return name_file(name); },
                      .ended = [this](const CheckpointName& name, const Status& status) { copy_ended(name, status); }},
                     parts, rooms_);
    return threaded_ ? thread_.start([this] { loop(); }) : Status{};
}

void Checkpoints::take_part() {
    if (!parts_->pipeline) return;
    cell_ = parts_->pipeline->own_cell();
    cells_ = parts_->pipeline->cells();
    runs_ = parts_->runs;
}

void Checkpoints::begin(uint64_t steps) {
    std::error_code ignored;
    for (const CheckpointName& each : checkpoint_files(folder_))
        if (each.steps > steps) std::filesystem::remove(checkpoint_path(folder_, each), ignored);
    for (std::filesystem::directory_iterator at(folder_, ignored), end; !ignored && at != end; at.increment(ignored))
        if (at->path().filename().string().starts_with(checkpoint_prefix) && at->path().extension() == ".part")
            ::unlink(at->path().c_str());
    if (const std::vector<CheckpointHere> all = checkpoints_in(folder_); !all.empty())
        report_->update([&](JobStatus& now) { now.checkpoint = all.back().steps; });
    expected_.clear();
    complete_.clear();
    if (steps > 0) complete_.push_back(steps);
}

CheckpointNews Checkpoints::news() {
    std::lock_guard lock(mutex_);
    return {named_, phase_ != Phase::idle || copies_.sending() || copies_.receiving()};
}

void Checkpoints::take(const std::vector<PartHolders>& stages, Rank self, const Model& model, std::span<const std::byte> algorithm,
                       const std::function<CheckpointNews(Rank)>& news, const std::function<uint64_t(Rank)>& part_of) {
    std::vector<Rank> holders;
    for (const PartHolders& each : stages)
        for (const auto* ranks : {&each.writers, &each.receivers}) holders.insert(holders.end(), ranks->begin(), ranks->end());
    if (std::ranges::any_of(holders, [&](Rank rank) { return news(rank).busy; })) return late(model.step);
    {
        std::lock_guard lock(mutex_);
        unnamed_steps_ = model.step;
        unnamed_ = static_cast<uint32_t>(std::ranges::count(holders, self));
    }
    expected_.push_back({model.step, std::move(holders)});
    if (expected_.size() > keep_ + 1) {
        // Some node cannot write: the parts of the others do not fill their disks.
        if (const uint64_t oldest = expected_.front().steps; !plan_.audited(oldest))
            for (const CheckpointName& each : checkpoint_files(folder_))
                if (each.steps == oldest) ::unlink(checkpoint_path(folder_, each).c_str());
        expected_.erase(expected_.begin());
    }
    for (uint32_t stage = 0; stage < stages.size(); ++stage) {
        const auto& [writers, receivers] = stages[stage];
        if (std::ranges::find(receivers, self) == receivers.end()) continue;
        Model of_stage = model;
        of_stage.agreed = true;   // when it gets its name
        of_stage.state = part_of(writers[0]);
        copies_.receive({model.step, stage, static_cast<uint32_t>(stages.size())}, writers[0], of_stage);
    }
    const auto& [writers, receivers] = stages[parts_->pipeline->own_cell()];
    if (std::ranges::find(writers, self) == writers.end()) return;
    snapshot(model, algorithm);
    if (writers[0] == self && !receivers.empty()) copies_.send(model.step, receivers, snapshot_state());
}

void Checkpoints::reported(const std::function<CheckpointNews(Rank)>& of) {
    for (Expected& each : expected_) std::erase_if(each.missing, [&](Rank rank) { return of(rank).named == each.steps; });
    const auto done = std::ranges::find_if(expected_, [](const Expected& each) { return each.missing.empty(); });
    if (done == expected_.end()) return;
    const uint64_t steps = done->steps;
    expected_.erase(expected_.begin(), done + 1);   // some part of the ones before could not be written
    report_->update([&](JobStatus& now) { now.checkpoint = steps; });
    if (plan_.audited(steps)) return;
    complete_.push_back(steps);
    trim(complete_);
}

void Checkpoints::applied(uint64_t steps) {
    if (steps == 0) return;
    settle(steps, Fate::confirmed);
    copies_.confirm(steps - 1);
}

void Checkpoints::regrouped(uint64_t steps) {
    expected_.clear();
    if (steps == 0) return;
    // Some rank has applied the step after an earlier state, but not this one.  Of a net in stages all ranks have compared the earlier
    // state before its snapshot was taken.  Else only the records of that step would have shown that this rank had the state of the others.
    settle(steps, cells_ > 1 ? Fate::confirmed : Fate::dropped);
    copies_.confirm(steps - 1);
}

/// Settles the snapshot under way if it is open and was taken before `steps`.
void Checkpoints::settle(uint64_t steps, Fate fate) {
    {
        std::lock_guard lock(mutex_);
        if (phase_ == Phase::idle || fate_ != Fate::open || steps_ >= steps) return;
        fate_ = fate;
    }
    if (threaded_) changed_.notify_all();
    else settled();
}

void Checkpoints::snapshot(const Model& model, std::span<const std::byte> algorithm) {
    {
        std::lock_guard lock(mutex_);
        if (phase_ != Phase::idle || copies_.sending()) return late(model.step);
    }
    model_ = model;         // takes no memory: all texts are as long as those before
    model_.agreed = true;   // when it gets its name
    algorithm_.assign(algorithm.begin(), algorithm.end());
    take_part();
    const ModelState state = parts_->state(algorithm_);
    has_ = state.sizes();
    struct Copy {
        const std::byte* from;
        std::byte* to;
        uint64_t bytes;
    } copies[] = {{reinterpret_cast<const std::byte*>(state.parameters.data()), parameters_.host, state.parameters.size_bytes()},
                  {reinterpret_cast<const std::byte*>(state.optimiser.data()), optimiser_.host, state.optimiser.size_bytes()}};
    for (const Copy& copy : copies)
        parts_->lanes.run(static_cast<uint32_t>((copy.bytes + copy_bytes - 1) / copy_bytes), [&copy](uint32_t, uint32_t item) {
            const uint64_t at = item * copy_bytes;
            std::memcpy(copy.to + at, copy.from + at, std::min(copy_bytes, copy.bytes - at));
        });
    std::memcpy(exponents_.host, state.exponents.data(), state.exponents.size_bytes());
    {
        std::lock_guard lock(mutex_);
        phase_ = Phase::writing;
        fate_ = Fate::open;
        steps_ = model_.step;
    }
    if (threaded_) changed_.notify_all();
    else write();
}

void Checkpoints::late(uint64_t steps) {
    if (std::exchange(late_, true)) return;
    report_->warn(
        fmt::format("checkpoint after {} steps left out: the one before is still being written; the disk{} is slower than "
                    "job.checkpoint_every asks for",
                    steps, rooms_.bytes > 0 ? ", or the network on which copies travel," : ""));
}

Status Checkpoints::write_file(const ModelState& state) const {
    const std::string path = path_of(model_.step) + ".part";
    return cells_ == 1 ? model_write(path, model_, state) : model_write(path, model_, state, parts_->state_sizes(), runs_);
}

ModelState Checkpoints::snapshot_state() const {
    return {{parameters_.as<float>(), has_[StateVector::parameters]},
            {optimiser_.as<float>(), has_[StateVector::optimiser]},
            {exponents_.as<int32_t>(), has_[StateVector::exponents]},
            algorithm_};
}

/// Without the lock.
void Checkpoints::write() {
    model_.digest.clear();   // the file gets that of the snapshot
    const Status status = write_file(snapshot_state());
    if (!status.ok()) failed("checkpoint", model_.step, status);
    std::lock_guard lock(mutex_);
    phase_ = status.ok() ? Phase::written : Phase::idle;
}

/// One that is written is confirmed or dropped; without the lock.
void Checkpoints::settled() {
    if (fate_ == Fate::dropped) {
        ::unlink((path_of(steps_) + ".part").c_str());
    } else {
        const Status status = name_file({steps_, cell_, cells_});
        if (!status.ok()) failed("checkpoint", model_.step, status);
        else if (cells_ == 1) trim_own(steps_);
        if (status.ok()) named(steps_);
    }
    std::lock_guard lock(mutex_);
    phase_ = Phase::idle;
}

Status Checkpoints::name_file(const CheckpointName& name) const {
    const std::string path = checkpoint_path(folder_, name);
    // The records of all its steps are on the disk before.  Where that takes too long, there is no checkpoint: the job does not wait.
    Status status = report_->sync(sync_deadlines * parts_->deadline_us);
    (void)file_sync(folder_ + "/replay.log");   // what asgd, softsync and bsda have kept until then, should the machine fail
    if (status.ok()) status = file_rename(path + ".part", path);
    if (!status.ok()) ::unlink((path + ".part").c_str());
    return status;
}

/// A file of the checkpoint after so many steps has its name.
void Checkpoints::named(uint64_t steps) {
    std::lock_guard lock(mutex_);
    if (cells_ > 1 && (unnamed_steps_ != steps || unnamed_ == 0 || --unnamed_ > 0)) return;
    named_ = steps;
}

void Checkpoints::copy_ended(const CheckpointName& name, const Status& status) {
    if (status.ok()) return named(name.steps);
    failed(fmt::format("copy of part {} of {} of the checkpoint", name.cell + 1, name.cells), name.steps, status);
}

void Checkpoints::failed(const std::string& what, uint64_t steps, const Status& status) {
    const std::vector<CheckpointName> all = checkpoint_files(folder_);
    const std::string text = fmt::format("no {} after {} steps: {}; {}", what, steps, status.what,
                                         all.empty() ? "there is none before it at this node"
                                                     : fmt::format("the last one at this node is that of step {}", all.back().steps));
    if (std::exchange(failed_, true)) report_->log().error("{}", text);   // shown with the job once
    else report_->warn(text);
}

/// The writer runs while no lane does: SCHED_IDLE, because a lane that wakes up does not preempt a thread that is only nice at once.
void Checkpoints::loop() {
    const sched_param priority = {};
    (void)::sched_setscheduler(0, SCHED_IDLE, &priority);
    const auto settles = [this] { return phase_ == Phase::written && fate_ != Fate::open; };
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return stop_ || phase_ == Phase::writing || settles() || copies_.work_due(); });
        if (phase_ == Phase::writing) {
            lock.unlock();
            write();
            lock.lock();
        } else if (settles()) {
            phase_ = Phase::naming;
            lock.unlock();
            settled();
            lock.lock();
        } else if (copies_.work_due()) {
            lock.unlock();
            copies_.work();
            lock.lock();
        } else {
            return;
        }
    }
}

/// Trainer thread: there is work for copies.
void Checkpoints::wake() {
    if (!threaded_) {
        while (copies_.work_due()) copies_.work();
        return;
    }
    { std::lock_guard lock(mutex_); }   // the thread has not looked yet, or waits
    changed_.notify_all();
}

void Checkpoints::close() {
    if (thread_.joinable()) {
        {
            std::lock_guard lock(mutex_);
            stop_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }
    copies_.close();
    if (std::exchange(phase_, Phase::idle) == Phase::written) ::unlink((path_of(steps_) + ".part").c_str());
}

void Checkpoints::rescue(const Model& model, std::span<const std::byte> algorithm, std::span<const Kept> kept) {
    close();
    if (keep_ == 0 || model.step == 0) return;
    take_part();
    const auto write = [&](uint32_t cell, const auto& to) {
        const std::string path = checkpoint_path(folder_, {model.step, cell, cells_});
        if (::access(path.c_str(), F_OK) == 0) return false;
        Status status = to(path + ".part");
        if (status.ok()) status = file_rename(path + ".part", path);
        if (status.ok()) return true;
        ::unlink((path + ".part").c_str());
        failed("checkpoint", model.step, status);
        return false;
    };
    model_ = model;
    model_.digest.clear();
    const bool wrote = write(cell_, [&](const std::string&) { return write_file(parts_->state(algorithm)); });
    if (wrote && cells_ == 1) trim_own(model.step);
    for (const Kept& each : kept) {
        Model of = model_;
        of.state = each.state;
        const auto& vectors = each.memory.vectors;
        const auto floats = [&](StateVector which) {
            return std::span(reinterpret_cast<const float*>(vectors[which].data()), vectors[which].size() / sizeof(float));
        };
        const std::span<std::byte> exponents = vectors[StateVector::exponents];
        const ModelState state{floats(StateVector::parameters),
                               floats(StateVector::optimiser),
                               {reinterpret_cast<const int32_t*>(exponents.data()), exponents.size() / sizeof(int32_t)},
                               algorithm};
        write(each.cell, [&](const std::string& path) { return model_write(path, of, state, parts_->state_sizes(), each.memory.runs); });
    }
}

void Checkpoints::trim_own(uint64_t newest) const {
    std::vector<uint64_t> steps;
    for (const CheckpointName& each : checkpoint_files(folder_))
        if (!plan_.audited(each.steps) && (steps.empty() || steps.back() != each.steps)) steps.push_back(each.steps);
    trim(steps);
    report_->update([&](JobStatus& now) { now.checkpoint = newest; });
}

void Checkpoints::trim(std::span<const uint64_t> steps) const {
    if (steps.size() <= keep_) return;
    for (const CheckpointName& each : checkpoint_files(folder_))
        if (each.steps < steps[steps.size() - keep_] && !plan_.audited(each.steps)) ::unlink(checkpoint_path(folder_, each).c_str());
}

}   // namespace gradcast
