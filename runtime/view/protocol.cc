#include "runtime/view/protocol.h"

#include <algorithm>
#include <utility>

#include "transport/wire/packet.h"

namespace gradcast {
namespace {

constexpr uint32_t kind_view = 2;   // JobBody::kind
constexpr uint64_t timer_tick = 1, news_come = 1;
constexpr size_t sending_max = 4096;   // messages that the link has not taken: more are lost, and sent again by ViewChange

}   // namespace

ViewProtocol::ViewProtocol(const ViewConfig& config, const AgreedView* first, const Roster& roster)
    : change_(config), first_(first ? std::optional(*first) : std::nullopt), heard_us_(config.nodes), lost_(config.nodes) {
    for (uint32_t node = 0; node < config.nodes; ++node) incarnations_.push_back(view_incarnation(roster[node]));
}

void ViewProtocol::deadline(uint64_t deadline_us) {
    change_.deadline(deadline_us);
    if (first_) first_->deadline_us = deadline_us;
}

void ViewProtocol::on(std::span<const Event> events, Actions& actions) {
    const uint64_t now_us = actions.now_us;
    if (!std::exchange(begun_, true) && first_) change_.begin(*first_, now_us);
    for (uint32_t node = 0; actions.heard_us && node < heard_us_.size(); ++node)
        if (std::exchange(heard_us_[node], actions.heard_us[node]) < actions.heard_us[node])
            change_.heard(NodeId{node}, incarnations_[node], now_us);
    for (const Event& event : events) {
        if (event.kind == Event::Kind::peer_lost) grow(event.rank + 1);
        switch (event.kind) {
            case Event::Kind::packet: packet(*event.packet, now_us); break;
            case Event::Kind::sent: sending_.erase(event.id); break;
            case Event::Kind::command: command(event, now_us); break;
            case Event::Kind::peer_up:
                lost_[event.rank] = false;
                incarnations_[event.rank] = std::max(incarnations_[event.rank], event.tag);
                change_.heard(NodeId{event.rank}, incarnations_[event.rank], now_us);
                break;
            case Event::Kind::peer_lost:
                lost_[event.rank] = true;
                if (watching_ && !stopped_) change_.suspect(NodeId{event.rank}, Suspicion::silent, now_us);
                break;
            case Event::Kind::timer:
            case Event::Kind::computed:
            case Event::Kind::ready: break;
        }
    }
    if (!stopped_ && change_.next_us() > 0 && now_us >= change_.next_us()) change_.tick(now_us);
    carry_out(actions);
}

/// The link has more nodes (Driver::add).
void ViewProtocol::grow(uint32_t nodes) {
    if (nodes <= lost_.size()) return;
    heard_us_.resize(nodes);
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

void ViewProtocol::command(const Event& event, uint64_t now_us) {
    if (stopped_) return;
    switch (static_cast<Command>(event.command)) {
        case Command::watch:
            watching_ = true;
            for (uint32_t node = 0; node < lost_.size(); ++node)
                if (lost_[node]) change_.suspect(NodeId{node}, Suspicion::silent, now_us);
            return;
        case Command::join: return change_.join(now_us);
        case Command::returned: return change_.returned({.known = event.id != 0, .applied = event.step, .digest = event.tag}, now_us);
        case Command::caught_up: return change_.caught_up(event.tag, now_us);
        case Command::patience: return change_.patience(NodeId{event.rank}, static_cast<uint32_t>(event.tag));
        case Command::suspect:
            if (static_cast<Suspicion>(event.tag) == Suspicion::silent &&
                now_us - heard_us_[event.rank] < change_.patience_us(NodeId{event.rank}, 4))
                return;
            if (watching_) change_.suspect(NodeId{event.rank}, static_cast<Suspicion>(event.tag), now_us);
            return;
        case Command::ending: return change_.ending();
        case Command::drain: return change_.ask({.kind = ViewAction::Kind::drain, .node = NodeId{event.rank}, .exchange = {}}, now_us);
        case Command::force_dead: (void)change_.force_dead(NodeId{event.rank}, now_us); return;
        case Command::stop: stopped_ = true; return;
    }
    GC_ASSERT(!"an unknown command");
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

void ViewProtocol::join(Host& host) { host.post(channel, command_event(Command::join)); }
void ViewProtocol::watch(Host& host) { host.post(channel, command_event(Command::watch)); }
void ViewProtocol::returned(Host& host, const ViewState& state) {
    Event event = command_event(Command::returned, state.applied);
    event.id = state.known;
    event.tag = state.digest;
    host.post(channel, event);
}
void ViewProtocol::caught_up(Host& host, uint64_t digest) {
    Event event = command_event(Command::caught_up);
    event.tag = digest;
    host.post(channel, event);
}
void ViewProtocol::patience(Host& host, NodeId node, uint32_t factor) {
    Event event = command_event(Command::patience);
    event.rank = index_of(node);
    event.tag = factor;
    host.post(channel, event);
}
void ViewProtocol::suspect(Host& host, NodeId node, Suspicion why) {
    Event event = command_event(Command::suspect);
    event.rank = index_of(node);
    event.tag = static_cast<uint64_t>(why);
    host.post(channel, event);
}
void ViewProtocol::ending(Host& host) { host.post(channel, command_event(Command::ending)); }
void ViewProtocol::drain(Host& host, NodeId self) {
    Event event = command_event(Command::drain);
    event.rank = index_of(self);
    host.post(channel, event);
}
void ViewProtocol::force_dead(Host& host, NodeId node) {
    Event event = command_event(Command::force_dead);
    event.rank = index_of(node);
    host.post(channel, event);
}
void ViewProtocol::stop(Host& host) { host.post(channel, command_event(Command::stop)); }

}   // namespace gradcast
