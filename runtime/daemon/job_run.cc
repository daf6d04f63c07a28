#include "runtime/daemon/job_run.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "algos/algorithm.h"
#include "algos/grid/grid_cost.h"
#include "runtime/control/json.h"
#include "runtime/core/fd.h"
#include "runtime/core/net/interface.h"
#include "runtime/job/model/checkpoint_files.h"
#include "runtime/job/model/model_file.h"
#include "runtime/view/messages.h"
#include "transport/stream/handshake.h"

namespace gradcast {
namespace {

constexpr size_t warnings_max = 64;
constexpr NodeId coordinator{0};   // where the job was submitted

const char* protect_name(Protect protect) {
    switch (protect) {
        case Protect::none: return "none";
        case Protect::auth: return "auth";
        case Protect::encrypt: return "encrypt";
    }
    return "?";
}

}   // namespace

namespace {
std::shared_ptr<const JobPlan> extended(const JobPlan& plan, const std::vector<NodeAddress>& nodes) {
    auto all = std::make_shared<JobPlan>(plan);
    std::vector<std::string> names;
    for (const NodeAddress& each : nodes) names.push_back(each.name);
    all->extend(names);
    return all;
}
}   // namespace

JobRun::JobRun(const JobHost& host, std::shared_ptr<const JobPlan> plan, std::vector<NodeAddress> nodes, NodeId self)
    : host_(host), plan_(extended(*plan, nodes)), self_(self), nodes_(std::move(nodes)), roster_(plan_->members) {
    detail_.summary.id = job_id_text(plan_->id);
    detail_.summary.name = plan_->name;
    detail_.summary.submitted_unix = plan_->submitted_unix;
    for (uint32_t node = 0; node < plan_->members.size(); ++node)
        if (node < plan_->first_nodes() || NodeId{node} == self_) detail_.summary.nodes.push_back(plan_->members[node].name);
    detail_.self = self_;
    detail_.folder = host_.folder + "/" + detail_.summary.id;
    if (JobDetail before; plan_->resumes && job_record_read(detail_.folder, &before).ok()) before_ = std::move(before);
    ran_before_ =
        before_ || plan_->joins || (plan_->resumes && (!checkpoint_files(detail_.folder).empty() || !model_kept(detail_.folder).empty()));
    if (const Status made = worker_.start([this] { work(); }); !made.ok()) host_.membership.opened(plan_->id, made);
}

JobRun::~JobRun() {
    if (worker_.joinable()) worker_.join();
}

void JobRun::start(uint64_t deadline_us, const std::string& note) {
    std::lock_guard lock(mutex_);
    if (engine_) engine_->deadline(deadline_us);
    if (engine_ && !note.empty()) engine_->note(note);
    started_ = true;
    changed_.notify_all();
}
void JobRun::abort(Status why) {
    {
        std::lock_guard lock(mutex_);
        aborted_ = true;
        ended_with(why);
        stop_.store(true, std::memory_order_relaxed);
        changed_.notify_all();
    }
    if (!worker_.joinable()) finish();
}
void JobRun::close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
}

void JobRun::cancel(const std::string& why) { end(why, false); }
void JobRun::leave(const std::string& why) { end(why, true); }

void JobRun::end(const std::string& why, bool leaves) {
    std::lock_guard lock(mutex_);
    if (cancelled_.empty()) cancelled_ = why;
    stop_.store(true, std::memory_order_relaxed);
    leaves_ |= leaves;
    if (phase_ == Phase::running && bench_) bench_->cancel();
    if (phase_ == Phase::running && engine_) leaves ? engine_->leave(why) : engine_->cancel(why);
    // Earlier the worker looks at cancelled_ itself; membership learns it first, because its answer may be on its way.
    if (phase_ == Phase::preparing) host_.membership.opened(plan_->id, fail(Code::cancelled, "{}", why));
}

bool JobRun::nobody_runs(const std::string& why) {
    std::lock_guard lock(mutex_);
    if (aborted_ || (phase_ != Phase::preparing && phase_ != Phase::running)) return false;
    nobody_ = why;
    stop_.store(true, std::memory_order_relaxed);   // a member does not look at it, and ends nobody's job
    return true;
}

Status JobRun::drain(const std::string& why) {
    std::lock_guard lock(mutex_);
    if (phase_ != Phase::running) return {};   // it has ended, or is asked again once it runs
    if (bench_) return fail(Code::conflict, "it is a benchmark");
    GC_TRY(engine_->drain(why));
    leaves_ = true;
    return {};
}

Status JobRun::may_join(const std::string& node) const {
    const bool may = roster_.find(node) < roster_.size();
    if (!plan_->survive) return fail(Code::conflict, "job {} takes no nodes in: survive is not set in its job file", detail_.summary.id);
    if (may) return {};
    return fail(Code::conflict, "job {} goes over RDMA, which takes no other nodes in: with transport.kind = \"ip\" it does",
                detail_.summary.id);
}

void JobRun::add(const NodeAddress& node) {
    std::lock_guard lock(mutex_);
    if (!plan_->grows()) return;
    later_.push_back(node);
    if (driver_) add_later();
}

void JobRun::add_later() {
    for (const NodeAddress& each : std::exchange(later_, {})) {
        roster_.push_back({each.name, {}, 0});
        driver_->add({{each.name, {}, 0}, each.address});
    }
}

void JobRun::warn(const std::string& warning) {
    std::lock_guard lock(mutex_);
    if (warnings_.size() < warnings_max) warnings_.push_back(warning);
}

Status JobRun::force_dead(const std::string& node) {
    std::lock_guard lock(mutex_);
    if (phase_ != Phase::running || !engine_) return fail(Code::conflict, "job {} is not running here", detail_.summary.id);
    return engine_->force_dead(node);
}

bool JobRun::adopt(std::unique_ptr<AcceptedStream> stream) {
    std::lock_guard lock(mutex_);
    if (phase_ != Phase::running) return false;
    driver_->adopt(std::move(stream));
    return true;
}

void JobRun::ended_with(Status status) {
    JobStatus& last = detail_.summary.status;
    last.state = status.ok() ? JobState::done : status.code == Code::cancelled ? JobState::cancelled : JobState::failed;
    last.error = status.what;
    last.code = status.code;
}

JobDetail JobRun::detail_locked() const {
    JobDetail detail = detail_;
    if (aborted_ && before_) {
        JobDetail shown = *before_;
        not_resumed({detail.summary.status.code, 0, detail.summary.status.error.c_str()}, &shown);
        return shown;
    }
    if (!engine_) return detail;
    JobState state = detail.summary.status.state;
    std::string error = detail.summary.status.error;
    const Code code = detail.summary.status.code;
    detail.summary.status = engine_->status();
    detail.summary.status.warnings.insert(detail.summary.status.warnings.end(), warnings_.begin(), warnings_.end());
    detail.summary.status.path = driver_->name();
    detail.summary.status.datagrams = driver_->datagrams_found();
    if (phase_ == Phase::preparing) detail.summary.status.state = JobState::preparing;
    if (phase_ == Phase::ended || aborted_) {
        detail.summary.status.state = state;
        detail.summary.status.error = error;
        detail.summary.status.code = code;
    }
    return detail;
}
JobDetail JobRun::detail() const {
    std::lock_guard lock(mutex_);
    return detail_locked();
}
bool JobRun::listed() const {
    std::lock_guard lock(mutex_);
    return !aborted_ || self_ == coordinator || ran_before_;
}
bool JobRun::finished() const {
    std::lock_guard lock(mutex_);
    return phase_ == Phase::finished;
}

bool JobRun::trains() const {
    std::lock_guard lock(mutex_);
    return plan_->joins && phase_ == Phase::running && engine_ && engine_->status().state == JobState::running;
}

void JobRun::record() const {
    if (Status status = job_record_write(detail()); !status.ok()) host_.log.error("job {}: {}", detail_.summary.id, status.what);
}

/// The copies of a program's sources in the job's folder are what the job began with.
Status JobRun::take_copies(EngineConfig* config) const {
    Sources sources;
    GC_TRY(sources_read(detail_.folder, &sources));
    if (sources.files.empty()) return {};
    GC_TRY(sources_check(detail_.folder, sources));
    if (const std::string changed = sources_changed(sources); !changed.empty())
        config->resume.notes += fmt::format(
            "{}{} has changed since the job began: the program is started from the copies in {}/{}; with its job file named, resume starts "
            "it "
            "as it is now",
            config->resume.notes.empty() ? "" : "\n", changed, detail_.folder, sources_folder);
    config->sources = std::make_shared<const Sources>(std::move(sources));
    config->sources_at = detail_.folder + "/" + sources_folder;
    return {};
}

Status JobRun::prepare() {
    if (!plan_->server.empty()) {
        std::unique_ptr<BenchRun> bench;
        GC_TRY(BenchRun::open(host_.config, *plan_, static_cast<Rank>(self_), detail_.folder, &bench));
        std::lock_guard lock(mutex_);
        bench_ = std::move(bench);
        return {};
    }
    if (!host_.config.only.empty() && plan_->text != host_.config.only)
        return fail(Code::invalid, "its job file is not that of node {}: give all nodes the same one", plan_->members[0].name);
    EngineConfig config;
    config.id = plan_->id;
    std::vector<JobMistake> mistakes;
    if (plan_->parsed) config.job = *plan_->parsed;
    else if (!job_parse(plan_->text, plan_->path, plan_->base, &config.job, &mistakes))
        return fail(Code::invalid, "{}", mistakes.front().text);
    if (config.job.attached()) GC_TRY(host_.config.command_check());   // before anything is opened
    config.commands = host_.config.commands;
    if (plan_->stages > 0) {
        config.job.stages = plan_->stages;
        config.job.cuts = plan_->cuts;
        if (const std::vector<uint32_t> possible = slice_group_counts(config.job.slices);
            std::ranges::find(possible, plan_->slice_groups) == possible.end())
            return fail(Code::invalid, "the plan of node {} has {} slice groups, and {} slices can have {}", plan_->members[0].name,
                        plan_->slice_groups, config.job.slices, fmt::join(possible, ", "));
        config.job.slice_groups = plan_->slice_groups;
        config.grid = plan_->grid;
    }
    config.roster = roster_;
    config.self = self_;
    config.folder = detail_.folder;
    if (plan_->resumes) {
        config.resume = {.on = true, .steps = plan_->resume_steps, .state = plan_->resume_state, .holders = {}, .paths = {}, .notes = {}};
        const auto cells = static_cast<uint32_t>(plan_->resume_holders.size());
        for (uint32_t cell = 0; cell < cells; ++cell) {
            const std::string path = checkpoint_path(detail_.folder, {plan_->resume_steps, cell, cells});
            config.resume.holders.push_back(NodeId{plan_->resume_holders[cell]});
            config.resume.paths.push_back(::access(path.c_str(), F_OK) == 0 ? path : detail_.folder + "/final.h5");
        }
    }
    config.resume.notes = plan_->notes;
    if (plan_->copies) GC_TRY(take_copies(&config));
    config.join = plan_->joins;
    config.first_nodes = plan_->first;
    config.lanes = host_.config.lanes();
    config.datagram_bytes = plan_->datagram_bytes;
    config.budget = &host_.budget;
    config.verified = host_.config.verified_path();
    config.pace_bytes_per_s = host_.config.pace / 8;
    config.cpus = host_.config.cpus;
    config.gpus = host_.config.gpus_used();
    config.isa_setting = host_.config.setting_in("isa");
    config.confidential = true;
    key_ = host_.ring->now()->keys.front();
    config.key = &key_;
    config.stop = &stop_;
    std::unique_ptr<Engine> engine;
    GC_TRY(Engine::open(config, host_.log, &engine));

    LinkConfig link;
    link.kind = host_.config.link;
    link.warn = [this](const std::string& text) { warn(text); };
    link.job = plan_->id;
    link.self = host_.identity;
    link.self.incarnation = plan_->members[index_of(self_)].incarnation;   // a later one where it has been a member before
    link.rank = static_cast<Rank>(self_);                                  // of the first view
    for (const Member& member : plan_->members) {
        auto node = std::find_if(nodes_.begin(), nodes_.end(), [&](const NodeAddress& each) { return each.name == member.name; });
        GC_ASSERT(node != nodes_.end());   // membership has looked
        link.peers.push_back({{member.name, member.uuid, member.incarnation}, node->address});
    }
    link.rails = plan_->rails;
    // Edges beside words, sums for buddies and copies of checkpoints.
    link.express = config.job.stages > 1 || config.job.slice_groups > 1;
    for (size_t rank = 0; rank < plan_->addresses.size(); ++rank) link.peers[rank].rails = names_split(plan_->addresses[rank]);
    if (!plan_->addresses.empty()) link.interfaces = host_.config.interfaces;
    link.ring = host_.ring;
    link.protect = config.job.protect;
    link.profile = engine->profile();
    if (engine->views()) {   // packets for a view may come before it is open
        link.view = 0;
        link.survive = true;
        link.first = plan_->first_nodes();
    }
    link.deadline_us = config.job.deadline_us / 2;   // so that the loss of a peer is handled within D
    if (engine->datagrams()) {
        NetworkInterface interface;
        GC_TRY(interface_find(host_.config.interface, &interface));
        if (!plan_->rdma && datagram_segment(interface.mtu, interface.ipv6()) < plan_->datagram_bytes)
            return fail(Code::invalid,
                        "interface {} has an MTU of {} now, too small for datagrams of {} bytes, which it took when gradcastd started: set "
                        "it back, or restart gradcastd",
                        interface.name, interface.mtu, plan_->datagram_bytes);
        link.datagrams = {.interface = host_.config.interface,
                          .group = multicast_group(plan_->id, link.view, interface.ipv6(), multicast_port),
                          .segment_bytes = plan_->datagram_bytes};
    }
    if (plan_->rdma) link.rdma = {.streams = true, .datagrams = engine->datagrams(), .devices = host_.config.rdma};
    std::unique_ptr<Driver> driver;
    GC_TRY(driver_open(link, host_.log, &driver));
    engine->counters(&driver->counters());
    driver->register_memory(engine->memory());
    if (engine->views()) driver->attach(view_channel, engine->views());

    std::lock_guard lock(mutex_);
    const AlgorithmKind* kind;
    GC_TRY(algorithm_find(config.job.algorithm, &kind));
    detail_.exchange = kind->sends_by(config.job.exchange) ? config.job.exchange : "none";
    detail_.quantiser = quantiser_name(config.job.quantiser);
    detail_.algorithm = config.job.algorithm;
    detail_.protect = protect_name(config.job.protect);
    detail_.batch = config.job.batch;
    detail_.blocks = config.job.blocks;
    engine_ = std::move(engine);
    driver_ = std::move(driver);
    add_later();
    return network_.start([this] { network(); });
}

void JobRun::network() {
    {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return phase_ == Phase::running || aborted_; });
        if (aborted_) return;
    }
    network_status_ = driver_->run();
    if (!network_status_.ok()) engine_->cancel(network_status_.what);
}

void JobRun::work() {
    Status status = prepare();
    ComputesWith with;
    if (engine_)
        with = {.kernel_set = fmt::format("{} of {}", engine_->kernel_set(), engine_->kernels()),
                .data_digest = engine_->data_digest(),
                .start_digest = engine_->start_digest(),
                .inventory = engine_->inventory()};
    host_.membership.opened(plan_->id, status, std::move(with), engine_ ? engine_->deadline_us() : 0);
    {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return started_ || aborted_; });
        if (started_) {
            phase_ = Phase::running;
            changed_.notify_all();
            ran_ = detail_.started = true;
            if (bench_) detail_.summary.status.state = JobState::running;
            if (!cancelled_.empty()) bench_ ? bench_->cancel() : engine_->cancel(cancelled_);
        }
    }
    if (ran_) {
        Thread recorder;   // the others do not wait for this disk
        if (!recorder.start([this] { record(); }).ok()) record();
        status = bench_ ? bench_->run() : engine_->run(driver_->host());
        bool may_rejoin = !bench_ && engine_->may_rejoin(), rejoins = false;
        const bool departed = !bench_ && engine_->departed();
        {
            std::lock_guard lock(mutex_);
            if (!status.ok() && !nobody_.empty() && engine_->status().views.empty()) {   // it has never been a member
                if (cancelled_.empty()) status = fail(Code::cancelled, "{}", nobody_);
                may_rejoin = true;   // others may still run it
            }
            rejoins = may_rejoin && cancelled_.empty();   // also where it was drained while it was away: after `undrain`
            detail_ = detail_locked();
            ended_with(status);
            phase_ = Phase::ended;
        }
        if (recorder.joinable()) recorder.join();
        record();
        {
            std::unique_lock lock(mutex_);
            host_.membership.ended(plan_->id, {.done = status.ok(), .leaves = leaves_ || may_rejoin || departed, .rejoins = rejoins});
            changed_.wait(lock, [this] { return closed_; });
        }
        if (!bench_) {
            driver_->stop();
            network_.join();
        }
        std::lock_guard lock(mutex_);
        detail_ = detail_locked();   // with the last bytes counted
        if (!network_status_.ok()) ended_with(network_status_);
    }
    if (network_.joinable()) network_.join();   // it was not started
    if (ran_) record();
    std::unique_ptr<Engine> engine;
    std::unique_ptr<Driver> driver;
    {
        std::lock_guard lock(mutex_);
        engine = std::move(engine_);
        driver = std::move(driver_);
    }
    driver.reset();   // before its protocols
    engine.reset();
    finish();
}

void JobRun::finish() {
    if (!ran_ && ran_before_) {   // its files stay, and job.json where there is one
        if (!before_ && ::access((detail_.folder + "/job.json").c_str(), F_OK) != 0) record();
    } else if (!ran_) {   // of one that was submitted here the reason stays
        std::error_code ignored;
        for (const std::string& name : folder_names(detail_.folder))
            if (name != "log") std::filesystem::remove_all(detail_.folder + "/" + name, ignored);
        if (self_ != coordinator) std::filesystem::remove_all(detail_.folder, ignored);
        else if (make_directories(detail_.folder).ok()) record();
    }
    std::lock_guard lock(mutex_);
    phase_ = Phase::finished;
}

Status job_record_write(const JobDetail& detail) { return file_write(detail.folder + "/job.json", json_text(Json(detail), 2) + "\n"); }

Status job_record_read(const std::string& folder, JobDetail* detail) {
    const std::string path = folder + "/job.json";
    std::string text;
    GC_TRY(file_read(path, &text));
    try {
        JobDetail read;
        const Json json = Json::parse(text);
        if (!json.is_object()) return fail(Code::data, "{}: it is no JSON object", path);
        const Json status = json.value("status", Json());
        const Json state = status.is_object() ? status.value("state", Json()) : Json();
        if (!state.is_string()) return fail(Code::data, "{}: it has no status.state", path);
        json.get_to(read);
        if (state != job_state_name(read.summary.status.state))
            return fail(Code::data, "{}: unknown status.state {} (of a newer gradcastd?)", path, json_text(state));
        read.folder = folder;
        *detail = std::move(read);
    } catch (const std::exception& error) {
        return fail(Code::data, "{}: {}", path, error.what());
    }
    return {};
}

void not_resumed(const Status& why, JobDetail* before) {
    JobStatus& status = before->summary.status;
    const bool done = status.state == JobState::done;
    status.state = why.code == Code::cancelled ? JobState::cancelled : JobState::failed;   // of the attempt; job.json keeps that before it
    status.error = fmt::format("not resumed: {}{}", why.what, done ? "; what the job has trained before stays" : "");
    status.code = why.code;
    before->started = false;   // whoever waits for the start looks at the error
}

std::vector<JobDetail> job_records_read(const std::string& folder, const Log& log) {
    std::vector<JobDetail> details;
    std::error_code error;
    for (const std::string& name : folder_names(folder)) {
        const std::string path = folder + "/" + name;
        if (name.size() != 32 || name.find_first_not_of("0123456789abcdef") != name.npos) continue;
        // A job may have trained on a disk that had no room for job.json.
        if (::access((path + "/job.json").c_str(), F_OK) != 0 && checkpoint_files(path).empty() && model_kept(path).empty()) {
            std::filesystem::remove_all(path, error);
            continue;
        }
        JobDetail detail;
        if (Status status = job_record_read(path, &detail); !status.ok()) {
            log.warn("job {} is not listed, and its folder stays as it is: {}", name, status.what);
            continue;
        }
        detail.summary.id = name;
        JobStatus& status = detail.summary.status;
        if (status.state == JobState::preparing || status.state == JobState::running) {
            status.state = JobState::failed;
            status.error = "daemon restarted";
            status.code = Code::node_io;
            status.model = model_kept(path);
            if (Status written = job_record_write(detail); !written.ok()) log.warn("{}", written.what);
        }
        details.push_back(std::move(detail));
    }
    std::sort(details.begin(), details.end(),
              [](const JobDetail& a, const JobDetail& b) { return a.summary.submitted_unix < b.summary.submitted_unix; });
    return details;
}

void job_records_trim(std::vector<JobDetail>* jobs, size_t count, uint64_t bytes, const Log& log) {
    std::error_code error;
    std::vector<uint64_t> sizes(jobs->size());
    uint64_t all = 0;
    for (size_t i = 0; bytes > 0 && i < jobs->size(); ++i) {
        for (std::filesystem::directory_iterator at((*jobs)[i].folder, error), end; !error && at != end; at.increment(error))
            if (std::error_code none; at->is_regular_file(none)) sizes[i] += at->file_size(none);
        all += sizes[i];
    }
    while (jobs->size() > 1 && (jobs->size() > count || (bytes > 0 && all > bytes))) {
        const auto never_ran = [](const JobDetail& each) { return !each.started && each.summary.status.step == 0; };
        auto at = std::find_if(jobs->begin(), jobs->end() - 1, never_ran);
        if (at == jobs->end() - 1) at = jobs->begin();
        const auto size = sizes.begin() + (at - jobs->begin());
        if (!at->folder.empty()) {
            log.info("job {}: its folder goes: {} are kept at most (jobs_kept, jobs_bytes)", at->summary.id, count);
            std::filesystem::remove_all(at->folder, error);
        }
        all -= *size;
        sizes.erase(size);
        jobs->erase(at);
    }
}

}   // namespace gradcast
