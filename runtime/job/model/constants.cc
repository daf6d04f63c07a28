#include "runtime/job/model/constants.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "runtime/core/le.h"

namespace gradcast {
namespace {

constexpr size_t piece_bytes = 1 << 20;

/// All before the data: with the same net always the same bytes.
std::string header_of(const std::vector<Constant>& constants) {
    nlohmann::ordered_json header = nlohmann::ordered_json::object();
    uint64_t end = 0;
    for (const Constant& each : constants) {
        const uint64_t begin = end;
        end += each.bytes();
        header[each.name] = {{"dtype", each.dtype}, {"shape", each.shape}, {"data_offsets", {begin, end}}};
    }
    std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    text.append((8 - text.size() % 8) % 8, ' ');   // the data begin at a multiple of 8
    Le64 length;
    length.set(text.size());
    return std::string(reinterpret_cast<const char*>(length.bytes), sizeof length) + text;
}

Status write_at(int fd, const std::string& path, std::span<const std::byte> bytes, uint64_t* place) {
    while (!bytes.empty()) {
        const ssize_t wrote = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(*place));
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) return fail_sys(errno, "cannot write {}", path);
        *place += static_cast<uint64_t>(wrote);
        bytes = bytes.subspan(static_cast<size_t>(wrote));
    }
    return {};
}

}   // namespace

std::vector<Constant> constants_of(const NetSpec& net) {
    std::vector<Constant> all;
    for (const LayerSpec& each : net.layers)
        if (each.kind == constant_kind.name) all.push_back(constant_of(each));
    return all;
}

// ---- writing -------------------------------------------------------------------------------------------------------------------

ConstantsWriter::~ConstantsWriter() {
    if (fd_) ::unlink(path_.c_str());
}

Status ConstantsWriter::open(const std::string& folder, const NetSpec& net) {
    constants_ = constants_of(net);
    path_ = fmt::format("{}/{}.part", folder, constants_file);
    const std::string header = header_of(constants_);
    uint64_t bytes = header.size();
    for (const Constant& each : constants_) bytes += each.bytes();
    fd_ = Fd(::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!fd_) return fail_sys(errno, "cannot write {}", path_);
    if (const int error = ::posix_fallocate(fd_.get(), 0, static_cast<off_t>(bytes)); error != 0)
        return fail_sys(error, "cannot keep {} bytes of frozen parameters and buffers in {}", bytes, folder);
    GC_TRY(write_at(fd_.get(), path_, std::as_bytes(std::span(header)), &place_));
    sha_.emplace();
    return next();
}

/// Ends the constants whose bytes have all come.
Status ConstantsWriter::next() {
    for (; at_ < constants_.size() && has_ == constants_[at_].bytes(); ++at_) {
        if (sha_->hex() != constants_[at_].sha256)
            return fail(Code::invalid, "constant {}: its bytes are not those of its SHA-256", constants_[at_].name);
        sha_.emplace();
        has_ = 0;
    }
    return {};
}

Status ConstantsWriter::add(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        if (at_ == constants_.size()) return fail(Code::invalid, "{} bytes of constants too many", bytes.size());
        const auto own = bytes.first(std::min<uint64_t>(bytes.size(), constants_[at_].bytes() - has_));
        sha_->add(own);
        GC_TRY(write_at(fd_.get(), path_, own, &place_));
        has_ += own.size();
        bytes = bytes.subspan(own.size());
        GC_TRY(next());
    }
    return {};
}

Status ConstantsWriter::keep() {
    if (at_ < constants_.size()) return fail(Code::invalid, "constant {}: some of its bytes are missing", constants_[at_].name);
    const std::string path = path_.substr(0, path_.size() - std::string_view(".part").size());
    fd_.close();
    const Status status = file_rename(path_, path);
    if (!status.ok()) ::unlink(path_.c_str());
    return status;
}

// ---- reading -------------------------------------------------------------------------------------------------------------------

Status ConstantsReader::open(const std::string& folder, const NetSpec& net) {
    path_ = fmt::format("{}/{}", folder, constants_file);
    constants_ = constants_of(net);
    const std::string header = header_of(constants_);
    uint64_t bytes = 0, wanted = header.size();
    for (const Constant& each : constants_) {
        places_.push_back(wanted);
        wanted += each.bytes();
    }
    GC_TRY(file_open(path_, &fd_, &bytes));
    std::string has(header.size(), '\0');
    if (bytes != wanted || ::pread(fd_.get(), has.data(), has.size(), 0) != static_cast<ssize_t>(has.size()) || has != header)
        return fail(Code::data, "{}: it has not the frozen parameters and buffers of this model", path_);
    return {};
}

Status ConstantsReader::read(size_t number, const std::function<Status(std::span<const std::byte>)>& take) {
    const Constant& constant = constants_[number];
    std::vector<std::byte> piece(std::min<uint64_t>(piece_bytes, constant.bytes()));
    Sha256 sha;
    for (uint64_t at = 0; at < constant.bytes();) {
        const size_t count = std::min<uint64_t>(piece.size(), constant.bytes() - at);
        const ssize_t got = ::pread(fd_.get(), piece.data(), count, static_cast<off_t>(places_[number] + at));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_sys(errno, "cannot read {}", path_);
        if (got == 0) return fail(Code::data, "{}: it has become shorter while it was read", path_);
        const std::span<const std::byte> bytes(piece.data(), static_cast<size_t>(got));
        sha.add(bytes);
        GC_TRY(take(bytes));
        at += bytes.size();
    }
    if (sha.hex() == constant.sha256) return {};
    return fail(Code::data, "{}: tensor {} is not that of the model: its SHA-256 differs", path_, constant.name);
}

}   // namespace gradcast
