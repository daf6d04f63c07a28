// The implementation of the simulator, for sim.cc (nodes, trainers, the loop), packets.cc and views.cc.
//
// One queue of happenings, ordered by (virtual time, number).  A packet on a stream:
//
//   perform -> Pair::queue -> transmit: the sender's link is busy for its bytes, Pair::flight
//           -> arrive: the head is there, land() -> deliver: the receiver's link has passed its bytes -> inbox -> wake: the batch
//           -> a latency after deliver: acked, `Sent`
//
// A datagram:
//
//   Node::datagrams -> transmit: each copy is lost or not -> transmitted: `Sent`
//           -> datagram_arrive: queued before the receiver's link -> datagram_deliver -> inbox -> wake
#pragma once
#include "transport/sim/sim.h"

#include <semaphore.h>

#include <bit>
#include <deque>
#include <map>
#include <queue>

#include "runtime/core/bits.h"
#include "runtime/core/digest.h"
#include "runtime/core/thread.h"
#include "transport/wire/packet.h"

namespace gradcast::sim {

constexpr uint32_t none = UINT32_MAX;
constexpr int poison = 0xDB;
constexpr uint64_t never = UINT64_MAX;

/// A turn, which one thread gives and another one waits for.
class Turn {
public:
    Turn() { GC_ASSERT(sem_init(&given_, 0, 0) == 0); }
    ~Turn() { sem_destroy(&given_); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    void give() { sem_post(&given_); }
    void wait() {
        while (sem_wait(&given_) != 0) {
        }   // EINTR
    }

private:
    sem_t given_;
};

enum class Do : uint8_t {
    wake,
    resume,
    transmit,
    arrive,
    deliver,
    acked,
    transmitted,
    datagram_arrive,
    datagram_deliver,
    timer,
    computed,
    reconnect,
    part,
    heal,
    part_lost,
    kill,
    lost
};

struct Happening {
    uint64_t at_ns, number;
    Do what;
    Rank rank;
    uint64_t a, b;
    bool operator>(const Happening& other) const { return at_ns != other.at_ns ? at_ns > other.at_ns : number > other.number; }
};

/// A Send.
struct Message {
    Rank from = 0;
    uint32_t view = 0;                            // 0: none
    bool datagram = false, transmitted = false;   // transmitted: the last byte is on the wire
    Send send;
    std::vector<std::byte> copy;   // of the payload: made at once if inline, at transmission for datagrams
    uint64_t sum = 0;              // checksum of the payload at Send
    Status status;                 // of the ticket: an error if a receiver was lost
    uint32_t waiting = 0;          // receivers remaining; datagrams: copies in flight
    uint32_t overhead = 0;
    uint64_t bytes() const { return send.payload.bytes + overhead; }
};

/// A Send to one receiver over a stream.
struct Transfer {
    uint32_t message, next;
    Rank from, to;
    uint64_t stamp;   // of its transmission: happenings of an earlier one are void
    bool arrived, landed, complete;
    Landing landing;
    Buffer place;
};

struct List {
    uint32_t head = none, tail = none;
    bool empty() const { return head == none; }
};

/// One direction of a stream.
struct Pair {
    List queue, flight;                       // not yet transmitted; transmitted, not yet taken
    uint64_t flight_bytes = 0, head_ns = 0;   // head_ns: arrival of the last head, keeps the order
    bool up = true, lost = false, active = false, stalled = false;
};

struct Incoming {
    uint16_t channel;
    Event event;
    uint32_t slot = none;
};
struct Slot {
    Packet packet;
    std::vector<std::byte> lease;
};
struct Running {   // a pending Compute
    uint16_t channel;
    Compute compute;
};
struct Stall {
    Rank rank;
    uint64_t from_ns, to_ns;
};
struct Partition {
    std::vector<bool> side;
    uint64_t from_us, to_us;
};

class SimulatorImpl final : public Simulator {
public:
    explicit SimulatorImpl(const SimConfig& config) : config_(config), random_(splitmix64(config.seed)), nodes_(config.ranks) {
        GC_ASSERT(config.ranks >= 1 && config.ranks <= ranks_max && config.rate_bytes_per_s > 0 && config.loss < 1 &&
                  config.loss_sent < 1 && config.loss_burst >= 1);
        for (Rank r = 0; r < config.ranks; ++r) {
            nodes_[r].host.sim = this;
            nodes_[r].host.rank = r;
            nodes_[r].received_us.resize(config.ranks);
        }
    }

    void attach(Rank rank, uint16_t channel, Protocol* protocol) override {
        nodes_[rank].protocols.push_back({channel, false, 0, protocol});
        connect_all();
    }
    void attach_datagrams(Rank rank, uint16_t channel, Protocol* protocol) override {
        nodes_[rank].protocols.push_back({channel, true, 0, protocol});
    }
    void trainer(Rank rank, std::function<Status(Host&)> trainer) override {
        nodes_[rank].trainer = std::move(trainer);
        ++trainers_;
    }
    Host& host(Rank rank) override { return nodes_[rank].host; }
    void kill(Rank rank, uint64_t at_us) override { happen(at_us * 1000, Do::kill, rank); }
    void stall(Rank rank, uint64_t from_us, uint64_t to_us) override { stalls_.push_back({rank, from_us * 1000, to_us * 1000}); }
    void slow(Rank rank, double factor) override { nodes_[rank].slow = factor; }
    void deafen(Rank rank, uint64_t at_us) override { nodes_[rank].deaf_us = at_us; }
    void partition(std::vector<Rank> side, uint64_t from_us, uint64_t to_us) override {
        Partition partition{std::vector<bool>(config_.ranks), from_us, to_us};
        for (Rank r : side) partition.side[r] = true;
        happen(from_us * 1000, Do::part, 0, partitions_.size());
        happen(to_us * 1000, Do::heal, 0, partitions_.size());
        if (to_us - from_us > config_.lost_after_us) happen((from_us + config_.lost_after_us) * 1000, Do::part_lost, 0, partitions_.size());
        partitions_.push_back(std::move(partition));
    }
    Status result(Rank rank) const override { return nodes_[rank].result; }
    uint64_t now_us() const override { return now_ns_ / 1000; }
    uint64_t bytes_sent(Rank rank) const override { return nodes_[rank].bytes_sent; }
    uint64_t bytes_received(Rank rank) const override { return nodes_[rank].bytes_received; }
    const std::vector<SimTrace>& trace() const override { return trace_; }
    uint64_t trace_hash() const override { return hash_; }
    void mark(Rank rank, std::string text) override { note({now_us(), rank, SimTrace::What::mark, {}, 0, 0, 0, std::move(text)}); }
    std::vector<Completion>& completions(Rank rank) override { return nodes_[rank].completions; }
    Status run() override;

private:
    struct SimHost final : Host {
        SimulatorImpl* sim = nullptr;
        Rank rank = 0;
        uint64_t now_us() override { return sim->now_us(); }
        void post(uint16_t channel, const Event& event) override { sim->post(rank, channel, event); }
        Status wait(std::vector<Completion>* out, uint64_t deadline_us) override { return sim->wait(rank, out, deadline_us); }
        void spend(uint64_t us) override { sim->spend(rank, us); }
        void open_view(uint32_t number, std::span<const Attachment> attachments) override { sim->open_view(rank, number, attachments); }
        Status close_view(uint64_t until_us) override { return sim->close_view(rank, until_us); }
    };
    enum class Trainer : uint8_t { runs, waits, spends, done };
    struct Attached {
        uint16_t channel;
        bool datagrams;
        uint32_t view;   // 0: it belongs to none
        Protocol* protocol;
    };
    struct Arrived {   // a packet in the queue of the receiver's link
        uint32_t index;
        bool datagram;    // index is a message, else a transfer
        uint64_t stamp;   // of the transfer
    };
    struct Node {
        SimHost host;
        std::vector<Attached> protocols;
        uint32_t view = 0;   // the open view, else the last one
        bool view_open = false;
        std::vector<Pair> pairs;   // to each rank; empty if only datagrams are used
        std::vector<Incoming> inbox;
        std::vector<Completion> completions;
        std::vector<uint64_t> received_us;   // by rank: time of its last packet
        std::vector<Running> running;
        std::map<std::pair<uint16_t, uint64_t>, uint64_t> timers;   // (channel, id) -> number of the happening
        std::vector<Rank> stalled;                                  // senders that got `later`
        std::deque<Rank> active;                                    // receivers with packets to transmit, in turn
        std::deque<uint32_t> datagrams;
        std::deque<Arrived> arrived;
        uint64_t queued_bytes = 0, wake_ns = never;   // queued: datagrams in `arrived`
        bool datagram_turn = false, transmitting = false, receiving = false, dead = false;
        bool bad = false, bad_sending = false;   // in a burst of losses
        double slow = 1;
        uint64_t deaf_us = never;
        uint64_t bytes_sent = 0, bytes_received = 0;
        std::function<Status(Host&)> trainer;
        Thread thread;
        Turn turn;
        Trainer state = Trainer::runs;
        uint64_t stamp = 0;   // of the trainer's current wait
        Status result;
    };

    // time and chance
    uint64_t random() { return splitmix64(random_ += 0x9E3779B97F4A7C15); }
    double chance() { return static_cast<double>(random() >> 11) * 0x1p-53; }
    uint64_t delay_ns() { return config_.latency_us * 1000 + (config_.jitter_us ? random() % (config_.jitter_us * 1000) : 0); }
    uint64_t pass_ns(uint64_t bytes) const {
        return static_cast<uint64_t>(static_cast<double>(bytes) * 1e9 / config_.rate_bytes_per_s) + 1;
    }
    uint64_t happen(uint64_t at_ns, Do what, Rank rank, uint64_t a = 0, uint64_t b = 0) {
        queue_.push({std::max(at_ns, now_ns_), ++number_, what, rank, a, b});
        return number_;
    }
    void mix(uint64_t value) { hash_ = splitmix64(hash_ ^ value); }
    void note(SimTrace line) {
        mix(line.at_us << 8 ^ static_cast<uint64_t>(line.what) << 4 ^ static_cast<uint64_t>(line.type));
        mix(line.rank);
        mix(line.peer);
        mix(line.step << 32 ^ line.bucket);
        if (config_.trace) trace_.push_back(std::move(line));
    }
    void note_packet(SimTrace::What what, Rank rank, Rank peer, const Send& send);
    Status lost_status(Rank peer) const {
        return fail(Code::peer_lost, "rank {} has not answered for {} ms", peer, config_.lost_after_us / 1000);
    }
    void fault(Status status) {
        if (fault_.ok()) fault_ = status;
    }

    // a node
    void connect_all() {
        if (nodes_[0].pairs.empty())
            for (Node& node : nodes_) node.pairs.resize(config_.ranks);
    }
    const Attached* attached(Rank rank, uint16_t channel, uint32_t view) const;
    void open_view(Rank rank, uint32_t number, std::span<const Attachment> attachments);
    Status close_view(Rank rank, uint64_t until_us);
    void raise_sent(const Message& message, uint64_t ticket);
    void post(Rank rank, uint16_t channel, const Event& event);
    void raise(Rank rank, uint16_t channel, const Event& event, uint32_t slot = none) {
        Node& node = nodes_[rank];
        node.inbox.push_back({channel, event, slot});
        uint64_t wait = config_.batch_us ? random() % (config_.batch_us * 1000) : 0;
        wake(rank, event.is<Event::Computed>() ? 0 : static_cast<uint64_t>(static_cast<double>(wait) * node.slow));
    }
    void raise_all(Rank rank, const Event& event) {
        for (Attached& attached : nodes_[rank].protocols) raise(rank, attached.channel, event);
    }
    void wake(Rank rank, uint64_t in_ns) {
        Node& node = nodes_[rank];
        if (now_ns_ + in_ns >= node.wake_ns) return;
        node.wake_ns = now_ns_ + in_ns;
        happen(node.wake_ns, Do::wake, rank);
    }
    void batch(Rank rank);
    void perform(Rank rank, const Attached& attached, Actions& actions);
    void compute(Rank rank, uint16_t channel, const Compute& compute);
    void computed(Rank rank, uint64_t channel, uint64_t ticket);
    void lost(Rank rank, Rank peer);
    void die(Rank rank);

    // packets
    uint32_t message_new(Rank from, const Attached& attached, const Send& send);
    Buffer message_payload(const Message& m) {
        return m.copy.empty() ? m.send.payload : Buffer{const_cast<std::byte*>(m.copy.data()), nullptr, m.copy.size()};
    }
    bool untouched(const Message& m, Rank to);
    void message_settle(uint32_t index);
    void take(const Message& message, Rank to, Landing landing, Buffer place);
    Landing land(const Message& message, Rank to, Buffer* place);
    Packet packet_of(const Message& m) {
        return {m.send.type, m.send.channel, m.from, m.view ? m.view : 1, m.send.body, {}, m.send.sequence};
    }
    std::string packet_name(Rank from, const Send& send);

    template <typename Each>
    void each_receiver(const RankSet& to, Each each) const {
        if (!to.bits) {
            if (to.rank < nodes_.size()) each(to.rank);
            return;
        }
        for (size_t word = 0; word < bit_words(nodes_.size()); ++word)
            for (uint64_t bits = to.bits[word]; bits != 0; bits &= bits - 1)
                each(static_cast<Rank>(word * 64 + static_cast<unsigned>(std::countr_zero(bits))));
    }

    // streams
    Pair& pair(Rank from, Rank to) { return nodes_[from].pairs[to]; }
    void append(List& list, uint32_t transfer);
    uint32_t pop(List& list);
    bool sendable(const Pair& p) const { return p.up && !p.queue.empty() && p.flight_bytes < config_.window_bytes; }
    void activate(Rank from, Rank to);
    void transmit(Rank from);
    void receive(Rank to);
    void disconnect(Rank a, Rank b, bool back);
    void drop_all(Rank from, Rank to);
    void drain(Rank from, Rank to);

    // datagrams
    void transmit_datagram(Rank from);
    void datagram_arrive(Rank to, uint32_t index);
    void transmitted(uint32_t index);
    bool separated(Rank a, Rank b) const;
    bool unlucky(double loss, bool* bad);

    // trainers: the one with the turn runs
    void resume(Rank rank);
    void pause(Rank rank, Trainer state);
    Status wait(Rank rank, std::vector<Completion>* out, uint64_t deadline_us);
    void spend(Rank rank, uint64_t us);
    bool stopped(Rank rank) const { return stopping_ || nodes_[rank].dead; }

    bool pending(const Happening& timer) const;
    bool put_off(Happening happening);
    void dispatch(const Happening& happening);
    std::string standstill();

    SimConfig config_;
    uint64_t random_, now_ns_ = 0, number_ = 0, hash_ = 0;
    std::deque<Node> nodes_;
    std::priority_queue<Happening, std::vector<Happening>, std::greater<>> queue_;
    std::deque<Message> messages_;   // deques: addresses are stable
    std::deque<Transfer> transfers_;
    std::deque<Slot> slots_;
    std::vector<uint32_t> messages_free_, transfers_free_, slots_free_;
    std::vector<Partition> partitions_;
    std::vector<Stall> stalls_;
    std::vector<Incoming> work_;
    std::vector<Event> events_;
    Actions actions_;
    std::vector<SimTrace> trace_;
    uint32_t trainers_ = 0, trainers_done_ = 0;
    bool started_ = false, stopping_ = false;
    Status fault_, first_error_;
    Turn scheduler_;
};

}   // namespace gradcast::sim
