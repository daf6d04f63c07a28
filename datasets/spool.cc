#include "datasets/spool.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "datasets/source.h"

namespace gradcast {
namespace {

constexpr size_t pending_max = 1 << 20;

}   // namespace

Status Spool::open(const std::string& path) {
    std::filesystem::path folder(path.empty() ? "." : path);
    while (!is_folder(folder) && folder.has_relative_path()) folder = folder.parent_path();
    folder_ = folder.empty() ? "." : folder.string();
    fd_ = Fd(::open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (!fd_) {   // not every file system has unnamed files
        std::string name = folder_ + "/.gradcast-import-XXXXXX";
        fd_ = Fd(::mkostemp(name.data(), O_CLOEXEC));
        if (!fd_) return fail_sys(errno, "cannot write into the folder {}", folder_);
        ::unlink(name.c_str());
    }
    pending_.reserve(pending_max);
    return {};
}

Status Spool::open_kept(const std::string& file, uint64_t kept) {
    folder_ = file.substr(0, file.rfind('/'));
    fd_ = Fd(::open(file.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    struct stat info;
    if (!fd_ || ::fstat(fd_.get(), &info) != 0) return fail_sys(errno, "cannot write {}", file);
    if (!S_ISREG(info.st_mode) || static_cast<uint64_t>(info.st_size) < kept)
        return fail(Code::data, "{}: it has fewer than {} bytes", file, kept);
    if (::ftruncate(fd_.get(), static_cast<off_t>(kept)) != 0 || ::lseek(fd_.get(), 0, SEEK_END) < 0)
        return fail_sys(errno, "cannot write {}", file);
    written_ = kept;
    pending_.reserve(pending_max);
    return {};
}

Status Spool::sync() {
    GC_TRY(flush());
    return ::fdatasync(fd_.get()) == 0 ? Status() : fail_sys(errno, "cannot keep samples in {}", folder_);
}

Status Spool::append(const uint8_t* bytes, size_t count) {
    if (pending_.size() + count > pending_max) GC_TRY(flush());
    if (count > pending_max) return write(bytes, count);
    pending_.insert(pending_.end(), bytes, bytes + count);
    return {};
}

Status Spool::flush() {
    GC_TRY(write(pending_.data(), pending_.size()));
    pending_.clear();
    return {};
}

Status Spool::write(const uint8_t* bytes, size_t count) {
    for (size_t at = 0; at < count;) {
        const ssize_t wrote = ::write(fd_.get(), bytes + at, count - at);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0)
            return fail_sys(errno, "cannot keep samples in {} until the shards are written, {} MiB so far", folder_, written_ >> 20);
        at += static_cast<size_t>(wrote);
        written_ += static_cast<uint64_t>(wrote);
    }
    return {};
}

Status Spool::read(uint64_t at, uint8_t* bytes, size_t count) {
    GC_TRY(flush());
    for (size_t done = 0; done < count;) {
        const ssize_t got = ::pread(fd_.get(), bytes + done, count - done, static_cast<off_t>(at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return fail_sys(got < 0 ? errno : EIO, "cannot read the samples back that wait in {}", folder_);
        done += static_cast<size_t>(got);
    }
    return {};
}

}   // namespace gradcast
