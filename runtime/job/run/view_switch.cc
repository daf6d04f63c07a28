#include "runtime/job/run/view_switch.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "runtime/core/bits.h"
#include "runtime/core/overloads.h"
#include "runtime/job/run/stages.h"
#include "runtime/job/run/view_records_spread.h"

namespace gradcast {
namespace {

using Ended = ViewNotice::Ended::Why;

constexpr uint64_t join_patience = 8;   // deadlines, until a joiner that no view has taken in ends

const char* why_departed(NodeId node, Suspicion why, const ViewAction& action) {
    if (action.kind == ViewAction::Kind::drain && action.node == node) return "drained";
    switch (why) {
        case Suspicion::silent: return why_silent;
        case Suspicion::stuck: return why_stuck;
        case Suspicion::restarted: return "dead or restarted";
        case Suspicion::expelled: return "computed wrongly";
        case Suspicion::none:
        case Suspicion::joiner:
        case Suspicion::command: return why_unreachable;
    }
    return "";
}

bool in(const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

/// "2 nodes go on after step 154 without c, the job has stood for 0.4 s".
std::string goes_on_text(const ViewRecord& view) {
    return fmt::format("{} after step {}{}{}{}{}, the job has stood for {:.1f} s",
                       view.members.size() == 1 ? "1 node goes on" : fmt::format("{} nodes go on", view.members.size()),
                       view.first_step - 1, view.joined.empty() ? "" : " with ", fmt::join(view.joined, ", "),
                       view.departed.empty() ? "" : " without ", fmt::join(view.departed, ", "), static_cast<double>(view.stood_us) / 1e6);
}

}   // namespace

void ViewSwitch::keep(const Context& context, const Standing& standing) {
    const std::span<const std::byte> algorithm = algorithm_.state();
    const ModelState state = parts_.state(algorithm);
    std::ranges::copy(state.parameters, kept_.parameters.as<float>());
    std::ranges::copy(state.optimiser, kept_.optimiser.as<float>());
    std::ranges::copy(state.exponents, kept_.exponents.as<int32_t>());
    kept_.algorithm.assign(algorithm.begin(), algorithm.end());
    kept_.standing = standing;
    kept_.step = context.step;
    kept_.state = context.state;
    kept_.on = true;
}

uint32_t view_members_min(const JobConfig& job, uint32_t nodes) {
    return job.min_nodes > 0 ? job.min_nodes : job.servers_vote ? 1 : (nodes + 1) / 2;
}

uint32_t view_voters(const JobConfig& job) { return job.servers_vote ? job.servers : 0; }

Status ViewSwitch::restore(Context& context, Standing* standing) {
    if (!std::exchange(kept_.on, false)) return {};
    const auto values = [](const Buffer& buffer) { return std::span<const float>(buffer.as<float>(), buffer.bytes / sizeof(float)); };
    parts_.restore(
        {values(kept_.parameters), values(kept_.optimiser), {kept_.exponents.as<int32_t>(), kept_.exponents.bytes / sizeof(int32_t)}, {}});
    *standing = kept_.standing;
    context.step = kept_.step;
    context.state = kept_.state;
    return algorithm_.restore(kept_.algorithm);
}

Status ViewSwitch::open(const Session& session) {
    AgreedView first;
    const bool joins = config_.join;
    first.number = session.config().view;
    first.deadline_us = parts_.deadline_us;
    const ExchangeConfig& exchange = session.config().exchange.config;
    first.exchange = {session.config().exchange.kind->name, static_cast<uint16_t>(exchange.r), static_cast<uint16_t>(exchange.m),
                      static_cast<uint16_t>(exchange.s)};
    for (const NodeId node : session.config().nodes) first.members.push_back({node, view_incarnation(config_.roster[index_of(node)])});
    members_min_ = view_members_min(config_.job, config_.nodes());
    const ViewConfig config{.self = config_.self,
                            .incarnation = view_incarnation(config_.roster[index_of(config_.self)]),
                            .nodes = static_cast<uint32_t>(config_.roster.size()),
                            .asked = config_.job.elastic ? 0 : config_.nodes(),
                            .deadline_us = parts_.deadline_us,
                            .members_min = members_min_,
                            .voters = view_voters(config_.job),
                            .goes_on_with = stages_kept_by()};
    protocol_ = std::make_unique<ViewProtocol>(config, joins ? nullptr : &first, config_.roster);
    if (parts_.pipeline) return arena_.seal();   // only the part of a spare is overwritten, which it does not compute with
    const char* what = "state before another node's";
    arena_.plan(what, parts_.compute.net->layout().elements * sizeof(float), &kept_.parameters);
    arena_.plan(what, parts_.compute.optimiser->state_size() * sizeof(float), &kept_.optimiser);
    arena_.plan(what, parts_.compute.codec->exponents().size_bytes(), &kept_.exponents);
    return arena_.seal();
}

/// Of a net in stages: whether these nodes have each cell.
std::function<bool(std::span<const NodeId>)> ViewSwitch::stages_kept_by() const {
    if (!parts_.pipeline) return {};
    return [stages = parts_.cut->stages(), groups = parts_.cut->slice_groups, buddy = config_.job.buddy](std::span<const NodeId> nodes) {
        return !ViewStages(nodes, stages, buddy, groups).missing();
    };
}

void ViewSwitch::watch(Host& host) {
    if (!protocol_) return;
    watching_ = true;
    ViewProtocol::watch(host);
}

void ViewSwitch::stop(Host& host) {
    if (protocol_) ViewProtocol::stop(host);
}

Status ViewSwitch::pending() const { return frozen_ ? fail(Code::view_changed, "the step is repeated in the next view") : Status{}; }

bool ViewSwitch::repeats(const Status& status) const {
    if (!protocol_ || (joins() && !config_.join) || gave_up_ || status.ok()) return false;
    // A protocol that misses a rank may say so before the nodes have agreed.
    return status.code == Code::view_changed || (watching_ && status.code == Code::peer_lost);
}

Status ViewSwitch::take(const Completion&) {
    (void)read_news();
    return pending();
}

bool ViewSwitch::read_news() {
    std::vector<ViewNews> all = protocol_->take();
    bool stays = false;
    for (ViewNews& news : all)
        std::visit(Overloads{[&](ViewNotice::Freeze&) {
                                 frozen_ = true;
                                 go_ = false;
                                 view_.reset(), step_.reset();
                             },
                             [&](ViewNotice::View& it) {
                                 frozen_ = true;
                                 go_ = false;
                                 for (const auto& [node, why] : it.departed) departed_[node] = why_departed(node, why, news.view.action);
                                 view_ = std::move(news.view);
                                 step_.reset();
                             },
                             [&](ViewNotice::Step& it) { step_ = std::move(it); },
                             [&](ViewNotice::Go&) {
                                 go_ = has_state_ = true;
                                 initial_ = awaits_ = false;
                             },
                             [&](ViewNotice::Stays&) { stays = true; },
                             [&](ViewNotice::Ended& it) {
                                 frozen_ = true;
                                 end_ = it;
                                 drained_ = it.why == Ended::excluded && news.view.action.kind == ViewAction::Kind::drain &&
                                            news.view.action.node == config_.self;
                             }},
                   news.notice.what);
    if (stays) orders_.stays(!frozen_);
    return !all.empty();
}

bool ViewSwitch::may_rejoin() const {
    if (!end_) return gave_up_;
    return (end_->why == Ended::excluded && !drained_) || (end_->why == Ended::minority && end_->living == 0) ||
           end_->why == Ended::forgotten;
}

Status ViewSwitch::ended() const {
    if (!end_) return lost_;
    const std::string& own = config_.roster[index_of(config_.self)].name;
    const double seconds = static_cast<double>(parts_.deadline_us) / 1e6;
    switch (end_->why) {
        case Ended::minority:
            if (end_->living > 0)
                return fail(
                    Code::peer_lost,
                    "{} of the nodes {} left, and the job needs {} (job.min_nodes); `gradcastctl resume` goes on when more are back",
                    end_->living, end_->living == 1 ? "is" : "are", members_min_);
            return fail(Code::peer_lost,
                        "{} is in a minority: for {:g} s it has not heard enough {} to go on; it asks to join again where they do, else "
                        "`gradcastctl resume` goes on when they are back",
                        own, seconds, config_.job.servers_vote ? "servers" : "nodes");
        case Ended::wrong:
            return fail(Code::conflict, "{} has another state after step {} than the other nodes: test its memory and CPU", own,
                        end_->step);
        case Ended::tied:
            if (awaits_)   // nobody has a state, else this node would get it
                return fail(Code::peer_lost, "{} is lost, which holds the state to go on from", config_.roster[index_of(holder_)].name);
            return fail(Code::conflict, "nodes differ about the state after step {}, and none can tell who is right", end_->step);
        case Ended::excluded:
        case Ended::forgotten:
            return fail(Code::peer_lost,
                        "the other nodes go on without {}, which was silent or without progress for too long; it asks to join again", own);
    }
    return {};
}

Status ViewSwitch::wait(Host& host, Session& session, uint64_t until_us) {
    // The completion of these notices may have been dropped with the session, or behind an error of another consumer.
    if (read_news()) return {};
    if (!session.is_open()) {
        std::vector<Completion> completions;
        const Status status = host.wait(&completions, until_us);
        if (!status.ok() && status.code != Code::deadline) return status;
        (void)read_news();
        return {};
    }
    const Status status = session.dispatch().collect(until_us);
    GC_TRY(session.dispatch().ended());
    // Cancelled: the network thread has stopped.  Other errors are of the protocols of a view that has ended.
    return status.code == Code::cancelled ? status : Status{};
}

/// Tells the link that no view up to `number` opens here any more.  Else the link holds back all that a peer sends behind packets of such a
/// view, also messages about the next view.
Status ViewSwitch::pass(Host& host, const Session& session, uint32_t number) {
    if (session.is_open() || number <= std::max(session.config().view, passed_)) return {};
    passed_ = number;
    host.open_view(number, {});
    return host.close_view(host.now_us() + parts_.deadline_us);
}

Status ViewSwitch::next(Context& context, Status why, const SessionPlace& place, Standing* standing) {
    const bool joins = this->joins();
    stands_us_ = joins ? context.host.now_us() : context.since_us;
    if (joins) ViewProtocol::join(context.host);
    for (;;) {
        const Status status = install(context, why, place, standing);
        if (status.ok()) {
            if (!joins) report(context);
            context.since_us = context.host.now_us();
            return {};
        }
        if (kept_.on && place.session->is_open()) {   // the rest of another node's state would overwrite the restored one
            place.closes();
            GC_TRY(place.session->leave());
        }
        GC_TRY(restore(context, standing));
        if (repeats(status)) GC_TRY(pass(context.host, *place.session, taken_));
        parts_.progress.step.store(context.step, std::memory_order_relaxed);
        if (!repeats(status) || !ended().ok() || !place.session->ended().ok()) {
            const Status end = ended();
            if (!end.ok() && place.session->is_open()) {
                place.closes();
                (void)place.session->leave();
            }
            return end.ok() ? status : end;
        }
        if (status.code != Code::view_changed) why = status;   // for which the view that was agreed on did not begin
    }
}

Status ViewSwitch::install(Context& context, Status why, const SessionPlace& place, Standing* standing) {
    Host& host = context.host;
    Waiting waiting(parts_.progress);
    const uint64_t begin_us = host.now_us(), patience_us = parts_.deadline_us;
    uint64_t frozen_us = 0;   // since when
    while (!view_) {
        GC_TRY(ended());
        if (!frozen_) frozen_us = 0;
        else if (frozen_us == 0) frozen_us = host.now_us();
        // Packets of a step or of an exchange that never begins here hold back the messages about the next view that follow them.
        if (frozen_us > 0 && host.now_us() - frozen_us >= patience_us / 32) {
            if (place.session->is_open()) {
                place.closes();
                GC_TRY(place.session->leave());
            }
            GC_TRY(pass(host, *place.session, place.session->config().view + 1));
        }
        if (joins() && config_.stop && config_.stop->load(std::memory_order_relaxed)) return fail(Code::cancelled, "cancelled");
        if (!frozen_ && host.now_us() - begin_us > patience_us * (joins() ? join_patience : 1)) {
            gave_up_ = true;
            if (joins()) return fail(Code::peer_lost, "no node of the job has taken this one in");
            return why;   // no other node has asked for a change
        }
        GC_TRY(wait(host, *place.session, host.now_us() + patience_us / 64));
    }
    const AgreedView view = *std::exchange(view_, {});
    taken_ = view.number;
    frozen_ = false;
    if (!watching_) watch(host);   // the job has begun, elsewhere if not here
    if (view.deadline_us != parts_.deadline_us) {
        parts_.agree(view.deadline_us, report_);
        context.deadline_us = view.deadline_us;
    }
    SessionConfig config = place.session->config();
    const std::vector<NodeId> old = std::exchange(config.nodes, {});
    for (const ViewMember& member : view.members) config.nodes.push_back(member.node);
    // The link holds nothing back for nodes that have departed.  One that is drained lives and must get this view, from whoever has it, to
    // know that it may end: the link loses it then.
    const auto drained = [&](NodeId node) { return view.action.kind == ViewAction::Kind::drain && view.action.node == node; };
    for (const NodeId node : old)
        if (std::find(config.nodes.begin(), config.nodes.end(), node) == config.nodes.end() && !drained(node))
            host.post(job_channel,
                      {Event::PeerLost{index_of(node), fail(Code::peer_lost, "view {} is without node {}", view.number, index_of(node))}});
    if (place.session->is_open()) {
        place.closes();
        GC_TRY(place.session->leave());
    }
    GC_TRY(restore(context, standing));   // of has_initial(): what has come of another node's is torn
    GC_TRY(pass(host, *place.session, view.number - 1));
    // Of a net in stages no node knows the digest of a state of which it has only the own part: catch_up_parts() compares.  In place of
    // the digest goes the factor of the step's sums, which all that have applied the step know, and the others need.
    const bool ahead = parts_.pipeline && context.part_step == context.step + 1;
    const StepId steps = context.step + (ahead ? 1 : 0);
    ViewProtocol::trainer_stopped(host, {.known = has_state_,
                                         .applied = steps,
                                         .digest = parts_.pipeline ? std::bit_cast<uint64_t>(context.factor_of(steps)) : context.state,
                                         .initial = initial_});
    while (!step_) {
        GC_TRY(ended());
        GC_TRY(pending());
        GC_TRY(wait(host, *place.session, host.now_us() + patience_us));
    }
    const ViewNotice::Step step = *step_;
    const bool behind = has_state_ && parts_.pipeline && step.step == context.step + 1 && !ahead;
    Status applied;   // another node has applied the step, so all hold its sums
    if (behind && algorithm_.finish(context, std::bit_cast<double>(step.digest), &applied)) GC_TRY(applied);
    config.view = view.number;
    config.first_step = step.step;
    config.first = false;
    if (!has_state_) context.first = step.step;
    uint32_t summing = view.n();
    if (parts_.pipeline) {
        const ViewStages stages(config.nodes, parts_.cut->stages(), config_.job.buddy, parts_.cut->slice_groups);
        if (parts_.buddies) parts_.buddies->note(parts_, context.part_step);
        if (const auto missing = stages.missing()) return lost(*missing);
        summing = stages.grid.replicas();
        if (parts_.buddies) {
            const auto self = static_cast<Rank>(std::ranges::find(config.nodes, config_.self) - config.nodes.begin());
            parts_.buddies->turn(parts_, stages, self);
            parts_.give(context);
            report_.update([&](JobStatus& status) { status.stage = parts_.pipeline->stage_text(parts_.pipeline->own_stage); });
        }
    }
    GC_TRY(choice_.for_view(view.fitted(summing), summing, step.step, &config.exchange));
    if (parts_.pipeline) GC_TRY(choice_.alone(&config.spare));
    auto session = std::make_unique<Session>(config, config_, parts_, report_);
    GC_TRY(session->plan());
    GC_TRY(session->ready());
    place.session = std::move(session);
    place.opens();
    GC_TRY(parts_.pipeline ? catch_up_parts(context, *place.session, step, standing) : catch_up(context, *place.session, step, standing));
    while (!go_) {
        GC_TRY(ended());
        GC_TRY(pending());
        GC_TRY(wait(host, *place.session, host.now_us() + patience_us));
    }
    GC_TRY(place.session->begin());
    GC_TRY(pending());
    kept_.on = false;
    parts_.compute.net->cancel(Net::no_step);
    std::vector<ViewRecord> views = report_.views();
    if (place.session->self() == 0) views = view_records_with(std::move(views), record(context, place.session->config()));
    GC_TRY(view_records_spread(context, *place.session, std::move(views), report_));
    departed_.clear();
    be_patient(host, context.step);
    if (const auto& blocks = place.session->own_blocks(); parts_.loader && !blocks.empty()) parts_.loader->plan(context.step, blocks);
    return {};
}

/// Sends the state of the common step to members that lack it, or receives it.
Status ViewSwitch::catch_up(Context& context, Session& session, const ViewNotice::Step& step, Standing* standing) {
    const std::vector<NodeId>& nodes = session.config().nodes;
    const auto rank_of = [&](NodeId node) { return static_cast<Rank>(std::find(nodes.begin(), nodes.end(), node) - nodes.begin()); };
    if (step.has) {
        if (step.source != config_.self || step.behind.empty()) return {};
        behind_.assign(bit_words(nodes.size()), 0);
        for (const NodeId node : step.behind) set_bit(behind_.data(), rank_of(node));
        standing->steps = context.step;
        standing->state = context.state;
        standing->algorithm_bytes = algorithm_.state().size();
        return state_send(context, session, {0, behind_.data()}, parts_, algorithm_, standing);
    }
    if (has_state_ || initial_) keep(context, *standing);
    GC_TRY(state_receive(context, session, rank_of(step.source), parts_, algorithm_, standing));
    report_.state_from(config_.roster[static_cast<size_t>(step.source)].name, step.step);
    context.step = step.step;
    context.state = context.digest(step.step, parts_.model_digest());
    parts_.progress.step.store(context.step, std::memory_order_relaxed);
    ViewProtocol::caught_up(context.host, context.state);
    return {};
}

void ViewSwitch::be_patient(Host& host, StepId step) {
    const std::vector<ViewRecord> views = report_.views();
    patience_.resize(config_.roster.size(), 1);
    for (uint32_t node = 0; node < patience_.size(); ++node) {
        const uint32_t factor = view_records_patience(views, config_.roster[node].name, step);
        if (std::exchange(patience_[node], factor) != factor) ViewProtocol::patience(host, NodeId{node}, factor);
    }
}

/// Of the view that has begun, after the last one that is recorded.
ViewRecord ViewSwitch::record(const Context& context, const SessionConfig& now) const {
    ViewRecord record{.first_step = context.step + 1, .stood_us = context.host.now_us() - stands_us_};
    for (const NodeId node : now.nodes) record.members.push_back(config_.roster[index_of(node)].name);
    std::vector<std::string> before, why;
    if (std::vector<ViewRecord> views = report_.views(); !views.empty()) before = std::move(views.back().members);
    for (const std::string& name : before)
        if (!in(record.members, name)) record.departed.push_back(name);
    for (const std::string& name : record.members)
        if (!in(before, name)) record.joined.push_back(name);
    for (uint32_t node = 0; node < config_.roster.size(); ++node)
        if (const std::string& name = config_.roster[node].name; in(record.departed, name)) {
            const auto known = departed_.find(NodeId{node});
            why.push_back(fmt::format("{} {}", name, known != departed_.end() ? known->second : why_unreachable));
        }
    for (const std::string& each : record.joined) why.push_back(fmt::format("{} joins", each));
    record.why = why.empty() ? "no node departed or joined" : fmt::format("{}", fmt::join(why, ", "));
    return record;
}

void ViewSwitch::report(Context& context) {
    const std::vector<ViewRecord> views = report_.views();
    const ViewRecord& view = views.back();
    report_.log().warn("view of {}: {} ({})", fmt::join(view.members, ", "), goes_on_text(view), view.why);
    report_.update([&](JobStatus& status) { status.step = context.step; });
    context.why_lost.clear();   // a node that came back is no loss any more
    for (const ViewRecord& each : views)
        if (std::any_of(each.departed.begin(), each.departed.end(), [&](const std::string& name) { return !in(view.members, name); }))
            context.why_lost.push_back(goes_on_text(each));
    if (const std::string advice = view_records_advice(views); !advice.empty()) report_.warn(advice);
}

}   // namespace gradcast
