// The simulator's nodes, trainers and loop; see impl.h.
#include <algorithm>
#include <utility>

#include "transport/code/kernels.h"
#include "transport/sim/impl.h"

namespace gradcast::sim {
namespace {

bool overlap(const Buffer& a, const Buffer& b) { return a.host < b.host + b.bytes && b.host < a.host + a.bytes; }
/// `a` writes what `b` reads or writes.
bool disturbs(const Compute& a, const Compute& b) {
    for (uint32_t o = 0; o < compute_writes(a); ++o) {
        const Buffer written = compute_written(a, o);
        for (uint32_t i = 0; i < compute_reads(b); ++i)
            if (overlap(written, compute_read(b, i))) return true;
        for (uint32_t i = 0; i < compute_writes(b); ++i)
            if (overlap(written, compute_written(b, i))) return true;
    }
    return false;
}

}   // namespace

/// Describes a deadlock: who waits, and which packets are not taken.
std::string SimulatorImpl::standstill() {
    std::string text, held;
    int shown = 0;
    for (Rank r = 0; r < nodes_.size(); ++r) {
        Node& node = nodes_[r];
        if (node.trainer && node.state != Trainer::done && shown++ < 8)
            text += fmt::format("{}rank {} {}", text.empty() ? "" : ", ", r, node.state == Trainer::spends ? "computes" : "waits");
        for (Rank s : node.stalled)
            if (held.size() < 300)
                held += fmt::format("; rank {} answers `later` to {}", r,
                                    packet_name(s, messages_[transfers_[pair(s, r).flight.head].message].send));
    }
    if (shown > 8) text += fmt::format(" and {} more", shown - 8);
    return text + held;
}

// ---- a node --------------------------------------------------------------------------------------------------------------------

void SimulatorImpl::post(Rank rank, uint16_t channel, const Event& event) {
    if (stopped(rank)) return;
    if (const auto* its = event.is<Event::PeerLost>()) return lost(rank, its->rank);
    const std::vector<Attached>& protocols = nodes_[rank].protocols;
    if (std::none_of(protocols.begin(), protocols.end(), [&](const Attached& each) { return each.channel == channel; })) return;
    if (const auto* ready = event.is<Event::Ready>()) note({now_us(), rank, SimTrace::What::ready, {}, ready->step, ready->bucket, 0, {}});
    raise(rank, channel, event);
}

void SimulatorImpl::batch(Rank rank) {
    Node& node = nodes_[rank];
    node.wake_ns = never;
    if (node.dead) return;
    std::swap(node.inbox, work_);
    for (Attached& attached : node.protocols) {
        events_.clear();
        for (Incoming& incoming : work_)
            if (incoming.channel == attached.channel) events_.push_back(incoming.event);
        if (events_.empty() || !fault_.ok()) continue;
        actions_.clear();
        actions_.now_us = now_us();
        actions_.received_us = node.received_us.data();
        attached.protocol->on(events_, actions_);
        perform(rank, attached, actions_);
    }
    for (Incoming& incoming : work_) {
        if (incoming.slot == none) continue;
        std::vector<std::byte>& lease = slots_[incoming.slot].lease;
        if (!lease.empty()) std::memset(lease.data(), poison, lease.size());
        slots_free_.push_back(incoming.slot);
    }
    work_.clear();
    std::vector<Rank> stalled;
    std::swap(stalled, node.stalled);
    for (Rank from : stalled) {
        pair(from, rank).stalled = false;
        drain(from, rank);
    }
    if (node.state == Trainer::waits && !node.completions.empty()) happen(now_ns_, Do::resume, rank, node.stamp);
}

void SimulatorImpl::perform(Rank rank, const Attached& attached, Actions& actions) {
    Node& node = nodes_[rank];
    const uint16_t channel = attached.channel;
    for (Send& whole : actions.sends)
        cut(whole, config_.segment_bytes, [&](const Send& send) {
            uint32_t index = message_new(rank, attached, send);
            Message& m = messages_[index];
            Rank first = none;
            each_receiver(send.to, [&](Rank to) {
                if (to == rank) return fault(fail(Code::conflict, "{} is sent to its own rank", packet_name(rank, m.send)));
                if (first == none) first = to;
                if (attached.datagrams) return;
                if (pair(rank, to).lost) {
                    m.status = lost_status(to);
                    return;
                }
                ++m.waiting;
                uint32_t t = static_cast<uint32_t>(transfers_.size());
                if (transfers_free_.empty()) transfers_.emplace_back();
                else {
                    t = transfers_free_.back();
                    transfers_free_.pop_back();
                }
                transfers_[t] = {index, none, rank, to, 0, false, false, false, Landing::drop, {}};
                append(pair(rank, to).queue, t);
            });
            if (!fault_.ok()) return;
            if (first == none && !send.to.bits)
                return fault(fail(Code::conflict, "{} is sent to rank {} of {}", packet_name(rank, m.send), send.to.rank, nodes_.size()));
            note_packet(SimTrace::What::send, rank, first, m.send);
            if (attached.datagrams) {
                m.waiting = 1;
                node.datagrams.push_back(index);
                transmit(rank);
            } else if (m.waiting == 0) {   // all receivers are lost
                m.waiting = 1;
                message_settle(index);
            } else {
                each_receiver(send.to, [&](Rank to) { activate(rank, to); });
            }
        });
    for (Timer& timer : actions.timers) {
        if (timer.at_us == 0) node.timers.erase({channel, timer.id});
        else
            node.timers[{channel, timer.id}] = happen(std::min(timer.at_us, config_.end_us + 1) * 1000, Do::timer, rank, channel, timer.id);
    }
    for (Compute& c : actions.computes) compute(rank, channel, c);
    for (Completion& completion : actions.completions) {
        completion.channel = channel;
        note({now_us(), rank, SimTrace::What::complete, {}, completion.step, static_cast<uint32_t>(completion.id), 0, {}});
        node.completions.push_back(completion);
    }
}

void SimulatorImpl::compute(Rank rank, uint16_t channel, const Compute& c) {
    Node& node = nodes_[rank];
    if (!config_.compute_async) {
        compute_now(c);
        return raise(rank, channel, {Event::Computed{c.ticket}});
    }
    for (Running& r : node.running) {
        const Compute& o = r.compute;
        if (disturbs(c, o) || disturbs(o, c))
            return fault(fail(Code::conflict, "rank {} channel {}: compute {} races with compute {}, which is not done yet", rank, channel,
                              c.ticket, o.ticket));
    }
    node.running.push_back({channel, c});
    double ns = static_cast<double>(config_.compute_ns_per_word * c.count) * node.slow * (1 + chance());
    happen(now_ns_ + static_cast<uint64_t>(ns), Do::computed, rank, channel, c.ticket);
}

void SimulatorImpl::computed(Rank rank, uint64_t channel, uint64_t ticket) {
    std::vector<Running>& running = nodes_[rank].running;
    auto it =
        std::find_if(running.begin(), running.end(), [&](const Running& r) { return r.channel == channel && r.compute.ticket == ticket; });
    if (it == running.end()) return;   // its view has ended
    compute_now(it->compute);
    *it = running.back();
    running.pop_back();
    raise(rank, static_cast<uint16_t>(channel), {Event::Computed{ticket}});
}

void SimulatorImpl::lost(Rank rank, Rank peer) {
    if (nodes_[rank].dead) return;
    if (!nodes_[rank].pairs.empty()) {
        if (pair(rank, peer).lost) return;
        if (!nodes_[peer].dead) {   // declared lost while alive: it learns that after lost_after_us
            disconnect(rank, peer, false);
            happen(now_ns_ + config_.lost_after_us * 1000, Do::lost, peer, rank);
        }
        drop_all(rank, peer);
    }
    raise_all(rank, {Event::PeerLost{peer, lost_status(peer)}});
}

void SimulatorImpl::die(Rank rank) {
    Node& node = nodes_[rank];
    if (node.dead) return;
    node.dead = true;
    node.completions.clear();
    node.running.clear();
    for (Incoming& incoming : node.inbox)
        if (incoming.slot != none) slots_free_.push_back(incoming.slot);
    node.inbox.clear();
    for (Rank peer = 0; peer < nodes_.size(); ++peer) {
        if (peer == rank) continue;
        if (!node.pairs.empty()) {
            disconnect(rank, peer, false);
            drop_all(rank, peer);
        }
        happen(now_ns_ + config_.lost_after_us * 1000, Do::lost, peer, rank);
    }
    if (node.trainer && node.state != Trainer::done) resume(rank);
}

// ---- trainers ------------------------------------------------------------------------------------------------------------------

/// Scheduler: gives the turn to a trainer and waits until the trainer gives it back.
void SimulatorImpl::resume(Rank rank) {
    Node& node = nodes_[rank];
    ++node.stamp;
    node.state = Trainer::runs;
    node.turn.give();
    scheduler_.wait();
}

/// Trainer: gives the turn back and waits for the next one.
void SimulatorImpl::pause(Rank rank, Trainer state) {
    Node& node = nodes_[rank];
    node.state = state;
    scheduler_.give();
    if (state != Trainer::done) node.turn.wait();
}

Status SimulatorImpl::wait(Rank rank, std::vector<Completion>* out, uint64_t deadline_us) {
    Node& node = nodes_[rank];
    if (node.completions.empty() && deadline_us > now_us() && !stopped(rank)) {
        if (deadline_us <= config_.end_us) happen(deadline_us * 1000, Do::resume, rank, node.stamp);
        pause(rank, Trainer::waits);
    }
    if (stopped(rank)) return fail(Code::cancelled, "rank {}: {}", rank, node.dead ? "killed" : "the simulation has ended");
    if (node.completions.empty()) return fail(Code::deadline, "rank {}: nothing was completed before the deadline", rank);
    out->insert(out->end(), node.completions.begin(), node.completions.end());
    node.completions.clear();
    return {};
}

void SimulatorImpl::spend(Rank rank, uint64_t us) {
    Node& node = nodes_[rank];
    if (stopped(rank)) return;
    note({now_us(), rank, SimTrace::What::spend, {}, 0, 0, 0, {}});
    happen(now_ns_ + static_cast<uint64_t>(static_cast<double>(us) * 1000 * node.slow), Do::resume, rank, node.stamp);
    pause(rank, Trainer::spends);
}

// ---- the loop ------------------------------------------------------------------------------------------------------------------

bool SimulatorImpl::pending(const Happening& timer) const {
    const Node& node = nodes_[timer.rank];
    auto it = node.timers.find({static_cast<uint16_t>(timer.a), timer.b});
    return !node.dead && it != node.timers.end() && it->second == timer.number;
}

/// Its rank is stalled: it happens when the stall has ended, in the same order.
bool SimulatorImpl::put_off(Happening h) {
    switch (h.what) {
        case Do::reconnect:
        case Do::part:
        case Do::heal:
        case Do::part_lost:
        case Do::kill: return false;   // not the rank's doing
        default: break;
    }
    const uint64_t at_ns = h.at_ns;
    for (const Stall& stall : stalls_)
        if (stall.rank == h.rank && h.at_ns >= stall.from_ns) h.at_ns = std::max(h.at_ns, stall.to_ns);
    if (h.at_ns == at_ns || nodes_[h.rank].dead) return false;
    if (h.what == Do::wake && nodes_[h.rank].wake_ns == at_ns) nodes_[h.rank].wake_ns = h.at_ns;
    queue_.push(h);
    return true;
}

void SimulatorImpl::dispatch(const Happening& h) {
    Node& node = nodes_[h.rank];
    mix(h.at_ns << 8 ^ static_cast<uint64_t>(h.what));
    mix(h.rank);
    switch (h.what) {
        case Do::wake:
            if (node.wake_ns == h.at_ns) batch(h.rank);
            break;
        case Do::resume:
            if (node.stamp == h.a && node.state != Trainer::done && !node.dead) resume(h.rank);
            break;
        case Do::transmit:
            node.transmitting = false;
            if (!node.dead) transmit(h.rank);
            break;
        case Do::arrive:
        case Do::deliver: {
            if (node.dead) break;
            Transfer& t = transfers_[h.a];
            bool valid = t.stamp == h.b;
            if (h.what == Do::deliver) node.receiving = false;
            if (valid && h.what == Do::arrive) {
                t.arrived = true;
                node.arrived.push_back({static_cast<uint32_t>(h.a), false, h.b});
                drain(t.from, t.to);
            } else if (valid && config_.break_per_packet > 0 && chance() < config_.break_per_packet) {
                disconnect(t.from, t.to, true);   // while the payload arrives
            } else if (valid) {
                t.complete = true;
                drain(t.from, t.to);
            }
            receive(h.rank);
            break;
        }
        case Do::acked: message_settle(static_cast<uint32_t>(h.a)); break;
        case Do::transmitted: transmitted(static_cast<uint32_t>(h.a)); break;
        case Do::datagram_arrive: datagram_arrive(h.rank, static_cast<uint32_t>(h.a)); break;
        case Do::datagram_deliver: {
            Message& m = messages_[h.a];
            Buffer place;
            Landing landing = node.dead || !m.transmitted ? Landing::drop : land(m, h.rank, &place);
            if (landing != Landing::later) take(m, h.rank, landing, place);
            message_settle(static_cast<uint32_t>(h.a));
            node.receiving = false;
            receive(h.rank);
            break;
        }
        case Do::timer:
            node.timers.erase({static_cast<uint16_t>(h.a), h.b});
            raise(h.rank, static_cast<uint16_t>(h.a), {Event::TimerExpired{h.b}});
            break;
        case Do::computed:
            if (!node.dead) computed(h.rank, h.a, h.b);
            break;
        case Do::reconnect: {
            Rank peer = static_cast<Rank>(h.a);
            if (node.dead || nodes_[peer].dead || separated(h.rank, peer) || pair(h.rank, peer).lost || pair(peer, h.rank).lost) break;
            for (auto [from, to] : {std::pair{h.rank, peer}, std::pair{peer, h.rank}}) {
                pair(from, to).up = true;
                activate(from, to);
            }
            break;
        }
        case Do::part:
        case Do::heal:
        case Do::part_lost:
            for (Rank a = 0; a < nodes_.size(); ++a) {
                for (Rank b = 0; b < nodes_.size(); ++b) {
                    if (a == b || partitions_[h.a].side[a] == partitions_[h.a].side[b] || nodes_[a].dead || nodes_[b].dead) continue;
                    if (h.what == Do::part_lost) lost(a, b);
                    else if (!nodes_[a].pairs.empty() && a < b) disconnect(a, b, h.what == Do::heal);
                }
            }
            break;
        case Do::kill: die(h.rank); break;
        case Do::lost: lost(h.rank, static_cast<Rank>(h.a)); break;
    }
}

Status SimulatorImpl::run() {
    // The scheduler and the trainers run in turns.  On several CPUs each turn would wake an idle one, which takes longer than most turns.
    const int cpu = sched_getcpu();
    const ThreadCpus one(cpu < 0 ? std::vector<uint32_t>{} : std::vector{static_cast<uint32_t>(cpu)});
    if (!started_) {
        started_ = true;
        for (Rank r = 0; r < nodes_.size(); ++r)
            for (Rank peer = 0; peer < nodes_.size(); ++peer)
                if (peer != r) raise_all(r, {Event::PeerUp{peer}});
        for (Rank r = 0; r < nodes_.size(); ++r) {
            Node& node = nodes_[r];
            if (!node.trainer) continue;
            Status made = node.thread.start([this, r, &node] {
                node.turn.wait();
                node.result = node.trainer(node.host);
                if (!node.result.ok() && !stopped(r) && first_error_.ok()) first_error_ = node.result;
                ++trainers_done_;
                pause(r, Trainer::done);
            });
            if (!made.ok()) {
                fault(made);
                break;
            }
            happen(delay_ns(), Do::resume, r, node.stamp);
        }
    }
    while (fault_.ok() && (trainers_ == 0 || trainers_done_ < trainers_)) {
        if (queue_.empty()) {
            if (trainers_) fault(fail(Code::deadline, "deadlock at {} us of seed {}: {}", now_us(), config_.seed, standstill()));
            break;
        }
        Happening next = queue_.top();
        if (next.what == Do::timer && !pending(next)) {   // moved or cancelled: drop it without advancing time
            queue_.pop();
            continue;
        }
        if (next.at_ns > config_.end_us * 1000) {
            fault(fail(Code::deadline, "not done after {} us of seed {}: {}", config_.end_us, config_.seed, standstill()));
            break;
        }
        queue_.pop();
        now_ns_ = next.at_ns;
        if (!put_off(next)) dispatch(next);
    }
    if (trainers_) {
        stopping_ = true;
        for (Rank r = 0; r < nodes_.size(); ++r) {
            Node& node = nodes_[r];
            if (!node.trainer || !node.thread.joinable()) continue;
            if (node.state != Trainer::done) resume(r);
            node.thread.join();
        }
    }
    return fault_.ok() ? first_error_ : fault_;
}

}   // namespace gradcast::sim

namespace gradcast {

std::unique_ptr<Simulator> Simulator::create(const SimConfig& config) { return std::make_unique<sim::SimulatorImpl>(config); }

}   // namespace gradcast
