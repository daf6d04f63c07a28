// One allocation for all memory of a job: planned by purpose, then taken by seal() before the first step.  plan() after seal() asserts.
// Planning is bookkeeping only: the budget is known before any memory is taken.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/memory_use.h"
#include "runtime/core/status.h"
#include "runtime/core/types.h"

namespace gradcast {

/// This machine's memory in bytes.
uint64_t machine_memory();
/// Bytes of the first core's third-level cache, which cores share; 0: not known.
uint64_t third_level_cache();

struct MemoryRoom;

class Arena {
public:
    Arena() = default;
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    ~Arena();

    /// Plans `bytes`, aligned to 64 (4096 from 64 KiB on).  seal() writes *buffer, which must not move until then.
    void plan(const char* purpose, uint64_t bytes, Buffer* buffer);
    /// Takes all memory, zeroed and touched, on huge pages if available, and writes the planned buffers: no later access faults.
    /// Error: Code::node_memory with the budget and the available memory (memory_room()); all memory is given back.
    /// Up to 16 processes that seal at the same time do not take more than the machine or control group has: some or all of those that do
    /// not fit together are refused.  Memory that others take afterwards is not considered.
    Status seal();
    MemoryUse use(const std::string& place) const;
    /// "parameters 0.2 MiB, gradients 0.5 MiB, …, 3.1 MiB in all"
    std::string budget() const { return memory_text({use({})}); }
    Buffer whole() const { return {base_, nullptr, bytes_}; }   // for registration; before seal() only its size

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
