#include "transport/stream/handshake.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>

#include "runtime/core/le.h"
#include "transport/stream/psk.h"

namespace gradcast {
namespace {

constexpr uint32_t hello_magic = 0x48526347;   // "GcRH"
constexpr size_t name_bytes_max = 64, reason_bytes_max = 512;
constexpr size_t record_bytes_max = 16384 + 256;   // RFC 8446, section 5.2

// 0 magic | 4 versions | 8 verdict | 9 protect | 10 name | 11 reserved | 12 reason | 14 RDMA | 15 rail | 16 name … | 80 the rest
// The first 16 bytes and the places of name and reason are the same in every version: unlike versions can exchange a reason.
struct HelloWire {
    Le32 magic;
    Le16 version_min, version_max;
    uint8_t verdict, protect, name_bytes, reserved;
    Le16 reason_bytes;
    uint8_t rdma_bytes, rail;   // rail: low 4 bits; the others: number of rails - 1
    char name[name_bytes_max];
    uint8_t job[16];
    Le32 view, rank, segment_bytes, reserved3;
    uint8_t uuid[16];
    Le64 incarnation, stream, peer_stream, received;
};   // then the reason, and the end of an RDMA connection
struct RdmaWire {
    Le32 queue, first, slots, slot_bytes;
    Le16 lid;
    uint8_t mtu, device;
    uint8_t gid[16];
};
static_assert(sizeof(RdmaWire) == 36);
static_assert(sizeof(HelloWire) == 160 && offsetof(HelloWire, name) == 16 && offsetof(HelloWire, uuid) == 112);

bool printable(std::string_view text, char from) {
    return std::all_of(text.begin(), text.end(), [from](char c) { return c >= from && c <= '~'; });
}

}   // namespace

void hello_write(const Hello& hello, std::vector<std::byte>* bytes) {
    HelloWire wire{};
    std::string_view name = std::string_view(hello.name).substr(0, name_bytes_max),
                     reason = std::string_view(hello.reason).substr(0, reason_bytes_max);
    wire.magic.set(hello_magic);
    wire.version_min.set(hello.version_min);
    wire.version_max.set(hello.version_max);
    wire.verdict = static_cast<uint8_t>(hello.verdict);
    wire.protect = static_cast<uint8_t>(hello.protect);
    wire.name_bytes = static_cast<uint8_t>(name.size());
    wire.reason_bytes.set(static_cast<uint16_t>(reason.size()));
    std::copy(name.begin(), name.end(), wire.name);
    std::copy(hello.job.begin(), hello.job.end(), wire.job);
    wire.view.set(hello.view);
    wire.rank.set(hello.rank);
    wire.segment_bytes.set(hello.segment_bytes);
    std::copy(hello.uuid.begin(), hello.uuid.end(), wire.uuid);
    wire.incarnation.set(hello.incarnation);
    wire.stream.set(hello.stream);
    wire.peer_stream.set(hello.peer_stream);
    wire.received.set(hello.received);
    wire.rail = static_cast<uint8_t>(hello.rail | (hello.rails - 1) << 4);
    wire.rdma_bytes = hello.rdma.queue ? sizeof(RdmaWire) : 0;
    RdmaWire end{};
    end.queue.set(hello.rdma.queue);
    end.first.set(hello.rdma.first);
    end.slots.set(hello.rdma.slots);
    end.slot_bytes.set(hello.rdma.slot_bytes);
    end.lid.set(hello.rdma.lid);
    end.mtu = hello.rdma.mtu;
    end.device = hello.rdma.device;
    std::copy(hello.rdma.gid.begin(), hello.rdma.gid.end(), end.gid);
    auto raw = std::as_bytes(std::span(&wire, 1)), text = std::as_bytes(std::span(reason));
    auto rdma = std::as_bytes(std::span(&end, 1)).first(wire.rdma_bytes);
    bytes->insert(bytes->end(), raw.begin(), raw.end());
    bytes->insert(bytes->end(), text.begin(), text.end());
    bytes->insert(bytes->end(), rdma.begin(), rdma.end());
}

const char* hello_parse(std::span<const std::byte> bytes, Hello* hello, size_t* used) {
    *used = 0;
    if (bytes.size() < sizeof(HelloWire)) return nullptr;
    HelloWire wire;
    std::memcpy(&wire, bytes.data(), sizeof wire);
    if (wire.magic.get() != hello_magic) return "it does not speak gradcast";
    if (wire.version_min.get() == 0 || wire.version_min.get() > wire.version_max.get()) return "its version range is empty";
    if (wire.verdict > static_cast<uint8_t>(Verdict::refuse)) return "unknown verdict";
    if (wire.name_bytes == 0 || wire.name_bytes > name_bytes_max) return "its name has a wrong length";
    if (wire.reason_bytes.get() > reason_bytes_max) return "its reason is too long";
    Hello result;
    result.name.assign(wire.name, wire.name_bytes);
    if (!printable(result.name, '!')) return "its name has unprintable characters";
    const size_t whole = sizeof wire + wire.reason_bytes.get() + wire.rdma_bytes;
    if (bytes.size() < whole) return nullptr;
    result.reason.assign(reinterpret_cast<const char*>(bytes.data()) + sizeof wire, wire.reason_bytes.get());
    if (!printable(result.reason, ' ')) return "its reason has unprintable characters";
    result.version_min = wire.version_min.get();
    result.version_max = wire.version_max.get();
    result.verdict = static_cast<Verdict>(wire.verdict);
    *used = whole;
    bool understood = result.version_min <= link_version_max && result.version_max >= link_version_min;
    if (understood) {
        result.rail = wire.rail & 15;
        result.rails = static_cast<uint8_t>((wire.rail >> 4) + 1);
        if (result.rail >= result.rails || result.rails > rails_max + 1) return "it has no such rail";   // 1: LinkConfig::express
        if (wire.reserved || wire.reserved3.get()) return "reserved bytes are not 0";
        if (wire.rdma_bytes && wire.rdma_bytes != sizeof(RdmaWire)) return "the end of its RDMA connection has a wrong length";
        if (wire.protect > static_cast<uint8_t>(Protect::encrypt)) return "unknown protection";
        if (wire.stream.get() == 0 && wire.verdict <= static_cast<uint8_t>(Verdict::accept)) return "it has no stream number";
        result.protect = static_cast<Protect>(wire.protect);
        std::copy(std::begin(wire.job), std::end(wire.job), result.job.begin());
        result.view = wire.view.get();
        result.rank = wire.rank.get();
        result.segment_bytes = wire.segment_bytes.get();
        std::copy(std::begin(wire.uuid), std::end(wire.uuid), result.uuid.begin());
        result.incarnation = wire.incarnation.get();
        result.stream = wire.stream.get();
        result.peer_stream = wire.peer_stream.get();
        result.received = wire.received.get();
        if (wire.rdma_bytes) {
            RdmaWire end;
            std::memcpy(&end, bytes.data() + whole - sizeof end, sizeof end);
            if (end.queue.get() == 0 || end.queue.get() >> 24 || end.first.get() >> 24 || end.device >= rails_max)
                return "the end of its RDMA connection is none";
            result.rdma = {end.queue.get(), end.first.get(), end.slots.get(), end.slot_bytes.get(), end.lid.get(), end.mtu, end.device, {}};
            std::copy(std::begin(end.gid), std::end(end.gid), result.rdma.gid.begin());
        }
    }
    *hello = std::move(result);
    return nullptr;
}

namespace {

int psk_use(SSL* ssl, const EVP_MD*, const unsigned char** id, size_t* id_bytes, SSL_SESSION** session) {
    const ClusterKey& key = static_cast<Handshake*>(SSL_get_app_data(ssl))->psk_offer();
    *id = reinterpret_cast<const unsigned char*>(key.id.data());
    *id_bytes = key.id.size();
    *session = psk_session(ssl, key.secret);
    return 1;
}
int psk_find(SSL* ssl, const unsigned char* id, size_t id_bytes, SSL_SESSION** session) {
    const ClusterKey* key = static_cast<Handshake*>(SSL_get_app_data(ssl))->psk_find({reinterpret_cast<const char*>(id), id_bytes});
    *session = key ? psk_session(ssl, key->secret) : nullptr;
    return 1;
}

}   // namespace

TlsContext::TlsContext(const std::vector<ClusterKey>& ring) : keys(ring), ssl(psk_context()) {
    GC_ASSERT(!keys.empty());
    SSL_CTX_set_psk_use_session_callback(ssl, psk_use);
    SSL_CTX_set_psk_find_session_callback(ssl, psk_find);
}
TlsContext::~TlsContext() { SSL_CTX_free(ssl); }

Handshake::Handshake(std::shared_ptr<const TlsContext> tls, Side side, const Hello& own, uint32_t key)
    : tls_(std::move(tls)), ssl_(SSL_new(tls_->ssl)), connector_(side == Side::connector), key_(key), own_(own) {
    GC_ASSERT(ssl_ && key_ < tls_->keys.size());
    SSL_set_bio(ssl_, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_app_data(ssl_, this);
    connector_ ? SSL_set_connect_state(ssl_) : psk_accept(ssl_);
    if (connector_) progress();
}
Handshake::~Handshake() { SSL_free(ssl_); }

const ClusterKey* Handshake::psk_find(std::string_view id) {
    offered_ = printable(id, ' ') ? std::string(id.substr(0, 32)) : "?";
    for (const ClusterKey& key : tls_->keys)
        if (key.id == id) {
            known_ = true;
            return &key;
        }
    return nullptr;
}

void Handshake::wrote(size_t bytes) {
    sent_ += bytes;
    GC_ASSERT(sent_ <= out_.size());
    if (sent_ == out_.size()) {
        out_.clear();
        sent_ = 0;
    }
}

// Gives OpenSSL one record at a time: bytes after the last record are not TLS, and a memory BIO would consume them.
size_t Handshake::feed(std::span<const std::byte> bytes) {
    size_t used = 0;
    while (used < bytes.size() && (state_ == State::negotiating || state_ == State::waiting)) {
        size_t want = 5;   // type, version 3.x, length
        if (record_.size() >= 5) {
            want += std::to_integer<size_t>(record_[3]) << 8 | std::to_integer<size_t>(record_[4]);
            uint8_t type = std::to_integer<uint8_t>(record_[0]);
            if (type < 20 || type > 23 || record_[1] != std::byte{3} || want > record_bytes_max + 5) {
                fail_with(fail(Code::peer_refused, "it does not speak TLS"));
                break;
            }
        }
        size_t take = std::min(want - record_.size(), bytes.size() - used);
        record_.insert(record_.end(), bytes.begin() + static_cast<ptrdiff_t>(used), bytes.begin() + static_cast<ptrdiff_t>(used + take));
        used += take;
        if (record_.size() < 5 || record_.size() < 5 + (std::to_integer<size_t>(record_[3]) << 8 | std::to_integer<size_t>(record_[4])))
            continue;
        GC_ASSERT(BIO_write(SSL_get_rbio(ssl_), record_.data(), static_cast<int>(record_.size())) == static_cast<int>(record_.size()));
        record_.clear();
        progress();
    }
    return used;
}

void Handshake::progress() {
    ERR_clear_error();
    if (!secure_) {
        int result = SSL_do_handshake(ssl_);
        if (result != 1 && SSL_get_error(ssl_, result) != SSL_ERROR_WANT_READ) return fail_tls();
        if (result == 1) {
            if (!SSL_session_reused(ssl_)) return fail_tls();   // no key: psk_context() allows no such
            secure_ = true;
            if (connector_) send_hello(own_);
        }
        collect();
    }
    while (secure_) {
        std::byte chunk[1024];
        size_t got = 0;
        int result = SSL_read_ex(ssl_, chunk, sizeof chunk, &got);
        if (result != 1) {
            if (SSL_get_error(ssl_, result) != SSL_ERROR_WANT_READ) return fail_tls();
            break;
        }
        plain_.insert(plain_.end(), chunk, chunk + got);
        if (plain_.size() > sizeof(HelloWire) + reason_bytes_max + sizeof(RdmaWire))
            return fail_with(fail(Code::peer_refused, "it says too much in its handshake"));
    }
    collect();
    Hello hello;
    size_t used = 0;
    if (const char* why = hello_parse(plain_, &hello, &used)) return fail_with(fail(Code::peer_refused, "{}", why));
    if (!used) return;
    plain_.erase(plain_.begin(), plain_.begin() + static_cast<ptrdiff_t>(used));
    hello_received(hello);
}

void Handshake::hello_received(const Hello& hello) {
    bool asks = !connector_ && !greeted_;   // only the connector's first Hello asks
    greeted_ = true;
    if (asks != (hello.verdict == Verdict::ask)) return fail_with(fail(Code::peer_refused, "it answers out of turn"));
    bool second = !connector_ && !asks;
    peer_ = hello;
    if (hello.verdict == Verdict::later || hello.verdict == Verdict::refuse)
        return fail_with(fail(Code::peer_refused, "'{}' refuses us: {}", hello.name, hello.reason));
    if (hello.version_min > link_version_max || hello.version_max < link_version_min)
        return refuse(Verdict::refuse,
                      fmt::format("peer '{}' speaks versions {}..{}, '{}' speaks {}..{}: all nodes need one version of gradcast",
                                  hello.name, hello.version_min, hello.version_max, own_.name, link_version_min, link_version_max));
    state_ = second ? State::done : State::asked;
}

void Handshake::accept(const Hello& own) {
    GC_ASSERT(state_ == State::asked);
    own_ = own;
    own_.verdict = Verdict::accept;
    send_hello(own_);
    state_ = connector_ ? State::done : State::waiting;
}

void Handshake::refuse(Verdict verdict, const std::string& reason) {
    own_.verdict = verdict;
    own_.reason = reason;
    send_hello(own_);
    peer_.verdict = verdict;
    fail_with(fail(Code::peer_refused, "{}", reason));
}

void Handshake::send_hello(const Hello& hello) {
    std::vector<std::byte> bytes;
    hello_write(hello, &bytes);
    GC_ASSERT(SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size())) == static_cast<int>(bytes.size()));
    collect();
}

void Handshake::collect() {
    BIO* bio = SSL_get_wbio(ssl_);
    size_t waiting = BIO_ctrl_pending(bio), at = out_.size();
    out_.resize(at + waiting);
    if (waiting) GC_ASSERT(BIO_read(bio, out_.data() + at, static_cast<int>(waiting)) == static_cast<int>(waiting));
}

void Handshake::fail_tls() {
    unsigned long error = ERR_peek_last_error();
    int reason = ERR_GET_REASON(error);
    ERR_clear_error();
    collect();   // the alert for the other side
    const std::string& first = tls_->keys[key_].id;
    keys_differ_ = true;
    if (connector_ && reason >= SSL_AD_REASON_OFFSET)
        return fail_with(
            fail(Code::peer_refused, "the cluster keys differ: it does not take our key '{}': give all nodes one key file", first));
    if (!connector_ && reason == SSL_R_BINDER_DOES_NOT_VERIFY)
        return fail_with(
            fail(Code::peer_refused, "the cluster keys differ: its key '{}' is not ours: give all nodes one key file", offered_));
    if (!connector_ && !offered_.empty() && !known_)
        return fail_with(fail(Code::peer_refused, "the cluster keys differ: we have no key '{}': give all nodes one key file", offered_));
    keys_differ_ = false;
    const char* text = ERR_reason_error_string(error);
    fail_with(fail(Code::peer_refused, "it does not speak TLS 1.3 with a cluster key ({})", text ? text : "no reason given"));
}

void Handshake::fail_with(Status status) {
    state_ = State::failed;
    status_ = status;
}

void Handshake::keys(Key* to_acceptor, Key* to_connector) const {
    const Hello &connector = connector_ ? own_ : peer_, &acceptor = connector_ ? peer_ : own_;
    std::array<uint8_t, 32> context;
    std::copy(own_.job.begin(), own_.job.end(), context.begin());
    std::memcpy(context.data() + 16, &connector.incarnation, 8);
    std::memcpy(context.data() + 24, &acceptor.incarnation, 8);
    std::array<uint8_t, 32> secret;
    static constexpr std::string_view label = "EXPORTER-gradcast-packets";
    GC_ASSERT(state_ == State::done && SSL_export_keying_material(ssl_, secret.data(), secret.size(), label.data(), label.size(),
                                                                  context.data(), context.size(), 1) == 1);
    std::copy_n(secret.begin(), 16, to_acceptor->begin());
    std::copy_n(secret.begin() + 16, 16, to_connector->begin());
}

}   // namespace gradcast
