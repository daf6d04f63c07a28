#include "runtime/core/crypto.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/core/fd.h"

namespace gradcast {

void random_bytes(std::span<uint8_t> bytes) { GC_ASSERT(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1); }

std::string hex(std::span<const uint8_t> bytes) {
    std::string text;
    for (uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
    return text;
}

struct Aead::Contexts {
    EVP_CIPHER_CTX* seal = EVP_CIPHER_CTX_new();
    EVP_CIPHER_CTX* open = EVP_CIPHER_CTX_new();
    ~Contexts() { EVP_CIPHER_CTX_free(seal), EVP_CIPHER_CTX_free(open); }
};

Aead::Aead() : contexts_(std::make_unique<Contexts>()) { GC_ASSERT(contexts_->seal && contexts_->open); }
Aead::~Aead() = default;
Aead::Aead(Aead&&) noexcept = default;
Aead& Aead::operator=(Aead&&) noexcept = default;

void Aead::key(const Key& key, Protect protect) {
    protect_ = protect;
    GC_ASSERT(EVP_EncryptInit_ex(contexts_->seal, EVP_aes_128_gcm(), nullptr, key.data(), nullptr) == 1);
    GC_ASSERT(EVP_DecryptInit_ex(contexts_->open, EVP_aes_128_gcm(), nullptr, key.data(), nullptr) == 1);
}

namespace {

std::array<uint8_t, 12> nonce_of(uint64_t sequence) {
    std::array<uint8_t, 12> nonce{};
    std::memcpy(nonce.data() + 4, &sequence, 8);
    return nonce;
}
const unsigned char* bytes_of(const std::byte* bytes) { return reinterpret_cast<const unsigned char*>(bytes); }
unsigned char* bytes_of(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

}   // namespace

void Aead::seal(uint64_t sequence, std::span<const std::byte> head, std::span<const std::byte> payload, std::byte* out,
                std::span<std::byte> tag) {
    if (protect_ == Protect::none) {
        std::fill(tag.begin(), tag.end(), std::byte{0});
        return;
    }
    EVP_CIPHER_CTX* context = contexts_->seal;
    auto nonce = nonce_of(sequence);
    int done = 0;
    GC_ASSERT(EVP_EncryptInit_ex(context, nullptr, nullptr, nullptr, nonce.data()) == 1);
    GC_ASSERT(EVP_EncryptUpdate(context, nullptr, &done, bytes_of(head.data()), static_cast<int>(head.size())) == 1);
    if (!payload.empty())
        GC_ASSERT(EVP_EncryptUpdate(context, protect_ == Protect::encrypt ? bytes_of(out) : nullptr, &done, bytes_of(payload.data()),
                                    static_cast<int>(payload.size())) == 1);
    unsigned char none[16];
    GC_ASSERT(EVP_EncryptFinal_ex(context, none, &done) == 1);
    GC_ASSERT(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_GET_TAG, static_cast<int>(tag.size()), tag.data()) == 1);
}

bool Aead::open(uint64_t sequence, std::span<const std::byte> head, std::span<std::byte> payload, std::span<const std::byte> tag) {
    if (protect_ == Protect::none) return std::all_of(tag.begin(), tag.end(), [](std::byte b) { return b == std::byte{0}; });
    EVP_CIPHER_CTX* context = contexts_->open;
    auto nonce = nonce_of(sequence);
    int done = 0;
    std::byte expected[tag_bytes];
    std::copy(tag.begin(), tag.end(), expected);
    GC_ASSERT(EVP_DecryptInit_ex(context, nullptr, nullptr, nullptr, nonce.data()) == 1);
    GC_ASSERT(EVP_DecryptUpdate(context, nullptr, &done, bytes_of(head.data()), static_cast<int>(head.size())) == 1);
    if (!payload.empty())
        GC_ASSERT(EVP_DecryptUpdate(context, protect_ == Protect::encrypt ? bytes_of(payload.data()) : nullptr, &done,
                                    bytes_of(payload.data()), static_cast<int>(payload.size())) == 1);
    GC_ASSERT(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_SET_TAG, static_cast<int>(tag.size()), expected) == 1);
    unsigned char none[16];
    return EVP_DecryptFinal_ex(context, none, &done) == 1;
}

namespace {

bool word_good(std::string_view word) {
    return !word.empty() && word.size() <= 32 && std::all_of(word.begin(), word.end(), [](char c) { return c > ' ' && c <= '~'; });
}

bool secret_parse(std::string_view digits, std::array<uint8_t, 32>* secret) {
    constexpr std::string_view all = "0123456789abcdef";
    if (digits.size() != 64 || digits.find_first_not_of(all) != digits.npos) return false;
    for (size_t i = 0; i < 32; ++i) (*secret)[i] = static_cast<uint8_t>(all.find(digits[2 * i]) << 4 | all.find(digits[2 * i + 1]));
    return true;
}

}   // namespace

Status key_lines_read(const std::string& path, const char* what, const char* form, size_t words_min, size_t words_max,
                      std::vector<KeyLine>* lines) {
    struct stat info;
    if (::stat(path.c_str(), &info) != 0) return fail_sys(errno, "cannot read the {} {}", what, path);
    if (S_ISREG(info.st_mode) && info.st_mode & 077)
        return fail(Code::invalid, "the {} {} can be read by others: chmod 600 {}, or move it where its file system keeps modes", what,
                    path, path);
    std::string text;
    GC_TRY(file_read(path, &text));
    std::vector<KeyLine> result;
    for (size_t at = 0, number = 1; at < text.size(); ++number) {
        const size_t end = std::min(text.find('\n', at), text.size());
        std::string_view row(text.data() + at, end - at);
        at = end + 1;
        if (row.empty()) continue;
        KeyLine line{{}, {}, number};
        for (size_t space; (space = row.find(' ')) != row.npos && line.words.size() <= words_max; row.remove_prefix(space + 1))
            line.words.emplace_back(row.substr(0, space));
        if (line.words.size() < words_min || line.words.size() > words_max || !secret_parse(row, &line.secret) ||
            !std::all_of(line.words.begin(), line.words.end(), word_good))
            return fail(Code::invalid, "{}:{}: a key is '{}'", path, number, form);
        result.push_back(std::move(line));
    }
    if (result.empty()) return fail(Code::invalid, "the {} {} is empty: write '{}' into it", what, path, form);
    *lines = std::move(result);
    return {};
}

std::array<uint8_t, 32> key_derive(const std::array<uint8_t, 32>& secret, std::string_view purpose) {
    std::array<uint8_t, 32> derived;
    GC_ASSERT(::HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), reinterpret_cast<const uint8_t*>(purpose.data()),
                     purpose.size(), derived.data(), nullptr) != nullptr);
    return derived;
}

Status cluster_keys_read(const std::string& path, std::vector<ClusterKey>* keys) {
    std::vector<KeyLine> lines;
    GC_TRY(key_lines_read(path, "cluster key", "<id> <64 hex digits>", 1, 1, &lines));
    keys->clear();
    for (KeyLine& line : lines) keys->push_back({std::move(line.words[0]), line.secret});
    return {};
}

Status key_create(const std::string& path, const std::string& words) {
    Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!fd && errno == EEXIST) return fail(Code::conflict, "the key file {} exists already and stays as it is: name another file", path);
    if (!fd) return fail_sys(errno, "cannot create the key file {}", path);
    struct stat info;
    if (::fstat(fd.get(), &info) == 0 && info.st_mode & 077) {
        ::unlink(path.c_str());
        return fail(
            Code::unsupported,
            "the file system of {} keeps no modes (vfat, CIFS, a disk of Windows in WSL), so others may read a key there: name a file on "
            "another one, or mount it with umask=077 (dmask, fmask); --from-slurm, --from-mpi and --hosts also take GRADCAST_KEY",
            path);
    }
    std::array<uint8_t, 32> secret;
    random_bytes(secret);
    const std::string line = words + " " + hex(secret) + "\n";
    if (::write(fd.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) return fail_sys(errno, "cannot write {}", path);
    return {};
}

Status cluster_key_create(const std::string& path) { return key_create(path, "k1"); }

}   // namespace gradcast
