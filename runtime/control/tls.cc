#include "runtime/control/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>

#include "transport/stream/psk.h"

namespace gradcast {
namespace {

// A ClientHello has about 300 bytes and a name of at most 40; what a stranger sends is kept until the handshake has ended.
constexpr size_t greeting_bytes_max = 2048;

int show(SSL* ssl, const EVP_MD*, const unsigned char** id, size_t* id_bytes, SSL_SESSION** session) {
    const ControlKey& key = static_cast<TlsEnd*>(SSL_get_app_data(ssl))->offer();
    *id = reinterpret_cast<const unsigned char*>(key.identity.data());
    *id_bytes = key.identity.size();
    *session = psk_session(ssl, key.secret);
    return 1;
}
int find(SSL* ssl, const unsigned char* id, size_t id_bytes, SSL_SESSION** session) {
    const ControlKey* key = static_cast<TlsEnd*>(SSL_get_app_data(ssl))->offered({reinterpret_cast<const char*>(id), id_bytes});
    *session = key ? psk_session(ssl, key->secret) : nullptr;
    return 1;
}

}   // namespace

TlsKeys::TlsKeys(std::vector<ControlKey> ring) : keys(std::move(ring)), context(psk_context()) {
    GC_ASSERT(!keys.empty());
    SSL_CTX_set_psk_use_session_callback(context, show);
    SSL_CTX_set_psk_find_session_callback(context, find);
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
}
TlsKeys::~TlsKeys() { SSL_CTX_free(context); }

TlsEnd::TlsEnd(std::shared_ptr<const TlsKeys> keys, Side side)
    : keys_(std::move(keys)), ssl_(SSL_new(keys_->context)), connector_(side == Side::connector) {
    GC_ASSERT(ssl_);
    SSL_set_bio(ssl_, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_app_data(ssl_, this);
    connector_ ? SSL_set_connect_state(ssl_) : psk_accept(ssl_);
    if (connector_) (void)receive({});
}
TlsEnd::~TlsEnd() { SSL_free(ssl_); }

const ControlKey* TlsEnd::offered(std::string_view identity) {
    const bool printable = std::all_of(identity.begin(), identity.end(), [](char c) { return c >= ' ' && c <= '~'; });
    identity_ = printable ? std::string(identity.substr(0, 48)) : "?";
    key_ = nullptr;
    for (const ControlKey& each : keys_->keys)
        if (each.identity == identity) key_ = &each;
    return key_;
}

bool TlsEnd::receive(std::span<const char> bytes) {
    if (!why_.empty()) return false;
    if (!open_ && received_ > greeting_bytes_max && !connector_) {
        why_ = "it says too much in its handshake";
        return false;
    }
    received_ += bytes.size();   // counts from now on: behind the handshake a request may follow
    if (!bytes.empty())
        GC_ASSERT(BIO_write(SSL_get_rbio(ssl_), bytes.data(), static_cast<int>(bytes.size())) == static_cast<int>(bytes.size()));
    if (open_) return true;
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_);
    if (result != 1) return !failed(result);
    if (!SSL_session_reused(ssl_)) {   // psk_context() allows no such
        why_ = "it has shown no key";
        return false;
    }
    return open_ = true;
}

bool TlsEnd::read(std::span<char> to, size_t* bytes) {
    *bytes = 0;
    if (!why_.empty()) return false;
    if (!open_) return true;
    ERR_clear_error();
    const int result = SSL_read_ex(ssl_, to.data(), to.size(), bytes);
    return result == 1 || !failed(result);
}

size_t TlsEnd::write(std::span<const char> bytes) {
    const size_t piece = std::min<size_t>(bytes.size(), SSL3_RT_MAX_PLAIN_LENGTH);
    if (!open_ || !why_.empty() || piece == 0) return 0;
    ERR_clear_error();
    const int result = SSL_write(ssl_, bytes.data(), static_cast<int>(piece));
    if (result <= 0) return (void)failed(result), 0;
    return static_cast<size_t>(result);
}

std::span<const char> TlsEnd::output() const {
    char* at = nullptr;
    const long bytes = BIO_get_mem_data(SSL_get_wbio(ssl_), &at);
    return {at, static_cast<size_t>(bytes)};
}
void TlsEnd::wrote(size_t bytes) {
    BIO* out = SSL_get_wbio(ssl_);
    for (char drop[4096]; bytes > 0;) {
        const int got = BIO_read(out, drop, static_cast<int>(std::min(bytes, sizeof drop)));
        GC_ASSERT(got > 0);
        bytes -= static_cast<size_t>(got);
    }
}

/// False: OpenSSL waits for more bytes.
bool TlsEnd::failed(int result) {
    const int error = SSL_get_error(ssl_, result);
    if (error == SSL_ERROR_WANT_READ) return false;
    if (error == SSL_ERROR_ZERO_RETURN) {
        why_ = "it has ended";
        return true;
    }
    const unsigned long code = ERR_peek_last_error();
    const int reason = ERR_GET_REASON(code);
    const char* text = ERR_reason_error_string(code);
    ERR_clear_error();
    keys_differ_ = true;
    if (connector_ && !open_ && reason >= SSL_AD_REASON_OFFSET) why_ = fmt::format("it does not take the key {}", offer().name);
    else if (!connector_ && reason == SSL_R_BINDER_DOES_NOT_VERIFY) why_ = fmt::format("its key {} is not ours", identity_);
    else if (!connector_ && !identity_.empty() && !key_) why_ = fmt::format("there is no key {}", identity_);
    else {
        keys_differ_ = false;
        why_ = fmt::format("it does not speak TLS 1.3 with a key ({})", text ? text : "no reason given");
    }
    return true;
}

}   // namespace gradcast
