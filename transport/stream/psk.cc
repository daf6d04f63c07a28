#include "transport/stream/psk.h"

#include <openssl/ssl.h>

#include "runtime/core/status.h"

namespace gradcast {

ssl_ctx_st* psk_context() {
    SSL_CTX* context = SSL_CTX_new(TLS_method());
    GC_ASSERT(context && SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
              SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") == 1);
    SSL_CTX_set_num_tickets(context, 0);   // no TLS data after what the sides say
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, [](int, X509_STORE_CTX*) { return 0; });   // of certificates; a key needs none
    return context;
}

void psk_accept(ssl_st* ssl) {
    SSL_set_verify(ssl, SSL_VERIFY_NONE,
                   nullptr);   // else OpenSSL wants sessions to have a context's name; there is no certificate to ask for
    SSL_set_accept_state(ssl);
}

ssl_session_st* psk_session(ssl_st* ssl, const std::array<uint8_t, 32>& secret) {
    static constexpr unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};
    SSL_SESSION* session = SSL_SESSION_new();
    GC_ASSERT(session && SSL_SESSION_set1_master_key(session, secret.data(), secret.size()) == 1 &&
              SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, aes_128_gcm_sha256)) == 1 &&
              SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1);
    return session;
}

}   // namespace gradcast
