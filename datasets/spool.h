// Bytes that wait on disk: an import keeps the decoded samples of a data set in an unnamed file, not in memory.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/fd.h"

namespace gradcast {

/// Written, then read, a piece at a time, so that its pages are no memory of this process.  The file of open() has no name: nothing of it
/// remains, however the process ends.
class Spool {
public:
    Spool() = default;
    Spool(Spool&&) = delete;
    /// The file lies in the nearest folder above `path` that exists, which is on the file system of the output.
    Status open(const std::string& path);
    /// A file with a name in place of that one, which stays until somebody removes it.  Keeps its first bytes; the others go.  Error: it
    /// has fewer; it cannot be written.
    Status open_kept(const std::string& file, uint64_t kept);
    uint64_t bytes() const { return written_ + pending_.size(); }
    /// All that was appended is on the disk at return.
    Status sync();
    /// Error: Code::node_io with the folder, as when the disk is full.
    Status append(const uint8_t* bytes, size_t count);
    /// Copies what was appended from byte `at` on.
    Status read(uint64_t at, uint8_t* bytes, size_t count);

private:
    Status flush();
    Status write(const uint8_t* bytes, size_t count);
    std::string folder_;
    Fd fd_;
    std::vector<uint8_t> pending_;
    uint64_t written_ = 0;
};

}   // namespace gradcast
