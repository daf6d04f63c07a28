#include "datasets/source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/core/memory_room.h"

namespace gradcast {
namespace {

constexpr size_t input_bytes = 256 << 10;
constexpr uint64_t xz_memory_max = uint64_t{1} << 30;   // of the decoder; xz -9 needs 65 MiB
constexpr uint64_t member_bytes_max = uint64_t{1} << 30;
constexpr char xz_magic[] =
    "\xfd"
    "7zXZ";   // and a zero byte
constexpr const char* endings[] = {"", ".gz", ".xz"};

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

// ---- tar (POSIX ustar; GNU and pax extension headers are skipped: base names are short) ---------------------------------------------

constexpr size_t tar_block = 512;
struct TarHeader {
    char name[100], mode[8], uid[8], gid[8], size[12], time[12], checksum[8], type, rest[355];
};
static_assert(sizeof(TarHeader) == tar_block);

bool octal(const char* text, size_t digits, uint64_t* value) {
    size_t at = 0;
    while (at < digits && text[at] == ' ') ++at;
    for (*value = 0; at < digits && text[at] >= '0' && text[at] <= '7'; ++at) *value = *value * 8 + static_cast<uint64_t>(text[at] - '0');
    return at == digits || text[at] == ' ' || text[at] == '\0';
}

/// Reads the members whose base name is in `names`.  Reads to the end, so that the checksum is verified.
Status tar_read(const std::string& path, const std::vector<std::string>& names, std::map<std::string, std::vector<uint8_t>>* members) {
    Source source;
    GC_TRY(source.open(path));
    std::vector<uint8_t> passed(1 << 16);
    for (uint64_t entry = 0;; ++entry) {
        TarHeader header;
        if (!source.get(reinterpret_cast<uint8_t*>(&header), sizeof header)) return source.ended("the list of its files");
        auto* bytes = reinterpret_cast<const uint8_t*>(&header);
        if (std::all_of(bytes, bytes + sizeof header, [](uint8_t byte) { return byte == 0; })) break;
        uint64_t sum = 0, its_sum, size;
        for (size_t i = 0; i < sizeof header; ++i)
            sum += i >= offsetof(TarHeader, checksum) && i < offsetof(TarHeader, type) ? ' ' : bytes[i];
        if (!octal(header.checksum, sizeof header.checksum, &its_sum) || sum != its_sum)
            return entry == 0 ? fail(Code::data, "{}: not a tar archive, nor one packed with gz or xz", path)
                              : fail(Code::data, "{}: damaged: the header of its file {} has a wrong checksum", path, entry);
        std::string name(header.name, strnlen(header.name, sizeof header.name)), base = name.substr(name.rfind('/') + 1);
        bool file = header.type == '0' || header.type == '\0', wanted = std::find(names.begin(), names.end(), base) != names.end();
        if (!octal(header.size, sizeof header.size, &size) || (file && wanted && size > member_bytes_max))
            return fail(Code::data, "{}: {} has no size, or one above {} MiB", path, name, member_bytes_max >> 20);
        std::vector<uint8_t> member;
        if (file && wanted) {
            GC_TRY(memory_room_for(size, fmt::format("{}: {}: unpack the archive, or else it", path, name)));
            member.reserve(size);
        }
        for (uint64_t at = 0, all = (size + tar_block - 1) / tar_block * tar_block; at < all;) {
            uint64_t piece = std::min<uint64_t>(passed.size(), all - at);
            if (!source.get(passed.data(), piece)) return source.ended(name);
            if (file && wanted) member.insert(member.end(), passed.data(), passed.data() + std::min(piece, size - std::min(size, at)));
            at += piece;
        }
        if (file && wanted) (*members)[base] = std::move(member);
    }
    while (source.get(passed.data(), tar_block)) {
    }   // zeros to the end of the record
    return source.end("its end");
}

}   // namespace

bool is_folder(const std::string& path) {
    struct stat info;
    return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

std::string source_in(const std::string& folder, std::string_view name) {
    struct stat info;
    for (const char* end : {"", ".gz", ".xz"})
        if (std::string path = fmt::format("{}/{}{}", folder, name, end); ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode))
            return path;
    return {};
}

Source::~Source() { lzma_end(&lzma_); }

Status Source::open(const std::string& path) {
    path_ = path;
    Fd fd;
    GC_TRY(file_open(path, &fd));
    char magic[sizeof xz_magic];
    if (::pread(fd.get(), magic, sizeof magic, 0) == sizeof magic && std::memcmp(magic, xz_magic, sizeof magic) == 0) {
        if (lzma_stream_decoder(&lzma_, xz_memory_max, LZMA_CONCATENATED) != LZMA_OK) return fail(Code::data, "{}: no memory for xz", path);
        xz_ = std::move(fd);
        input_.resize(input_bytes);
        return {};
    }
    gz_.reset(gzdopen(fd.get(), "rb"));   // passes a file that is not gz through
    if (!gz_) return fail_sys(errno ? errno : ENOMEM, "cannot open {}", path);
    (void)fd.release();
    gzbuffer(gz_.get(), input_bytes);
    return {};
}

size_t Source::read_xz(uint8_t* to, size_t bytes) {
    lzma_.next_out = to;
    lzma_.avail_out = bytes;
    bool ended = false;
    while (lzma_.avail_out > 0 && lzma_state_ == LZMA_OK && sys_ == 0) {
        if (lzma_.avail_in == 0 && !ended) {
            ssize_t got = ::read(xz_.get(), input_.data(), input_.size());
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) sys_ = errno;
            ended = got == 0;
            lzma_.next_in = input_.data();
            lzma_.avail_in = got > 0 ? static_cast<size_t>(got) : 0;
        }
        if (sys_ == 0) lzma_state_ = lzma_code(&lzma_, ended ? LZMA_FINISH : LZMA_RUN);
    }
    return bytes - lzma_.avail_out;
}

size_t Source::read(uint8_t* to, size_t bytes) {
    if (xz_) return read_xz(to, bytes);
    if (gz_) {
        int got = gzread(gz_.get(), to, static_cast<unsigned>(bytes));
        if (got < 0) sys_ = errno;
        return got < 0 ? 0 : static_cast<size_t>(got);
    }
    size_t piece = std::min(bytes, memory_.size() - at_);
    std::copy_n(memory_.data() + at_, piece, to);
    at_ += piece;
    return piece;
}

Status Source::ended(std::string_view within) const {
    std::string_view reason;
    if (gz_) {
        int error = Z_OK;
        const char* text = gzerror(gz_.get(), &error);
        if (error == Z_ERRNO) return fail_sys(sys_, "cannot read {}", path_);
        if (error != Z_OK && error != Z_BUF_ERROR) reason = text;
    } else if (sys_ != 0) return fail_sys(sys_, "cannot read {}", path_);
    else if (lzma_state_ == LZMA_MEMLIMIT_ERROR) reason = "xz needs more than 1 GiB of memory";
    else if (lzma_state_ == LZMA_OPTIONS_ERROR) reason = "xz does not support its options";
    else if (lzma_state_ != LZMA_OK && lzma_state_ != LZMA_STREAM_END && lzma_state_ != LZMA_BUF_ERROR) reason = "xz cannot unpack it";
    if (!reason.empty()) return fail(Code::data, "{}: damaged: {}", path_, reason);
    return fail(Code::data, "{}: truncated: it ends within {}", path_, within);
}

Status Source::end(std::string_view after) {
    uint8_t more;
    if (read(&more, 1) == 1) return fail(Code::data, "{}: longer than {}", path_, after);
    int error = Z_OK;
    if (gz_) gzerror(gz_.get(), &error);
    if (error != Z_OK || sys_ != 0 || (xz_ && lzma_state_ != LZMA_STREAM_END)) return ended("its checksum");
    return {};
}

Status SourceFolder::open(const std::string& from, const char* archive, const std::vector<std::string>& names) {
    from_ = from;
    struct stat info;
    if (::stat(from.c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
        if (!archive) return fail(Code::data, "{}: not a folder: --from is the folder of the original files", from);
        archive_ = from;
    }
    auto in_folder = [&](const std::string& name) {
        return std::any_of(std::begin(endings), std::end(endings), [&](const char* end) { return exists(from + "/" + name + end); });
    };
    if (archive_.empty() && archive && !in_folder(names[0]))
        for (const char* end : endings)
            if (std::string path = from + "/" + archive + end; archive_.empty() && exists(path)) archive_ = path;
    return archive_.empty() ? Status() : tar_read(archive_, names, &members_);
}

Status SourceFolder::find(const std::string& name, std::string_view hint, Source* source) {
    if (!archive_.empty()) {
        auto member = members_.find(name);
        if (member == members_.end()) return fail(Code::data, "{}: has no file {}{}", archive_, name, hint);
        source->hold(archive_ + ": " + name, std::move(member->second));
        members_.erase(member);
        return {};
    }
    for (const char* end : {".gz", ".xz", ""})
        if (std::string path = from_ + "/" + name + end; exists(path)) return source->open(path);
    return fail(Code::data, "{}/{}[.gz, .xz] is missing{}", from_, name, hint);
}

}   // namespace gradcast
