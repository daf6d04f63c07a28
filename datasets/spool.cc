#include "datasets/spool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

namespace gradcast {
namespace {

constexpr size_t pending_max = 1 << 20;

bool is_folder(const std::string& path) {
    struct stat info;
    return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

}   // namespace

Spool::~Spool() {
    if (mapped_) ::munmap(mapped_, written_);
}

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

Status Spool::map(const uint8_t** bytes) {
    GC_TRY(flush());
    if (written_ > 0) {
        void* mapped = ::mmap(nullptr, written_, PROT_READ, MAP_SHARED, fd_.get(), 0);
        if (mapped == MAP_FAILED) return fail_sys(errno, "cannot map {} MiB of samples in {}", written_ >> 20, folder_);
        mapped_ = mapped;
        ::madvise(mapped_, written_, MADV_SEQUENTIAL);
    }
    *bytes = static_cast<const uint8_t*>(mapped_);
    return {};
}

}   // namespace gradcast
