// Keys, random bytes and packet tags (AES-128-GCM of OpenSSL).  The handshake that makes packet keys is in transport/stream.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/status.h"

namespace gradcast {

constexpr uint32_t tag_bytes = 16;   // the longest tag
using Key = std::array<uint8_t, 16>;

/// Fills `bytes` from the system's random generator.
void random_bytes(std::span<uint8_t> bytes);

/// Two hex digits a byte: "3f…".
std::string hex(std::span<const uint8_t> bytes);

/// Protection of a packet: `auth` tags it, `encrypt` also encrypts the payload, `none` sends and expects a zero tag.
enum class Protect : uint8_t { none, auth, encrypt };

/// One direction of one stream under one key.  Not thread-safe.  O(bytes).
class Aead {
public:
    Aead();
    ~Aead();
    Aead(Aead&&) noexcept;
    Aead& operator=(Aead&&) noexcept;
    void key(const Key& key, Protect protect);
    /// Tags (head, payload) with the sequence as nonce: use a sequence once under a key.  With `encrypt` writes the ciphertext to `out`
    /// (may be the payload); else `out` is not written and may be null.  tag: 12 to 16 bytes.
    void seal(uint64_t sequence, std::span<const std::byte> head, std::span<const std::byte> payload, std::byte* out,
              std::span<std::byte> tag);
    /// Checks the tag; with `encrypt` decrypts the payload in place.  False: wrong tag, do not use the payload.
    bool open(uint64_t sequence, std::span<const std::byte> head, std::span<std::byte> payload, std::span<const std::byte> tag);

private:
    struct Contexts;
    std::unique_ptr<Contexts> contexts_;
    Protect protect_ = Protect::auth;
};

/// A line of a file of keys: words, each of at most 32 printable characters, then 64 hex digits.
struct KeyLine {
    std::vector<std::string> words;
    std::array<uint8_t, 32> secret;
    size_t number;   // from 1
};
/// Reads "<word>… <64 hex digits>" a line, at least one; empty lines are skipped.  what: of messages, "cluster key"; form: of a line.
/// Error: also where others may read the file.
Status key_lines_read(const std::string& path, const char* what, const char* form, size_t words_min, size_t words_max,
                      std::vector<KeyLine>* lines);
/// HMAC-SHA-256: a key of its own for each purpose of a secret.
std::array<uint8_t, 32> key_derive(const std::array<uint8_t, 32>& secret, std::string_view purpose);

/// A key of the cluster's key ring.  File: one line "<id> <64 hex digits>" a key, newest first, mode 0600.  The first key is offered, any
/// key is accepted.
struct ClusterKey {
    std::string id;
    std::array<uint8_t, 32> secret;
};
Status cluster_keys_read(const std::string& path, std::vector<ClusterKey>* keys);
/// Writes a new key file, mode 0600, of one line: `words` and a random key.  Fails if the file exists.
Status key_create(const std::string& path, const std::string& words);
Status cluster_key_create(const std::string& path);

}   // namespace gradcast
