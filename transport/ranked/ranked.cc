#include "transport/ranked/ranked.h"

#include <algorithm>
#include <utility>

#include "runtime/core/bits.h"

namespace gradcast {

bool RankedProtocol::rank_of(Rank node, Rank* rank) const {
    const auto at = std::find(nodes_.begin(), nodes_.end(), NodeId{node});
    *rank = static_cast<Rank>(at - nodes_.begin());
    return at != nodes_.end();
}

RankSet RankedProtocol::nodes_of(const RankSet& ranks) {
    if (!ranks.bits) return {static_cast<Rank>(nodes_[ranks.rank])};
    key_.assign(ranks.bits, ranks.bits + bit_words(nodes_.size()));
    auto found = sets_.find(key_);
    if (found == sets_.end()) {
        std::vector<uint64_t> bits(bit_words(ranks_max));
        for (Rank rank = 0; rank < nodes_.size(); ++rank) {
            const auto node = static_cast<uint32_t>(nodes_[rank]);
            if (bit(key_.data(), rank)) set_bit(bits.data(), node);
        }
        found = sets_.emplace(key_, std::move(bits)).first;
    }
    return {0, found->second.data()};
}

void RankedProtocol::on(std::span<const Event> events, Actions& actions) {
    events_.clear(), packets_.clear();
    packets_.reserve(events.size());   // events point to them
    for (Event event : events) {
        if (auto* received = event.is<Event::Received>()) {
            Packet packet = *received->packet;
            if (!rank_of(packet.sender, &packet.sender)) continue;
            packets_.push_back(packet);
            received->packet = &packets_.back();
        }
        if (auto* up = event.is<Event::PeerUp>(); up && !rank_of(up->rank, &up->rank)) continue;
        if (auto* lost = event.is<Event::PeerLost>(); lost && !rank_of(lost->rank, &lost->rank)) continue;
        events_.push_back(event);
    }
    const uint64_t* const received_us = actions.received_us;
    for (Rank rank = 0; received_us && rank < nodes_.size(); ++rank) received_us_[rank] = received_us[static_cast<uint32_t>(nodes_[rank])];
    if (received_us) actions.received_us = received_us_.data();
    inner_.on(events_, actions);
    actions.received_us = received_us;
    for (Send& send : actions.sends) send.to = nodes_of(send.to);
}

Landing RankedProtocol::land(const Packet& packet, uint64_t bytes, Buffer* place) {
    Packet ranked = packet;
    return rank_of(packet.sender, &ranked.sender) ? inner_.land(ranked, bytes, place) : Landing::foreign;
}

ViewHost::ViewHost(Host& host, const std::vector<NodeId>& nodes, bool all) : host_(host), nodes_(nodes), same_(all) {
    for (uint32_t rank = 0; rank < nodes.size(); ++rank) same_ &= nodes[rank] == NodeId{rank};
}

void ViewHost::post(uint16_t channel, const Event& event) {
    Event of_node = event;
    if (auto* lost = of_node.is<Event::PeerLost>()) lost->rank = static_cast<Rank>(nodes_[lost->rank]);
    host_.post(channel, of_node);
}

void ViewHost::open_view(uint32_t number, std::span<const Attachment> attachments) {
    if (same_) return host_.open_view(number, attachments);
    std::vector<Attachment> ranked(attachments.begin(), attachments.end());
    for (Attachment& each : ranked) each.protocol = &ranked_.emplace_back(*each.protocol, nodes_);
    host_.open_view(number, ranked);
}

}   // namespace gradcast
