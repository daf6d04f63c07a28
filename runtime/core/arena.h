// One piece of memory for everything a job needs, carved before its first step and then sealed: a later allocation asserts.
// Carving is bookkeeping only, so a plan can be made (and its bytes printed by purpose) before any memory is taken.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/memory_use.h"
#include "runtime/core/status.h"
#include "runtime/core/types.h"

namespace gradcast {

/// Bytes of this machine's memory.
uint64_t machine_memory();
/// Bytes of the first core's third-level cache, which it shares with whoever uses it; 0: not known.
uint64_t third_level_cache();

struct MemoryRoom;

class Arena {
public:
    Arena() = default;
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    ~Arena();

    /// Plans `bytes`, aligned to 64 (4096 from 64 KiB on).  *buffer is filled in by seal() and must stay where it is until then.
    void plan(const char* purpose, uint64_t bytes, Buffer* buffer);
    /// Takes all of the memory, zeroed and touched, on huge pages where they are to be had, and fills in the planned buffers: no later
    /// access faults.  Error: Code::node_memory with the budget and what is available (memory_room()); nothing is kept then.
    /// At most 16 processes that seal at once on a machine or in a control group never take more than it has: of those that do not fit
    /// together, some or all are refused.  What others take afterwards is not guarded against.
    Status seal();
    MemoryUse use(const std::string& place) const;
    /// "parameters 0.2 MiB, gradients 0.5 MiB, …, 3.1 MiB in all"
    std::string budget() const { return memory_text({use({})}); }
    Buffer whole() const { return {base_, nullptr, bytes_, 0}; }   // to be registered with a ring or a device; before seal() only as large

private:
    struct Item {
        const char* purpose;
        uint64_t offset, bytes;
        Buffer* buffer;
    };
    Status touch(uint64_t spare);
    Status too_little(const MemoryRoom& room) const;
    std::vector<Item> items_;
    std::byte* base_ = nullptr;
    uint64_t bytes_ = 0;
};

}   // namespace gradcast
