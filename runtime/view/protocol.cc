#include "runtime/view/protocol.h"

#include <algorithm>
#include <utility>

#include "runtime/core/overloads.h"
#include "transport/wire/packet.h"

namespace gradcast {
namespace {

constexpr uint32_t kind_view = 2;   // JobBody::kind
constexpr uint64_t timer_tick = 1, news_come = 1;
constexpr size_t sending_max = 4096;   // messages that the link has not taken: more are lost, and sent again by ViewChange

}   // namespace

struct ViewProtocol::Command {
    struct Join {};
    struct Watch {};
    struct TrainerStopped {
        ViewState state;
    };
    struct CaughtUp {
        uint64_t digest = 0;
    };
    struct Patience {
        NodeId node{};
        uint32_t factor = 0;
    };
    struct Suspect {
        NodeId node{};
        Suspicion why{};
    };
    struct Ending {};
    struct Drain {
        NodeId self{};
    };
    struct ForceDead {
        NodeId node{};
    };
    struct Stop {};
    std::variant<Join, Watch, TrainerStopped, CaughtUp, Patience, Suspect, Ending, Drain, ForceDead, Stop> what;
};

ViewProtocol::ViewProtocol(const ViewConfig& config, const AgreedView* first, const Roster& roster)
    : change_(config), first_(first ? std::optional(*first) : std::nullopt), received_us_(config.nodes), lost_(config.nodes) {
    for (uint32_t node = 0; node < config.nodes; ++node) incarnations_.push_back(view_incarnation(roster[node]));
}

void ViewProtocol::deadline(uint64_t deadline_us) {
    change_.deadline(deadline_us);
    if (first_) first_->deadline_us = deadline_us;
}

void ViewProtocol::on(std::span<const Event> events, Actions& actions) {
    const uint64_t now_us = actions.now_us;
    if (!std::exchange(begun_, true) && first_) change_.begin(*first_, now_us);
    for (uint32_t node = 0; actions.received_us && node < received_us_.size(); ++node)
        if (std::exchange(received_us_[node], actions.received_us[node]) < actions.received_us[node])
            change_.traffic_received(NodeId{node}, incarnations_[node], now_us);
    for (const Event& event : events)
        std::visit(Overloads{[&](const Event::Received& it) { packet(*it.packet, now_us); },
                             [&](const Event::Sent& it) { sending_.erase(it.ticket); },
                             [&](const Event::Command& it) { run(it.as<Command>(), now_us); },
                             [&](const Event::PeerUp& it) {
                                 lost_[it.rank] = false;
                                 incarnations_[it.rank] = std::max(incarnations_[it.rank], it.incarnation);
                                 change_.traffic_received(NodeId{it.rank}, incarnations_[it.rank], now_us);
                             },
                             [&](const Event::PeerLost& it) {
                                 grow(it.rank + 1);
                                 lost_[it.rank] = true;
                                 if (watching_ && !stopped_) change_.suspect(NodeId{it.rank}, Suspicion::silent, now_us);
                             },
                             [](const OneOf<Event::TimerExpired, Event::Computed, Event::Ready> auto&) {}},
                   event.what);
    if (!stopped_ && change_.next_us() > 0 && now_us >= change_.next_us()) change_.tick(now_us);
    carry_out(actions);
}

/// The link has more nodes (Driver::add).
void ViewProtocol::grow(uint32_t nodes) {
    if (nodes <= lost_.size()) return;
    received_us_.resize(nodes);
    lost_.resize(nodes);
    incarnations_.resize(nodes, view_incarnation({}));
    change_.grow(nodes);
}

Landing ViewProtocol::land(const Packet& packet, uint64_t bytes, Buffer*) {
    return packet.type == PacketType::job && bytes <= view_message_bytes_max ? Landing::lease : Landing::drop;
}

void ViewProtocol::packet(const Packet& packet, uint64_t now_us) {
    ViewMessage said;
    if (stopped_ || packet.type != PacketType::job || body_of<JobBody>(packet).kind.get() != kind_view ||
        packet.sender >= incarnations_.size() || !view_message_parse({packet.payload.host, packet.payload.bytes}, &said))
        return;
    if (index_of(said.from) != packet.sender || said.incarnation != incarnations_[packet.sender]) return;
    change_.receive(said, now_us);
}

void ViewProtocol::run(const Command& command, uint64_t now_us) {
    if (stopped_) return;
    std::visit(Overloads{[&](const Command::Join&) { change_.join(now_us); },
                         [&](const Command::Watch&) {
                             watching_ = true;
                             for (uint32_t node = 0; node < lost_.size(); ++node)
                                 if (lost_[node]) change_.suspect(NodeId{node}, Suspicion::silent, now_us);
                         },
                         [&](const Command::TrainerStopped& it) { change_.trainer_stopped(it.state, now_us); },
                         [&](const Command::CaughtUp& it) { change_.caught_up(it.digest, now_us); },
                         [&](const Command::Patience& it) { change_.patience(it.node, it.factor); },
                         [&](const Command::Suspect& it) {
                             if (it.why == Suspicion::silent && now_us - received_us_[index_of(it.node)] < change_.patience_us(it.node, 4))
                                 return;
                             if (watching_) change_.suspect(it.node, it.why, now_us);
                         },
                         [&](const Command::Ending&) { change_.ending(); },
                         [&](const Command::Drain& it) {
                             change_.ask({.kind = ViewAction::Kind::drain, .node = it.self, .exchange = {}}, now_us);
                         },
                         [&](const Command::ForceDead& it) { (void)change_.force_dead(it.node, now_us); },
                         [&](const Command::Stop&) { stopped_ = true; }},
               command.what);
}

void ViewProtocol::carry_out(Actions& actions) {
    for (ViewSend& each : std::exchange(change_.sends(), {})) {
        if (stopped_) break;
        const std::vector<std::byte> bytes = view_message_write(each.message);
        for (const NodeId node : each.to) {
            if (lost_[index_of(node)] || sending_.size() >= sending_max) continue;
            std::vector<std::byte>& payload = sending_[++ticket_] = bytes;
            JobBody body{};
            body.kind.set(kind_view);
            body.value.set(ticket_);
            Send send;
            send.to.rank = index_of(node);
            send.type = PacketType::job;
            send.body = body_bytes(body);
            send.ticket = ticket_;
            send.payload = {payload.data(), nullptr, payload.size()};
            actions.sends.push_back(send);
        }
    }
    const uint64_t next_us = stopped_ ? 0 : change_.next_us();
    if (next_us != timer_us_ || (next_us > 0 && next_us <= actions.now_us)) actions.timers.push_back({timer_tick, next_us});
    timer_us_ = next_us;
    if (change_.notices().empty()) return;
    {
        std::lock_guard lock(mutex_);
        for (const ViewNotice& notice : change_.notices()) news_.push_back({notice, change_.view()});
    }
    change_.notices().clear();
    Completion completion;
    completion.id = news_come;
    actions.completions.push_back(completion);
}

std::vector<ViewNews> ViewProtocol::take() {
    std::lock_guard lock(mutex_);
    return std::exchange(news_, {});
}

void ViewProtocol::post(Host& host, const Command& command) { host.post(channel, command_event(command)); }
void ViewProtocol::join(Host& host) { post(host, {Command::Join{}}); }
void ViewProtocol::watch(Host& host) { post(host, {Command::Watch{}}); }
void ViewProtocol::trainer_stopped(Host& host, const ViewState& state) { post(host, {Command::TrainerStopped{state}}); }
void ViewProtocol::caught_up(Host& host, uint64_t digest) { post(host, {Command::CaughtUp{digest}}); }
void ViewProtocol::patience(Host& host, NodeId node, uint32_t factor) { post(host, {Command::Patience{node, factor}}); }
void ViewProtocol::suspect(Host& host, NodeId node, Suspicion why) { post(host, {Command::Suspect{node, why}}); }
void ViewProtocol::ending(Host& host) { post(host, {Command::Ending{}}); }
void ViewProtocol::drain(Host& host, NodeId self) { post(host, {Command::Drain{self}}); }
void ViewProtocol::force_dead(Host& host, NodeId node) { post(host, {Command::ForceDead{node}}); }
void ViewProtocol::stop(Host& host) { post(host, {Command::Stop{}}); }

}   // namespace gradcast
