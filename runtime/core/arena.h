// One piece of memory for everything a job needs, carved before its first step and then sealed: a later allocation asserts.
// Carving is bookkeeping only, so a plan can be made (and its bytes printed by purpose) before any memory is taken.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/status.h"
#include "runtime/core/types.h"

namespace gradcast {

/// Bytes of this machine's memory.
uint64_t machine_memory();
/// Bytes of the first core's third-level cache, which it shares with whoever uses it; 0: not known.
uint64_t third_level_cache();

class Arena {
public:
    Arena() = default;
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    ~Arena();

    /// Plans `bytes`, aligned to 64 (4096 from 64 KiB on).  *buffer is filled in by seal() and must stay where it is until then.
    void plan(const char* purpose, uint64_t bytes, Buffer* buffer);
    /// Takes the memory, zeroed, on huge pages where they are to be had, and fills in the planned buffers.  Error: Code::node_memory with
    /// the budget.
    Status seal();
    /// "parameters 0.2 MiB, gradients 0.5 MiB, …: 3.1 MiB in all"
    std::string budget() const;
    Buffer whole() const { return {base_, nullptr, bytes_, 0}; }   // to be registered with a ring or a device

private:
    struct Item {
        const char* purpose;
        uint64_t offset, bytes;
        Buffer* buffer;
    };
    std::vector<Item> items_;
    std::byte* base_ = nullptr;
    uint64_t bytes_ = 0;
};

}   // namespace gradcast
