#include "transport/wire/packet_keys.h"

#include <algorithm>

namespace gradcast {

void PacketKeys::key(const Key& key, Protect protect, uint64_t packets_per_key) {
    GC_ASSERT(packets_per_key > 0);
    key_ = key;
    protect_ = protect;
    packets_per_key_ = packets_per_key;
    for (Slot& each : slots_) each.epoch = none;
    slots_[0].epoch = 0;
    slots_[0].aead.key(key_, protect_);
}

size_t PacketKeys::find(uint64_t number) {
    if (number - slots_[0].epoch * packets_per_key_ < packets_per_key_) return 0;   // without a division
    const uint64_t epoch = number / packets_per_key_;
    for (size_t i = 1; i < slots_.size(); ++i)
        if (slots_[i].epoch == epoch) return i;
    Slot& last = slots_.back();
    last.epoch = epoch;
    Key key = key_;
    if (epoch > 0) {
        std::array<uint8_t, 32> secret{};
        std::copy(key_.begin(), key_.end(), secret.begin());
        const auto derived = key_derive(secret, fmt::format("gradcast packets {}", epoch));
        std::copy_n(derived.begin(), key.size(), key.begin());
    }
    last.aead.key(key, protect_);
    return slots_.size() - 1;
}

void PacketKeys::proven(size_t slot) {
    for (; slot > 0; --slot) std::swap(slots_[slot], slots_[slot - 1]);
}

void PacketKeys::seal(uint64_t number, uint64_t nonce, std::span<const std::byte> head, std::span<const std::byte> payload, std::byte* out,
                      std::span<std::byte> tag) {
    const size_t slot = find(number);
    slots_[slot].aead.seal(nonce, head, payload, out, tag);
    if (slot > 0) proven(slot);
}

bool PacketKeys::open(uint64_t number, uint64_t nonce, std::span<const std::byte> head, std::span<std::byte> payload,
                      std::span<const std::byte> tag) {
    const size_t slot = find(number);
    const bool good = slots_[slot].aead.open(nonce, head, payload, tag);
    if (good && slot > 0) proven(slot);
    return good;
}

}   // namespace gradcast
