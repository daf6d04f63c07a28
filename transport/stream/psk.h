// TLS 1.3 with external pre-shared keys (RFC 8446, 2.2 and 4.2.11) and (EC)DHE, without certificates: what both users, the handshake of
// links and the control plane over TCP, have in common.
#pragma once
#include <array>
#include <cstdint>

struct ssl_ctx_st;
struct ssl_st;
struct ssl_session_st;

namespace gradcast {

/// For SSL_CTX_free().  TLS 1.3 alone, TLS_AES_128_GCM_SHA256, no tickets, no early data.  A side that shows a certificate is refused: a
/// server may answer with one in place of a key that it does not have.
ssl_ctx_st* psk_context();
/// Makes it the accepting side.
void psk_accept(ssl_st* ssl);
/// Makes the session that a PSK callback returns for `secret`.
ssl_session_st* psk_session(ssl_st* ssl, const std::array<uint8_t, 32>& secret);

}   // namespace gradcast
