// Memory that a process shares with the daemon: a memfd, sealed so that neither can shrink it under the other.
#pragma once
#include <cstdint>

#include "runtime/core/fd.h"
#include "runtime/core/status.h"
#include "runtime/core/types.h"

namespace gradcast {

class SharedMemory {
public:
    enum class Others : uint8_t { read, write };

    SharedMemory() = default;
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;
    ~SharedMemory();
    /// Makes and maps `bytes`, which are 0.  others: what mappings of the descriptor may do that are made later.  name: for /proc.
    /// Error: no memory; the kernel has no such seal.
    Status open(const char* name, uint64_t bytes, Others others);
    int fd() const { return fd_.get(); }
    Buffer all() const { return {base_, nullptr, bytes_}; }

private:
    Fd fd_;
    std::byte* base_ = nullptr;
    uint64_t bytes_ = 0;
};

}   // namespace gradcast
