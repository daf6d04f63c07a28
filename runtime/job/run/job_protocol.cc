#include "runtime/job/run/job_protocol.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/core/overloads.h"
#include "runtime/job/run/held_up.h"
#include "runtime/job/run/job_news.h"
#include "transport/wire/packet.h"

namespace gradcast {
namespace {

constexpr uint32_t kind_news = 1;
constexpr uint64_t timer_heartbeat = 1, timer_settle = 2;
constexpr uint64_t cut_off_heartbeats = 3;   // after so long a silence of all others this rank is cut off
constexpr uint32_t text_bytes_max = inline_bytes_max - sizeof(JobNews);
static_assert(stage_news_bytes_max <= text_bytes_max);

struct Peer {
    JobNews news{};
    uint64_t serial = 0;
    uint64_t received_us = 0;   // last news
    uint64_t moved_us = 0;      // last sign of its trainer's progress
    bool lost = false, suspected = false;
    JobPhase phase() const { return static_cast<JobPhase>(news.phase); }
};

class JobProtocol final : public Protocol {
public:
    JobProtocol(const JobProtocolConfig& config, const Log& log)
        : config_(config),
          log_(log),
          timeouts_(timeouts_of(config.deadline_us)),
          peers_(config.view.n()),
          others_(ranks_but(config.self, config.view.n())),
          last_words_(config.view.n()),
          held_up_(config.view.n()) {
        GC_ASSERT(config.kernel_set.size() == sizeof own_.kernel_set && config.data_digest.size() == sizeof own_.data);
        std::memcpy(own_.kernel_set, config.kernel_set.data(), sizeof own_.kernel_set);
        std::memcpy(own_.data, config.data_digest.data(), sizeof own_.data);
        GC_ASSERT(config.start_digest.empty() || config.start_digest.size() == sizeof own_.start);
        std::memcpy(own_.start, config.start_digest.data(), config.start_digest.size());
        standings_.reserve(config.view.n());
        for (Rank rank = 0; rank < config.lost.size(); ++rank) peers_[rank].lost = config.lost[rank];
    }

    void on(std::span<const Event> events, Actions& actions) override {
        now_us_ = actions.now_us;
        for (Rank rank = 0; actions.received_us && rank < peers_.size(); ++rank)
            peers_[rank].received_us = std::max(peers_[rank].received_us, actions.received_us[rank]);
        for (const Event& event : events)
            std::visit(Overloads{[&](const Event::Received& it) { news(*it.packet, actions); },
                                 [&](const Event::TimerExpired& it) { timer(it.id, actions); },
                                 [&](const Event::Command& it) {
                                     if (const auto* wrong = it.is<WrongRank>()) return expel_wrong(*wrong, actions);
                                     std::visit([&](const auto& command) { run(command, actions); }, it.as<JobCommand>().what);
                                 },
                                 [&](const Event::PeerLost& it) { peer_lost(it.rank, it.status, actions); },
                                 [](const OneOf<Event::Sent, Event::Computed, Event::Ready, Event::PeerUp> auto&) {}},
                       event.what);
        advance(actions);
        if (announce_due_) announce(actions);
    }

    Landing land(const Packet&, uint64_t bytes, Buffer*) override { return bytes <= inline_bytes_max ? Landing::lease : Landing::drop; }

private:
    JobPhase phase() const { return static_cast<JobPhase>(own_.phase); }
    /// Before a job has begun nobody can be missed.
    bool may_miss() const { return begun_ || !config_.first; }
    /// The job has `survive` and has begun: losses go to the view change and end nothing here.
    bool survives() const { return config_.suspect && may_miss() && phase() < JobPhase::done; }
    bool finished() const { return phase() == JobPhase::done || settled_; }
    std::string name(Rank rank) const { return fmt::format("rank {} ({})", rank, config_.view.members[rank].name); }

    /// Of the step that is computed when so many are done, as messages count: from 1.  While the last evaluation runs, the last step.
    uint64_t number(uint64_t done) const { return std::min(done + 1, config_.steps); }
    uint64_t own_step() const { return number(config_.progress->step.load(std::memory_order_relaxed)); }

    /// The way out that a message about a lost rank names.
    std::string advice(Code why, Rank rank) const {
        const std::string& node = config_.view.members[rank].name;
        if (why == Code::conflict) return fmt::format("; test the memory and the CPU of {} before it trains again", node);
        if (why == Code::cancelled) return {};   // it was ordered to leave
        return fmt::format("; look at the log of gradcastd, the load and the network of {}{}", node,
                           may_miss() && config_.losses_tolerated == 0 && !config_.part_of
                               ? " (survive = true in [job], or coded-rs with s = 1, goes on without a node)"
                               : "");
    }
    /// Where no rank is left that has the same part of the net.
    std::string part_lost(Rank rank) const {
        if (!config_.part_of) return {};
        for (const Rank each : config_.grid->replica_group(config_.grid->cell_of(rank)))
            if (each != rank && !peers_[each].lost) return {};
        return fmt::format("; {} is lost with it", config_.part_of(rank));
    }

    void enter(JobPhase phase) {
        own_.phase = static_cast<uint8_t>(phase);
        entered_us_ = now_us_;
        announce_due_ = true;
        if (phase == JobPhase::ended) measure();
        if (phase >= JobPhase::aborted) give_up();
    }

    void give_up() {
        if (config_.ending) config_.ending->store(true, std::memory_order_relaxed);   // a flag: it orders nothing
    }

    /// Takes this rank's times into its news.
    void measure() {
        if (config_.times) own_.times.set(config_.times->read());
        if (config_.stages) stage_bytes_ = stage_news_write(config_.stages->read(), stage_);
    }

    void complete(JobDone id, Status status, Actions& actions) {
        Completion completion;
        completion.id = static_cast<uint64_t>(id);
        completion.status = status;
        actions.completions.push_back(completion);
    }

    void run(const JobCommand::Begin& command, Actions& actions) {
        if (phase() != JobPhase::preparing) return;   // aborted already; its completion is on its way
        own_.state.set(command.state);
        enter(JobPhase::started);
        for (Peer& peer : peers_) peer.received_us = peer.moved_us = now_us_;
        for (Rank rank = 0; rank < peers_.size(); ++rank) compare(rank, actions);
        actions.timers.push_back({timer_heartbeat, now_us_ + timeouts_.heartbeat_us});
    }
    void run(const JobCommand::End& command, Actions& actions) {
        end(JobDone::ended, {command.digest.data(), command.digest.size()}, actions);
    }
    void run(const JobCommand::Pause& command, Actions& actions) { end(JobDone::paused, fmt::format("{:064x}", command.state), actions); }
    void run(const JobCommand::Abort& command, Actions& actions) {
        // Other ranks may have closed the view already: the trainer cancels in the next one.
        if (end_ == JobDone::paused && command.found.code == Code::cancelled) return;
        abort(command.found.code, local_text(command.found), actions);
    }
    void run(const JobCommand::Leave& command, Actions& actions) {
        if (phase() >= JobPhase::ended) return;   // the job or the view is about to end
        const auto& [code, sys, why] = command.why;
        if (!may_miss() || (!config_.suspect && !spare(config_.self))) abort(code, why, actions);
        else leave(code, why, fmt::format("{}; the job goes on without it", why), actions);
    }
    void expel_wrong(const WrongRank& wrong, Actions& actions) {
        peer_lost(wrong.rank, wrong.verdict, actions);
        if (phase() == JobPhase::started) expel(wrong.rank, wrong.verdict, actions);
    }

    /// `digest`: what must be equal at all ranks, 64 hex digits.
    void end(JobDone as, std::string_view digest, Actions& actions) {
        if (phase() != JobPhase::started) return;
        end_ = as;
        GC_ASSERT(digest.size() == sizeof own_.digest);
        std::memcpy(own_.digest, digest.data(), sizeof own_.digest);
        enter(JobPhase::ended);
        for (Rank rank = 0; rank < peers_.size(); ++rank) compare(rank, actions);
    }

    /// The line about something that this rank's trainer has found.
    std::string local_text(Status status) const {
        if (status.code == Code::cancelled) return status.what;
        std::string text = fmt::format("{}{}: {}", status.code == Code::diverged ? "diverged: " : "", name(config_.self), status.what);
        if (status.code != Code::deadline) return text;
        // This rank may be waiting for ranks that are behind or silent: the text names three of them.
        uint64_t step = config_.progress->step.load(std::memory_order_relaxed);
        int named = 0;
        for (Rank rank = 0; rank < peers_.size() && named < 3; ++rank) {
            const Peer& peer = peers_[rank];
            if (rank == config_.self || peer.lost) continue;
            if (now_us_ - peer.received_us > timeouts_.suspicion_us) {
                text += fmt::format("; {} silent for {:.1f} s", name(rank), static_cast<double>(now_us_ - peer.received_us) / 1e6);
                ++named;
            } else if (peer.news.step.get() < step || !peer.news.waiting)
                text +=
                    fmt::format("; {} {} step {}", name(rank), peer.news.waiting ? "waits in" : "computes", number(peer.news.step.get())),
                    ++named;
        }
        return text;
    }

    void abort(Code code, std::string_view text, Actions& actions, Rank origin) {
        if (finished() || (phase() == JobPhase::aborted && origin >= own_.origin.get())) return;
        own_.code = static_cast<uint8_t>(code);
        own_.origin.set(origin);
        text_ = text.substr(0, text_bytes_max);
        for (char& c : text_)
            if (static_cast<unsigned char>(c) < ' ' && c != '\n') c = '?';
        if (phase() != JobPhase::aborted) actions.timers.push_back({timer_settle, now_us_ + timeouts_.settle_us});
        enter(JobPhase::aborted);
    }
    /// A cause found here.  One that comes after another is a consequence, or comes too late.
    void abort(Code code, std::string_view text, Actions& actions) {
        if (phase() < JobPhase::aborted) abort(code, text, actions, config_.self);
    }

    /// This rank ends alone: its news carry `text` to the others, its trainer gets `verdict`.
    void leave(Code code, std::string_view text, std::string verdict, Actions& actions) {
        own_.code = static_cast<uint8_t>(code);
        text_ = text.substr(0, text_bytes_max);
        verdict_ = std::move(verdict);
        actions.timers.push_back({timer_settle, now_us_ + timeouts_.settle_us});
        enter(JobPhase::departed);
    }

    /// All other ranks are silent, so the fault is more likely here.
    bool cut_off() const {
        size_t silent = 0;
        for (Rank rank = 0; rank < peers_.size(); ++rank) {
            if (rank == config_.self || peers_[rank].lost) continue;
            if (now_us_ - peers_[rank].received_us <= cut_off_heartbeats * timeouts_.heartbeat_us) return false;
            ++silent;
        }
        return begun_ && phase() == JobPhase::started && silent > 1;
    }
    void leave_cut_off(Actions& actions) {
        constexpr const char* text = "lost all other ranks: is this node's network up?";
        leave(Code::peer_lost, text, fmt::format("{} {}", name(config_.self), text), actions);
    }

    void settle(Actions& actions) {
        if (phase() == JobPhase::departed) text_ = verdict_;
        settled_ = true;
        give_up();
        actions.timers.push_back({timer_heartbeat, 0});
        actions.timers.push_back({timer_settle, 0});
        complete(JobDone::aborted, fail_text(static_cast<Code>(own_.code), 0, text_), actions);
    }

    void news(const Packet& packet, Actions& actions) {
        JobBody body = body_of<JobBody>(packet);
        JobNews said;
        if (packet.sender >= peers_.size() || packet.sender == config_.self || packet.type != PacketType::job ||
            body.kind.get() != kind_news || packet.payload.bytes < sizeof said)
            return;
        std::memcpy(&said, packet.payload.host, sizeof said);
        Peer& peer = peers_[packet.sender];
        if (peer.lost && may_miss()) return;   // the job goes on without it
        if (body.value.get() <= peer.serial || said.phase > static_cast<uint8_t>(JobPhase::departed) || said.origin.get() >= peers_.size())
            return;
        peer.serial = body.value.get();
        if (said.phase == static_cast<uint8_t>(JobPhase::departed) && phase() < JobPhase::done) {
            const std::string_view why(packet.payload.as<char>() + sizeof said, packet.payload.bytes - sizeof said);
            return peer_lost(packet.sender, fail(job_news_code(said), "{}", why), actions);
        }
        if (said.waiting || said.done.get() != peer.news.done.get() || said.phase != peer.news.phase) peer.moved_us = now_us_;
        peer.received_us = now_us_;
        peer.news = said;
        if (config_.times_of) config_.times_of(packet.sender, said.times.get());
        if (config_.stage_of && !said.expelled && peer.phase() < JobPhase::aborted) {
            StageNews stage;
            if (stage_news_read({packet.payload.host + sizeof said, packet.payload.bytes - sizeof said}, &stage))
                config_.stage_of(packet.sender, std::move(stage));
        }
        if (said.expelled) {
            if (finished() || phase() != JobPhase::started) return;
            own_.code = static_cast<uint8_t>(job_news_code(said));
            text_.assign(packet.payload.as<char>() + sizeof said, packet.payload.bytes - sizeof said);
            return settle(actions);
        }
        if (peer.phase() == JobPhase::aborted) {
            abort(job_news_code(said), {packet.payload.as<char>() + sizeof said, packet.payload.bytes - sizeof said}, actions,
                  said.origin.get());
        }
        compare(packet.sender, actions);
        // A rank that announces an earlier phase has missed the last news of this rank.
        if (finished() && peer.phase() < phase()) announce_due_ = true;
    }

    /// Compares what must be equal everywhere, as soon as both ranks have announced it.
    void compare(Rank rank, Actions& actions) {
        const Peer& peer = peers_[rank];
        if (rank == config_.self) return;
        const std::string differs =
            job_news_conflict({[&] { return name(rank); }, peer.news}, {[&] { return name(config_.self); }, own_}, config_.isa_setting);
        if (!differs.empty()) abort(Code::conflict, differs, actions);
    }

    void peer_lost(Rank rank, Status status, Actions& actions) {
        if (rank >= peers_.size() || finished() || phase() == JobPhase::departed) return;
        Peer& peer = peers_[rank];
        if (survives() && status.code != Code::conflict) {
            if (peer.phase() < JobPhase::ended || peer.phase() > JobPhase::done)
                config_.suspect(rank, status.code == Code::cancelled ? Suspicion::stuck : Suspicion::silent);
            return;
        }
        if (!peer.lost && cut_off()) return leave_cut_off(actions);
        const bool again = std::exchange(peer.lost, true);
        if (peer.phase() == JobPhase::ended || peer.phase() == JobPhase::done) return;   // its news have all that is needed
        if (may_miss() && phase() != JobPhase::aborted && lost_count({}) <= config_.losses_tolerated) {
            if (again) return;
            if (config_.times_of) config_.times_of(rank, {});   // it holds nobody up
            if (config_.stage_of) config_.stage_of(rank, {});
            const std::string why = fmt::format("{}{}", status.what, advice(status.code, rank));
            log_.warn("{} is lost in step {}, {}{} of {} that this exchange can do without: {}", name(rank), own_step(),
                      !config_.grid || config_.grid->is_spare(rank)
                          ? ""
                          : fmt::format("and with it replica {}, ", config_.grid->replica_of(rank) + 1),
                      lost_count({}), config_.losses_tolerated, why);
            Completion completion;
            completion.id = static_cast<uint64_t>(JobDone::rank_lost);
            completion.rank = rank;
            completion.status = fail(status.code, "without {}: {}", name(rank), why);
            actions.completions.push_back(completion);
            return;
        }
        if (status.code == Code::cancelled) return abort(Code::cancelled, status.what, actions);
        abort(status.code == Code::conflict ? Code::conflict : Code::peer_lost,
              fmt::format("{} lost in step {}: {}{}{}", name(rank), own_step(), status.what, part_lost(rank), advice(status.code, rank)),
              actions);
    }

    /// Replicas of which a rank is lost, or would be with these; the others of their ranks compute nothing.  A spare counts by itself.
    uint32_t lost_count(std::span<const Rank> more) const {
        const auto lost = [&](Rank rank) { return peers_[rank].lost || std::ranges::find(more, rank) != more.end(); };
        uint32_t count = 0;
        for (Rank rank = 0; rank < peers_.size(); ++rank)
            if (!config_.grid || config_.grid->is_spare(rank)) count += lost(rank);
        for (uint32_t replica = 0; config_.grid && replica < config_.grid->replicas(); ++replica) {
            bool any = false;
            for (uint32_t cell = 0; cell < config_.grid->cells(); ++cell)
                any |= lost(config_.grid->rank_of(replica, config_.grid->cell(cell)));
            count += any;
        }
        return count;
    }
    bool spare(std::span<const Rank> ranks) const { return lost_count(ranks) <= config_.losses_tolerated; }
    bool spare(Rank rank) const { return spare({&rank, 1}); }

    void timer(uint64_t id, Actions& actions) {
        if (finished()) return;
        if (id == timer_settle) return settle(actions);
        announce_due_ = true;
        measure();
        actions.timers.push_back({timer_heartbeat, now_us_ + timeouts_.heartbeat_us});
        if (phase() == JobPhase::aborted || phase() == JobPhase::departed) return;
        for (Rank rank = 0; rank < peers_.size(); ++rank)
            if (rank != config_.self && !peers_[rank].lost && phase() <= JobPhase::ended) watch(rank, actions);
        if (begun_ && phase() < JobPhase::done) watch_behind(actions);
    }

    HeldUp::Standing standing(Rank rank) const {
        const JobNews& news = peers_[rank].news;
        if (rank != config_.self) return {rank, news.step.get(), news.done.get(), news.waiting || peers_[rank].phase() == JobPhase::ended};
        const Progress& own = *config_.progress;
        return {rank, own.step.load(std::memory_order_relaxed), own.done.load(std::memory_order_relaxed),
                own.waiting.load(std::memory_order_relaxed) || phase() == JobPhase::ended};
    }
    void watch_behind(Actions& actions) {
        standings_.clear();
        for (Rank rank = 0; rank < peers_.size(); ++rank)
            if (!peers_[rank].lost) standings_.push_back(standing(rank));
        const uint64_t held_us = held_up_.look(
            standings_, [this](std::span<const Rank> ranks) { return spare(ranks); }, now_us_);
        const uint64_t us = held_us / (held_up_.step() == config_.first_step ? 10 : 1);
        if (us <= timeouts_.suspicion_us || std::ranges::find(held_up_.ranks(), config_.self) != held_up_.ranks().end()) return;
        const std::string what =
            fmt::format("holds the others up for {:.1f} s in step {}", static_cast<double>(us) / 1e6, number(held_up_.step()));
        for (Rank rank : held_up_.ranks()) {
            if (survives()) {
                config_.suspect(rank, Suspicion::stuck);
                continue;
            }
            // The rank learns the reason before the link gives it up.
            if (us <= timeouts_.suspicion_us + 2 * timeouts_.heartbeat_us)
                expel(rank, fail(Code::peer_lost, "the others go on without {}, which {}", name(rank), what), actions);
            else peer_lost(rank, fail(Code::peer_lost, "{}", what), actions);
        }
    }

    void watch(Rank rank, Actions& actions) {
        Peer& peer = peers_[rank];
        if (!begun_ || phase() == JobPhase::ended) {
            JobPhase wanted = begun_ ? JobPhase::ended : JobPhase::started;
            if (peer.phase() < wanted && now_us_ - entered_us_ > timeouts_.stall_us)
                abort(Code::deadline,
                      fmt::format("{} has not {} within {} s", name(rank), begun_ ? "ended" : "started", timeouts_.stall_us / 1e6),
                      actions);
        }
        if (!may_miss() || peer.phase() >= JobPhase::ended) return;
        uint64_t silent_us = now_us_ - peer.received_us,
                 stuck_us = peer.news.waiting ? 0 : (now_us_ - peer.moved_us) / (peer.news.step.get() <= config_.first_step ? 10 : 1);
        uint64_t worst_us = std::max(silent_us, stuck_us);
        const char* what = silent_us >= stuck_us ? "silent" : "without progress";
        if (peer.suspected != (worst_us > timeouts_.suspicion_us)) {
            peer.suspected = !peer.suspected;
            if (peer.suspected)
                log_.warn("{} {} for {:.1f} s in step {}", name(rank), what, static_cast<double>(worst_us) / 1e6,
                          number(peer.news.step.get()));
            else log_.info("{} is back", name(rank));
            if (!peer.suspected && survives()) config_.suspect(rank, Suspicion::none);
        }
        if (survives()) {
            if (silent_us > timeouts_.suspicion_us) config_.suspect(rank, Suspicion::silent);
            else if (stuck_us > timeouts_.lost_us) config_.suspect(rank, Suspicion::stuck);
            return;
        }
        // What is on its way to a silent rank is kept for it, so all wait for it two steps later: the sooner it is given up the better.
        const bool missed = spare(rank);
        if (worst_us <= timeouts_.lost_us && !(missed && silent_us > timeouts_.suspicion_us)) return;
        if (silent_us > timeouts_.suspicion_us && cut_off()) return leave_cut_off(actions);
        if (missed) return peer_lost(rank, fail(Code::peer_lost, "{} for {:.1f} s", what, static_cast<double>(worst_us) / 1e6), actions);
        abort(Code::peer_lost,
              fmt::format("{} {} for {:.1f} s in step {}{}{}", name(rank), what, static_cast<double>(worst_us) / 1e6,
                          number(peer.news.step.get()), part_lost(rank), advice(Code::peer_lost, rank)),
              actions);
    }

    void advance(Actions& actions) {
        auto all = [&](auto&& holds) {
            for (Rank rank = 0; rank < peers_.size(); ++rank)
                if (rank != config_.self && !(peers_[rank].lost && may_miss() && phase() != JobPhase::aborted) && !holds(peers_[rank]))
                    return false;
            return true;
        };
        if (phase() == JobPhase::started && !begun_ &&
            all([](const Peer& peer) { return peer.phase() >= JobPhase::started && peer.phase() < JobPhase::aborted; })) {
            begun_ = true;
            for (Peer& peer : peers_) peer.moved_us = now_us_;
            complete(JobDone::begun, {}, actions);
        }
        if (phase() == JobPhase::ended) {
            bool known = std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.phase() == JobPhase::done; });
            if (known || all([](const Peer& peer) { return peer.phase() == JobPhase::ended; })) {
                enter(JobPhase::done);
                actions.timers.push_back({timer_heartbeat, 0});
                complete(end_, {}, actions);
            }
        }
        if (phase() == JobPhase::aborted && !settled_ && all([&](const Peer& peer) {
                return peer.lost || (peer.phase() == JobPhase::aborted && peer.news.origin.get() == own_.origin.get());
            }))
            settle(actions);
    }

    /// The rank ends alone: the others go on.
    void expel(Rank rank, Status why, Actions& actions) {
        JobNews news = own_;
        news.expelled = 1;
        news.code = static_cast<uint8_t>(why.code);
        send(news, std::string_view(why.what).substr(0, text_bytes_max), {rank}, last_words_[rank], actions);
    }

    void announce(Actions& actions) {
        announce_due_ = false;
        if (peers_.size() == 1) return;
        own_.waiting = config_.progress->waiting.load(std::memory_order_relaxed);
        own_.step.set(config_.progress->step.load(std::memory_order_relaxed));
        own_.done.set(config_.progress->done.load(std::memory_order_relaxed));
        const std::string_view stage(reinterpret_cast<const char*>(stage_.data()), stage_bytes_);
        send(own_, phase() < JobPhase::aborted ? stage : text_, {0, others_.data()}, payload_, actions);
    }

    using Payload = std::array<std::byte, inline_bytes_max>;
    void send(const JobNews& news, std::string_view text, RankSet to, Payload& payload, Actions& actions) {
        std::memcpy(payload.data(), &news, sizeof news);
        std::memcpy(payload.data() + sizeof news, text.data(), text.size());
        JobBody body{};
        body.kind.set(kind_news);
        body.value.set(++serial_);
        Send send;
        send.to = to;
        send.type = PacketType::job;
        send.body = body_bytes(body);
        send.payload = {payload.data(), nullptr, sizeof news + text.size()};   // short enough to be copied at once
        actions.sends.push_back(send);
    }

    const JobProtocolConfig config_;
    const Log log_;
    const Timeouts timeouts_;
    std::vector<Peer> peers_;        // by rank; the own entry is not used
    std::vector<uint64_t> others_;   // bits of all ranks but this one
    JobNews own_{};
    std::array<std::byte, stage_news_bytes_max> stage_{};
    size_t stage_bytes_ = 0;
    std::string text_, verdict_;   // of the abort; of this rank where it leaves
    Payload payload_;
    std::vector<Payload> last_words_;   // to ranks that are expelled, by rank
    uint64_t serial_ = 0, now_us_ = 0, entered_us_ = 0;
    HeldUp held_up_;
    std::vector<HeldUp::Standing> standings_;   // of watch_behind()
    JobDone end_ = JobDone::ended;              // how this rank has ended, once it has
    bool begun_ = false, settled_ = false, announce_due_ = false;
};

}   // namespace

std::unique_ptr<Protocol> job_protocol(const JobProtocolConfig& config, const Log& log) {
    return std::make_unique<JobProtocol>(config, log);
}

}   // namespace gradcast
