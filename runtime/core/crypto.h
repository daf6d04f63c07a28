// Keys, random bytes and the tag on every packet (AES-128-GCM by OpenSSL).  The handshake that makes keys is in transport/link.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/status.h"

namespace gradcast {

constexpr uint32_t tag_bytes = 16;   // the most
using Key = std::array<uint8_t, 16>;

/// Fills `bytes` from the system's generator.
void random_bytes(std::span<uint8_t> bytes);

/// "3f…": two hex digits a byte.
std::string hex(std::span<const uint8_t> bytes);

/// What is done to a packet: `auth` only tags it, `encrypt` also hides its payload, `none` sends a zero tag (and checks for it).
enum class Protect : uint8_t { none, auth, encrypt };

/// One direction of one stream under one key.  Not thread-safe.  Cost: about 290 ns + 0.3 ns a byte for `auth`.
class Aead {
public:
    Aead();
    ~Aead();
    Aead(Aead&&) noexcept;
    Aead& operator=(Aead&&) noexcept;
    void key(const Key& key, Protect protect);
    /// Tags (head, payload) under nonce = sequence, never used twice with one key.  With `encrypt` the payload is replaced by its cipher
    /// text, written to `out` (which may be the payload itself); otherwise `out` is not touched and may be null.  The tag takes 12 to
    /// 16 bytes.
    void seal(uint64_t sequence, std::span<const std::byte> head, std::span<const std::byte> payload, std::byte* out,
              std::span<std::byte> tag);
    /// False when the tag is wrong; the payload (deciphered in place with `encrypt`) must then not be used.
    bool open(uint64_t sequence, std::span<const std::byte> head, std::span<std::byte> payload, std::span<const std::byte> tag);

private:
    struct Contexts;
    std::unique_ptr<Contexts> contexts_;
    Protect protect_ = Protect::auth;
};

/// The cluster's key: a file of one line "<id> <64 hex digits>" a key, newest first, mode 0600.  Any key of the ring is accepted, the first
/// is offered.
struct ClusterKey {
    std::string id;
    std::array<uint8_t, 32> secret;
};
Status cluster_keys_read(const std::string& path, std::vector<ClusterKey>* keys);
/// Writes a new random key file, 0600; fails if it exists.
Status cluster_key_create(const std::string& path);

}   // namespace gradcast
