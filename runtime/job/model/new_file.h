// Files of models, which are written piece by piece.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <span>
#include <string>

#include "runtime/core/fd.h"

namespace gradcast {

/// A file that gets its name when it is whole.  Until then it is PATH.part, which goes where it is not closed.  Errors name the path.
class NewFile {
public:
    explicit NewFile(const std::string& path) : path_(path), part_(path + ".part") {}
    NewFile(const NewFile&) = delete;
    NewFile& operator=(const NewFile&) = delete;
    ~NewFile() {
        if (fd_) ::unlink(part_.c_str());
    }
    Status open() {
        fd_ = Fd(::open(part_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
        return fd_ ? Status{} : fail_sys(errno, "cannot create {}", part_);
    }
    Status add(std::span<const std::byte> bytes) {
        while (!bytes.empty()) {
            const ssize_t wrote = ::write(fd_.get(), bytes.data(), bytes.size());
            if (wrote < 0 && errno == EINTR) continue;
            if (wrote < 0) return fail_sys(errno, "cannot write {}", path_);
            bytes = bytes.subspan(static_cast<size_t>(wrote));
        }
        return {};
    }
    Status close() {
        const Status status = file_rename(part_, path_);
        if (status.ok()) fd_.close();
        return status;
    }

private:
    const std::string path_, part_;
    Fd fd_;
};

}   // namespace gradcast
