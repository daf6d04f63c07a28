// An owned file descriptor, and the few file helpers that everybody needs.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/core/status.h"

namespace gradcast {

class Fd {
public:
    Fd() = default;
    explicit Fd(int fd) : fd_(fd) {}
    Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Fd& operator=(Fd&& other) noexcept {
        if (this != &other) close(), fd_ = std::exchange(other.fd_, -1);
        return *this;
    }
    ~Fd() { close(); }
    int get() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }
    int release() { return std::exchange(fd_, -1); }
    void close();

private:
    int fd_ = -1;
};

/// Opens a regular file to read, and says how many bytes it has.  A pipe, a socket or a device is refused, never waited for.
/// Error: names the path; Code::invalid where it is something else than a file.
Status file_open(const std::string& path, Fd* fd, uint64_t* bytes = nullptr);
/// A whole small file as text.  Error: names the file and why.
Status file_read(const std::string& path, std::string* text);
/// Writes beside the target and renames, so a reader sees the old file or the new one, never half of it, also after a power failure.
/// mode as for open(2).
Status file_write(const std::string& path, std::string_view text, unsigned mode = 0644);
/// Gives a finished file its name: both are on the disk when it returns.
Status file_rename(const std::string& from, const std::string& to);
/// mkdir -p.
Status make_directories(const std::string& path);
/// What a wildcard pattern is: one of * ? [ is in it.
bool file_is_pattern(std::string_view path);
/// Files that match a shell pattern, sorted; the one that has this very name, if there is one.  Bounded in time and in what it looks at.
/// Error: Code::data when there is none, Code::invalid for a pattern too wide or too long.
Status file_glob(const std::string& pattern, std::vector<std::string>* paths);

}   // namespace gradcast
