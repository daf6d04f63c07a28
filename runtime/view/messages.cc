#include "runtime/view/messages.h"

#include <algorithm>
#include <cstring>

#include "runtime/core/le.h"
#include "runtime/core/overloads.h"

namespace gradcast {
namespace {

using What = ViewMessage::What;

// Every message: this, then what its kind has.
struct Head {
    uint8_t magic, kind, flags, reserved;   // kind: the index in What, plus 1.  reserved is 0 and checked to be 0
    Le16 from, reserved_too;
    Le32 view, ballot;   // ballot: 0 in messages without one
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
struct PromiseWire {   // of a join too, with `accepted` 0; then the words of `reach`, and the view where `accepted` is not 0
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

void put(Ballot accepted, const std::vector<uint64_t>& reach, Writer& writer) {
    PromiseWire wire{};
    wire.accepted.set(accepted);
    wire.words.set(static_cast<uint16_t>(reach.size()));
    writer.put(wire);
    for (const uint64_t word : reach) writer.put(word);
}
bool get(Reader& reader, Ballot* accepted, std::vector<uint64_t>* reach) {
    PromiseWire wire;
    if (!reader.get(&wire) || wire.words.get() > nodes_max / 64) return false;
    for (uint32_t i = 0; i < wire.words.get(); ++i) {
        Le64 word;
        if (!reader.get(&word)) return false;
        reach->push_back(word.get());
    }
    *accepted = wire.accepted.get();
    return true;
}

/// Writes what follows the head, and completes the head.
void put(const What& what, Head& head, Writer& writer) {
    std::visit(Overloads{[&](const ViewMessage::Suspect& it) {
                             head.flags = it.covered ? flag_covered : 0;
                             SuspectWire wire{};
                             wire.node.set(static_cast<uint16_t>(it.node));
                             wire.why = static_cast<uint8_t>(it.why);
                             wire.action = wire_of(it.action);
                             writer.put(wire);
                         },
                         [&](const ViewMessage::Promise& it) {
                             head.ballot.set(it.ballot);
                             head.flags = static_cast<uint8_t>((it.has_state ? flag_has_state : 0) | (it.ready ? flag_ready : 0));
                             put(it.accepted, it.reach, writer);
                             if (it.accepted != 0) put(it.value, writer);
                         },
                         [&](const OneOf<ViewMessage::Prepare, ViewMessage::Accepted> auto& it) { head.ballot.set(it.ballot); },
                         [&](const ViewMessage::Nack& it) { head.ballot.set(it.promised); },
                         [&](const ViewMessage::Accept& it) {
                             head.ballot.set(it.ballot);
                             put(it.value, writer);
                         },
                         [&](const ViewMessage::View& it) {
                             head.ballot.set(it.chosen);
                             put(it.value, writer);
                         },
                         [&](const ViewMessage::State& it) {
                             StateWire wire{};
                             wire.stage = static_cast<uint8_t>(it.stage);
                             wire.known = it.state.initial ? known_initial : it.state.known;
                             wire.applied.set(it.state.applied);
                             wire.digest.set(it.state.digest);
                             wire.evaluation_step.set(it.state.evaluation_step);
                             wire.evaluation.set(it.state.evaluation);
                             wire.ready_digest.set(it.ready_digest);
                             writer.put(wire);
                         },
                         [&](const ViewMessage::Join& it) { put(0, it.reach, writer); }},
               what);
}

/// Takes from `head` the flags and the ballot that the kind has, and sets them to 0 there.
bool get(Reader& reader, Head& head, uint32_t view, What* what) {
    const Ballot ballot = head.ballot.get();
    const auto flag = [&](uint8_t which) {
        const bool is = head.flags & which;
        head.flags &= static_cast<uint8_t>(~which);
        return is;
    };
    const auto take_ballot = [&](Ballot* its) {
        *its = ballot;
        head.ballot.set(0);
        return ballot != 0;
    };
    return std::visit(
        Overloads{[&](ViewMessage::Suspect& it) {
                      SuspectWire wire;
                      if (!reader.get(&wire) || wire.node.get() >= nodes_max || wire.why == 0 ||
                          wire.why > static_cast<uint8_t>(Suspicion::command))
                          return false;
                      it.covered = flag(flag_covered);
                      it.node = NodeId{wire.node.get()};
                      it.why = static_cast<Suspicion>(wire.why);
                      return parse(wire.action, &it.action) && (it.why == Suspicion::command) == (it.action.kind != ViewAction::Kind::none);
                  },
                  [&](ViewMessage::Promise& it) {
                      it.has_state = flag(flag_has_state);
                      it.ready = flag(flag_ready);
                      return take_ballot(&it.ballot) && get(reader, &it.accepted, &it.reach) &&
                             (it.accepted == 0 || (it.accepted < ballot && get(reader, &it.value)));
                  },
                  [&](OneOf<ViewMessage::Prepare, ViewMessage::Accepted> auto& it) { return take_ballot(&it.ballot); },
                  [&](ViewMessage::Nack& it) {
                      (void)take_ballot(&it.promised);
                      return true;
                  },
                  [&](ViewMessage::Accept& it) { return take_ballot(&it.ballot) && get(reader, &it.value); },
                  [&](ViewMessage::View& it) {
                      (void)take_ballot(&it.chosen);
                      return get(reader, &it.value) && it.value.number == view;
                  },
                  [&](ViewMessage::State& it) {
                      StateWire wire;
                      if (!reader.get(&wire) || wire.stage > static_cast<uint8_t>(ViewStage::frozen) || wire.known > known_initial)
                          return false;
                      it.stage = static_cast<ViewStage>(wire.stage);
                      it.state = {wire.known == 1,       wire.applied.get(),         wire.digest.get(), wire.evaluation_step.get(),
                                  wire.evaluation.get(), wire.known == known_initial};
                      it.ready_digest = wire.ready_digest.get();
                      return it.state.applied >> 32 == 0 && !(it.state.initial && it.state.applied > 0);
                  },
                  [&](ViewMessage::Join& it) {
                      Ballot accepted = 0;
                      return get(reader, &accepted, &it.reach) && accepted == 0;
                  }},
        *what);
}

/// The alternative of that index, as it begins.  False where there is none.
template <size_t index = 0>
bool what_of(size_t kind, What* what) {
    if constexpr (index == std::variant_size_v<What>) return false;
    else if (kind != index) return what_of<index + 1>(kind, what);
    else {
        what->emplace<index>();
        return true;
    }
}

}   // namespace

ViewExchange AgreedView::fitted(uint32_t n) const {
    ViewExchange fitted = exchange;
    if (fitted.m + fitted.s > n) fitted.m = static_cast<uint16_t>(n > fitted.s ? n - fitted.s : 1);
    if (fitted.m + fitted.s > n) fitted.s = static_cast<uint16_t>(n - fitted.m);
    return fitted;
}

std::vector<std::byte> view_message_write(const ViewMessage& message) {
    Head head{};
    head.magic = head_magic;
    head.kind = static_cast<uint8_t>(message.what.index() + 1);
    head.from.set(static_cast<uint16_t>(message.from));
    head.view.set(message.view);
    head.incarnation.set(message.incarnation);
    Writer writer;
    writer.put(head);
    put(message.what, head, writer);
    std::memcpy(writer.bytes.data(), &head, sizeof head);
    return std::move(writer.bytes);
}

bool view_message_parse(std::span<const std::byte> bytes, ViewMessage* message) {
    if (bytes.size() > view_message_bytes_max) return false;
    Reader reader{bytes};
    Head head;
    if (!reader.get(&head) || head.magic != head_magic || head.reserved != 0 || head.reserved_too.get() != 0) return false;
    if (head.kind == 0 || head.from.get() >= nodes_max || head.incarnation.get() == 0) return false;
    message->from = NodeId{head.from.get()};
    message->incarnation = head.incarnation.get();
    message->view = head.view.get();
    return what_of(head.kind - size_t{1}, &message->what) && get(reader, head, message->view, &message->what) && head.flags == 0 &&
           head.ballot.get() == 0 && reader.bytes.empty();
}

}   // namespace gradcast
