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

/// A whole small file as text.  Error: names the file and why.
Status file_read(const std::string& path, std::string* text);
/// Writes beside the target and renames, so a reader sees the old file or the new one, never half of it.  mode as for open(2).
Status file_write(const std::string& path, std::string_view text, unsigned mode = 0644);
/// mkdir -p.
Status make_directories(const std::string& path);
/// Files that match a shell pattern, sorted; the one that has this very name, if there is one.  Error (Code::data) when there is none.
Status file_glob(const std::string& pattern, std::vector<std::string>* paths);

}   // namespace gradcast
