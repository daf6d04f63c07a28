// Host::open_view and close_view in the simulator; see impl.h.
#include <algorithm>
#include <utility>

#include "transport/sim/impl.h"

namespace gradcast::sim {

const SimulatorImpl::Attached* SimulatorImpl::attached(Rank rank, uint16_t channel, uint32_t view) const {
    for (const Attached& each : nodes_[rank].protocols)
        if (each.channel == channel && each.view == view) return &each;
    return nullptr;
}

void SimulatorImpl::open_view(Rank rank, uint32_t number, std::span<const Attachment> attachments) {
    Node& node = nodes_[rank];
    if (stopped(rank)) return;
    GC_ASSERT(!node.view_open && number > node.view);
    node.view = number;
    node.view_open = true;
    for (const Attachment& each : attachments) {
        if (!each.datagrams) connect_all();
        node.protocols.push_back({each.channel, each.datagrams, number, each.protocol});
        for (Rank peer = 0; peer < nodes_.size(); ++peer) {
            if (peer == rank) continue;
            const bool lost = !node.pairs.empty() && pair(rank, peer).lost;
            raise(rank, each.channel, lost ? Event{Event::PeerLost{peer, lost_status(peer)}} : Event{Event::PeerUp{peer}});
        }
    }
    wake(rank, 0);   // land() again for packets that waited
}

Status SimulatorImpl::close_view(Rank rank, uint64_t) {
    if (stopped(rank)) return fail(Code::cancelled, "rank {}: {}", rank, nodes_[rank].dead ? "killed" : "the simulation has ended");
    Node& node = nodes_[rank];
    GC_ASSERT(node.view_open);
    batch(rank);   // handles events that were posted before
    node.view_open = false;
    auto ended = [&](uint16_t channel) { return attached(rank, channel, node.view) != nullptr; };
    std::erase_if(node.inbox, [&](const Incoming& each) {
        if (!ended(each.channel)) return false;
        if (each.slot != none) slots_free_.push_back(each.slot);
        return true;
    });
    std::erase_if(node.timers, [&](const auto& each) { return ended(each.first.first); });
    std::erase_if(node.running, [&](const Running& each) { return ended(each.channel); });
    std::erase_if(node.completions, [&](const Completion& each) { return ended(each.channel); });
    std::erase_if(node.protocols, [&](const Attached& each) { return each.view == node.view; });
    std::deque<uint32_t> queued;
    std::swap(queued, node.datagrams);
    for (const uint32_t index : queued)
        if (messages_[index].view == node.view) message_settle(index);
        else node.datagrams.push_back(index);
    // Queued and leaving payloads are sent from copies; arriving ones no longer go to the view's memory.
    for (Message& message : messages_)
        if (Buffer& payload = message.send.payload;
            message.from == rank && message.view == node.view && message.waiting > 0 && message.copy.empty() && payload.bytes > 0) {
            message.copy.assign(payload.host, payload.host + payload.bytes);
            payload.host = message.copy.data();
        }
    for (Rank from = 0; from < nodes_.size() && !node.pairs.empty(); ++from)
        for (uint32_t i = pair(from, rank).flight.head; i != none; i = transfers_[i].next)
            if (transfers_[i].landed && messages_[transfers_[i].message].view == node.view) transfers_[i].landing = Landing::drop;
    wake(rank, 0);
    return {};
}

void SimulatorImpl::raise_sent(const Message& m, uint64_t ticket) {
    if (!ticket || nodes_[m.from].dead || !attached(m.from, m.send.channel, m.view)) return;
    raise(m.from, m.send.channel, {Event::Sent{ticket, m.status}});
}

}   // namespace gradcast::sim
