// Datagrams without sockets and clocks: DatagramSealer turns Sends into bytes, DatagramReceiver turns bytes into packets.
#pragma once
#include <memory>
#include <vector>

#include "transport/link/sink.h"
#include "transport/wire/packet.h"
#include "transport/wire/packet_keys.h"

namespace gradcast {

/// The link's own channel, for PacketType::probe.
constexpr uint16_t datagram_channel_probe = 0xff;

/// The sequence numbers seen, of the last `width` below the highest (RFC 6479: a ring of bit words, with one spare word).  O(1) amortised.
class ReplayWindow {
public:
    static constexpr uint64_t width = 65536;
    void clear();
    bool fresh(uint64_t sequence) const;   // not seen and not too old
    void mark(uint64_t sequence);          // must be fresh

private:
    static constexpr uint64_t words = width / 64 + 1;
    uint64_t highest_ = 0;   // sequences begin at 1
    std::vector<uint64_t> bits_ = std::vector<uint64_t>(words);
};

struct DatagramShape {
    uint16_t route = 0;
    uint32_t view = 0, ranks = 0, segment_bytes = 0;
    Rank self = 0;
    Protect protect = Protect::auth;
    uint64_t packets_per_key = packets_per_key_default;   // of one channel
};

class DatagramSealer {
public:
    explicit DatagramSealer(const DatagramShape& shape);
    const Key& key() const { return key_; }   // random, one a sealer; those of later epochs follow from it
    /// Writes header and tag, datagram_overhead_bytes; with `encrypt` also the payload's ciphertext to `out`.
    void seal(const Send& send, std::byte* header, std::byte* out);

private:
    const DatagramShape shape_;
    Key key_;
    PacketKeys keys_;
};

class DatagramReceiver {
public:
    explicit DatagramReceiver(const DatagramShape& shape);
    /// Before the first key().  channel <= datagram_channel_probe.
    void attach(uint16_t channel) { channels_.push_back(channel); }
    uint32_t view() const { return shape_.view; }
    bool attached(uint16_t channel) const;
    void add() { senders_.resize(++shape_.ranks); }   // one more sender
    /// Sets the sender's key.  True if it is new; the replay windows of the sender are then empty.
    bool key(Rank sender, const Key& key);
    void forget(Rank sender) { senders_[sender] = nullptr; }
    /// Takes one datagram and decrypts it in place.  Checks the tag before it calls land().
    DatagramFault take(std::span<std::byte> bytes, DatagramSink& sink);

private:
    struct Sender {
        Key key;
        PacketKeys keys;
        std::vector<ReplayWindow> windows;   // by index in channels_
    };
    DatagramShape shape_;
    std::vector<uint16_t> channels_;
    std::vector<std::unique_ptr<Sender>> senders_;
};

}   // namespace gradcast
