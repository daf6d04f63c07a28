// One stream of packets without I/O: Sender turns queued packets into bytes, Receiver turns bytes into packets.  Exactly once and in order
// across reconnects: both sides count packets, the receiver sends its count (in the Hello and in ack packets), and the sender seals and
// sends the missing packets again under the next connection's keys.  A connection's keys are replaced as packets pass (packet_keys.h).
#pragma once
#include <sys/uio.h>

#include <memory>
#include <span>
#include <vector>

#include "transport/link/inline_pool.h"
#include "transport/wire/packet.h"
#include "transport/wire/packet_keys.h"

namespace gradcast {

struct StreamConfig {
    uint32_t job = 0, view = 0;   // view: number in the link's own packets
    Rank self = 0, peer = 0;
    uint32_t ranks = 0, segment_bytes = 0;
    Protect protect = Protect::auth;
    uint64_t packets_per_key = packets_per_key_default;
};

class Sender {
public:
    Sender(const StreamConfig& config, InlinePool& pool);
    ~Sender() {
        clear([](uint32_t) {});
    }
    Sender(const Sender&) = delete;
    Sender& operator=(const Sender&) = delete;

    /// Queues a packet; false if queue_max packets wait.  acked() or clear() give `ticket` back.
    bool push(const Send& send, uint32_t ticket);
    /// Copies the payloads of a view that are not acknowledged, to release the view's memory.  Not while a batch() is being written.
    void own(uint32_t view);
    bool borrows(uint32_t view) const;   // true: own() has something to copy
    /// Starts on a new connection, after acked() with the peer's count.  `ack_sent`: the own count that the handshake sent.
    void restart(const Key& key, uint64_t ack_sent);
    /// The sealed bytes to write next, or the rest of the last batch after wrote(); empty: nothing.  `received`: the own count, sent first.
    std::span<iovec> batch(uint64_t received);
    void wrote(uint64_t bytes);
    /// The peer has received `received` packets: calls done(ticket) for each new one.  False: impossible count.
    template <typename Done>
    bool acked(uint64_t received, Done done) {
        if (received < base_ || received > next_) return false;
        for (; base_ < received; ++base_) release(at(base_), done);
        return true;
    }
    /// Drops all packets and starts again from count 0.
    template <typename Done>
    void clear(Done done) {
        for (; base_ < end_; ++base_) release(at(base_), done);
        base_ = next_ = end_ = 0;
        ack_sent_ = 0;
        pending_ = {};
    }
    bool idle() const { return next_ == end_ && pending_.empty(); }   // nothing to write
    bool acknowledged() const { return base_ == end_; }
    uint64_t pushed() const { return end_; }          // packets since the count was 0
    uint64_t received() const { return base_; }       // of them, what the peer has acknowledged
    uint64_t ack_sent() const { return ack_sent_; }   // the count last sent to the peer
    uint64_t packets() const { return packets_; }     // sealed packets, with repeats and acks
    uint64_t key_epoch() const { return keys_.epoch(); }

    static constexpr uint64_t queue_max = 65536;

private:
    enum class Memory : uint8_t { borrowed, pooled, owned };   // owned: on the heap
    struct Queued {
        std::byte* payload;
        uint32_t bytes, ticket;
        uint32_t view;
        uint16_t channel;
        PacketType type;
        Memory memory;
        std::array<std::byte, 16> body;
    };
    Queued& at(uint64_t index) { return ring_[index & (ring_.size() - 1)]; }
    const Queued& at(uint64_t index) const { return ring_[index & (ring_.size() - 1)]; }
    static bool borrowed(const Queued& packet, uint32_t view) {
        return packet.view == view && packet.memory == Memory::borrowed && packet.bytes > 0;
    }
    template <typename Done>
    void release(Queued& packet, Done& done) {
        if (packet.memory == Memory::pooled) pool_.give(packet.payload);
        else if (packet.memory == Memory::owned) delete[] packet.payload;
        if (packet.ticket != ticket_none) done(packet.ticket);
    }
    void seal(const Queued& packet);
    void append(std::byte* bytes, size_t count);

    static constexpr uint32_t batch_packets = 64;
    static constexpr uint64_t batch_bytes = 512 * 1024;   // sealed at a time; the socket's buffer covers the time of sealing
    const StreamConfig config_;
    InlinePool& pool_;
    PacketKeys keys_;
    uint64_t sequence_ = 0, packets_ = 0, ack_sent_ = 0;
    uint64_t base_ = 0, next_ = 0, end_ = 0;   // first packet: not acknowledged | not yet in a batch | not queued
    std::vector<Queued> ring_;
    std::unique_ptr<std::byte[]> frames_;   // 64 bytes a packet: tag of one packet beside the head of the next
    std::unique_ptr<std::byte[]> cipher_;   // a batch's ciphertext, for Protect::encrypt; grows with use
    uint64_t cipher_bytes_ = 0, cipher_used_ = 0;
    uint32_t count_ = 0;   // packets in the batch
    iovec vectors_[2 * batch_packets + 1];
    std::span<iovec> pending_;
    uint32_t vectors_used_ = 0;
};

/// The link's own packets about datagrams, which have no channel.
constexpr bool link_packet(PacketType type) { return type == PacketType::key || type == PacketType::probe || type == PacketType::datagram; }

/// The callbacks of Receiver.
struct ReceiverSink {
    virtual bool known(uint16_t channel, uint32_t view) = 0;   // such a packet is possible: call land()
    virtual Landing land(const Packet& packet, uint64_t bytes, Buffer* place) = 0;
    virtual void packet(const Packet& packet) = 0;   // a leased payload is valid until the next space()
    virtual bool ack(uint64_t received) = 0;         // false: impossible count
    virtual bool turn() const { return true; }       // false: the next packet waits, like one that lands later
    virtual void delivered(uint64_t) {}              // a packet with a payload of so many bytes, also a dropped one
};

class Receiver {
public:
    explicit Receiver(const StreamConfig& config);
    /// Starts on a new connection; `rest`: the bytes received after the handshake.  Then call parse().
    void restart(const Key& key, std::span<const std::byte> rest);
    /// Sets the ranges for the next received bytes; returns their number.  Leases end here.
    uint32_t space(iovec out[2]);
    void received(uint64_t bytes);
    /// Takes all complete packets.  Null, or the reason to break the stream.
    const char* parse(ReceiverSink& sink);
    /// True while a payload arrives in the memory of a protocol on one of these channels.
    bool placing(std::span<const uint16_t> channels) const;
    bool blocked() const { return blocked_; }   // land() returned later: do not read; call parse() after the next events
    uint64_t delivered() const { return delivered_; }
    uint64_t packets() const { return packets_; }
    void forget() { delivered_ = 0; }
    static constexpr size_t rest_max = 16384;   // most bytes of restart()'s rest

private:
    const char* head(ReceiverSink& sink);
    void grow(size_t bytes);
    std::span<std::byte> waiting() { return {staging_.get() + begin_, end_ - begin_}; }

    const StreamConfig config_;
    const size_t capacity_;   // the largest size of staging_
    PacketKeys keys_;
    uint64_t sequence_ = 0, delivered_ = 0, packets_ = 0;
    std::unique_ptr<std::byte[]> staging_;   // room_ bytes; grows with use
    size_t room_ = 0;
    size_t begin_ = 0, end_ = 0;
    enum class At : uint8_t { head, place, lease } at_ = At::head;   // what comes next
    bool blocked_ = false, wanted_ = true, large_ = false;           // large_: the last payload had its own place
    std::byte head_[packet_head_bytes];
    Packet packet_;                   // payload.bytes is 0 until it has landed
    uint64_t got_ = 0, length_ = 0;   // bytes of the payload
};

}   // namespace gradcast
