// One stream of packets, apart from what carries it: Sender turns queued packets into bytes, Receiver bytes into packets.  Exactly once and
// in order across reconnects: both sides count packets, the receiver tells its count (in the Hello and in ack packets), and what it lacks
// is sealed and sent again under the next connection's keys.
#pragma once
#include <sys/uio.h>

#include <memory>
#include <span>
#include <vector>

#include "runtime/core/crypto.h"
#include "transport/wire/packet.h"

namespace gradcast {

struct StreamConfig {
    uint32_t job = 0, view = 0;   // view: of the link's own packets
    Rank self = 0, peer = 0;
    uint32_t ranks = 0, segment_bytes = 0;
    Protect protect = Protect::auth;
};

/// Copies of small payloads, one slot each.  Slots never move; memory grows to the most that was ever queued at once.
class InlinePool {
public:
    std::byte* take();
    void give(std::byte* slot) { free_.push_back(slot); }

private:
    static constexpr size_t slots = 256;   // a slab
    std::vector<std::unique_ptr<std::byte[]>> slabs_;
    std::vector<std::byte*> free_;
};

constexpr uint32_t ticket_none = 0xffffffff;

class Sender {
public:
    Sender(const StreamConfig& config, InlinePool& pool);
    ~Sender() {
        clear([](uint32_t) {});
    }
    Sender(const Sender&) = delete;
    Sender& operator=(const Sender&) = delete;

    /// Queues a packet.  False when queue_max packets wait already.  `ticket` comes back from acked() or clear().
    bool push(const Send& send, uint32_t ticket);
    /// Copies the payloads of a view that are not acknowledged, so that their memory may go.  Not while what batch() gave is being written.
    void own(uint32_t view);
    bool borrows(uint32_t view) const;   // there are some
    /// A new connection, whose peer's count acked() has been told, and to whose peer our own count `told` has been told in the handshake.
    void restart(const Key& key, uint64_t told);
    /// What to write next, sealed, empty when there is nothing; what is left of it after wrote().  `received`: packets that we have had,
    /// told in front.
    std::span<iovec> batch(uint64_t received);
    void wrote(uint64_t bytes);
    /// The peer has had `received` packets: calls done(ticket) for each that is new.  False when that cannot be.
    template <typename Done>
    bool acked(uint64_t received, Done done) {
        if (received < base_ || received > next_) return false;
        for (; base_ < received; ++base_) release(at(base_), done);
        return true;
    }
    /// Forgets everything, as if nothing had ever been sent.
    template <typename Done>
    void clear(Done done) {
        for (; base_ < end_; ++base_) release(at(base_), done);
        base_ = next_ = end_ = 0;
        told_ = 0;
        pending_ = {};
    }
    bool idle() const { return next_ == end_ && pending_.empty(); }   // nothing left to write
    bool acknowledged() const { return base_ == end_; }
    uint64_t told() const { return told_; }         // the count that the peer has last been told
    uint64_t packets() const { return packets_; }   // written or about to be, repeats and acks included

    static constexpr uint64_t queue_max = 65536;

private:
    enum class Memory : uint8_t { borrowed, pooled, owned };   // owned: of the heap
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
    static constexpr uint64_t batch_bytes = 512 * 1024;   // sealed at a time; the socket's own buffer keeps the wire busy meanwhile
    const StreamConfig config_;
    InlinePool& pool_;
    Aead aead_;
    uint64_t sequence_ = 0, packets_ = 0, told_ = 0;
    uint64_t base_ = 0, next_ = 0, end_ = 0;   // not acknowledged | not yet in a batch | not queued
    std::vector<Queued> ring_;
    std::unique_ptr<std::byte[]> frames_;   // 64 bytes a packet: tag of the one before it lies next to the head of the next
    std::unique_ptr<std::byte[]> cipher_;   // of a batch, for Protect::encrypt; grows with use
    uint64_t cipher_bytes_ = 0, cipher_used_ = 0;
    uint32_t count_ = 0;   // packets of the batch
    iovec vectors_[2 * batch_packets + 1];
    std::span<iovec> pending_;
    uint32_t vectors_used_ = 0;
};

/// Packets of the link itself about datagrams, which belong to no channel.
constexpr bool link_packet(PacketType type) { return type == PacketType::key || type == PacketType::probe; }

/// What a Receiver asks and tells.
struct ReceiverSink {
    virtual bool known(uint16_t channel, uint32_t view) = 0;   // such a packet may come: land() is asked about it
    virtual Landing land(const Packet& packet, uint64_t bytes, Buffer* place) = 0;
    virtual void packet(const Packet& packet) = 0;   // a payload that was leased is valid until the next space()
    virtual bool ack(uint64_t received) = 0;         // false: impossible
};

class Receiver {
public:
    explicit Receiver(const StreamConfig& config);
    /// A new connection; `rest` are bytes of it that came with the handshake.  Then call parse().
    void restart(const Key& key, std::span<const std::byte> rest);
    /// Where the next bytes shall go.  Leases end here.
    uint32_t space(iovec out[2]);
    void received(uint64_t bytes);
    /// Takes all packets that are complete.  Null, or why the stream must be broken.
    const char* parse(ReceiverSink& sink);
    /// A payload is being put in its place, which belongs to a protocol on one of these channels.
    bool placing(std::span<const uint16_t> channels) const;
    bool blocked() const { return blocked_; }   // land() said later: do not read, parse() again after the next events
    uint64_t delivered() const { return delivered_; }
    uint64_t packets() const { return packets_; }
    void forget() { delivered_ = 0; }
    static constexpr size_t rest_max = 16384;   // that restart() takes

private:
    const char* head(ReceiverSink& sink);
    void grow(size_t bytes);
    std::span<std::byte> waiting() { return {staging_.get() + begin_, end_ - begin_}; }

    const StreamConfig config_;
    const size_t capacity_;   // of staging_, at most
    Aead aead_;
    uint64_t sequence_ = 0, delivered_ = 0, packets_ = 0;
    std::unique_ptr<std::byte[]> staging_;   // room_ bytes; grows with use
    size_t room_ = 0;
    size_t begin_ = 0, end_ = 0;
    enum class At : uint8_t { head, place, lease } at_ = At::head;   // what arrives next
    bool blocked_ = false, wanted_ = true, large_ = false;           // large_: the last payload had a place of its own
    std::byte head_[packet_head_bytes];
    Packet packet_;                   // its payload.bytes is 0 until landed
    uint64_t got_ = 0, length_ = 0;   // of the payload
};

}   // namespace gradcast
