#include "runtime/view/messages.h"

#include <algorithm>
#include <cstring>

#include "runtime/core/le.h"

namespace gradcast {
namespace {

using Kind = ViewMessage::Kind;

// Every message: this, then what its kind has.
struct Head {
    uint8_t magic, kind, flags, reserved;   // reserved is 0 and checked to be 0
    Le16 from, reserved_too;
    Le32 view, ballot;
    Le64 incarnation;
};
static_assert(sizeof(Head) == 24 && alignof(Head) == 1);
constexpr uint8_t head_magic = 0x76;
constexpr uint8_t flag_covered = 1, flag_has_state = 1, flag_ready = 2;

struct ExchangeWire {
    char name[16];   // zeros after its end, one at least
    Le16 r, m, s;
};
struct ActionWire {
    uint8_t kind;
    Le16 node;
    ExchangeWire exchange;
};
struct ViewWire {   // then the members
    Le32 number, parent;
    Le64 deadline_us;
    ExchangeWire exchange;
    ActionWire action;
    Le16 members;
};
struct MemberWire {
    Le16 node, weight;
    Le64 incarnation;
};
struct SuspectWire {
    Le16 node;
    uint8_t why;
    ActionWire action;
};
struct PromiseWire {   // then the words of `reach`, and the view where `accepted` is not 0
    Le32 accepted;
    Le16 words;
};
struct StateWire {
    uint8_t stage, known;   // known: 0: not; 1: known; 2: ViewState::initial
    Le64 applied, digest, evaluation_step, evaluation, ready_digest;
};
static_assert(sizeof(ViewWire) == 65 && sizeof(MemberWire) == 12 && sizeof(SuspectWire) == 28 && sizeof(StateWire) == 42);
static_assert(sizeof(Head) + sizeof(PromiseWire) + nodes_max / 8 + sizeof(ViewWire) + nodes_max * sizeof(MemberWire) <=
              view_message_bytes_max);

constexpr uint8_t known_initial = 2;   // in StateWire
constexpr uint64_t deadline_us_max = UINT64_C(1) << 50;

struct Writer {
    std::vector<std::byte> bytes;
    template <typename Wire>
    void put(const Wire& wire) {
        const auto* from = reinterpret_cast<const std::byte*>(&wire);
        bytes.insert(bytes.end(), from, from + sizeof wire);
    }
};

struct Reader {
    std::span<const std::byte> bytes;
    template <typename Wire>
    bool get(Wire* wire) {
        if (bytes.size() < sizeof *wire) return false;
        std::memcpy(wire, bytes.data(), sizeof *wire);
        bytes = bytes.subspan(sizeof *wire);
        return true;
    }
};

ExchangeWire wire_of(const ViewExchange& exchange) {
    ExchangeWire wire{};
    std::memcpy(wire.name, exchange.name.data(), std::min(exchange.name.size(), sizeof wire.name - 1));
    wire.r.set(exchange.r);
    wire.m.set(exchange.m);
    wire.s.set(exchange.s);
    return wire;
}
bool parse(const ExchangeWire& wire, bool wanted, ViewExchange* exchange) {
    const size_t length = strnlen(wire.name, sizeof wire.name);
    if (length == sizeof wire.name || (length > 0) != wanted) return false;
    for (size_t i = 0; i < sizeof wire.name; ++i) {
        const char c = wire.name[i];
        if (i < length ? !((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-') : c != 0) return false;
    }
    *exchange = {std::string(wire.name, length), wire.r.get(), wire.m.get(), wire.s.get()};
    return wanted ? exchange->m >= 1 : *exchange == ViewExchange{"", 0, 0, 0};
}

ActionWire wire_of(const ViewAction& action) {
    ActionWire wire{};
    wire.kind = static_cast<uint8_t>(action.kind);
    wire.node.set(static_cast<uint16_t>(action.node));
    if (action.kind == ViewAction::Kind::exchange) wire.exchange = wire_of(action.exchange);
    return wire;
}
bool parse(const ActionWire& wire, ViewAction* action) {
    if (wire.kind > static_cast<uint8_t>(ViewAction::Kind::exchange) || wire.node.get() >= nodes_max) return false;
    action->kind = static_cast<ViewAction::Kind>(wire.kind);
    action->node = NodeId{wire.node.get()};
    ViewExchange exchange;
    const bool wanted = action->kind == ViewAction::Kind::exchange;
    if (!parse(wire.exchange, wanted, &exchange)) return false;
    action->exchange = wanted ? exchange : ViewExchange{};
    return action->kind == ViewAction::Kind::drain || wire.node.get() == 0;
}

void put(const AgreedView& view, Writer& writer) {
    ViewWire wire{};
    wire.number.set(view.number);
    wire.parent.set(view.parent);
    wire.deadline_us.set(view.deadline_us);
    wire.exchange = wire_of(view.exchange);
    wire.action = wire_of(view.action);
    wire.members.set(static_cast<uint16_t>(view.n()));
    writer.put(wire);
    for (const ViewMember& member : view.members) {
        MemberWire each{};
        each.node.set(static_cast<uint16_t>(member.node));
        each.weight.set(member.weight);
        each.incarnation.set(member.incarnation);
        writer.put(each);
    }
}
bool get(Reader& reader, AgreedView* view) {
    ViewWire wire;
    if (!reader.get(&wire) || !parse(wire.exchange, true, &view->exchange) || !parse(wire.action, &view->action)) return false;
    view->number = wire.number.get();
    view->parent = wire.parent.get();
    view->deadline_us = wire.deadline_us.get();
    const uint32_t members = wire.members.get();
    if (view->number == 0 || view->deadline_us == 0 || view->deadline_us > deadline_us_max || members == 0 || members > ranks_max ||
        reader.bytes.size() < members * sizeof(MemberWire))
        return false;
    std::vector<bool> seen(nodes_max);
    view->members.clear();
    for (uint32_t rank = 0; rank < members; ++rank) {
        MemberWire each;
        if (!reader.get(&each) || each.node.get() >= nodes_max || each.incarnation.get() == 0 || seen[each.node.get()]) return false;
        seen[each.node.get()] = true;
        view->members.push_back({NodeId{each.node.get()}, each.incarnation.get(), each.weight.get()});
    }
    return true;
}

uint8_t flags_of(const ViewMessage& message) {
    if (message.kind == Kind::suspect) return message.covered ? flag_covered : 0;
    if (message.kind != Kind::promise) return 0;
    return static_cast<uint8_t>((message.has_state ? flag_has_state : 0) | (message.ready ? flag_ready : 0));
}

bool get_body(Reader& reader, ViewMessage* message) {
    switch (message->kind) {
        case Kind::suspect: {
            SuspectWire wire;
            if (!reader.get(&wire) || wire.node.get() >= nodes_max || wire.why == 0 || wire.why > static_cast<uint8_t>(Suspicion::command))
                return false;
            message->node = NodeId{wire.node.get()};
            message->why = static_cast<Suspicion>(wire.why);
            return parse(wire.action, &message->action) &&
                   (message->why == Suspicion::command) == (message->action.kind != ViewAction::Kind::none);
        }
        case Kind::prepare:
        case Kind::accepted: return message->ballot != 0;
        case Kind::nack: return true;
        case Kind::join:
        case Kind::promise: {
            PromiseWire wire;
            if ((message->kind == Kind::promise && message->ballot == 0) || !reader.get(&wire) || wire.words.get() > nodes_max / 64)
                return false;
            message->reach.clear();
            for (uint32_t i = 0; i < wire.words.get(); ++i) {
                Le64 word;
                if (!reader.get(&word)) return false;
                message->reach.push_back(word.get());
            }
            message->accepted = wire.accepted.get();
            return message->accepted == 0 ||
                   (message->kind == Kind::promise && message->accepted < message->ballot && get(reader, &message->value));
        }
        case Kind::accept: return message->ballot != 0 && get(reader, &message->value);
        case Kind::view: return get(reader, &message->value) && message->value.number == message->view;
        case Kind::state: {
            StateWire wire;
            if (!reader.get(&wire) || wire.stage > static_cast<uint8_t>(ViewStage::frozen) || wire.known > known_initial) return false;
            message->stage = static_cast<ViewStage>(wire.stage);
            message->state = {wire.known == 1,       wire.applied.get(),         wire.digest.get(), wire.evaluation_step.get(),
                              wire.evaluation.get(), wire.known == known_initial};
            message->ready_digest = wire.ready_digest.get();
            return message->state.applied >> 32 == 0 && !(message->state.initial && message->state.applied > 0);
        }
    }
    return false;
}

}   // namespace

ViewExchange AgreedView::fitted(uint32_t n) const {
    ViewExchange fitted = exchange;
    if (fitted.m + fitted.s > n) fitted.m = static_cast<uint16_t>(n > fitted.s ? n - fitted.s : 1);
    if (fitted.m + fitted.s > n) fitted.s = static_cast<uint16_t>(n - fitted.m);
    return fitted;
}

std::vector<std::byte> view_message_write(const ViewMessage& message) {
    Writer writer;
    Head head{};
    head.magic = head_magic;
    head.kind = static_cast<uint8_t>(message.kind);
    head.flags = flags_of(message);
    head.from.set(static_cast<uint16_t>(message.from));
    head.view.set(message.view);
    head.ballot.set(message.ballot);
    head.incarnation.set(message.incarnation);
    writer.put(head);
    switch (message.kind) {
        case Kind::suspect: {
            SuspectWire wire{};
            wire.node.set(static_cast<uint16_t>(message.node));
            wire.why = static_cast<uint8_t>(message.why);
            wire.action = wire_of(message.action);
            writer.put(wire);
            break;
        }
        case Kind::join:
        case Kind::promise: {
            PromiseWire wire{};
            wire.accepted.set(message.accepted);
            wire.words.set(static_cast<uint16_t>(message.reach.size()));
            writer.put(wire);
            for (const uint64_t word : message.reach) writer.put(word);
            if (message.accepted != 0) put(message.value, writer);
            break;
        }
        case Kind::accept:
        case Kind::view: put(message.value, writer); break;
        case Kind::state: {
            StateWire wire{};
            wire.stage = static_cast<uint8_t>(message.stage);
            wire.known = message.state.initial ? known_initial : message.state.known;
            wire.applied.set(message.state.applied);
            wire.digest.set(message.state.digest);
            wire.evaluation_step.set(message.state.evaluation_step);
            wire.evaluation.set(message.state.evaluation);
            wire.ready_digest.set(message.ready_digest);
            writer.put(wire);
            break;
        }
        case Kind::prepare:
        case Kind::nack:
        case Kind::accepted: break;
    }
    return std::move(writer.bytes);
}

bool view_message_parse(std::span<const std::byte> bytes, ViewMessage* message) {
    if (bytes.size() > view_message_bytes_max) return false;
    Reader reader{bytes};
    Head head;
    if (!reader.get(&head) || head.magic != head_magic || head.reserved != 0 || head.reserved_too.get() != 0) return false;
    if (head.kind < static_cast<uint8_t>(Kind::suspect) || head.kind > static_cast<uint8_t>(Kind::join)) return false;
    if (head.from.get() >= nodes_max || head.incarnation.get() == 0) return false;
    *message = {};
    message->kind = static_cast<Kind>(head.kind);
    message->from = NodeId{head.from.get()};
    message->incarnation = head.incarnation.get();
    message->view = head.view.get();
    message->ballot = head.ballot.get();
    message->covered = message->kind == Kind::suspect && head.flags & flag_covered;
    message->has_state = message->kind == Kind::promise && head.flags & flag_has_state;
    message->ready = message->kind == Kind::promise && head.flags & flag_ready;
    return head.flags == flags_of(*message) && get_body(reader, message) && reader.bytes.empty();
}

}   // namespace gradcast
