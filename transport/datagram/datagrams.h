// The datagram half of a driver: sends for protocols on datagram channels, gives them what arrives, and finds out at the start whether
// multicast reaches all ranks.
//
// Keys: each rank sends a random key and the address of its socket on every new stream (PacketType::key); the peer confirms it.
// Probe: once every peer that is not lost has our key, a train of full-size datagrams goes to the group, at most three times; peers answer
// on their streams how many arrived.
//
//   waiting -> multicast --(all have 3/4 of a train)--> settled: multicast
//   multicast --(500 ms)--> narrow: trains to each peer alone, also of smaller sizes -> settled: a Send to several is one to each
//
// A peer that no train reaches is logged at once, probed for a quarter of the link's deadline, then lost.  Sends wait until the probe has
// ended.  It starts again when a new peer comes.
#pragma once
#include <mutex>

#include "transport/datagram/datagram.h"
#include "transport/datagram/datagram_socket.h"
#include "transport/kernel/rdma.h"
#include "transport/link/base.h"
#include "transport/link/inline_pool.h"

namespace gradcast {

/// All for the network thread but found(), and attach(), which comes before.
///
/// A view of the job (Host::open_view) has its own channels, keys and replay windows.  Each rank makes a key for it and sends it on the
/// streams before anything else of that view.
///
/// Where datagrams to a peer stop arriving, as behind a firewall that is closed in mid-job, they go by its stream, sealed as they are: the
/// peer opens them like others.
class Datagrams final : public Link, private DatagramSink {
public:
    Datagrams(const LinkConfig& config, const Log& log, LinkCounters& counters, InlinePool& pool, LinkOwner& owner);
    Status open(Proactor& proactor, Rdma* rdma);   // rdma: the same one, or null: over UDP
    void add_peer();                               // the next peer, which LinkConfig has now
    void attach(uint16_t channel) override {
        receiver_.attach(channel);
        needed_ = true;
    }
    void open_view(uint32_t number, std::span<const uint16_t> channels) override;
    void close_view(uint32_t number, std::span<const uint16_t> channels) override;   // drops Sends that are not sealed yet
    bool view_drained() override { return closing_bursts_ == 0; }

    void opened(Rank rank, uint64_t now) override;
    void lost(Rank rank) override;
    void link_packet_received(const Packet& packet);   // a key or probe packet of the peer's stream
    void send(const Send& send, uint32_t ticket) override;
    void complete(Op& op, uint64_t now) override;
    void receive(uint64_t now) override;
    void tend(uint64_t, bool) override {}
    void pump(uint64_t now) override;
    uint64_t due_us() const override;
    bool idle() const override { return !flying_ && !current_ && data_.empty() && trains_.empty(); }
    void close() override;
    bool busy() const override { return flying_ || proactor_->receiving(); }
    DatagramsFound found() const;
    /// Once the probe that runs has ended.
    void probe_again() {
        GC_ASSERT(config_.datagrams.probe_only);
        if (phase_ == Phase::settled) phase_ = Phase::waiting;
    }

private:
    static constexpr uint32_t stages = 6;   // 0: the group; 1: one peer; 2..: one peer, smaller sizes
    // While data is sent, each peer is asked by its stream whether datagrams still come: see ask().
    static constexpr uint32_t watch_stage = stages, watch_question = 0xffff, watch_datagrams = 2, silent_max = 4;
    static constexpr uint32_t burst_max = 16, shots_max = 32;
    static constexpr uint32_t frame_bytes = datagram_overhead_bytes;

    struct Mate {
        SocketAddress address;
        bool up = false, lost = false, addressed = false;
        bool ready = false;   // it has this rank's key
        bool beside = true;   // in our network namespace, unless its key says otherwise
        uint64_t up_us = 0;
        uint32_t had[stages] = {}, rate_mbit = 0;   // of our trains, by its answers
        uint32_t silent = 0;                        // answers in a row that none of ours has come
        bool by_stream = false;                     // what is for it goes by its stream
        // The peer's trains.
        uint32_t watch_received = 0;                                     // since its last question
        uint32_t round = 0, received[stages] = {}, train[stages] = {};   // received: packets of the newest train
        uint32_t reports = 0;                                            // bits: stages to report
        uint32_t key_view = 0;                                           // the newest view whose key it has sent
        Key view_key{};
    };
    /// The trains of all peers as one stream of bytes, for the rate.  The first burst is not counted, because a shaper lets it pass at
    /// once.
    struct Arriving {
        uint64_t first_bytes = 0, later_bytes = 0, from_us = 0, last_us = 0;
    };
    static constexpr uint64_t burst_bytes = 64 * 1024, pause_us = 10'000;
    struct Queued {
        Send send;
        uint32_t ticket;
        bool inlined, to_group;   // to_group: even if multicast does not reach all
        bool alone = false;       // in its own burst
    };
    class Queue {
    public:
        bool empty() const { return first_ == end_; }
        uint64_t size() const { return end_ - first_; }
        Queued& front() { return ring_[first_ & (ring_.size() - 1)]; }
        void pop() { ++first_; }
        void push(const Queued& queued);

    private:
        std::vector<Queued> ring_ = std::vector<Queued>(1024);   // grows to the largest backlog
        uint64_t first_ = 0, end_ = 0;
    };
    struct Burst {   // sealed datagrams of one size (the last may be shorter) to the same receivers
        std::unique_ptr<std::byte[]> frames, cipher;
        iovec vectors[2 * burst_max];
        uint32_t vectors_used, count, segment_bytes, bytes;
        uint32_t tickets[burst_max];
        std::byte* inlined[burst_max];
        RankSet to;
        bool to_group, copies, aimed;   // aimed: at least one receiver has an address
        bool closing;                   // its view has ended
        bool probes;                    // of the link itself
        Rank next;                      // copies: the next receiver
        uint32_t open;                  // shots in flight, plus one while receivers remain
    };
    struct Shot {   // a burst in flight to one address
        Op op;
        Burst* burst = nullptr;
        alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(uint16_t))];
    };

    // DatagramSink
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override;
    void packet(const Packet& packet) override;

    bool in_view(uint16_t channel) const { return view_receiver_ && view_receiver_->attached(channel); }
    void send_key(Rank rank, const DatagramSealer& sealer, uint32_t view);
    DatagramFault take(std::span<std::byte> bytes);
    Burst* next_burst();
    void append(Burst& burst, std::byte* bytes, size_t count);
    const SocketAddress* aim(Burst& burst);
    void load(Shot& shot, Burst& burst, const SocketAddress& to);
    void release(Burst& burst);
    void failed(const Shot& shot, int error, uint64_t now);
    void suspect(const sockaddr_storage& from, uint64_t now);
    void tend_loop();
    uint8_t family() const { return sockets_.rdma ? 2 : sockets_.ipv6(); }   // KeyBody::family
    void report();

    void probe(uint64_t now);
    void watch(uint64_t now);
    void ask(Rank rank);
    void answered(Rank rank, uint32_t count);
    void detour(Burst& burst);
    uint64_t watch_every_us() const { return std::max<uint64_t>(config_.deadline_us / 16, 100'000); }
    void train(uint32_t stage, Rank rank);   // rank = ranks: the group
    bool reached(const Mate& mate, uint32_t stage) const { return mate.had[stage] >= train_datagrams(stage) * 3 / 4; }
    uint32_t train_datagrams(uint32_t stage) const {   // longer with few ranks, to measure a rate
        const auto others = static_cast<uint32_t>(mates_.size() - 1);
        return stage == 0 ? std::max(2 * burst_max, 128 / std::max(others, 1u)) : stage == 1 ? burst_max : 4;
    }
    uint64_t give_up_after_us() const;   // of peers that datagrams one by one do not reach
    bool concerns(Rank rank) const { return rank != config_.rank && !mates_[rank].lost; }
    bool all_reached(uint32_t stage) const;
    std::vector<std::string> missing(uint32_t stage) const;
    void settle(bool multicast);
    bool stream_stands(uint64_t now) const;
    void say_unreachable();
    Status unreached(Rank rank) const;

    const LinkConfig& config_;
    const Log& log_;
    LinkCounters& counters_;
    InlinePool& pool_;
    LinkOwner& owner_;
    Proactor* proactor_ = nullptr;
    DatagramSockets sockets_;
    DatagramSealer sealer_;
    DatagramReceiver receiver_;
    std::unique_ptr<DatagramSealer> view_sealer_;   // of the open view; null: none
    std::unique_ptr<DatagramReceiver> view_receiver_;
    uint32_t past_view_ = 0;        // the last view that has ended
    uint32_t closing_bursts_ = 0;   // of past_view_, in flight
    std::vector<Mate> mates_;
    bool reporting_ = false;
    uint64_t now_us_ = 0;   // start of this turn

    Queue data_, trains_;
    std::vector<Burst> bursts_ = std::vector<Burst>(shots_max + 1);
    std::vector<Burst*> bursts_free_;
    std::vector<Shot> shots_ = std::vector<Shot>(shots_max);
    Burst* current_ = nullptr;   // the burst that has receivers remaining
    uint32_t flying_ = 0;        // shots in flight
    uint64_t complained_us_ = 0;

    enum class Phase : uint8_t { waiting, multicast, narrow, settled } phase_ = Phase::waiting;
    bool multicast_ = false, said_ = false;
    /// Some channel has been attached.  Until then a peer that no datagram reaches is neither warned of nor given up, and probes go on.
    bool needed_ = false;
    uint32_t round_ = 0, sizes_[stages] = {};   // sizes_: payload by stage, 0: none
    uint64_t next_try_us_ = 0, deadline_us_ = 0, give_up_us_ = 0, probe_sequence_ = 0;
    uint32_t trains_sent_ = 0;
    uint64_t watch_us_ = 0;         // the next time of ask()
    bool sent_ = false;             // data since the last one
    uint32_t by_streams_ = 0;       // mates with by_stream
    std::vector<std::byte> flat_;   // of detour()
    Arriving arriving_;
    std::vector<std::byte> blank_;   // the payload of probes
    mutable std::mutex found_mutex_;
    DatagramsFound found_;   // written by the network thread only

    sockaddr_storage suspect_{};
    uint64_t suspect_count_ = 0, suspect_since_us_ = 0, suspect_said_us_ = 0;
};

}   // namespace gradcast
