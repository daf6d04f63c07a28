#include "runtime/core/digest.h"

#include <openssl/evp.h>

#include "runtime/core/isa_build.h"
#include "runtime/core/status.h"

namespace gradcast {

namespace portable {
extern const Digest64 digest64;
}
namespace avx2 {
extern const Digest64 digest64;
}
namespace avx512 {
extern const Digest64 digest64;
}

Digest64 digest64_of(Isa isa) { return isa_build(isa, portable::digest64, avx2::digest64, avx512::digest64); }

uint64_t digest64(std::span<const uint32_t> words, uint64_t first) {
    static const Digest64 best = digest64_of(isa_best());
    return best(words.data(), words.size(), first);
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
