#include "transport/loop/loop.h"

#include <algorithm>
#include <bit>

#include "runtime/core/overloads.h"
#include "transport/code/kernels.h"

namespace gradcast {

namespace {
constexpr uint64_t flush_us = 200'000;     // stop() waits this long for queued packets to be sent and acknowledged
constexpr uint64_t close_us = 1'000'000;   // and this long for cancelled operations
constexpr uint64_t sleep_us_max = 1'000'000;
constexpr size_t posted_reserve = 1024, posted_max = 1 << 20;
constexpr size_t events_reserve = 256;   // so that what a turn has rarely allocates
}   // namespace

// ---- the trainer's side --------------------------------------------------------------------------------------------------------

void TrainerQueue::push(std::vector<Completion>& completions) {
    if (completions.empty()) return;
    {
        std::lock_guard lock(mutex_);
        queue_.insert(queue_.end(), completions.begin(), completions.end());
    }
    changed_.notify_all();
}
void TrainerQueue::end() {
    {
        std::lock_guard lock(mutex_);
        ended_ = true;
    }
    changed_.notify_all();
}
Status TrainerQueue::wait(std::vector<Completion>* out, uint64_t deadline_us) {
    std::unique_lock lock(mutex_);
    std::chrono::steady_clock::time_point until{std::chrono::microseconds(std::min<uint64_t>(deadline_us, INT64_MAX / 1000))};
    changed_.wait_until(lock, until, [this] { return ended_ || !queue_.empty(); });
    out->insert(out->end(), queue_.begin(), queue_.end());
    bool any = !queue_.empty();
    queue_.clear();
    if (any) return {};
    if (ended_) return fail(Code::cancelled, "the network thread has stopped");
    return {.code = Code::deadline, .what = "nothing was completed before the deadline"};   // often asked for: takes no memory
}

void Loop::post(uint16_t channel, const Event& event) { post({Posted::ToChannel{channel, event}}); }
void Loop::post(Posted posted) {
    {
        std::lock_guard lock(mutex_);
        GC_ASSERT(posted_.size() < posted_max);
        posted_.push_back(std::move(posted));
    }
    wake();
}
void Loop::probe() {
    gradcast::add(counters_.probing, 1u);   // until the streams have sent theirs
    post({Posted::Probe{}});
}
void Loop::adopt(std::unique_ptr<AcceptedStream> stream) {
    {
        std::lock_guard lock(mutex_);
        adopted_.emplace_back(static_cast<Accepted*>(stream.release()));   // the only implementation
    }
    wake();
}
void Loop::add(const PeerAddress& peer) {
    {
        std::lock_guard lock(mutex_);
        added_.push_back(peer);
    }
    wake();
}
void Loop::stop() {
    stop_.store(true);
    wake();
}
// The loop sets asleep_, then reads the queues under their mutex: either it sees a new entry, or the thread that adds it sees asleep_.
void Loop::wake() {
    if (asleep_.exchange(false)) proactor_->wake();
}

// ---- opening -------------------------------------------------------------------------------------------------------------------

Status Loop::open() {
    const LinkConfig& c = config_;
    if (c.peers.empty() || c.peers.size() > ranks_max || c.rank >= c.peers.size())
        return fail(Code::invalid, "a link of {} ranks cannot have rank {}", c.peers.size(), c.rank);
    if (c.keys.empty() && !c.ring) return fail(Code::invalid, "a link needs a cluster key");
    if (c.segment_bytes == 0 || c.segment_bytes > segment_bytes_stream)
        return fail(Code::invalid, "segments of {} bytes: 1 to {} are possible", c.segment_bytes, segment_bytes_stream);
    if (c.kind == LinkKind::uring_tcp)
        if (Status status = proactor_uring(&proactor_); !status.ok()) log_.warn("{}: using epoll instead", status.what);
    if (!proactor_) GC_TRY(proactor_epoll(&proactor_));
    LinkOwner& owner = *this;   // a private base
    auto open_datagrams = [&] {
        if (!c.datagrams.segment_bytes) return Status{};
        datagrams_ = std::make_unique<Datagrams>(config_, log_, counters_, pool_, owner);
        return datagrams_->open(*proactor_, c.rdma.datagrams ? rdma_ : nullptr);
    };
    GC_TRY(open_rdma());
    Status status = open_datagrams();
    if (status.code == Code::unsupported && c.kind == LinkKind::uring_tcp && !c.rdma.datagrams) {
        log_.warn("{}: using epoll instead", status.what);
        GC_TRY(proactor_epoll(&proactor_));
        GC_TRY(open_rdma());
        status = open_datagrams();
    }
    GC_TRY(status);
    received_us_.reserve(ranks_max);
    received_us_.resize(c.peers.size());
    streams_ = std::make_unique<Streams>(config_, log_, counters_, pool_, owner, received_us_.data());
    GC_TRY(streams_->open(*proactor_, c.rdma.streams ? rdma_ : nullptr));
    links_ = {streams_.get()};
    if (datagrams_) links_.push_back(datagrams_.get());
    posted_.reserve(posted_reserve);
    taken_.reserve(posted_reserve);
    happened_.reserve(events_reserve);
    happening_.reserve(events_reserve);
    batch_.reserve(events_reserve);
    actions_.sends.reserve(events_reserve);
    actions_.timers.reserve(events_reserve);
    actions_.computes.reserve(events_reserve);
    actions_.completions.reserve(events_reserve);
    alarms_.reserve(events_reserve);
    tickets_.reserve(events_reserve);
    tickets_free_.reserve(events_reserve);
    return {};
}

Status Loop::open_rdma() {
    if (!config_.rdma.streams && !config_.rdma.datagrams) return {};
    const RdmaModule* module;
    std::unique_ptr<Rdma> rdma;
    GC_TRY(rdma_module(&module));
    GC_TRY(module->open(config_.rdma.devices, static_cast<uint32_t>(config_.peers.size()) * config_.connections(), log_,
                        std::move(proactor_), &rdma));
    rdma_ = rdma.get();
    proactor_ = std::move(rdma);
    return {};
}

// With io_uring fixed buffers are not used: see proactor_uring.cc.
void Loop::register_memory(Buffer whole) {
    if (!rdma_ || !config_.rdma.streams || !whole.host) return;
    if (Status status = rdma_->register_memory(whole); !status.ok()) log_.warn("{}: payloads are copied before they are sent", status.what);
}

Loop::~Loop() = default;

Status driver_open(const LinkConfig& config, const Log& log, std::unique_ptr<Driver>* driver) {
    auto made = std::make_unique<Loop>(config, log);
    GC_TRY(made->open());
    *driver = std::move(made);
    return {};
}

// ---- the loop ------------------------------------------------------------------------------------------------------------------

void Loop::attach(uint16_t channel, Protocol* new_protocol) {
    GC_ASSERT(!attached(channel));
    protocols_.push_back({channel, 0, new_protocol, streams_.get()});
}
void Loop::attach_datagrams(uint16_t channel, Protocol* new_protocol) {
    GC_ASSERT(datagrams_ && channel < datagram_channel_probe);
    attach(channel, new_protocol);
    protocols_.back().link = datagrams_.get();
    datagrams_->attach(channel);
}
const Loop::Attached* Loop::attached(uint16_t channel) const {
    for (const Attached& each : protocols_)
        if (each.channel == channel) return &each;
    return nullptr;
}

Status Loop::run() {
    uint64_t now = clock_us();
    streams_->begin(now);
    Status status;
    while (status.ok()) {
        done_.clear();
        status = proactor_->wait(sleep_us(clock_us()), &done_);
        asleep_.store(false);
        bool stopping = stop_.load();
        turn_us_ = now = clock_us();
        for (Op* op : done_) op->link->complete(*op, now);
        for (Link* link : links_) link->receive(now);
        take_posted();
        ring_alarms(now);
        // A turn takes packets before its dispatch and starts receives after it: leases are valid in between.
        const bool again = std::exchange(handled_, false);
        for (Link* link : links_) link->tend(now, again);
        handled_ = dispatch(now);
        if (std::exchange(ending_, false)) end_view();
        if (!closing_.empty() && view_drained()) forget_view();   // before the next sends are started
        if (stopping && !stopping_us_) {
            stopping_us_ = now + flush_us;
            streams_->finish();
        }
        for (Link* link : links_) link->pump(now);
        if (stopping && flushed(now)) break;
    }
    for (Link* link : links_) link->close();
    auto busy = [this] { return std::any_of(links_.begin(), links_.end(), [](const Link* link) { return link->busy(); }); };
    Status waited;   // a proactor may work although it has failed once
    for (uint64_t until = now + close_us; waited.ok() && now < until && busy(); now = clock_us()) {
        done_.clear();
        waited = proactor_->wait(until - now, &done_);
        for (Op* op : done_) op->link->complete(*op, now);
    }
    trainer_.end();
    return status.ok() ? waited : status;
}

// The time until the next own event.
uint64_t Loop::sleep_us(uint64_t now) {
    if (!happened_.empty() || handled_) return 0;
    uint64_t until = now + sleep_us_max;
    for (const Alarm& alarm : alarms_) until = std::min(until, alarm.at_us);
    for (const Link* link : links_) until = std::min(until, link->due_us());
    if (stopping_us_) until = std::min(until, stopping_us_);
    asleep_.store(true);
    std::lock_guard lock(mutex_);
    if (!posted_.empty() || !adopted_.empty() || !added_.empty() || (stop_.load() && !stopping_us_)) return 0;
    return until > now ? until - now : 0;
}

bool Loop::flushed(uint64_t now) {
    if (now >= stopping_us_) return true;
    return happened_.empty() && std::all_of(links_.begin(), links_.end(), [](const Link* link) { return link->idle(); });
}

void Loop::take_posted() {
    std::vector<std::unique_ptr<Accepted>> adopted;
    std::vector<PeerAddress> added;
    taken_.clear();
    {
        std::lock_guard lock(mutex_);
        std::swap(taken_, posted_);
        std::swap(adopted, adopted_);
        std::swap(added, added_);
    }
    for (const PeerAddress& each : added) take_peer(each);
    for (const Posted& each : taken_)
        std::visit(Overloads{[&](const Posted::ToChannel& it) { take(it); }, [&](const Posted::OpenView& it) { begin_view(it); },
                             [&](const Posted::CloseView&) { ending_ = true; },   // after the events that were posted before
                             [&](const Posted::Probe&) { take_probe(); }},
                   each.what);
    for (auto& stream : adopted) streams_->invite(std::move(stream));
}

void Loop::take(const Posted::ToChannel& posted) {
    // The job gives up a rank whose stream may be open: all protocols get PeerLost.
    if (const auto* lost = posted.event.is<Event::PeerLost>()) streams_->give_up(lost->rank, lost->status);
    else if (attached(posted.channel)) deliver(posted.channel, posted.event);
}

void Loop::take_probe() {
    streams_->probe();
    counters_.probing.fetch_sub(1, std::memory_order_relaxed);   // of probe()
    if (datagrams_) datagrams_->probe_again();
}

void Loop::take_peer(const PeerAddress& peer) {
    GC_ASSERT(!rdma_);
    if (config_.peers.size() == ranks_max) return;
    config_.peers.push_back(peer);
    received_us_.push_back(0);
    if (datagrams_) datagrams_->add_peer();
    if (const Status status = streams_->add_peer(clock_us()); !status.ok()) log_.warn("peer '{}': {}", peer.identity.name, status.what);
}

// In order of time, also if several are due.
void Loop::ring_alarms(uint64_t now) {
    while (!alarms_.empty()) {
        auto first = std::min_element(alarms_.begin(), alarms_.end(), [](const Alarm& a, const Alarm& b) { return a.at_us < b.at_us; });
        if (first->at_us > now) return;
        deliver(first->channel, {Event::TimerExpired{first->id}});
        *first = alarms_.back();
        alarms_.pop_back();
    }
}

void Loop::deliver_all(const Event& event) {
    for (const Attached& each : protocols_) deliver(each.channel, event);
}

// True if there was an event.  Events that the actions cause come in the next turn.
bool Loop::dispatch(uint64_t now) {
    if (happened_.empty()) return false;
    std::swap(happening_, happened_);
    for (const Attached& attached : protocols_) {
        batch_.clear();
        for (const Happening& each : happening_) {
            if (each.channel != attached.channel) continue;
            batch_.push_back(each.event);
            if (auto* received = batch_.back().is<Event::Received>()) received->packet = &each.packet;
        }
        if (batch_.empty()) continue;
        actions_.clear();
        actions_.now_us = now;
        actions_.received_us = received_us_.data();
        actions_.drained = proactor_->drained();
        attached.protocol->on(batch_, actions_);
        carry_out(attached);
    }
    happening_.clear();
    return true;
}

// Exchanges without a code (and cssgd, whose code is a sum) copy and add.
static StepPhase compute_phase(const Compute& compute) {
    if (compute.kernel != Kernel::combine) return StepPhase::add;
    return compute.combine->in_signed ? StepPhase::encode : StepPhase::decode;
}

void Loop::carry_out(const Attached& attached) {
    const uint16_t channel = attached.channel;
    for (Send& each : actions_.sends) {
        each.channel = channel;
        each.view = attached.view ? attached.view : config_.view;
        const Span span(config_.profile, Profile::network, StepPhase::send);
        attached.link->send(each, ticket_take(each, attached.view));
    }
    for (const Timer& timer : actions_.timers) {
        std::erase_if(alarms_, [&](const Alarm& alarm) { return alarm.channel == channel && alarm.id == timer.id; });
        if (timer.at_us) alarms_.push_back({channel, timer.id, timer.at_us});
    }
    for (const Compute& compute : actions_.computes) {
        {
            const Span span(config_.profile, Profile::network, compute_phase(compute));
            compute_now(compute);
        }
        deliver(channel, {Event::Computed{compute.ticket}});
    }
    for (Completion& completion : actions_.completions) completion.channel = channel;
    trainer_.push(actions_.completions);
}

// A ticket's index, with one done() to come; ticket_none if the Send has no ticket.
uint32_t Loop::ticket_take(const Send& send, uint32_t view) {
    if (!send.ticket) return ticket_none;
    if (tickets_free_.empty()) {
        tickets_free_.push_back(static_cast<uint32_t>(tickets_.size()));
        tickets_.emplace_back();
    }
    const uint32_t ticket = tickets_free_.back();
    tickets_free_.pop_back();
    tickets_[ticket] = {send.ticket, 1, send.channel, view, {}};
    return ticket;
}

void Loop::done(uint32_t index, Status status) {
    Ticket& ticket = tickets_[index];
    if (!status.ok()) ticket.status = status;
    if (--ticket.open) return;
    tickets_free_.push_back(index);
    if (ticket.view && !(view_open_ && ticket.view == view_)) return;
    deliver(ticket.channel, {Event::Sent{ticket.id, ticket.status}});
}

// ---- what links report -----------------------------------------------------------------------------------------------------------

void Loop::packet(const Packet& packet) {
    received_us_[packet.sender] = turn_us_;
    if (!receiver_of(packet.channel, packet.view)) return;                // its view has ended after land()
    happened_.push_back({packet.channel, {Event::Received{}}, packet});   // dispatch() points the event to the copy
}
void Loop::link_packet_received(const Packet& packet) {
    if (datagrams_) datagrams_->link_packet_received(packet);
}
void Loop::opened(Rank rank, bool first, uint64_t now) {
    if (first) deliver_all(streams_->up(rank));
    for (Link* link : links_) link->opened(rank, now);
}
void Loop::lost(Rank rank, const Status& why) {
    for (Link* link : links_) link->lost(rank);
    deliver_all({Event::PeerLost{rank, why}});
}

}   // namespace gradcast
