// The Driver: the network thread of one rank.  A turn of its loop collects completed operations, posted events and timers, gives them to
// the protocols as batches of events, carries out the protocols' actions, and starts the next operations.
//
//   a peer's stream: down --(connect, or a stream from the listener)--> connecting -> greeting -> open --(any error)--> closing -> down
//
// Times of a peer: retry_us (next attempt; back-off 5 ms doubling to 200 ms, for a lost peer to 2 s), greet_us (limit of connecting, then
// of the handshake), down_us (when the stream broke; a deadline later the peer is lost), ack_us (when received packets must be
// acknowledged).
#pragma once
#include <condition_variable>
#include <mutex>

#include "runtime/core/clock.h"
#include "transport/link/datagrams.h"
#include "transport/link/socket.h"

namespace gradcast {

struct Peer {
    enum class State : uint8_t { down, connecting, greeting, open, closing } state = State::down;
    Peer(const StreamConfig& config, InlinePool& pool) : rank(config.peer), sender(config, pool), receiver(config) {}
    const Rank rank;
    bool active = false;   // this side connects
    Identity identity;     // the expected one; after the first handshake the peer's
    std::string label;     // "peer 'b' (rank 1, 127.0.0.1:4711)"
    SocketAddress address;
    Fd fd;
    Op connect, receive, send;
    std::unique_ptr<Handshake> handshake;
    std::unique_ptr<Accepted> next;   // a stream from the listener, used when the old one is closed
    Sender sender;
    Receiver receiver;
    iovec receive_to[2];
    std::vector<std::byte> greeting, telling;   // handshake bytes: received, being sent
    iovec telling_vector{};
    uint64_t stream = 0, peer_stream = 0;   // Hello::stream: own, the peer's (0: not known)
    uint64_t retry_us = 0, backoff_us = 0, greet_us = 0, down_us = 0, ack_us = 0;
    uint64_t unacknowledged_bytes = 0, counted_sent = 0, counted_received = 0;
    uint32_t key = 0;       // number of the key to offer next
    uint32_t strikes = 0;   // refusals since the last open stream
    bool up = false;        // peer_up has been sent
    bool lost = false;      // peer_lost has been sent
    bool final = false;     // lost for good
    bool losing = false;    // to be lost when its operations are done
    Status last;            // why there is no stream
};

/// Completions from the network thread to the trainer (Host::wait).
class TrainerQueue {
public:
    void push(std::vector<Completion>& completions);
    void end();
    Status wait(std::vector<Completion>* out, uint64_t deadline_us);
    /// For Host::close_view: closing() before the request, wait_closed() after it.  closed() is the network thread's answer and drops the
    /// completions of these channels.
    void closing();
    Status wait_closed(uint64_t until_us);
    void closed(std::span<const uint16_t> channels);

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<Completion> queue_;
    bool ended_ = false, closed_ = false;
};

class TcpDriver final : public Driver, private Host, private ReceiverSink, private DatagramOwner {
public:
    TcpDriver(const LinkConfig& config, const Log& log) : config_(config), log_(log) {}
    ~TcpDriver() override;
    Status open();

    void attach(uint16_t channel, Protocol* protocol) override;
    void attach_datagrams(uint16_t channel, Protocol* protocol) override;
    void register_memory(Buffer) override {}   // see proactor_uring.cc
    Status run() override;
    void stop() override;
    void adopt(std::unique_ptr<AcceptedStream> stream) override;
    Host& host() override { return *this; }
    const LinkCounters& counters() const override { return counters_; }
    const char* name() const override { return proactor_->name(); }
    const char* datagrams_name() const override { return !datagrams_ ? "" : proactor_->name()[0] == 'u' ? "uring_udp" : "epoll_udp"; }
    std::optional<DatagramsFound> datagrams_found() const override {
        return datagrams_ ? std::optional(datagrams_->found()) : std::nullopt;
    }

private:
    struct Happening {   // an event for a channel
        uint16_t channel;
        Event event;
        Packet packet;
    };
    struct Attached {
        uint16_t channel;
        uint32_t view;   // 0: it belongs to none
        Protocol* protocol;
    };
    /// Posted by other threads to the network thread, in order.
    struct Posted {
        enum class What : uint8_t { event, open_view, close_view } what = What::event;
        uint16_t channel = 0;
        uint32_t view = 0;
        Event event;
        std::vector<Attachment> attachments;
    };
    struct Ticket {
        uint64_t id;
        uint32_t open;   // sends that are not acknowledged
        uint16_t channel;
        uint32_t view;   // 0: of none
        Status status;
    };
    struct Alarm {
        uint16_t channel;
        uint64_t id, at_us;
    };

    // Host
    uint64_t now_us() override { return clock_us(); }
    void post(uint16_t channel, const Event& event) override;
    Status wait(std::vector<Completion>* out, uint64_t deadline_us) override { return trainer_.wait(out, deadline_us); }
    void open_view(uint32_t number, std::span<const Attachment> attachments) override;
    Status close_view(uint64_t until_us) override;
    // ReceiverSink (of the peer receiving_) and DatagramSink
    bool known(uint16_t channel, uint32_t view) override;
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override;
    void packet(const Packet& packet) override;
    // DatagramOwner
    void sent(uint32_t ticket) override { ticket_done(ticket, {}); }
    void tell(Rank rank, const Send& send) override;
    void unreachable(Rank rank, Status why) override;
    const std::string& label(Rank rank) const override { return peers_[rank]->label; }
    bool ack(uint64_t received) override;

    // driver.cc: the loop
    const Attached* attached(uint16_t channel) const;
    const Attached* receiver_of(uint16_t channel, uint32_t view) const;
    void post(Posted posted);
    void tell(uint16_t channel, const Event& event) { happened_.push_back({channel, event, {}}); }
    void tell_all(const Event& event);
    void take_posted();
    void give_up(Rank rank, Status why);
    void ring_alarms(uint64_t now);
    bool dispatch(uint64_t now);
    void carry_out(const Attached& attached);
    void send(const Send& send, uint32_t view);
    uint32_t ticket_take(const Send& send, uint32_t view);
    bool by_datagrams(uint16_t channel) const { return datagrams_ && datagrams_->attached(channel); }
    void ticket_done(uint32_t index, Status status);
    uint64_t sleep_us(uint64_t now);
    bool flushed(uint64_t now);
    void wake();

    // driver_views.cc: the open view
    void begin_view(const Posted& posted);
    void end_view();
    bool view_drained();
    void forget_view();

    // driver_stream.cc: one peer's stream
    void complete(Op& op, uint64_t now);
    void parse(Peer& peer, uint64_t now);
    Hello own_hello(const Peer& peer) const;
    void connect(Peer& peer, uint64_t now);
    void equip(Peer& peer, uint64_t now);
    void invite(std::unique_ptr<Accepted> stream);
    void take_up(Peer& peer, uint64_t now);
    void greet(Peer& peer, std::span<const std::byte> bytes, uint64_t now);
    std::string conflict(const Peer& peer, const Hello& hello) const;
    void meet(Peer& peer);
    void opened(Peer& peer, std::span<const std::byte> rest, uint64_t now);
    void turned_away(Peer& peer);
    void fall(Peer& peer, Status why);   // breaks the stream; the next one follows after the back-off
    void begin_anew(Peer& peer);
    void lose(Peer& peer);
    void tend(Peer& peer, uint64_t now);
    bool provable(const Peer& peer) const;
    uint64_t due_us(const Peer& peer) const;
    void pump(Peer& peer, uint64_t now);

    const LinkConfig config_;
    const Log log_;
    std::shared_ptr<const TlsContext> tls_;
    std::unique_ptr<Proactor> proactor_;
    InlinePool pool_;
    std::unique_ptr<Datagrams> datagrams_;       // null without LinkConfig::datagrams
    std::vector<std::unique_ptr<Peer>> peers_;   // by rank, null for self
    std::vector<Attached> protocols_;
    uint32_t view_ = 0;   // the open view, else the last one; 0: none yet
    bool view_open_ = false, ending_ = false;
    std::vector<uint16_t> closing_;   // channels of the ended view until it is drained
    LinkCounters counters_;
    TrainerQueue trainer_;

    std::vector<Op*> done_;
    std::vector<Happening> happened_, happening_;   // for the next dispatch; in the current one
    std::vector<Event> batch_;
    Actions actions_;
    std::vector<Alarm> alarms_;
    std::vector<Ticket> tickets_;
    std::vector<uint32_t> tickets_free_;
    std::vector<uint64_t> heard_us_;   // by rank: time of its last bytes
    uint64_t turn_us_ = 0;             // start of the current turn
    Peer* receiving_ = nullptr;
    bool handled_ = false;       // the last dispatch had events: parse blocked streams again
    std::string stranger_;       // the last log line about a stranger
    uint64_t stopping_us_ = 0;   // deadline of the flush; 0: not stopping

    std::mutex mutex_;   // guards posted_ and adopted_
    std::vector<Posted> posted_, taken_;
    std::vector<std::unique_ptr<Accepted>> adopted_;
    std::atomic<bool> asleep_{false}, stop_{false};
};

}   // namespace gradcast
