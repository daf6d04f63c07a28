// What the nodes of a job say to agree on its next view, and its wire form.  change.h says when.
//
// A *ballot* is a round and the node that proposes in it.  A view's number is the ballot of its first proposal; rounds grow from view to
// view, so numbers do too.  Whoever carries a message names the job, and has checked that node and incarnation are the sender's.
#pragma once
#include <string>
#include <variant>
#include <vector>

#include "runtime/core/limits.h"
#include "runtime/core/types.h"

namespace gradcast {

using Ballot = uint32_t;
constexpr uint32_t round_max = (1u << 20) - 1;
constexpr uint32_t nodes_max = 1u << 12;   // of a job, over its whole life
constexpr Ballot ballot_of(uint32_t round, NodeId node) { return round << 12 | static_cast<uint32_t>(node); }
constexpr uint32_t round_of(Ballot ballot) { return ballot >> 12; }
constexpr NodeId proposer_of(Ballot ballot) { return NodeId{ballot & (nodes_max - 1)}; }
constexpr uint32_t index_of(NodeId node) { return static_cast<uint32_t>(node); }

/// As the job asks for it, whatever the number of members.
struct ViewExchange {
    std::string name;   // of an ExchangeKind, at most 15 characters
    uint16_t r = 2, m = 1, s = 0;
    bool operator==(const ViewExchange&) const = default;
};

struct ViewMember {
    NodeId node{};
    uint64_t incarnation = 0;
    uint16_t weight = 1;   // of blocks
    bool operator==(const ViewMember&) const = default;
};

/// A command that takes effect at a view's first step.
struct ViewAction {
    enum class Kind : uint8_t { none, cancel, drain, exchange } kind = Kind::none;
    NodeId node{};           // drain: which leaves
    ViewExchange exchange;   // exchange: which begins
    bool operator==(const ViewAction&) const = default;
};

/// The view on which the nodes agree.
struct AgreedView {
    uint32_t number = 0, parent = 0;   // parent: the view that has chosen it; 0: none, the job's first
    uint64_t deadline_us = 0;          // D
    ViewExchange exchange;
    ViewAction action;
    std::vector<ViewMember> members;   // by rank
    uint32_t n() const { return static_cast<uint32_t>(members.size()); }
    /// `exchange` with what n() members allow: m falls first, then s.
    ViewExchange fitted() const { return fitted(n()); }
    ViewExchange fitted(uint32_t n) const;   // to so many ranks of the exchange
    bool operator==(const AgreedView&) const = default;
};

enum class Suspicion : uint8_t {
    none,
    silent,      // no traffic, or a connection refused: ends with the next traffic
    stuck,       // its trainer makes no progress
    restarted,   // a later incarnation is there
    expelled,    // computes wrongly
    joiner,      // SUSPECT alone: no member, but READY
    command,     // SUSPECT alone: an action is asked for
};

/// Where a node is with the view it knows.
enum class ViewStage : uint8_t {
    outside,      // not a member
    installing,   // its trainer has not stopped yet
    reported,     // its state is announced
    ready,        // has the state of the common step
    going,        // all were ready
    frozen,       // has promised: waits for the next view
};

/// The state that a trainer has stopped with.
struct ViewState {
    bool known = false;   // false: a joiner, a member that has not got a resumed job's state yet, or `initial`
    StepId applied = 0;   // steps
    uint64_t digest =
        0;   // of that state; of a net in stages the bits of Context::factor_of(applied), which are those of 1 where steps have none
    uint64_t evaluation_step = 0, evaluation = 0;   // the last evaluation: when, and its result as the caller encodes it
    /// Not known, but a member of the first view that has not got the job's initial values yet.  It has other ones, with this digest, which
    /// the job begins with if no member of the view has the job's.
    bool initial = false;
    bool operator==(const ViewState&) const = default;
};

struct ViewMessage {
    /// Asks its receiver to propose a view, because of a node.
    struct Suspect {   // no default values: the default constructor of What needs that of this type while ViewMessage is incomplete
        NodeId node;
        Suspicion why;       // not none
        bool covered;        // the exchange does without the node, so that a quorum must agree first
        ViewAction action;   // of the suspicion `command` alone
        bool operator==(const Suspect&) const = default;
    };
    struct Prepare {
        Ballot ballot = 0;   // not 0
        bool operator==(const Prepare&) const = default;
    };
    struct Promise {
        Ballot ballot = 0;                       // of the proposal, not 0
        bool has_state = false, ready = false;   // the sender has a state; the sender is no member and wants to be
        std::vector<uint64_t> reach = {};        // bits of the nodes that the sender reaches
        Ballot accepted = 0;                     // in which the sender has accepted `value`; 0: none
        AgreedView value = {};                   // where `accepted` is not 0
        bool operator==(const Promise&) const = default;
    };
    struct Nack {
        Ballot promised = 0;   // by the sender; 0: none
        bool operator==(const Nack&) const = default;
    };
    struct Accept {
        Ballot ballot = 0;   // not 0
        AgreedView value;
        bool operator==(const Accept&) const = default;
    };
    struct Accepted {
        Ballot ballot = 0;   // not 0
        bool operator==(const Accepted&) const = default;
    };
    struct View {
        Ballot chosen = 0;   // in which `value` was chosen
        AgreedView value;
        bool operator==(const View&) const = default;
    };
    struct State {
        ViewStage stage{};
        ViewState state;             // from ViewStage::reported on
        uint64_t ready_digest = 0;   // from ViewStage::ready on
        bool operator==(const State&) const = default;
    };
    /// A node that is no member wants to be one.
    struct Join {
        std::vector<uint64_t> reach;   // as in Promise
        bool operator==(const Join&) const = default;
    };
    using What = std::variant<Suspect, Prepare, Promise, Nack, Accept, Accepted, View, State, Join>;   // in the order of the wire's kinds

    NodeId from{};
    uint64_t incarnation = 0;
    uint32_t view = 0;   // number of the newest that the sender knows, 0: none
    What what;

    template <typename One>
    bool is() const {
        return std::holds_alternative<One>(what);
    }
    bool operator==(const ViewMessage&) const = default;
};

constexpr size_t view_message_bytes_max = lease_bytes_max;
std::vector<std::byte> view_message_write(const ViewMessage& message);
/// False where bytes are not one; *message is then anything.
bool view_message_parse(std::span<const std::byte> bytes, ViewMessage* message);

}   // namespace gradcast
