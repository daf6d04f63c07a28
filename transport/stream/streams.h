// Streams of packets to all peers of one rank, over TCP.  A peer has one stream, or several, its rails: each over an interface or RDMA
// device of its own.
//
//   a rail: down --(connect, or a stream from the listener)--> connecting -> greeting -> open --(any error)--> closing -> down
//
// Rails: a packet goes to the rail with the fewest bytes so far, which both sides count alike, so packets are taken in the order in which
// they were sent; the others wait in the kernel.  A peer is up when all its rails are open.  A rail that breaks is opened again over the
// next interface and repeats what was not acknowledged; until then packets behind those wait.
//
// With LinkConfig::express the last rail has all packets but words, records and fragments of large messages, in their order; its bytes are
// not weighed against those of the others.
//
// Times of a rail: retry_us (next attempt; back-off 5 ms doubling to 200 ms, for a lost peer to 2 s), greet_us (limit of connecting, then
// of the handshake), down_us (when the stream broke; a deadline later the peer is lost), ack_us (when received packets must be
// acknowledged), probe_us (limit of the probe on this connection).
//
// The probe is a packet that fills a TCP segment, sent when a stream opens: where only small packets pass, handshakes do and data
// does not.  A connection whose probe TCP repeats in vain is broken after a quarter of the deadline, and the next one sends it again.  When
// its packets were lost probe_tries times on two connections or more, though these were opened by small packets, the peer is lost.
#pragma once
#include <algorithm>

#include "runtime/core/net/socket.h"
#include "transport/link/base.h"
#include "transport/stream/accepted.h"
#include "transport/stream/stream.h"

namespace gradcast {

struct Peer;

struct Rail {
    enum class State : uint8_t { down, connecting, greeting, open, closing } state = State::down;
    Rail(Peer& peer_, uint32_t number_, const StreamConfig& config, InlinePool& pool)
        : peer(peer_), number(number_), sender(config, pool), receiver(config) {}
    Peer& peer;
    const uint32_t number;
    uint32_t way = 0;       // the interface of the next attempt
    uint32_t turn = 0;      // counts attempts: which of its addresses is next
    uint32_t refused = 0;   // attempts in a row that were refused
    uint64_t look_us = 0;   // when to ask the kernel for repeats
    bool repeats = false;   // they were logged
    uint64_t probe = 0;     // the number of packets up to the probe, until it is acknowledged
    uint64_t probe_us = 0;
    uint32_t tries = 0, connections = 0;   // that the probe has failed
    uint32_t small_bytes = 0;              // the largest packet of a handshake that was sent
    Fd fd;
    Op connect, receive, send;
    Op watch;   // with a pipe: for the end of the socket
    std::unique_ptr<RdmaPipe> pipe;
    RdmaEnd end;                   // of the pipe
    uint32_t failed_devices = 0;   // bits: stays off them from now on
    std::byte watched{};
    iovec watch_to{&watched, 1};
    Status ended;   // the socket has; the stream falls when the pipe is empty
    std::unique_ptr<Handshake> handshake;
    std::unique_ptr<Accepted> next;   // a stream from the listener, used when the old one is closed
    Sender sender;
    Receiver receiver;
    uint64_t dealt_bytes = 0, taken_bytes = 0;   // of packets since the peer's start: sent here, received here
    iovec receive_to[2];
    std::vector<std::byte> greeting, greeting_out;   // handshake bytes: received, being sent
    iovec greeting_out_vector{};
    uint64_t retry_us = 0, backoff_us = 0, greet_us = 0, down_us = 0, ack_us = 0;
    uint64_t unacknowledged_bytes = 0, counted_sent = 0, counted_received = 0;
    bool memory_waits = false;   // the peer's, for the next acknowledgement

    bool in_use() const { return connect.busy || receive.busy || send.busy || watch.busy; }
};

struct Peer {
    explicit Peer(Rank rank_) : rank(rank_) {}
    const Rank rank;
    bool active = false;                                 // this side connects
    Identity identity;                                   // the expected one; after the first handshake the peer's
    std::string label;                                   // "peer 'b' (rank 1, 127.0.0.1:4711)"
    std::vector<std::vector<SocketAddress>> addresses;   // by interface: all that its name has
    std::vector<std::unique_ptr<Rail>> rails;
    uint64_t stream = 0, peer_stream = 0;   // Hello::stream: own, the peer's (0: not known)
    uint32_t key = 0;                       // number of the key to offer next, in `tls`
    std::weak_ptr<const TlsContext> tls;
    uint32_t strikes = 0;   // refusals since the last open stream
    bool up = false;        // PeerUp has been sent
    bool lost = false;      // PeerLost has been sent
    bool final = false;     // lost for good
    bool express = false;   // the last rail is LinkConfig::express
    bool losing = false;    // to be lost when its operations are done
    uint32_t narrow = 0;    // losses in a row because only small packets reach it
    Status last;            // why there is no stream
    Status small_only;      // what the last unanswered probe shows; ok() after an answered one
    Rail* express_rail() const { return express ? rails.back().get() : nullptr; }
    /// The rail with the fewest bytes, which gets the next packet, or has the next one; never the express rail.
    Rail& rail(uint64_t Rail::*bytes) const {
        return **std::min_element(rails.begin(), rails.end() - express,
                                  [bytes](const auto& a, const auto& b) { return (*a).*bytes < (*b).*bytes; });
    }
};

class Streams final : public Link, private ReceiverSink {
public:
    /// received_us: by rank, set to the time of its last bytes.
    Streams(const LinkConfig& config, const Log& log, LinkCounters& counters, InlinePool& pool, LinkOwner& owner, uint64_t* received_us)
        : config_(config), log_(log), counters_(counters), pool_(pool), owner_(owner), received_us_(received_us) {}
    Status open(Proactor& proactor, Rdma* rdma);
    void begin(uint64_t now);   // before the first turn
    /// The next peer, which LinkConfig has now.  An address that is none: it may come by itself all the same.
    Status add_peer(uint64_t now);
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
    void probe();                                         // all open streams once more
    void send_link_packet(Rank rank, const Send& send);   // a packet of the link itself
    void finish() { finishing_ = true; }                  // acknowledge at once
    const std::string& label(Rank rank) const { return peers_[rank]->label; }
    Event up(Rank rank) const { return {Event::PeerUp{rank, peers_[rank]->identity.incarnation}}; }
    /// Calls each(event) with PeerUp or PeerLost of every peer that is up or lost.
    template <typename Each>
    void introduce(Each each) const {
        for (const auto& peer : peers_)
            if (peer && (peer->up || peer->lost)) each(peer->lost ? Event{Event::PeerLost{peer->rank, peer->last}} : up(peer->rank));
    }

private:
    static constexpr uint64_t backoff_us_min = 5'000;
    static constexpr uint64_t greet_limit_us = 5'000'000;   // for the handshake
    static constexpr uint64_t probe_parts = 4;              // of the deadline, for the probe on one connection
    static constexpr uint32_t probe_tries = 8;              // with 20% loss each way one stream in 3000 fails so many

    // ReceiverSink, of the rail receiving_
    bool turn() const override;
    void delivered(uint64_t bytes) override;
    bool known(uint16_t channel, uint32_t view) override { return owner_.known(channel, view); }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override;
    void packet(const Packet& packet) override;
    bool ack(uint64_t received) override;

    // streams.cc: all peers, packets
    Status make_peer();
    void begin(Peer& peer, uint64_t now, bool here);
    void send_piece(const Send& send, uint32_t ticket);
    static bool shares_rails(const Send& send);
    bool push(Peer& peer, const Send& send, uint32_t ticket);
    void parse(Rail& rail, uint64_t now);
    bool take(Rail& rail, uint64_t now);
    bool acked(Rail& rail, uint64_t received);
    void pump(Rail& rail, uint64_t now);

    // streams_open.cc: from down to open
    Hello own_hello(const Rail& rail) const;
    void offer(Rail& rail);
    void connect(Rail& rail, uint64_t now);
    void equip(Rail& rail, uint64_t now);
    void take_up(Rail& rail, uint64_t now);
    void greet(Rail& rail, std::span<const std::byte> bytes, uint64_t now);
    void turned_away(Rail& rail);
    std::string conflict(const Peer& peer, const Hello& hello) const;
    void hello_received(Rail& rail);
    void open_pipe(Rail& rail, uint32_t device);
    bool connect_pipe(Rail& rail, const RdmaEnd& end);
    uint32_t device_of(const Rail& rail) const;
    void leave_device(Rail& rail, std::string_view why);
    void drop_pipe(Rail& rail);
    void opened(Rail& rail, std::span<const std::byte> rest, uint64_t now);

    // streams_fall.cc: from open to down, and the times of a rail
    void fall(Rail& rail, Status why);   // breaks the stream; the next one follows after the back-off
    void begin_anew(Peer& peer);
    void lose(Peer& peer);
    void tend(Peer& peer, uint64_t now);
    void tend(Rail& rail, uint64_t now);
    void next_way(Rail& rail) const;
    const SocketAddress& to(const Rail& rail) const;   // of its next attempt
    std::string to_text(const Rail& rail) const;
    bool provable(const Peer& peer) const;
    uint64_t due_us(const Rail& rail) const;

    // streams_probe.cc: whether large packets pass
    void look_for_repeats(Rail& rail, uint64_t now);
    void probe(Peer& peer, uint64_t now);
    void answered(Rail& rail);
    Status unanswered(Rail& rail, Status why);

    uint32_t ways(const Peer& peer) const { return static_cast<uint32_t>(peer.addresses.size()); }
    static constexpr uint64_t packet_cost(uint64_t bytes) { return bytes + packet_head_bytes + tag_bytes; }
    template <typename Each>
    void each_rail(Each each) const {
        for (const auto& peer : peers_)
            if (peer)
                for (const auto& rail : peer->rails) each(*rail);
    }

    const LinkConfig& config_;
    const Log& log_;
    LinkCounters& counters_;
    InlinePool& pool_;
    LinkOwner& owner_;
    uint64_t* const received_us_;
    Proactor* proactor_ = nullptr;
    Rdma* rdma_ = nullptr;   // the same one, or null: no pipes
    std::shared_ptr<const KeyRing> ring_;
    std::vector<std::unique_ptr<Peer>> peers_;   // by rank, null for self
    std::vector<SocketAddress> interfaces_;      // LinkConfig's
    Rail* receiving_ = nullptr;
    std::string stranger_;   // the last log line about a stranger
    bool finishing_ = false;
    uint32_t closing_view_ = 0;       // the view that close_view() has ended
    std::vector<uint16_t> closing_;   // its channels
    uint64_t break_us_ = 0;           // when streams are broken that still hold its memory; 0: none does
};

}   // namespace gradcast
