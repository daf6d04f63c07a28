#include "runtime/job/run/engine.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "algos/algorithm.h"
#include "runtime/core/fd.h"
#include "runtime/job/file/cells.h"
#include "runtime/job/model/safetensors.h"
#include "runtime/job/model/tensors.h"
#include "runtime/job/report/view_records.h"
#include "runtime/job/run/checkpoint.h"
#include "runtime/job/run/lane_choice.h"
#include "runtime/job/run/memory_check.h"
#include "runtime/job/run/orders.h"
#include "runtime/job/run/planned_job.h"
#include "runtime/job/run/resume.h"
#include "runtime/job/run/state_move.h"
#include "runtime/job/run/trained_model.h"
#include "runtime/job/run/view_records_spread.h"
#include "runtime/job/run/view_switch.h"

namespace gradcast {
namespace {

/// In deadlines.  A node that is silent or stuck is given up long before: who waits longer waits for one that moves.
constexpr uint64_t patience_of_views = 10;

class JobEngine final : public Engine {
public:
    JobEngine(const EngineConfig& config, const Log& log) : config_(config), job_(config_.job), report_(log) {}

    Status prepare() {
        GC_TRY(min_nodes_check(job_, config_.nodes()));
        const Status copies = copies_check(job_, config_.nodes());
        if (!config_.resume.on) GC_TRY(copies);
        GC_TRY(make_directories(config_.folder));
        if (!config_.resume.on) GC_TRY(file_write(config_.folder + "/job.toml", job_.text));   // else once it goes on
        GC_TRY(report_.open(config_));
        for (size_t at = 0; at < config_.resume.notes.size();) {
            const size_t end = std::min(config_.resume.notes.find('\n', at), config_.resume.notes.size());
            report_.warn(config_.resume.notes.substr(at, end - at));
            at = end + 1;
        }
        if (!copies.ok()) report_.warn(fmt::format("{}; the job goes on with {}", copies.what, copies_most(job_, config_.nodes())));
        GC_TRY(parts_.examine(config_, true, report_));
        GC_TRY(parts_.open_constants(config_));
        if (parts_.processes || (config_.lanes > 1 && job_.device == "cpu")) GC_TRY(lanes_choose(&config_, parts_, report_));
        GC_TRY(planned_.plan(config_, parts_.algorithm->workers ? "cpu" : job_.device, report_));
        if (parts_.pipeline && job_.micro_batch < parts_.pipeline->lanes)
            report_.warn(fmt::format("parallel.micro_batch = {} leaves lanes without work: this node has {}", job_.micro_batch,
                                     parts_.pipeline->lanes));
        report_.update([&](JobStatus& status) {
            status.settings = parts_.settings(job_);
            status.voters = view_voters(job_);
            if (parts_.pipeline) status.stage = parts_.pipeline->cell_text(parts_.pipeline->own());
            status.grid = config_.grid;
        });
        const ExchangeConfig& exchange = choice_.first().config;
        if (DeviceWords* device = parts_.compute.codec->device())   // a node that joins is still alone
            device->expect(choice_.targets_most(std::max(session_->targets(), config_.join ? exchange.m + exchange.s : 1)));
        const std::vector<MemoryUse> memory = planned_.memory();
        GC_TRY(memory_check(config_, memory, parts_.processes ? parts_.processes->taken() : 0, &share_));
        report_.update([&](JobStatus& status) { status.memory = memory; });
        GC_TRY(parts_.ready(config_, report_));
        std::string order;   // which the algorithm has taken in; an audit has its own word for other kernels
        if (parts_.algorithm->server && !job_.settings.replay.empty() && config_.until == 0)
            GC_TRY(replay_read(job_.settings.replay, parts_.facts(job_), &order));
        GC_TRY(session_->ready());
        if (config_.resume.on) parts_.progress.step.store(config_.resume.steps, std::memory_order_relaxed);
        if (config_.resume.on) GC_TRY(resume_load(config_, parts_, *algorithm_, report_, &resume_files_, &standing_));
        model_.describe();
        GC_TRY(checkpoints_.open(config_, parts_, report_, model_.described()));
        if (job_.survive && config_.until == 0) {
            views_.emplace(config_, parts_, choice_, *algorithm_, report_, orders_);
            GC_TRY(views_->open(*session_));
        }
        if (config_.until == 0 && (views_ || session_->self() <= session_->ranks_tolerated())) GC_TRY(model_.reserve(*algorithm_));
        const Layout& layout = parts_.compute.net->layout();
        if (!config_.grid.empty() && session_->self() == 0) report_.log().info("grid: {}", config_.grid);
        report_.log().info("rank {} of {}, {}{} parameters in {} buckets, {} of {} {}, {}", session_->self(), session_->view().n(),
                           parts_.pipeline ? parts_.pipeline->cell_text(parts_.pipeline->own()) + ", " : "", layout.elements,
                           layout.buckets.size(), session_->own_blocks().size(), parts_.block_sizes.size(),
                           parts_.local ? "workers" : "blocks", memory_text(memory));
        return {};
    }

    const std::string& kernel_set() const override { return parts_.kernel_set; }
    const char* kernels() const override { return parts_.compute.net->kernels(); }
    const std::string& data_digest() const override { return parts_.data_digest; }
    bool data_compared() const override { return parts_.data_compared; }
    const std::string& start_digest() const override { return parts_.begins_with; }
    const std::string& inventory() const override { return parts_.inventory; }
    void note(const std::string& text) override { report_.log().info("{}", text); }
    Buffer memory() const override { return parts_.arena.whole(); }
    uint64_t deadline_us() const override { return parts_.deadline_us; }
    void deadline(uint64_t deadline_us) override {
        if (views_) views_->deadline(deadline_us);
        if (deadline_us != parts_.deadline_us)
            report_.warn(fmt::format("the deadline is {:.3f} s, as {} needs it", static_cast<double>(deadline_us) / 1e6,
                                     deadline_us > parts_.deadline_us ? "another node" : "the job that runs"));
        parts_.agree(deadline_us, report_);
    }
    Protocol* views() override { return views_ ? views_->protocol() : nullptr; }
    Profile* profile() override { return parts_.profile.get(); }
    void counters(const LinkCounters* counters) override { report_.counters(counters); }

    bool datagrams() const override { return choice_.datagrams(parts_.steps - std::min(config_.resume.steps, parts_.steps)); }

    Status run(Host& host) override {
        model_.run_begins();
        if (config_.lanes > 0) lane_start(0, config_.cpus);   // the network thread has been made
        Context context{.host = host,
                        .lanes = parts_.lanes,
                        .loader = parts_.loader.get(),
                        .data = *parts_.train,
                        .sampler = *parts_.sampler,
                        .progress = parts_.progress,
                        .batch = job_.batch,
                        .blocks = static_cast<uint32_t>(parts_.block_sizes.size()),
                        .local = parts_.local.get(),
                        .deadline_us = parts_.deadline_us,
                        .patience = views_ ? patience_of_views : 1,
                        .spend_us = config_.spend_us,
                        .profile = parts_.profile.get(),
                        .first = config_.resume.steps,
                        .step = config_.resume.steps,
                        .since_us = host.now_us(),
                        .workers_did = WorkerAccounts(parts_.local ? parts_.block_sizes.size() : 0),
                        .replay_head = replay_head(parts_.facts(job_))};
        if (parts_.pipeline && job_.checkpoint_keep > 0) context.checkpoints = &checkpoint_news_;
        host_ = &host;
        orders_.begin(host);
        if (!config_.join) open(context, {});
        Status status = train(context);
        if (views_ && views_->drained()) status = fail(Code::cancelled, "{}; the job goes on without it", orders_.leaves());
        if (views_) {
            report_.update([&](JobStatus& now) {
                now.goes_on = views_->excluded();
                now.may_rejoin = may_rejoin();
            });
            views_->stop(host);
        }
        orders_.stop();
        if (const Profile* profile = parts_.profile.get(); profile->step >= context.first && context.step > profile->step)
            if (Status written = file_write(config_.folder + "/profile.json", profile->json(session_->self(), own_name())); !written.ok())
                report_.log().error("{}", written.what);
        // A process of the user that fails takes its node out of the job, as if the node were lost.
        departed_ = !status.ok() && views_ && parts_.processes && parts_.processes->failed() && !ended_;
        if (departed_)
            status =
                fail(status.code, "{}; the job goes on without this node where it can, and `gradcastctl job add-node` takes it in again",
                     status.what);
        if (!status.ok() && session_->ended().ok() && !ended_ && !session_->outvoted() && !departed_) {
            // The others must learn of it, and may have found another error first: all end with one line.
            const Status agreed = session_->abort(status);
            // What was found here is another rank's word for the same thing, or its consequence.
            if (std::string_view(agreed.what).find(status.what) == std::string_view::npos)
                report_.log().info("found here: {}", status.what);
            status = agreed;
        }
        orders_.close();
        if (!status.ok() && !ended_) rescue(context, status);
        checkpoints_.close();
        // What was reserved and is not needed, or has bits that are in doubt; not a model that could not be renamed.
        if (!model_.written() || status.code == Code::conflict) model_.discard();
        if (status.ok() && config_.until == 0) model_.transcript(context);
        report_.end(status, context.step, model_.digest(), host.now_us(), context.why_lost);
        return status;
    }

    void cancel(const std::string& why) override {
        orders_.abort(why);
        parts_.ending.store(true, std::memory_order_relaxed);   // after the order, which is the reason
    }
    void leave(const std::string& why) override {
        orders_.leave_in_any_case();
        if (drain(why).ok()) return;
        if (views_) orders_.abort(why);
        else orders_.leave_alone(why);
    }
    bool may_rejoin() const override { return views_ && views_->may_rejoin(); }
    bool departed() const override { return departed_; }
    Status drain(const std::string& why) override {
        GC_TRY(may_leave());
        orders_.leave(why);
        return {};
    }
    Status force_dead(const std::string& node) override {
        if (!views_) return fail(Code::invalid, "the job does not go on without nodes: survive is not set in its job file");
        if (parts_.algorithm->server)
            return fail(Code::conflict,
                        "{} follows the clock: if {} lived, two different models would be trained; restart its daemon, or "
                        "resume the job when it has ended",
                        job_.algorithm, node);
        const size_t at = config_.roster.find(node);
        if (at == config_.roster.size()) return fail(Code::invalid, "{} is no node of the job", node);
        if (node == own_name()) return fail(Code::invalid, "{} is this node, and it lives", node);
        report_.warn(fmt::format("an operator says that {} is dead", node));
        orders_.force_dead(NodeId{static_cast<uint32_t>(at)});
        return {};
    }

    JobStatus status() const override { return report_.status(); }

private:
    /// The session that is ready becomes the present one.
    void open(Context& context, const std::vector<NodeId>& lost) {
        session_->open(context, lost);
        if (views_) views_->join(session_->dispatch());
        checkpoints_.join(context.host, session_->dispatch());
        bytes_bound_ = session_->bytes_bound();
        edge_bytes_ = session_->edge_bytes();
        report_.update([this](JobStatus& status) { status.may_send_less |= session_->losses_tolerated() > 0; });
        // The records of views do not have the present one yet.
        orders_.open(context.host, (begun_ || config_.join) && may_leave(session_->config().nodes).ok());
    }
    /// Whether the others can go on without this node.
    Status may_leave() const {
        if (!views_) return fail(Code::conflict, "survive is not set in its job file");
        std::vector<std::string> names;
        report_.look([&](const JobStatus& status) {
            if (status.state == JobState::running) names = status.views.back().members;
        });
        if (names.empty()) return fail(Code::conflict, "it has not begun yet");
        std::vector<NodeId> members;
        for (uint32_t node = 0; node < config_.roster.size(); ++node)
            if (std::ranges::count(names, config_.roster[node].name) > 0) members.push_back(NodeId{node});
        return may_leave(members);
    }
    /// The same of a view with these members, in any order.
    Status may_leave(std::vector<NodeId> others) const {
        if (!views_) return fail(Code::conflict, "survive is not set in its job file");
        const uint32_t least = std::max(view_members_min(job_, config_.nodes()), 1u);
        if (others.size() <= least) return fail(Code::conflict, "it needs {} node{}", least, least == 1 ? "" : "s (min_nodes)");
        if (!parts_.pipeline) return {};
        // Another node has this one's part of the net.
        std::erase(others, config_.self);
        const auto lost = ViewStages(others, parts_.cut->stages(), job_.buddy, parts_.cut->slice_groups).missing();
        return lost ? fail(Code::conflict, "no other node has {}", parts_.cut->cell_text(*lost)) : Status{};
    }
    /// Between two steps: the session ends, and the next one has the same members and this exchange.
    Status change(Context& context, const Alternative& exchange, const std::string& why) {
        const uint64_t begin_us = context.host.now_us();
        SessionConfig config = session_->config();
        ++config.view;
        config.exchange = exchange;
        config.first_step = context.step;
        config.first = false;
        // Before the old one ends, so that all learn of it if there is no memory.
        auto next = std::make_unique<Session>(config, config_, parts_, report_);
        GC_TRY(next->plan());
        GC_TRY(next->ready());
        orders_.close();
        GC_TRY(session_->end());
        if (views_) GC_TRY(views_->pending());
        const bool other_blocks = next->own_blocks() != session_->own_blocks();
        const std::vector<NodeId> lost = session_->lost();
        session_ = std::move(next);
        open(context, lost);
        if (parts_.loader && other_blocks && !session_->own_blocks().empty()) parts_.loader->plan(context.step, session_->own_blocks());
        GC_TRY(session_->begin());
        if (views_) GC_TRY(views_->pending());
        const uint64_t change_us = context.host.now_us() - begin_us;
        report_.update([&](JobStatus& status) { status.memory.back() = session_->arena().use("view"); });
        ViewRecord view{.first_step = context.step + 1, .members = names(session_->config().nodes), .why = why, .stood_us = change_us};
        return view_records_spread(context, *session_, view_records_with(report_.views(), std::move(view)), report_);
    }

    Status train(Context& context) {
        const SessionPlace place{session_, [&] { open(context, {}); }, [&] { orders_.close(); }};
        Status status = config_.join ? join(context, place) : begin(context);
        if (status.ok()) status = steps(context);
        while (views_ && views_->repeats(status) && session_->ended().ok()) {
            GC_TRY(views_->next(context, status, place, &standing_));
            if (!begun_) {   // a node was lost while the state that the job begins or goes on with was sent
                GC_TRY(has_begun_with());
                if (standing_.evaluated > 0) report_.resumed(standing_.accuracy, standing_.test_loss);
            }
            repeats_ = true;
            checkpoints_.regrouped(context.step);
            if (context.unreported && context.unreported->step + 1 == context.step) {   // nobody else may have this line
                context.record = *context.unreported;
                context.record.digest = context.state;
                record(context);
                report_.step_end();
            }
            context.unreported.reset();
            status = steps(context);
        }
        return status;
    }

    /// Becomes a member of the job's next view, with the state of the others.
    Status join(Context& context, const SessionPlace& place) {
        if (!views_) return fail(Code::invalid, "only a job with job.survive takes nodes in while it runs");
        GC_TRY(views_->next(context, {}, place, &standing_));
        has_state();
        repeats_ = true;
        first_step(context);
        if (standing_.evaluated > 0) report_.resumed(standing_.accuracy, standing_.test_loss);
        return {};
    }
    Status begin(Context& context) {
        if (parts_.loader && !session_->own_blocks().empty()) parts_.loader->plan(context.step, session_->own_blocks());
        const bool own_values = parts_.initial_values_differ() && !config_.resume.on;
        context.state = config_.resume.on               ? config_.resume.state
                        : parts_.pipeline || own_values ? 0
                                                        : context.digest(0, parts_.model_digest());
        if (!config_.resume.on && !own_values) has_state();
        if (!session_->spare()) context.part_step = context.step;
        // The first view, also where another one follows before it has begun here.
        report_.views(view_records_with({}, {.first_step = context.step + 1, .members = names(session_->config().nodes)}));
        const auto spread_views = [&] { return view_records_spread(context, *session_, report_.views(), report_); };
        // One node has all of the state, and can send it in the next view as well, where a node is lost meanwhile.
        const bool one_holder = config_.resume.on && views_ && !parts_.pipeline && config_.resume.holders.size() == 1;
        if (one_holder && config_.resume.holders[0] == config_.self) views_->has_state();
        else if (one_holder) views_->awaits_state(config_.resume.holders[0]);
        GC_TRY(own_values ? begin_initial(context) : session_->begin());
        if (one_holder) views_->watch(context.host);
        if (parts_.pipeline && !config_.resume.on) {
            GC_TRY(session_->probe());
            if (parts_.buddies) GC_TRY(state_to_buddies(context, *session_, parts_));
            GC_TRY(context.digest(0, parts_.model_digest(), &context.state));
        }
        if (!config_.resume.on) {
            first_step(context);
            return spread_views();
        }
        GC_TRY(resume_spread(config_, context, *session_, parts_, *algorithm_, resume_files_, &standing_));
        if (std::ranges::find(config_.resume.holders, config_.self) == config_.resume.holders.end())
            report_.state_from(config_.roster[static_cast<size_t>(config_.resume.holders[0])].name, config_.resume.steps);
        GC_TRY(has_begun_with());
        first_step(context);
        GC_TRY(spread_views());
        return resumed(context);
    }
    /// This node has the state that the job begins or goes on with.
    Status has_begun_with() {
        has_state();
        resume_files_ = {};
        return config_.resume.on ? file_write(config_.folder + "/job.toml", job_.text) : Status{};
    }
    /// All ranks begin with the initial values of the first one, whose scales are of them.  Where a node is lost meanwhile, the next view
    /// begins with these, if one of its members has them, else with those of its lowest rank.
    Status begin_initial(Context& context) {
        const uint64_t own = context.state = context.digest(0, parts_.model_digest());
        if (session_->self() == 0) has_state();
        else if (views_) views_->has_initial(context);
        context.state = 0;   // that of all ranks until they have the same values
        const Status begun = session_->begin();
        context.state = own;
        GC_TRY(begun);
        if (views_) views_->watch(context.host);
        if (session_->view().n() > 1) {
            const StateSource source{0, state_runs_whole(parts_.state_sizes())};
            GC_TRY(state_move(context, *session_, parts_, {&source, 1}, [](Rank rank, uint32_t) { return rank != 0; }, {}));
            parts_.refresh();
        }
        context.state = context.digest(0, parts_.model_digest());
        has_state();
        return {};
    }
    /// An audit begins with them.
    void keep_initial() {
        const Status kept = safetensors_write(config_.folder + '/' + start_file, model_.described(), parts_.compute.net->parameters());
        if (!kept.ok()) report_.warn(fmt::format("{}; the job cannot be verified from its beginning", kept.what));
    }
    /// What is verified, or goes on from a checkpoint, starts these.
    void keep_sources() {
        const ProcessHello& hello = parts_.processes->hello();
        const Status kept = sources_keep(config_.folder, job_.base, job_.command, hello.modules, hello.libraries);
        if (!kept.ok()) report_.warn(fmt::format("no copies of the program's sources are kept: {}", kept.what));
    }
    void has_state() {
        has_state_ = true;
        if (views_) views_->has_state();
    }
    void first_step(Context& context) {
        if (std::exchange(begun_, true)) return;
        if (context.step == 0 && parts_.initial_values_differ() && config_.until == 0) keep_initial();
        if (parts_.processes && config_.until == 0 && !config_.sources) keep_sources();
        if (parts_.constants)
            if (const Status kept = parts_.constants->keep(); !kept.ok())
                report_.warn(fmt::format("{}; the model cannot be exported", kept.what));
        checkpoints_.begin(context.step);
        ::unlink((config_.folder + "/transcript.json").c_str());   // of a run before this one
        if (views_) views_->watch(context.host);
        report_.begin(context.host.now_us(), context.step, context.step > 0 ? parts_.sampler->epoch_of(context.step - 1) + 1 : 0);
    }

    /// From the present step to the end.
    Status steps(Context& context) {
        first_step(context);
        if (std::exchange(repeats_, false) && evaluation_due(context.step)) GC_TRY(evaluate(context.step));
        const uint64_t last = config_.until > 0 ? std::min(config_.until, parts_.steps) : parts_.steps;
        while (context.step < last && !(job_.stop_at > 0 && standing_.accuracy >= job_.stop_at)) {
            context.since_us = context.host.now_us();
            GC_TRY(between(context));
            tried_.clear();
            context.at_once = context.step + 1 < last && at_once(context.step + 1);
            context.try_worker = job_.settings.evaluate_workers && evaluation_due(context.step + 1) ? &try_worker_ : nullptr;
            if (Status round = algorithm_->round(context); !round.ok()) {
                if (context.workers) context.workers->take_back();
                // A server that has stayed keeps its updates.
                if (!parts_.algorithm->server) context.workers_did.take_back(context.step, &context.samples);
                return round;
            }
            choice_.record(context.record);
            record(context);
            context.since_us = context.host.now_us();
            trained_ = context.step == parts_.steps;
            checkpoints_.applied(context.step);
            if (views_) views_->stepped(context.host, context.step);
            Status status;
            if (evaluation_due(context.step)) status = evaluate(context.step);
            report_.workers(tried_);
            report_.step_end();
            GC_TRY(status);
            GC_TRY(checkpoint(context));
        }
        return finish(context);
    }
    Status checkpoint(Context& context) {
        const auto news = [&](Rank rank) { return context.cells->checkpoints(rank); };
        if (context.checkpoints) checkpoints_.reported(news);
        const uint64_t number = checkpoints_.number(context.step);
        if (number == 0) return {};
        // A node that is killed may go on from another's checkpoint: these lines are written now, so that they are no gap then.
        report_.hurry();
        GC_TRY(gather(context));
        if (context.checkpoints) {
            const Model& model = model_.part_of(context, standing_, context.cells->next(), context.cells->part());
            checkpoints_.take(session_->part_holders(number, job_.checkpoint_copies), session_->self(), model, algorithm_->state(), news,
                              [&](Rank rank) { return context.cells->part(rank); });
        } else if (session_->turn(number, std::max(job_.checkpoint_copies, 1u))) {
            checkpoints_.snapshot(model_.of(context, standing_), algorithm_->state());
        }
        return {};
    }

    /// Whether step `next` begins with nothing between it and the step before: no evaluation, checkpoint, other exchange, view or profile.
    bool at_once(StepId next) const {
        const StepId profiled = parts_.profile->step;
        return job_.stop_at == 0 && !views_ && config_.change_every == 0 && !evaluation_due(next) && checkpoints_.number(next) == 0 &&
               !choice_.due(next) && !choice_.balances(next) && profiled != next && profiled + 1 != next;
    }

    /// The state is that after config_.resume.steps, as a checkpoint had it.
    Status resumed(Context& context) {
        report_.log().info("goes on after {} steps, digest {:016x}", context.step, context.state);
        standing_.algorithm_bytes = 0;
        if (standing_.evaluated == context.step || !evaluation_due(context.step)) {
            if (standing_.evaluated > 0) report_.resumed(standing_.accuracy, standing_.test_loss);
            return {};
        }
        return evaluate(context.step);   // the run before ended before it
    }
    bool evaluation_due(StepId steps) const {
        if (!parts_.test || steps == 0 || config_.until > 0) return false;
        const uint64_t epochs = parts_.sampler->epoch_of(steps);
        const bool boundary = job_.evaluate > 0 ? steps % job_.evaluate == 0 : parts_.sampler->steps(epochs) == steps;
        return boundary || steps == parts_.steps;
    }

    /// The algorithm's state is whole at this node.
    Status gather(Context& context) {
        if (job_.checkpoint_keep == 0) return {};
        GC_TRY(algorithm_->gather(context));
        gathered_ = context.step;
        return {};
    }
    bool whole(const Context& context) const {
        return !parts_.algorithm->private_state || session_->view().n() == 1 || gathered_ == context.step;
    }

    /// What the job has trained gets its file when all ranks have the same bits.
    Status finish(Context& context) {
        trained_ = true;
        GC_TRY(gather(context));
        const auto lowest = [&] { return config_.until == 0 && !parts_.pipeline && session_->turn(0); };   // it keeps the model
        const auto write = [&] { return lowest() ? model_.write(context, standing_, *algorithm_, true) : Status{}; };
        if (parts_.pipeline) GC_TRY(model_.gather(context, *session_, standing_));
        else model_.compute_digest();
        GC_TRY(write());
        if (views_ && views_->protocol()) ViewProtocol::ending(context.host);
        GC_TRY(session_->finish(model_.digest()));
        ended_ = true;
        if (parts_.pipeline) return {};
        if (!model_.written()) GC_TRY(write());   // the ranks before this one were lost meanwhile
        return model_.written() ? model_.name() : Status{};
    }

    /// The job ends with an error: what this rank has trained is not lost with it.
    void rescue(Context& context, const Status& why) {
        if (!has_state_ || why.code == Code::conflict || session_->outvoted() || context.spare) return;
        if (!whole(context))
            return report_.log().info("the state after {} steps is not kept: it is with workers on other nodes", context.step);
        if (context.cells && (!trained_ || !model_.named())) return rescue_parts(context);   // without a name final.h5 may not exist
        // After an error in the middle of the optimiser's step, or where memory has lost a bit.
        const uint64_t model = parts_.model_digest();
        if (context.cells ? context.part(model) != context.cells->part() : context.digest(context.step, model) != context.state)
            return not_kept(context.step);
        if (!trained_) return checkpoints_.rescue(model_.of(context, standing_), algorithm_->state());
        const bool good = why.code == Code::peer_lost || why.code == Code::deadline || why.code == Code::cancelled;
        if (!good) return;
        if (model_.digest().empty()) model_.compute_digest();
        Status status = model_.written() ? Status{} : model_.write(context, standing_, *algorithm_, false);
        if (status.ok() && !model_.named()) status = model_.name();
        if (status.ok()) report_.warn(fmt::format("the model of the last step is in {}; not every rank has confirmed it", model_.path()));
        else report_.log().error("{}", status.what);
    }

    void not_kept(StepId steps) { report_.warn(fmt::format("the state after {} steps is not kept: its digest is another by now", steps)); }

    /// The ranks of a net in stages may end one step apart: a rank applies a step once it knows that all hold its sums, and another one may
    /// not know it yet.  So a rank that holds the sums applies them before it ends.  If it does not know that all ranks do, it writes the
    /// state before them too.  Then all ranks have written their parts of some step, the newest that one of them has applied.
    void rescue_parts(Context& context) {
        const Cells& cells = *context.cells;
        const auto take_reports = [&](uint64_t us) {   // of the others, which were on their way when the job ended
            if (!session_->is_open()) return;
            session_->dispatch().take_rest(mail_channel, context.host.now_us() + us, [&] { return cells.all_hold(); });
        };
        const bool holds = cells.reported() && context.part_step == context.step;
        if (holds) take_reports(0);
        const bool all_hold = holds && cells.all_hold();
        if (!all_hold) write_parts(context);
        if (!holds) return;
        Status applied;
        bool finished = algorithm_->finish(context, {}, &applied);
        if (!finished) {   // the factor of the sums follows from these reports
            take_reports(timeouts_of(parts_.deadline_us).settle_us);
            finished = algorithm_->finish(context, {}, &applied);
        }
        if (!applied.ok()) return report_.log().error("{}", applied.what);
        if (finished && parts_.buddies) parts_.buddies->note(parts_, context.part_step);
        if (finished || all_hold) write_parts(context);
    }

    /// What this rank has of the state that it is at, which may be one step ahead of the context.
    void write_parts(const Context& context) {
        // The digests that this rank has reported of it; in a view that has not begun there are none yet.
        const bool reported = context.part_step != Context::no_part && context.cells->next() == context.part_step;
        if (parts_.buddies && reported) parts_.buddies->note(parts_, context.part_step);
        const StepId steps = own_steps(context);
        if (steps == Context::no_part) return report_.log().info("this node has not got its part of the state yet");
        const uint64_t part = context.part(parts_.model_digest());
        if (reported && part != context.cells->part()) return not_kept(steps);
        checkpoints_.rescue(model_.part_of(context, standing_, steps, part), algorithm_->state(), kept_parts(context, steps, reported));
    }

    /// Steps after which this rank has the state of all that it computes; no_part: it has not.  The state of a stage that it is to keep
    /// may be on its way meanwhile, before the first report of a view.
    StepId own_steps(const Context& context) const {
        if (context.part_step != Context::no_part || !parts_.buddies || context.cells->next() > 0) return context.part_step;
        const StepId steps = parts_.buddies->held(parts_, parts_.run.first);
        for (uint32_t stage = parts_.run.first; stage < parts_.run.end; ++stage)
            if (parts_.buddies->held(parts_, stage) != steps) return Context::no_part;
        return steps;
    }

    /// The stages that this rank keeps and has after so many steps, where they are as it has reported them with its own part.
    std::vector<Checkpoints::Kept> kept_parts(const Context& context, StepId steps, bool reported) {
        std::vector<Checkpoints::Kept> all;
        if (!parts_.buddies) return all;
        const std::vector<KeptStage*> stages = parts_.buddies->kept();
        std::vector<StateMemory> memory = parts_.buddies->kept_memory(parts_, false);
        const std::vector<uint32_t>& begins = parts_.pipeline->begins;
        for (size_t i = 0; i < stages.size(); ++i) {
            const auto begin = std::ranges::find(begins, parts_.cut->begins[stages[i]->stage]);
            if (parts_.buddies->held(parts_, stages[i]->stage) != steps) continue;
            const uint64_t part = stages[i]->part();
            if (begin != begins.end() && (!reported || !context.kept || part == context.kept->part(i)))
                all.push_back({static_cast<uint32_t>(begin - begins.begin()), part, std::move(memory[i])});
        }
        return all;
    }

    /// Two steps: `auto` may choose another exchange.
    Status between(Context& context) {
        const Alternative* next = nullptr;
        if (config_.change_every > 0 && context.step > 0 && context.step % config_.change_every == 0) next = &session_->config().exchange;
        if (choice_.due(context.step)) {
            const Alternative* other = nullptr;
            GC_TRY(choice_.choose(context, *session_, std::max(config_.lanes, 1u), report_, &other));
            if (other) next = other;
        }
        if (choice_.balances(context.step)) {
            const Alternative* other = nullptr;
            GC_TRY(choice_.balance(context, *session_, report_, &other));
            if (other) return change(context, *other, "blocks by speed");
        }
        return next ? change(context, *next, fmt::format("exchange {}", next->kind->name)) : Status{};
    }

    void record(Context& context) {
        const Member* deaf = session_->deaf();
        if (deaf && !std::exchange(deaf_reported_, true))
            report_.warn(fmt::format(
                "multicast from {} does not reach {} any more, datagrams to it alone do: each rank gets its own copy from now on "
                "(do the switches snoop IGMP without a querier? transport.kind = \"tcp\" does without multicast)",
                own_name(), deaf->name));
        const auto [sent, received] = report_.take_bytes();
        context.workers_did.share_bytes(context.record.step, sent, received);
        report_.step({.record = context.record,
                      .bytes_sent = sent,
                      .bytes_received = received,
                      .bytes_bound = bytes_bound_,
                      .edge_bytes = edge_bytes_,
                      .samples = context.samples,
                      .gradients = context.gradients,
                      .forwards = context.forwards,
                      .workers = context.workers_did.all(),
                      .staleness = context.staleness,
                      .epoch = parts_.sampler->epoch_of(context.record.step) + 1,
                      .load_wait_us = parts_.loader ? parts_.loader->waited_us() : 0,
                      .now_us = context.host.now_us(),
                      .phases_us = phases_us(context),
                      .stage = session_->pipeline() ? &context.stage : nullptr,
                      .blocks = static_cast<uint32_t>(session_->own_blocks().size()),
                      .waited_for = session_->waited_for(),
                      .bulk = session_->bulk_counters(),
                      .bulk_view = session_->view().number,
                      .kernels = kernels(),
                      .kernel_set = parts_.kernel_set,
                      .exchange = exchange_name(),
                      .logs = session_->turn(0)},
                     context.why_lost);
    }

    const char* exchange_name() const {
        return parts_.algorithm->sends_by(job_.exchange) ? session_->config().exchange.kind->name : "none";
    }

    std::array<uint64_t, step_phases> phases_us(const Context& context) {
        std::array<uint64_t, step_phases> us;
        for (size_t i = 0; i < step_phases; ++i) us[i] = parts_.profile->take_ns(static_cast<StepPhase>(i)) / 1000;
        us[static_cast<size_t>(StepPhase::compute)] = context.record.compute_us;
        us[static_cast<size_t>(StepPhase::wait)] = context.record.wait_us;
        us[static_cast<size_t>(StepPhase::apply)] = context.record.apply_us;
        return us;
    }

    template <typename Run>
    Status evaluation(Run run) {
        report_.evaluation_begin(*parts_.evaluator, host_->now_us());
        const Status status = run();
        report_.evaluation_end(host_->now_us());
        return status;
    }
    Status evaluate(StepId steps) {
        BatchResult sum;
        GC_TRY(evaluation([&] {
            if (job_.evaluate_ema) parts_.swap_averaged();
            const Status status = session_->evaluate(&sum);
            if (job_.evaluate_ema) parts_.swap_averaged();
            return status;
        }));
        const bool classes = sum.has_accuracy();
        if (!classes && job_.stop_at > 0)
            return fail(Code::invalid,
                        "job.stop_at is an accuracy, but the program tells no classes: give block.done() the outputs, or leave it out");
        if (classes) standing_.accuracy = sum.accuracy();
        standing_.test_loss = sum.mean_loss(parts_.compute.net->spec(), parts_.test->info().count);
        if (std::exchange(standing_.evaluated, steps) == steps) return {};   // reported in the view before
        report_.evaluated(parts_.sampler->epoch_of(steps - 1) + 1, standing_.accuracy, standing_.test_loss);
        return {};
    }

    /// Of the net's parameters, at this node alone.
    Status try_worker(uint32_t worker) {
        std::vector<BatchResult> results(parts_.evaluator->batches());
        GC_TRY(evaluation([&] { return parts_.evaluator->run(*parts_.compute.net, parts_.lanes, 0, 1, results, parts_.progress); }));
        BatchResult all;
        for (const BatchResult& each : results) all.add(each);
        if (!all.has_accuracy()) return fail(Code::invalid, "algorithm.evaluate_workers tells accuracies, and the program no classes");
        tried_.emplace_back(worker, all.accuracy());
        return {};
    }

    std::vector<std::string> names(const std::vector<NodeId>& nodes) const {
        std::vector<std::string> result;
        for (const NodeId node : nodes) result.push_back(config_.roster[index_of(node)].name);
        return result;
    }
    const std::string& own_name() const { return config_.roster[static_cast<uint32_t>(config_.self)].name; }

    EngineConfig config_;   // its lanes may become fewer in prepare(); the rest stays
    const JobConfig& job_;
    Report report_;

    // In the order in which they are made; each may use those before it.
    MemoryBudget::Share share_;
    PlannedJob planned_;
    JobParts& parts_ = planned_.parts;
    ExchangeChoice& choice_ = planned_.choice;
    std::unique_ptr<Algorithm>& algorithm_ = planned_.algorithm;
    std::unique_ptr<Session>& session_ = planned_.session;   // the present one; the driver may still send for the last one
    Checkpoints checkpoints_;
    std::optional<ViewSwitch> views_;   // of a job with `survive`
    bool departed_ = false;
    bool begun_ = false, repeats_ = false;   // its first step; the present one, in another view
    bool deaf_reported_ = false;
    uint64_t bytes_bound_ = 0, edge_bytes_ = 0;   // of a step of the present session
    TrainedModel model_{config_, parts_, report_};
    ResumeFiles resume_files_;
    Standing standing_;   // of it the last evaluation is kept
    const std::function<Status(uint32_t)> try_worker_ = [this](uint32_t worker) { return try_worker(worker); };
    const std::function<CheckpointNews()> checkpoint_news_ = [this] { return checkpoints_.news(); };
    std::vector<std::pair<uint32_t, double>> tried_;   // own workers in this round, and their accuracies
    bool has_state_ = false;                           // what the next step begins from
    uint64_t gathered_ = ~uint64_t{0};                 // steps after which the algorithm's state was whole here
    bool trained_ = false;                             // all steps are done
    bool ended_ = false;                               // all ranks have agreed that the job is done

    Host* host_ = nullptr;   // of run()
    Orders orders_{config_.self};
};

}   // namespace

Status Engine::open(const EngineConfig& config, const Log& log, std::unique_ptr<Engine>* engine) {
    auto made = std::make_unique<JobEngine>(config, log);
    GC_TRY(made->prepare());
    *engine = std::move(made);
    return {};
}

}   // namespace gradcast
