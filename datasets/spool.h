// Bytes that wait on disk: an import keeps the decoded samples of a data set in an unnamed file, not in memory.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/fd.h"

namespace gradcast {

/// Written once, then read.  The file has no name, so nothing of it remains however the process ends.
class Spool {
public:
    Spool() = default;
    Spool(Spool&&) = delete;
    ~Spool();
    /// The file lies in the nearest folder above `path` that exists, which is on the file system of the output.
    Status open(const std::string& path);
    /// Error: Code::node_io with the folder, as when the disk is full.
    Status append(const uint8_t* bytes, size_t count);
    /// *bytes: all that was appended, read-only, valid as long as this object.  The last call.
    Status map(const uint8_t** bytes);

private:
    Status flush();
    Status write(const uint8_t* bytes, size_t count);
    std::string folder_;
    Fd fd_;
    std::vector<uint8_t> pending_;
    uint64_t written_ = 0;
    void* mapped_ = nullptr;
};

}   // namespace gradcast
