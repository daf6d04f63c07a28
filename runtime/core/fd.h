// An owned file descriptor, and file helpers.
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
        if (this != &other) {
            close();
            fd_ = std::exchange(other.fd_, -1);
        }
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

/// Opens a regular file for reading; *bytes is its size.  Refuses pipes, sockets and devices without waiting for them.
/// Errors name the path; Code::invalid: not a regular file.
Status file_open(const std::string& path, Fd* fd, uint64_t* bytes = nullptr);
/// Reads a whole file of at most 64 MiB.  Errors name the file.
Status file_read(const std::string& path, std::string* text);
/// Writes beside the target, then renames: readers see the old or the new file, also after a power failure.  mode as for
/// open(2).
Status file_write(const std::string& path, std::string_view text, unsigned mode = 0644);
/// Writes behind what a file has, or nothing.  It comes to the disk later, or by file_sync().  Errors: there is no such file; it cannot be
/// written.
Status file_append(const std::string& path, std::string_view text);
bool file_sync(const std::string& path);
/// Renames a finished file; file and name are on the disk at return.
Status file_rename(const std::string& from, const std::string& to);
/// mkdir -p.
Status make_directories(const std::string& path);
/// The names in a folder, sorted; none where it cannot be read.
std::vector<std::string> folder_names(const std::string& path);
/// True if the path is a wildcard pattern: it has one of * ? [.
bool file_is_pattern(std::string_view path);
/// Files that match a shell pattern, sorted; if a file has the pattern as its name, that one alone.  Bounded: 2 s, 100,000 entries.
/// literal: so many bytes at its front, up to a slash, are the name of a folder, wildcards and backslashes included.
/// Errors: Code::data (no match), Code::invalid (pattern too wide or too long).
Status file_glob(const std::string& pattern, std::vector<std::string>* paths, size_t literal = 0);

}   // namespace gradcast
