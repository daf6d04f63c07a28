// The simulator's network; see impl.h.
#include <algorithm>
#include <utility>

#include "runtime/core/bits.h"
#include "transport/sim/impl.h"

namespace gradcast::sim {
namespace {

constexpr uint32_t datagram_bytes_max = 65507;

uint64_t checksum(const Buffer& buffer) {
    uint64_t sum = buffer.bytes, word = 0, i = 0;
    for (; i + 8 <= buffer.bytes; i += 8) {
        std::memcpy(&word, buffer.host + i, 8);
        sum = (sum ^ word) * 0x9E3779B97F4A7C15;
        sum ^= sum >> 29;
    }
    word = 0;
    if (i < buffer.bytes) std::memcpy(&word, buffer.host + i, buffer.bytes - i);
    return splitmix64(sum ^ word);
}

}   // namespace

// ---- names ---------------------------------------------------------------------------------------------------------------------

std::string SimulatorImpl::packet_name(Rank from, const Send& send) {
    std::string name = fmt::format("rank {} channel {} type {}", from, send.channel, static_cast<int>(send.type));
    if (send.type == PacketType::words || send.type == PacketType::record) {
        DataBody body = std::bit_cast<DataBody>(send.body);
        name += fmt::format(" step {} bucket {} part {} index {}", body.step.get(), body.bucket.get(), body.part.get(), body.index.get());
    }
    return name;
}

void SimulatorImpl::note_packet(SimTrace::What what, Rank rank, Rank peer, const Send& send) {
    SimTrace line{now_us(), rank, what, send.type, 0, 0, peer, {}};
    if (send.type == PacketType::words || send.type == PacketType::record) {
        DataBody body = std::bit_cast<DataBody>(send.body);
        line.step = body.step.get();
        line.bucket = body.bucket.get();
    }
    note(std::move(line));
}

// ---- messages ------------------------------------------------------------------------------------------------------------------

uint32_t SimulatorImpl::message_new(Rank from, const Attached& attached, const Send& send) {
    uint32_t index = static_cast<uint32_t>(messages_.size());
    if (messages_free_.empty()) {
        messages_.emplace_back();
    } else {
        index = messages_free_.back();
        messages_free_.pop_back();
    }
    Message& m = messages_[index];
    m.from = from;
    m.datagram = attached.datagrams;
    m.transmitted = false;
    m.overhead = m.datagram ? config_.header_bytes : sim_stream_overhead_bytes;
    m.send = send;
    m.send.channel = attached.channel;
    m.status = {};
    m.waiting = 0;
    m.view = attached.view;
    m.copy.clear();
    if (send.payload.bytes <= inline_bytes_max) m.copy.assign(send.payload.host, send.payload.host + send.payload.bytes);
    else m.sum = checksum(send.payload);
    uint64_t limit = m.datagram ? datagram_bytes_max - datagram_overhead_bytes : segment_bytes_stream;
    if (send.payload.bytes > limit)
        fault(fail(Code::invalid, "{} sends a payload of {} bytes, above {}", packet_name(from, m.send), send.payload.bytes, limit));
    return index;
}

bool SimulatorImpl::untouched(const Message& m, Rank to) {
    if (m.send.payload.bytes <= inline_bytes_max || checksum(m.send.payload) == m.sum) return true;
    fault(fail(Code::conflict, "{} overwrote a payload to rank {} before its `sent` (ticket {})", packet_name(m.from, m.send), to,
               m.send.ticket));
    return false;
}

/// One receiver (datagrams: one copy) is done.
void SimulatorImpl::message_settle(uint32_t index) {
    Message& m = messages_[index];
    if (--m.waiting) return;
    raise_sent(m, m.send.ticket);
    messages_free_.push_back(index);
}

/// Calls the protocol's land().  Drops the packet if there is no protocol; holds a packet of a newer view.
Landing SimulatorImpl::land(const Message& m, Rank to, Buffer* place) {
    const Attached* found = attached(to, m.send.channel, m.view);
    if (!found) return m.view > nodes_[to].view ? Landing::later : Landing::drop;
    uint64_t bytes = m.send.payload.bytes;
    Landing landing = found->protocol->land(packet_of(m), bytes, place);
    if (landing == Landing::place && place->bytes != bytes)
        fault(fail(Code::conflict, "rank {} gives a place of {} bytes to {} bytes of {}", to, place->bytes, bytes,
                   packet_name(m.from, m.send)));
    else if (landing == Landing::place && bytes) std::memset(place->host, poison, bytes);
    if (landing == Landing::lease && bytes > lease_bytes_max)
        fault(fail(Code::conflict, "rank {} takes {} bytes of {} as a lease, above {}", to, bytes, packet_name(m.from, m.send),
                   lease_bytes_max));
    return landing;
}

/// The payload has arrived: copies it to its place and adds the event to the inbox.
void SimulatorImpl::take(const Message& m, Rank to, Landing landing, Buffer place) {
    if (landing == Landing::drop || landing == Landing::foreign || !fault_.ok()) return;
    uint32_t index = static_cast<uint32_t>(slots_.size());
    if (slots_free_.empty()) {
        slots_.emplace_back();
    } else {
        index = slots_free_.back();
        slots_free_.pop_back();
    }
    Slot& slot = slots_[index];
    slot.packet = packet_of(m);
    Buffer payload = message_payload(m);
    if (landing == Landing::lease) {
        const uint64_t lead = m.datagram ? config_.lead_bytes : 0;
        slot.lease.resize(lead + payload.bytes);
        place = {slot.lease.data() + lead, nullptr, payload.bytes};
    }
    if (payload.bytes) std::memcpy(place.host, payload.host, payload.bytes);
    slot.packet.payload = place;
    nodes_[to].received_us[m.from] = now_us();
    note_packet(SimTrace::What::deliver, to, m.from, m.send);
    raise(to, m.send.channel, {Event::Received{&slot.packet}}, index);
}

// ---- streams -------------------------------------------------------------------------------------------------------------------

void SimulatorImpl::append(List& list, uint32_t transfer) {
    transfers_[transfer].next = none;
    if (list.empty()) list.head = transfer;
    else transfers_[list.tail].next = transfer;
    list.tail = transfer;
}

uint32_t SimulatorImpl::pop(List& list) {
    uint32_t transfer = list.head;
    list.head = transfers_[transfer].next;
    if (list.empty()) list.tail = none;
    return transfer;
}

void SimulatorImpl::activate(Rank from, Rank to) {
    Pair& p = pair(from, to);
    if (p.active || !sendable(p)) return;
    p.active = true;
    nodes_[from].active.push_back(to);
    transmit(from);
}

/// Puts the next packet on the sender's link if it is free.  Peers take turns, and streams with datagrams.
void SimulatorImpl::transmit(Rank from) {
    Node& node = nodes_[from];
    while (!node.transmitting && (!node.active.empty() || !node.datagrams.empty())) {
        node.datagram_turn = !node.datagrams.empty() && (node.active.empty() || !node.datagram_turn);
        if (node.datagram_turn) return transmit_datagram(from);
        Rank to = node.active.front();
        node.active.pop_front();
        Pair& p = pair(from, to);
        p.active = false;
        if (!sendable(p)) continue;
        uint32_t index = pop(p.queue);
        append(p.flight, index);
        Transfer& t = transfers_[index];
        uint64_t bytes = messages_[t.message].bytes();
        node.bytes_sent += bytes;
        p.flight_bytes += bytes;
        node.transmitting = true;
        happen(now_ns_ + pass_ns(bytes), Do::transmit, from);
        p.head_ns = std::max(p.head_ns, now_ns_ + delay_ns());
        t.stamp = happen(p.head_ns, Do::arrive, to, index, number_ + 1);
        if (sendable(p)) {
            p.active = true;
            node.active.push_back(to);
        }
    }
}

/// Puts the next packet on the receiver's link if it is free.
void SimulatorImpl::receive(Rank to) {
    Node& node = nodes_[to];
    while (!node.arrived.empty() && !node.receiving) {
        auto [index, datagram, stamp] = node.arrived.front();
        node.arrived.pop_front();
        if (datagram) {
            uint64_t bytes = messages_[index].bytes();
            node.bytes_received += bytes;
            node.queued_bytes -= bytes;
            node.receiving = true;
            happen(now_ns_ + pass_ns(bytes), Do::datagram_deliver, to, index);
            return;
        }
        if (transfers_[index].stamp != stamp) continue;   // the connection has broken since
        uint64_t bytes = messages_[transfers_[index].message].bytes();
        node.bytes_received += bytes;
        node.receiving = true;
        happen(now_ns_ + pass_ns(bytes), Do::deliver, to, index, stamp);
    }
}

/// Breaks the connection of a and b in both directions: packets that were not taken are sent again.
void SimulatorImpl::disconnect(Rank a, Rank b, bool back) {
    for (auto [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
        Pair& p = pair(from, to);
        p.up = false;
        p.flight_bytes = 0;
        if (std::exchange(p.stalled, false)) std::erase(nodes_[to].stalled, from);
        for (uint32_t i = p.flight.head; i != none; i = transfers_[i].next) {
            Transfer& t = transfers_[i];
            t.stamp = 0;
            t.arrived = t.landed = t.complete = false;
        }
        if (p.flight.empty()) continue;
        transfers_[p.flight.tail].next = p.queue.head;
        p.queue = {p.flight.head, p.queue.empty() ? p.flight.tail : p.queue.tail};
        p.flight = {};
    }
    if (back) happen(now_ns_ + config_.reconnect_us * 1000, Do::reconnect, a, b);
}

/// Drops all packets of this direction and completes their tickets.
void SimulatorImpl::drop_all(Rank from, Rank to) {
    Pair& p = pair(from, to);
    p.lost = true;
    while (!p.queue.empty()) {
        uint32_t index = pop(p.queue);
        messages_[transfers_[index].message].status = lost_status(to);
        message_settle(transfers_[index].message);
        transfers_free_.push_back(index);
    }
}

/// Takes arrived packets in order: land() at the head, the event at the last byte.
void SimulatorImpl::drain(Rank from, Rank to) {
    Pair& p = pair(from, to);
    while (!p.stalled && !p.flight.empty() && transfers_[p.flight.head].arrived && fault_.ok()) {
        uint32_t index = p.flight.head;
        Transfer& t = transfers_[index];
        Message& m = messages_[t.message];
        if (!t.landed) {
            t.landing = land(m, to, &t.place);
            if (t.landing == Landing::later) {
                p.stalled = true;
                nodes_[to].stalled.push_back(from);
                return;
            }
            t.landed = true;
        }
        if (!t.complete) return;
        if (untouched(m, to)) take(m, to, t.landing, t.place);
        pop(p.flight);
        p.flight_bytes -= m.bytes();
        happen(now_ns_ + config_.latency_us * 1000, Do::acked, from, t.message);
        transfers_free_.push_back(index);
        activate(from, to);
    }
}

// ---- datagrams -----------------------------------------------------------------------------------------------------------------

void SimulatorImpl::transmit_datagram(Rank from) {
    Node& node = nodes_[from];
    uint32_t index = node.datagrams.front();
    node.datagrams.pop_front();
    Message& m = messages_[index];
    node.transmitting = true;
    auto addressed = [&](Rank to) { return bit(m.send.to.bits, to); };
    uint64_t bytes = m.bytes();
    for (Rank to = 0, first = 1; m.send.copies && to < nodes_.size(); ++to)
        if (m.send.to.bits && addressed(to) && !std::exchange(first, 0)) bytes += m.bytes();
    node.bytes_sent += bytes;
    const uint64_t end_ns = now_ns_ + pass_ns(bytes), last_ns = end_ns - pass_ns(m.bytes());   // last_ns: the start of the last copy
    happen(end_ns, Do::transmitted, from, index);
    happen(end_ns, Do::transmit, from);
    const bool lossy = config_.loss_type == PacketType{} || config_.loss_type == m.send.type;
    if (lossy && unlucky(config_.loss_sent, &node.bad_sending)) return;
    auto deliver = [&](Rank to) {
        if (nodes_[to].dead || separated(from, to)) return;
        uint32_t copies =
            (lossy && unlucky(config_.loss, &nodes_[to].bad) ? 0 : 1) + (config_.duplicate > 0 && chance() < config_.duplicate ? 1 : 0);
        m.waiting += copies;
        while (copies--) happen(last_ns + delay_ns(), Do::datagram_arrive, to, index);
    };
    if (!m.send.to.bits) return deliver(m.send.to.rank);   // avoids a search over thousands of ranks
    // Every rank of the group gets it, receiver or not.
    const Rank count = static_cast<Rank>(nodes_.size()), group = config_.group_ranks == 0 ? count : config_.group_ranks;
    const Rank first = from / group * group;
    for (Rank to = first; to < std::min(first + group, count); ++to)
        if (to != from && (m.send.copies ? addressed(to) : now_us() < nodes_[to].deaf_us)) deliver(to);
}

bool SimulatorImpl::separated(Rank a, Rank b) const {
    for (const Partition& p : partitions_)
        if (now_us() >= p.from_us && now_us() < p.to_us && p.side[a] != p.side[b]) return true;
    return false;
}

/// Gilbert-Elliott: the bad state loses everything and is entered so often that the mean is `loss`; loss_burst 1: independent losses.
bool SimulatorImpl::unlucky(double loss, bool* bad) {
    if (loss <= 0) return false;
    if (config_.loss_burst <= 1) return chance() < loss;
    *bad = *bad ? chance() >= 1 / config_.loss_burst : chance() < loss / (config_.loss_burst * (1 - loss));
    return *bad;
}

/// The last byte is on the wire: the payload may be reused.
void SimulatorImpl::transmitted(uint32_t index) {
    Message& m = messages_[index];
    if (nodes_[m.from].dead) return message_settle(index);
    m.transmitted = true;
    if (m.copy.empty() && m.send.payload.bytes) {
        if (!untouched(m, m.send.to.rank)) return;
        m.copy.assign(m.send.payload.host, m.send.payload.host + m.send.payload.bytes);
    }
    raise_sent(m, std::exchange(m.send.ticket, 0));
    message_settle(index);
}

void SimulatorImpl::datagram_arrive(Rank to, uint32_t index) {
    Node& node = nodes_[to];
    uint64_t bytes = messages_[index].bytes();
    if (node.dead || (config_.queue_bytes && node.queued_bytes + bytes > config_.queue_bytes)) return message_settle(index);
    node.queued_bytes += bytes;
    node.arrived.push_back({index, true, 0});
    receive(to);
}

}   // namespace gradcast::sim
