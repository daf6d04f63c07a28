// Streams of packets to all peers of one rank, over TCP.
//
//   a peer's stream: down --(connect, or a stream from the listener)--> connecting -> greeting -> open --(any error)--> closing -> down
//
// Times of a peer: retry_us (next attempt; back-off 5 ms doubling to 200 ms, for a lost peer to 2 s), greet_us (limit of connecting, then
// of the handshake), down_us (when the stream broke; a deadline later the peer is lost), ack_us (when received packets must be
// acknowledged).
#pragma once
#include "transport/link/base.h"
#include "transport/link/socket.h"
#include "transport/link/stream.h"

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
    Op watch;   // with a pipe: for the end of the socket
    std::unique_ptr<RdmaPipe> pipe;
    RdmaEnd end;                // of the pipe
    bool rdma_failed = false;   // stays on TCP from now on
    std::byte watched{};
    iovec watch_to{&watched, 1};
    Status ended;   // the socket has; the stream falls when the pipe is empty
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
    uint32_t key = 0;   // number of the key to offer next, in `tls`
    std::weak_ptr<const TlsContext> tls;
    uint32_t strikes = 0;   // refusals since the last open stream
    bool up = false;        // peer_up has been sent
    bool lost = false;      // peer_lost has been sent
    bool final = false;     // lost for good
    bool losing = false;    // to be lost when its operations are done
    Status last;            // why there is no stream
};

class Streams final : public Link, private ReceiverSink {
public:
    /// heard_us: by rank, set to the time of its last bytes.
    Streams(const LinkConfig& config, const Log& log, LinkCounters& counters, InlinePool& pool, LinkOwner& owner, uint64_t* heard_us)
        : config_(config), log_(log), counters_(counters), pool_(pool), owner_(owner), heard_us_(heard_us) {}
    Status open(Proactor& proactor, Rdma* rdma);
    void begin(uint64_t now);   // before the first turn
    void attach(uint16_t) override {}
    void open_view(uint32_t, std::span<const uint16_t>) override {}
    void close_view(uint32_t number, std::span<const uint16_t> channels) override;
    bool view_drained() override;
    void opened(Rank, uint64_t) override {}
    void lost(Rank) override {}
    void send(const Send& send, uint32_t ticket) override;
    void complete(Op& op, uint64_t now) override;
    void receive(uint64_t) override {}
    void tend(uint64_t now, bool again) override;
    void pump(uint64_t now) override;
    uint64_t due_us() const override;
    bool idle() const override;
    void close() override;
    bool busy() const override;

    void invite(std::unique_ptr<Accepted> stream);   // from the listener
    void give_up(Rank rank, Status why);
    void tell(Rank rank, const Send& send);   // a packet of the link itself
    void finish() { finishing_ = true; }      // acknowledge at once
    const std::string& label(Rank rank) const { return peers_[rank]->label; }
    /// Event::tag is the peer's incarnation.
    Event up(Rank rank) const {
        Event event = up_event(rank);
        event.tag = peers_[rank]->identity.incarnation;
        return event;
    }
    /// Calls each(event) with peer_up or peer_lost of every peer that is up or lost.
    template <typename Each>
    void introduce(Each each) const {
        for (const auto& peer : peers_)
            if (peer && (peer->up || peer->lost)) each(peer->lost ? lost_event(peer->rank, peer->last) : up(peer->rank));
    }

private:
    static constexpr uint64_t backoff_us_min = 5'000;
    static constexpr uint64_t greet_limit_us = 5'000'000;   // for the handshake

    // ReceiverSink, of the peer receiving_
    bool known(uint16_t channel, uint32_t view) override { return owner_.known(channel, view); }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override;
    void packet(const Packet& packet) override;
    bool ack(uint64_t received) override;

    void send_piece(const Send& send, uint32_t ticket);
    void parse(Peer& peer, uint64_t now);
    Hello own_hello(const Peer& peer) const;
    void connect(Peer& peer, uint64_t now);
    void equip(Peer& peer, uint64_t now);
    void take_up(Peer& peer, uint64_t now);
    void greet(Peer& peer, std::span<const std::byte> bytes, uint64_t now);
    std::string conflict(const Peer& peer, const Hello& hello) const;
    void meet(Peer& peer);
    void open_pipe(Peer& peer);
    bool connect_pipe(Peer& peer, const RdmaEnd& end);
    void drop_pipe(Peer& peer);
    void opened(Peer& peer, std::span<const std::byte> rest, uint64_t now);
    void offer(Peer& peer);
    void turned_away(Peer& peer);
    void fall(Peer& peer, Status why);   // breaks the stream; the next one follows after the back-off
    void begin_anew(Peer& peer);
    void lose(Peer& peer);
    void tend(Peer& peer, uint64_t now);
    bool provable(const Peer& peer) const;
    uint64_t due_us(const Peer& peer) const;
    void pump(Peer& peer, uint64_t now);

    const LinkConfig& config_;
    const Log& log_;
    LinkCounters& counters_;
    InlinePool& pool_;
    LinkOwner& owner_;
    uint64_t* const heard_us_;
    Proactor* proactor_ = nullptr;
    Rdma* rdma_ = nullptr;   // the same one, or null: no pipes
    std::shared_ptr<const KeyRing> ring_;
    std::vector<std::unique_ptr<Peer>> peers_;   // by rank, null for self
    Peer* receiving_ = nullptr;
    std::string stranger_;   // the last log line about a stranger
    bool finishing_ = false;
    uint32_t closing_view_ = 0;       // the view that close_view() has ended
    std::vector<uint16_t> closing_;   // its channels
    uint64_t break_us_ = 0;           // when streams are broken that still hold its memory; 0: none does
};

}   // namespace gradcast
