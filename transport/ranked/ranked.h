// The link counts nodes, a view's protocols count ranks: between them stands this, where the view is not of all nodes.
#pragma once
#include <deque>
#include <map>

#include "runtime/core/protocol.h"

namespace gradcast {

/// A protocol of a view on a link of nodes: events and packets come from ranks, actions go to nodes.  Packets and news of nodes that are
/// not in the view are dropped.
class RankedProtocol final : public Protocol {
public:
    /// `nodes` by rank.  Both outlive this.
    RankedProtocol(Protocol& inner, const std::vector<NodeId>& nodes) : inner_(inner), nodes_(nodes), received_us_(nodes.size()) {}
    void on(std::span<const Event> events, Actions& actions) override;
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override;

private:
    bool rank_of(Rank node, Rank* rank) const;
    RankSet nodes_of(const RankSet& ranks);

    Protocol& inner_;
    const std::vector<NodeId>& nodes_;
    std::vector<Event> events_;
    std::vector<Packet> packets_;
    std::vector<uint64_t> received_us_, key_;
    std::map<std::vector<uint64_t>, std::vector<uint64_t>> sets_;   // bits of ranks -> bits of nodes, which live as long as the view
};

/// The host of one view's session.
class ViewHost final : public Host {
public:
    /// `nodes` by rank.  all: the link has no others, and gets none.
    ViewHost(Host& host, const std::vector<NodeId>& nodes, bool all);
    uint64_t now_us() override { return host_.now_us(); }
    void post(uint16_t channel, const Event& event) override;
    void open_view(uint32_t number, std::span<const Attachment> attachments) override;
    Status close_view(uint64_t until_us) override { return host_.close_view(until_us); }
    Status wait(std::vector<Completion>* out, uint64_t until_us) override { return host_.wait(out, until_us); }
    void spend(uint64_t us) override { host_.spend(us); }

private:
    Host& host_;
    const std::vector<NodeId>& nodes_;
    bool same_ = true;   // each rank is the node of that number, and there are no others
    std::deque<RankedProtocol> ranked_;
};

}   // namespace gradcast
