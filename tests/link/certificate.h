// A TLS server with a certificate of its own and no key of ours, for tests of who is believed.
#pragma once
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <memory>

#include "runtime/core/status.h"

namespace gradcast {

inline std::shared_ptr<SSL_CTX> certificate_server() {
    std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), &SSL_CTX_free);
    const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), &EVP_PKEY_free);
    const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), &X509_free);
    X509_set_version(certificate.get(), 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -60);
    X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
    X509_NAME* name = X509_get_subject_name(certificate.get());
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("node"), -1, -1, 0);
    X509_set_issuer_name(certificate.get(), name);
    X509_set_pubkey(certificate.get(), key.get());
    GC_ASSERT(X509_sign(certificate.get(), key.get(), EVP_sha256()) > 0);
    GC_ASSERT(SSL_CTX_use_certificate(context.get(), certificate.get()) == 1 && SSL_CTX_use_PrivateKey(context.get(), key.get()) == 1);
    SSL_CTX_set_num_tickets(context.get(), 0);
    return context;
}

}   // namespace gradcast
