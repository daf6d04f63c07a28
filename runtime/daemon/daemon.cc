#include "runtime/daemon/daemon.h"

#include <fmt/ranges.h>
#include <malloc.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "runtime/attach/group.h"
#include "runtime/core/clock.h"
#include "runtime/core/memory_room.h"
#include "runtime/core/net/interface.h"
#include "runtime/core/net/socket.h"
#include "runtime/core/short_texts.h"
#include "runtime/core/version.h"
#include "runtime/daemon/doctor.h"
#include "runtime/daemon/identity.h"

namespace gradcast {
namespace {

constexpr uint16_t mesh_channel = 0;
constexpr uint64_t mesh_deadline_us = 2'000'000;   // a daemon whose stream is gone for so long is not alive
constexpr uint64_t probe_us = 4'000'000;           // how long doctor waits for answers to probes
constexpr uint64_t steward_us = 200'000;           // the steward's longest wait

/// Of the interface for datagrams, else of that with the address at which this daemon listens; 0: not known.
uint64_t driver_rate(const DaemonConfig& config) {
    std::string of = config.interface.empty() ? NodeAddress{{}, config.listen}.host() : config.interface;
    if (of.starts_with('[')) of = of.substr(1, of.size() - 2);
    NetworkInterface found;
    return interface_find(of, &found).ok() ? interface_rate(found.name) : 0;
}

}   // namespace

Status daemon_keys_read(const DaemonConfig& config, std::vector<ClusterKey>* keys) {
    Status status = cluster_keys_read(config.key, keys);
    if (status.sys != ENOENT) return status;
    return fail(Code::invalid, "{}: make it once, gradcastctl key new {}, and copy it to all nodes", status.what, config.key);
}

namespace {
/// With the way out that gradcastd.toml or the launcher has.
Status listen_error(const DaemonConfig& config, const Status& status) {
    const std::string setting = config.setting("listen");
    if (status.sys == EADDRINUSE)
        return fail(Code::node_io, "{} is in use (by another gradcastd?): choose another {}", config.listen, setting);
    if (status.sys == EADDRNOTAVAIL)
        return fail(Code::node_io, "{} is not an address of this machine: choose another {}", config.listen, setting);
    if (status.sys == EACCES) return fail(Code::node_io, "{}: choose another {}, with a port from 1024 on", status.what, setting);
    return status;
}
}   // namespace

Status listen_check(const DaemonConfig& config) {
    Fd listener;
    std::string address;
    const Status status = socket_listen(config.listen, &listener, &address);
    if (status.sys == EADDRINUSE && state_locked(config.state)) return {};   // by the daemon of this file
    return listen_error(config, status);
}

Status Daemon::open(const DaemonConfig& config, int listen_fd, const Log& log, std::unique_ptr<Daemon>* daemon) {
    std::unique_ptr<Daemon> made(new Daemon(config, log));
    GC_TRY(made->open(listen_fd));
    *daemon = std::move(made);
    return {};
}

Status Daemon::open(int listen_fd) {
    if (config_.commands) {
        // What it starts runs as the same user: it must not read the keys out of this process's memory, nor its environment.
        ::prctl(PR_SET_DUMPABLE, 0);
        // Before the first job: this process can pass limits on only where nothing else is in its control group.
        if (const GroupRoom& room = group_room(); !room.bounds_tasks())
            log_.warn("commands of jobs are started without a bound on their processes: {}", room.why);
        if (const GroupRoom& room = group_room(); !room.bounds_memory())
            log_.warn("the memory of commands of jobs is looked at once a second, and not bounded by the kernel: {}", room.why_memory);
    }
    std::vector<ClusterKey> keys;
    GC_TRY(daemon_keys_read(config_, &keys));
    ring_ = std::make_shared<KeyRing>(keys);
    GC_TRY(identity_open(config_.state, config_.name, &identity_, &lock_, config_.setting("state")));
    if (listen_fd < 0) GC_TRY(name_check(config_.members[config_.self()].address, identity_, keys, config_.setting("name")));
    std::string folder = config_.state + "/jobs";
    GC_TRY(make_directories(folder));
    ended_ = job_records_read(folder, log_);
    job_records_trim(&ended_, config_.jobs_kept, config_.jobs_bytes, log_);

    GC_TRY(listen_error(
        config_, listener_open({.address = config_.listen, .socket_fd = listen_fd, .self = identity_, .ring = ring_}, log_, &listener_)));
    address_ = listener_->address();
    std::vector<std::string> rails;
    if (config_.interfaces.size() > 1) GC_TRY(listen_on_interfaces(&rails));

    LinkConfig link;
    link.kind = config_.link;
    link.self = identity_;
    link.rank = config_.self();
    for (const NodeAddress& member : config_.members) link.peers.push_back({{member.name, {}, 0}, member.address});
    link.ring = ring_;
    link.deadline_us = mesh_deadline_us;
    if (NetworkInterface found; config_.members.size() > 1 && interface_find(config_.interface, &found).ok()) {
        // Only its probe is used, by doctor.  The group is the cluster's.
        uint32_t cluster;
        std::memcpy(&cluster, keys[0].secret.data(), sizeof cluster);
        link.datagrams = {.interface = config_.interface,
                          .group = multicast_group(link.job, static_cast<uint32_t>(splitmix64(cluster)), found.ipv6(), multicast_port),
                          .segment_bytes = datagram_segment(1280, found.ipv6()),
                          .probe_only = true};
    }
    GC_TRY(driver_open(link, log_, &mesh_));

    MembershipConfig membership;
    membership.self = config_.self();
    for (const NodeAddress& member : config_.members) membership.names.push_back(member.name);
    membership.identity = identity_;
    membership.version = version_text;
    membership.isa = config_.isa;
    membership.isa_setting = config_.setting_in("isa");
    membership.datagram_bytes = config_.datagram_bytes;
    membership.rdma_bytes = config_.rdma_bytes;
    membership.rdma_devices = static_cast<uint32_t>(config_.rdma.size());
    const uint64_t memory_most = config_.memory_most();
    membership.memory = std::min(memory_room().bytes, memory_most > 0 ? memory_most : UINT64_MAX);
    membership.rate = config_.rate > 0 ? config_.rate : driver_rate(config_);
    membership.rails = fmt::format("{}", fmt::join(rails, ","));
    membership.wall_us = [] {
        const auto now = std::chrono::system_clock::now().time_since_epoch();
        return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
    };
    for (const JobDetail& each : ended_)
        if (JobId id; each.summary.status.state == JobState::done && job_id_parse(each.summary.id, &id)) membership.done.push_back(id);
    membership_ = std::make_unique<Membership>(membership);
    draining_ = ::access(config_.drained_path().c_str(), F_OK) == 0;
    membership_->draining(draining_, "");
    if (draining_) log_.info("this node is drained: `gradcastctl undrain {}` lets it take jobs again", config_.name);
    job_host_ = std::make_unique<JobHost>(JobHost{config_, identity_, ring_, *membership_, log_, folder, budget_});
    mesh_->attach(mesh_channel, membership_.get());
    membership_->start(mesh_->host(), mesh_channel);
    GC_TRY(network_.start([this] {
        const Status ended = mesh_->run();
        std::lock_guard lock(mutex_);
        if (!ended.ok()) failed_ = fail(ended.code, "the stream to the other daemons ended: {}", ended.what);
    }));
    GC_TRY(steward_.start([this] { steward(); }));
    const auto take = [this](const JobId& job, std::unique_ptr<AcceptedStream> stream) {
        if (job == JobId{}) return mesh_->adopt(std::move(stream)), true;
        std::lock_guard lock(mutex_);
        auto run = runs_.find(job);
        return run != runs_.end() && run->second->adopt(std::move(stream));
    };
    for (auto& each : more_listeners_) GC_TRY(each->start(take));
    return listener_->start(take);
}

/// With the port of `listen`, where that address is not all of them.  *addresses: of the interfaces.
Status Daemon::listen_on_interfaces(std::vector<std::string>* addresses) {
    const size_t colon = address_.rfind(':');
    const std::string host = address_.substr(0, colon), port = address_.substr(colon);
    for (const std::string& each : config_.interfaces) {
        NetworkInterface found;
        GC_TRY(interface_find(each, &found));
        std::string own = address_text(found.address);
        own.resize(own.rfind(':'));
        addresses->push_back(own + port);
        if (host == "0.0.0.0" || host == "[::]" || host == own) continue;
        GC_TRY(listener_open({.address = addresses->back(), .self = identity_, .ring = ring_}, log_, &more_listeners_.emplace_back()));
    }
    return {};
}

Daemon::~Daemon() {
    listener_.reset();
    more_listeners_.clear();
    stop_.store(true, std::memory_order_relaxed);
    if (steward_.joinable()) steward_.join();
    choices_.clear();
    runs_.clear();
    if (mesh_) mesh_->stop();
    if (network_.joinable()) network_.join();
}

void Daemon::steward() {
    std::vector<Completion> completions;
    std::vector<PeerState> peers = membership_->peers();
    while (!stop_.load(std::memory_order_relaxed)) {
        completions.clear();
        // It also returns when the time has run out.
        if (mesh_->host().wait(&completions, clock_us() + steward_us).code == Code::cancelled) return;   // failed() says why
        for (const Notice& notice : membership_->notices()) act(notice);
        search();
        grids();
        watch_peers(&peers);
        std::vector<std::unique_ptr<JobRun>> finished;   // their threads are joined outside the lock
        std::unique_lock lock(mutex_);
        if (draining_) drain_jobs();
        for (auto run = runs_.begin(); run != runs_.end();) {
            if (!run->second->finished()) {
                if (run->second->trains()) membership_->trains(run->first);
                ++run;
                continue;
            }
            if (run->second->listed() && !submitted_.contains(run->first)) ended(run->second->detail());   // else it resumes already
            finished.push_back(std::move(run->second));
            run = runs_.erase(run);
        }
        lock.unlock();
        end_elsewhere();
        if (finished.empty()) continue;
        finished.clear();
        ::malloc_trim(0);   // returns what the job's threads have freed
    }
}

void Daemon::act(const Notice& notice) {
    std::lock_guard lock(mutex_);
    std::visit([&](const auto& what) { act(notice.id, what); }, notice.what);
}

JobRun& Daemon::run_of(const JobId& id) {
    const auto run = runs_.find(id);
    GC_ASSERT(run != runs_.end());   // it stays until its one close or abort
    return *run->second;
}

void Daemon::act(const JobId& id, const Notice::Open& open) {
    log_.info("job {}: opened over {} nodes, coordinated by node {}", job_id_text(id), open.plan->first_nodes(),
              open.plan->members[0].name);
    std::erase_if(ended_, [text = job_id_text(id)](const JobDetail& each) { return each.summary.id == text; });   // it resumes
    done_elsewhere_.erase(id);
    searches_.erase(id);   // somebody else was faster
    choices_.erase(id);
    runs_.erase(id);   // the run before has nothing to wait for any more
    auto run = std::make_unique<JobRun>(*job_host_, open.plan, members(), NodeId{open.self});
    if (!leaving_.empty()) run->cancel(leaving_);
    if (auto submitted = submitted_.find(id); submitted != submitted_.end()) {
        if (!submitted->second.cancelled.empty()) run->cancel(submitted->second.cancelled);
        submitted_.erase(submitted);
    }
    runs_.emplace(id, std::move(run));
}

void Daemon::act(const JobId& id, const Notice::Start& start) {
    log_.info("job {}: starts", job_id_text(id));
    run_of(id).start(start.deadline_us, start.note);
}

void Daemon::act(const JobId& id, const Notice::Abort& abort) {
    log_.info("job {}: not started: {}", job_id_text(id), abort.why.what);
    run_of(id).abort(abort.why);
}

void Daemon::act(const JobId& id, const Notice::Close&) { run_of(id).close(); }

void Daemon::act(const JobId& id, const Notice::Submitted& submitted) {
    if (submitted_.contains(id)) give_up(id, submitted.outcome);   // a job that was opened gets start or abort
}

void Daemon::act(const JobId& id, const Notice::Warning& warning) {
    log_.warn("job {}: {}", job_id_text(id), warning.what.what);
    if (const auto run = runs_.find(id); run != runs_.end()) run->second->warn(warning.what.what);
}

void Daemon::act(const JobId& id, const Notice::EndedElsewhere&) {
    const auto run = runs_.find(id);
    if (run == runs_.end() || !run->second->nobody_runs("the job has ended at the other nodes")) done_elsewhere_.insert(id);
}

void Daemon::watch_peers(std::vector<PeerState>* before) {
    std::vector<PeerState> now = membership_->peers();
    before->resize(now.size());
    for (size_t peer = 0; peer < now.size(); ++peer) {
        const std::string& name = now[peer].member.name;
        if (now[peer].alive && !(*before)[peer].alive) log_.info("node {} is alive", name);
        if (!now[peer].alive && now[peer].why != (*before)[peer].why) log_.warn("node {} is not alive: {}", name, now[peer].why);
    }
    *before = std::move(now);
}

std::vector<NodeAddress> Daemon::members() const {
    std::lock_guard lock(members_mutex_);
    return members_;
}

Status Daemon::extend(const std::vector<NodeAddress>& all, size_t* added) {
    std::vector<NodeAddress> now = members();
    *added = 0;
    if (all.size() <= now.size()) return {};
    // An index is the same rank of the mesh in every daemon.
    if (!std::equal(now.begin(), now.end(), all.begin()))
        return fail(Code::conflict, "jobs that run take no nodes in whose names do not sort behind {}", now.back().name);
    std::vector<NodeAddress> more(all.begin() + static_cast<ptrdiff_t>(now.size()), all.end());
    std::vector<std::string> numeric;   // the networks' threads look nothing up
    for (const NodeAddress& each : more) {
        SocketAddress address;
        GC_TRY(address_resolve(each.address, false, &address));
        numeric.push_back(address_text(address));
    }
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < more.size(); ++i) {
        {
            std::lock_guard members_lock(members_mutex_);
            members_.push_back(more[i]);
        }
        membership_->add_peer(more[i].name);
        mesh_->add({{more[i].name, {}, 0}, numeric[i]});
        for (const auto& [id, run] : runs_) run->add({more[i].name, numeric[i]});
        for (auto& [id, search] : searches_) search.answers.push_back({.node = more[i].name, .member = false, .why = "it is new"});
    }
    *added = more.size();
    return {};
}

void Daemon::each_job(const std::function<void(const JobDetail&)>& see) const {
    for (const JobDetail& detail : ended_) see(detail);
    for (const auto& [id, submitted] : submitted_) see(submitted.detail);
    for (const auto& [id, run] : runs_)
        if (run->listed() && !submitted_.contains(id)) see(run->detail());
}

std::vector<JobSummary> Daemon::jobs() {
    std::vector<JobSummary> result;
    {
        std::lock_guard lock(mutex_);
        each_job([&](const JobDetail& each) { result.push_back(each.summary); });
    }
    std::stable_sort(result.begin(), result.end(),
                     [](const JobSummary& a, const JobSummary& b) { return a.submitted_unix < b.submitted_unix; });
    return result;
}

namespace {
bool active(const JobDetail& detail) {
    const JobState state = detail.summary.status.state;
    return state == JobState::preparing || state == JobState::running;
}
}   // namespace

/// `which` among all jobs, or among those that are active where there is one.
Status Daemon::find(const std::string& which, bool prefer_active, JobDetail* found) const {
    const ShortTexts for_the_client;
    std::vector<JobDetail> by_id, by_name;
    each_job([&](const JobDetail& each) {
        if (which.size() >= 4 && each.summary.id.starts_with(which)) by_id.push_back(each);
        else if (each.summary.name == which) by_name.push_back(each);
    });
    std::vector<JobDetail>& fit = by_id.empty() ? by_name : by_id;
    if (prefer_active && std::any_of(fit.begin(), fit.end(), active))
        std::erase_if(fit, [](const JobDetail& each) { return !active(each); });
    if (fit.empty()) return fail(Code::invalid, "there is no job {}: give an id, at least 4 digits of one, or a name", which);
    if (fit.size() > 1) {
        constexpr size_t ids_max = 8;
        std::string ids;
        for (size_t i = fit.size(); i-- > 0 && fit.size() - i <= ids_max;)
            ids += fmt::format("{}{} ({})", ids.empty() ? "" : ", ", fit[i].summary.id.substr(0, by_id.empty() ? 8 : 32),
                               job_state_name(fit[i].summary.status.state));
        return fail(Code::invalid, "{} jobs {} {}, name one by its id: {}{}", fit.size(),
                    by_id.empty() ? "are named" : "have ids that begin with", which, ids, fit.size() > ids_max ? ", …" : "");
    }
    *found = std::move(fit.front());
    return {};
}

Status Daemon::job(const std::string& which, JobDetail* detail) {
    std::lock_guard lock(mutex_);
    return find(which, false, detail);
}

Status Daemon::cancel(const std::string& which, std::string* cancelled) {
    std::lock_guard lock(mutex_);
    JobDetail detail;
    GC_TRY(find(which, true, &detail));
    if (!active(detail))
        return fail(Code::conflict, "job {} has ended already: {}{}", detail.summary.id, job_state_name(detail.summary.status.state),
                    detail.summary.status.may_rejoin ? "; this node asks to join it again: `gradcastctl delete` keeps it out" : "");
    const std::string why = fmt::format("cancelled at node {}", config_.name);
    for (auto& [id, submitted] : submitted_)
        if (submitted.detail.summary.id == detail.summary.id) submitted.cancelled = why;
    for (auto& [id, run] : runs_)
        if (run->detail().summary.id == detail.summary.id) run->cancel(why);
    *cancelled = detail.summary.id;
    return {};
}

Status Daemon::remove(const std::string& which, std::string* removed) {
    const ShortTexts for_the_client;
    JobDetail detail;
    {
        std::lock_guard lock(mutex_);
        GC_TRY(find(which, false, &detail));
        const std::string& id = detail.summary.id;
        const auto at = std::find_if(ended_.begin(), ended_.end(), [&](const JobDetail& each) { return each.summary.id == id; });
        if (at == ended_.end()) return fail(Code::conflict, "job {0} has not ended here: gradcastctl cancel {0}, then delete it", id);
        JobId job;
        if (job_id_parse(id, &job)) membership_->stays_out(job);
        ended_.erase(at);
    }
    std::error_code error;
    std::filesystem::remove_all(detail.folder, error);
    if (error) return fail(Code::node_io, "cannot remove all of {}: {}", detail.folder, error.message());
    log_.info("job {}: deleted", detail.summary.id);
    *removed = detail.summary.id;
    return {};
}

/// What was submitted and will not be opened.
void Daemon::give_up(const JobId& id, const Status& status) {
    Submitted& submitted = submitted_.at(id);
    if (submitted.before) {
        not_resumed(status, &*submitted.before);
        ended(std::move(*submitted.before));
    } else {
        JobStatus& now = submitted.detail.summary.status;
        now.state = JobState::failed;
        now.error = status.what;
        now.code = status.code;
        ended(std::move(submitted.detail));
    }
    submitted_.erase(id);
}

/// Lists it among the ended jobs; the oldest ones go at the limits of gradcastd.toml.
void Daemon::ended(JobDetail detail) {
    std::erase_if(ended_, [&](const JobDetail& each) { return each.summary.id == detail.summary.id; });
    last_ = detail;
    ended_.push_back(std::move(detail));
    job_records_trim(&ended_, config_.jobs_kept, config_.jobs_bytes, log_);
}

/// Marks jobs that this node asked to rejoin as done elsewhere.  A client that follows one here finds its end at another node.
void Daemon::end_elsewhere() {
    std::vector<JobDetail> changed;
    {
        std::lock_guard lock(mutex_);
        if (done_elsewhere_.empty()) return;
        const std::string error = fmt::format("the other nodes have done the job without {}", config_.name);
        std::erase_if(done_elsewhere_, [&](const JobId& id) {
            if (runs_.contains(id)) return false;   // it is about to end here
            for (JobDetail& each : ended_) {
                JobStatus& status = each.summary.status;
                if (each.summary.id != job_id_text(id) || status.state == JobState::done || status.error == error) continue;
                status.goes_on = true;
                status.error = error;
                changed.push_back(each);
            }
            return true;
        });
    }
    for (const JobDetail& each : changed) {
        log_.info("job {}: {}", each.summary.id, each.summary.status.error);
        if (Status status = job_record_write(each); !status.ok()) log_.error("job {}: {}", each.summary.id, status.what);
    }
}

std::vector<NodeInfo> Daemon::nodes() {
    std::vector<NodeInfo> result;
    std::vector<PeerState> peers = membership_->peers();
    const std::vector<NodeAddress> members = this->members();   // at least as many
    for (size_t peer = 0; peer < peers.size(); ++peer) {
        const PeerState& state = peers[peer];
        bool known = state.member.uuid != decltype(state.member.uuid){};
        bool self = peer == config_.self();
        result.push_back({members[peer].name, self ? address_ : members[peer].address, known ? uuid_text(state.member.uuid) : "",
                          state.version, self, state.alive, state.jobs, state.why, known ? isa_name(state.isa) : "", state.draining,
                          state.hinders});
    }
    return result;
}

std::vector<Finding> Daemon::doctor() {
    const uint32_t before = mesh_->datagrams_found().value_or(DatagramsFound{}).round;
    mesh_->probe();
    std::vector<Finding> findings = doctor_node(config_);
    std::optional<DatagramsFound> found = mesh_->datagrams_found();
    const std::atomic<uint32_t>& probing = mesh_->counters().probing;
    for (const uint64_t until = clock_us() + probe_us; clock_us() < until && ((found && found->round == before) || probing > 0);
         found = mesh_->datagrams_found())
        ::usleep(20'000);
    if (found && found->round == before) found->probed = false;
    for (Finding& each : doctor_cluster(config_, nodes(), membership_->peers(), found, probing)) findings.push_back(std::move(each));
    return findings;
}

void Daemon::leave(const std::string& why, bool cancels) {
    std::lock_guard lock(mutex_);
    leaving_ = why;
    for (const auto& [id, run] : runs_) cancels ? run->cancel(why) : run->leave(why);
}

bool Daemon::last_ended(JobDetail* detail) const {
    std::lock_guard lock(mutex_);
    if (last_) *detail = *last_;
    return last_.has_value();
}

Status Daemon::failed() const {
    std::lock_guard lock(mutex_);
    return failed_;
}

size_t Daemon::running() const {
    std::lock_guard lock(mutex_);
    return runs_.size();
}

std::string Daemon::summary() const {
    std::vector<PeerState> peers = membership_->peers();
    auto alive = std::count_if(peers.begin(), peers.end(), [](const PeerState& each) { return each.alive; });
    size_t jobs = running();
    return fmt::format("{} job{}, {} of {} node{} alive", jobs, jobs == 1 ? "" : "s", alive, peers.size(), peers.size() == 1 ? "" : "s");
}

}   // namespace gradcast
