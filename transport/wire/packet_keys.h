// Packet keys that are replaced: AES-GCM loses its margin with the packets under one key, so packet n is sealed under the key of epoch
// n / packets_per_key.  Both sides derive it from the first key and the epoch's number; nothing is said, and a packet that was lost or came
// out of order needs none before it.
#pragma once
#include "runtime/core/crypto.h"

namespace gradcast {

/// Packets of one channel or direction under a key.  Up to four channels of a datagram sealer share a key, so it seals at most 2^28.
constexpr uint64_t packets_per_key_default = uint64_t{1} << 26;

/// One direction.  Not thread-safe.  Deriving a key costs about 2 us and allocates, once an epoch.
class PacketKeys {
public:
    void key(const Key& key, Protect protect, uint64_t packets_per_key);
    /// As Aead's; number: of the packet, which says the epoch.
    void seal(uint64_t number, uint64_t nonce, std::span<const std::byte> head, std::span<const std::byte> payload, std::byte* out,
              std::span<std::byte> tag);
    bool open(uint64_t number, uint64_t nonce, std::span<const std::byte> head, std::span<std::byte> payload,
              std::span<const std::byte> tag);
    uint64_t epoch() const { return slots_[0].epoch; }   // of the newest packet that was sealed or opened

private:
    struct Slot {
        uint64_t epoch = none;
        Aead aead;
    };
    static constexpr uint64_t none = ~uint64_t{0};
    size_t find(uint64_t number);
    void proven(size_t slot);   // it comes first

    Key key_{};
    Protect protect_ = Protect::auth;
    uint64_t packets_per_key_ = packets_per_key_default;
    // Where datagrams of two epochs mix, or channels are in different ones, both stay; forged epochs replace the last one alone.
    std::array<Slot, 3> slots_;
};

}   // namespace gradcast
