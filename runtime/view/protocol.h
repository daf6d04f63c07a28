// ViewChange as a protocol on a channel of no view, where the link's rank of a node is its NodeId.  It carries the messages, keeps the
// time, reports the link's traffic to ViewChange, and hands the notices to the trainer.
//
//   commands    join, watch, trainer_stopped, caught_up, patience, suspect, ending, drain, force_dead, stop: the functions below post them
//   completion  id 1: take() has notices
#pragma once
#include <map>
#include <mutex>

#include "runtime/core/channel.h"
#include "runtime/core/protocol.h"
#include "runtime/mesh/roster.h"
#include "runtime/view/change.h"

namespace gradcast {

struct ViewNews {
    ViewNotice notice;
    AgreedView view;   // that the node knew then
};

class ViewProtocol final : public Protocol {
public:
    /// A member of `first`, the job's first view; null: join().  `roster` by NodeId: a message counts only if it is of that incarnation,
    /// or of a later one that the link has reported (PeerUp).  A node behind the roster counts once the link has reported it.
    ViewProtocol(const ViewConfig& config, const AgreedView* first, const Roster& roster);

    /// D of the first view, and of a joiner until its view.  Call it before the protocol is attached.
    void deadline(uint64_t deadline_us);
    void on(std::span<const Event> events, Actions& actions) override;
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override;

    /// Returns the news since the last call.  Any thread.
    std::vector<ViewNews> take();

    // Any thread.
    /// A joiner announces itself from now on, until it is a member.
    static void join(Host& host);
    /// The job has begun: who is lost from here on is suspected.
    static void watch(Host& host);
    /// See ViewChange::trainer_stopped().
    static void trainer_stopped(Host& host, const ViewState& state);
    static void caught_up(Host& host, uint64_t digest);
    /// See ViewChange::patience().
    static void patience(Host& host, NodeId node, uint32_t factor);
    /// A silent node is suspected once it has been silent for D/4 times its patience, so the caller repeats this while it is.
    static void suspect(Host& host, NodeId node, Suspicion why);
    /// See ViewChange::ending().
    static void ending(Host& host);
    /// This node leaves with the next view.
    static void drain(Host& host, NodeId self);
    /// An operator declares the node dead.  Nothing happens while the node answers.
    static void force_dead(Host& host, NodeId node);
    /// This node takes no further part.
    static void stop(Host& host);

    static constexpr uint16_t channel = view_channel;

private:
    struct Command;   // what those functions order
    static void post(Host& host, const Command& command);
    void run(const Command& command, uint64_t now_us);
    void grow(uint32_t nodes);
    void packet(const Packet& packet, uint64_t now_us);
    void carry_out(Actions& actions);

    ViewChange change_;
    std::optional<AgreedView> first_;
    std::vector<uint64_t> incarnations_, received_us_;   // by NodeId
    std::vector<bool> lost_;                             // likewise: the link has given it up
    bool begun_ = false, watching_ = false, stopped_ = false;
    uint64_t timer_us_ = 0, ticket_ = 0;
    std::map<uint64_t, std::vector<std::byte>> sending_;   // by ticket
    std::mutex mutex_;                                     // of news_
    std::vector<ViewNews> news_;
};

/// The incarnation by which views know that member; never 0.
inline uint64_t view_incarnation(const Member& member) { return member.incarnation > 0 ? member.incarnation : 1; }

}   // namespace gradcast
