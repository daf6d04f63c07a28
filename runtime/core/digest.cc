#include "runtime/core/digest.h"

#include <openssl/evp.h>

#include "runtime/core/status.h"

namespace gradcast {

uint64_t digest64(std::span<const uint32_t> words, uint64_t first) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < words.size(); ++i) sum += (splitmix64(first + i) | 1) * words[i];
    return sum;
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
    GC_ASSERT(context_ && EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_), EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }
void Sha256::add(std::span<const std::byte> bytes) {
    GC_ASSERT(EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), bytes.data(), bytes.size()) == 1);
}
std::string Sha256::hex() {
    unsigned char hash[32];
    GC_ASSERT(EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_), hash, nullptr) == 1);
    std::string text;
    for (unsigned char byte : hash) text += fmt::format("{:02x}", byte);
    return text;
}
std::string sha256_hex(std::span<const std::byte> bytes) {
    Sha256 sha;
    sha.add(bytes);
    return sha.hex();
}

}   // namespace gradcast
